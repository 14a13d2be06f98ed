//! Signatures, compression methods and field ids of the zip format.

/// Name of the format in errors.
pub(super) const FORMAT: &str = "zip archive";

pub(super) const LOCAL: u32 = 0x0403_4b50;
pub(super) const CENTRAL: u32 = 0x0201_4b50;
pub(super) const END: u32 = 0x0605_4b50;
pub(super) const END_64: u32 = 0x0606_4b50;
pub(super) const LOCATOR_64: u32 = 0x0706_4b50;
pub(super) const DESCRIPTOR: u32 = 0x0807_4b50;

pub(super) const STORED: u16 = 0;
pub(super) const DEFLATED: u16 = 8;
pub(super) const ZSTD: u16 = 93;
/// Extra fields: zip64 sizes, the time in seconds.
pub(super) const EXTRA_64: u16 = 0x0001;
pub(super) const EXTRA_TIME: u16 = 0x5455;
/// The host whose attributes hold a Unix mode.
pub(super) const HOST_UNIX: u8 = 3;
