//! Imports upper directories of OverlayFS and directories with AUFS-style `.wh.` files, and exports differences as such directories.

mod attributes;
mod export;
mod import;

pub use export::{OverlayExport, Whiteouts, export_overlay};
pub use import::{OverlayImport, import_overlay};
