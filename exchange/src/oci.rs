//! Imports and exports OCI images: image layouts as directories or tar archives, and the archives of `docker save`.
//!
//! Manifests, configurations and layers are believed after their digests were compared. Each layer is a snapshot on the one below it.

mod archive;
mod digest;
mod export;
mod import;
mod keys;
mod layer;
mod manifest;

pub use export::{OciExport, OciExportReport, OciTarget, export_oci};
pub use import::{OciImport, import_oci};
pub use layer::export_layer;
