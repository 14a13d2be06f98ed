//! OCI images in and out: image layouts as directories or tar archives, and the archives of `docker save`.
//!
//! Manifests, configurations and layers are believed after their digests were compared. Each layer is a snapshot on the one below it.

mod archive;
mod digest;
mod export;
mod import;
mod layer;
mod manifest;

pub use export::{OciExport, OciExported, OciTarget, export_oci};
pub use import::{OciImport, import_oci};
pub use layer::export_layer;

pub(crate) const FORMAT: &str = "image";

/// The configuration of the image that a snapshot is the top of.
pub(crate) const KEY_CONFIG: &str = "oci.config";
/// The digest of a layer's plain archive.
pub(crate) const KEY_DIFF_ID: &str = "oci.diff_id";
