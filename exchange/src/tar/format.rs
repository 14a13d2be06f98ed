//! Constants of the tar format.

/// Name of the format in errors.
pub(super) const FORMAT: &str = "tar archive";
/// Archives consist of blocks of this size.
pub(super) const BLOCK_BYTES: usize = 512;
