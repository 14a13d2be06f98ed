//! Metadata keys of imported images.

/// Name of the format in errors.
pub(super) const FORMAT: &str = "image";

/// The configuration of the image that a snapshot is the top of.
pub(super) const KEY_CONFIG: &str = "oci.config";
/// The digest of a layer's plain archive.
pub(super) const KEY_DIFF_ID: &str = "oci.diff_id";
