//! zip archives in and out: stored, deflated and zstd members, zip64, Unix modes and symlinks.
//!
//! The central directory at the end decides what an archive holds; each member's own header must agree with it, and no two members
//! may share bytes. So an archive that shows different files to different programs is refused, and so is one of overlapping bombs.

mod directory;
mod export;
mod import;

pub use export::{ZipExport, export_zip};
pub use import::{ZipImport, import_zip};

pub(crate) const FORMAT: &str = "zip archive";

pub(crate) const LOCAL: u32 = 0x0403_4b50;
pub(crate) const CENTRAL: u32 = 0x0201_4b50;
pub(crate) const END: u32 = 0x0605_4b50;
pub(crate) const END_64: u32 = 0x0606_4b50;
pub(crate) const LOCATOR_64: u32 = 0x0706_4b50;
pub(crate) const DESCRIPTOR: u32 = 0x0807_4b50;

pub(crate) const STORED: u16 = 0;
pub(crate) const DEFLATED: u16 = 8;
pub(crate) const ZSTD: u16 = 93;
/// Extra fields: zip64 sizes, the time in seconds.
pub(crate) const EXTRA_64: u16 = 0x0001;
pub(crate) const EXTRA_TIME: u16 = 0x5455;
/// The host whose attributes hold a Unix mode.
pub(crate) const HOST_UNIX: u8 = 3;
