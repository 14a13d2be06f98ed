//! A file's bytes as chunks and holes, and back.
//!
//! What a content is follows from the bytes alone. Files up to 64 KiB are one chunk. In larger ones every run of zeros of
//! 64 KiB or more is a hole, and what lies between holes is cut by FastCDC, into chunks of about 8 KiB up to 64 MiB of file
//! and about 32 KiB above. A change is re-cut from the segment before it until the cuts meet the old ones again.

mod cut;
mod read;
mod write;

pub use read::{data_at, hole_at, read, read_at};
pub use write::write_content;
pub(crate) use write::{Base, update_content};

use crate::error::Result;

/// Bytes that can be read at any place.
pub trait ByteSource: Sync {
    /// How many there are.
    fn length(&self) -> u64;

    /// Fills the buffer from this offset; what is asked for lies within the length.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// How many bytes from this offset on are known to be zeros without reading them. 0 when nothing is known.
    fn known_zeros(&self, _offset: u64) -> Result<u64> {
        Ok(0)
    }

    /// All of them, where they lie in memory side by side.
    fn whole(&self) -> Option<&[u8]> {
        None
    }
}

impl ByteSource for &[u8] {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset).expect("an offset in memory");
        buffer.copy_from_slice(&self[start..start + buffer.len()]);
        Ok(())
    }

    fn whole(&self) -> Option<&[u8]> {
        Some(self)
    }
}
