//! Imports and exports zip archives: stored, deflated and zstd members, zip64, Unix modes and symlinks.
//!
//! The central directory at the end decides what an archive holds; each member's own header must agree with it, and no two members
//! may share bytes. So an archive that shows different files to different programs is refused, and so is one of overlapping bombs.

mod directory;
mod export;
mod format;
mod import;

pub use export::{ZipExport, export_zip};
pub use import::{ZipImport, import_zip};
