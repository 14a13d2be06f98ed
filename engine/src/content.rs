//! Converts the bytes of a file into chunks and holes, and back.
//!
//! A [`Content`](crate::object::Content) depends only on the bytes of the file. A file of up to 64 KiB is one chunk. In a larger
//! file every run of zeros of 64 KiB or more is a hole, and FastCDC cuts the data between the holes into chunks: of about 8 KiB
//! in files of up to 64 MiB, of about 32 KiB in larger ones. After a change, cutting starts at the segment before the change and
//! stops where the new cuts coincide with the old ones.

mod cut;
mod read;
mod write;

pub use read::{data_at, hole_at, read, read_at};
pub use write::write_content;
pub(crate) use write::{Base, update_content};

use crate::error::Result;

/// Bytes with random access.
pub trait ByteSource: Sync {
    /// Returns the number of bytes.
    fn length(&self) -> u64;

    /// Fills the buffer from this offset. The requested range must lie within the length.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// Returns how many bytes from this offset on are known to be zero without reading them; 0 if unknown.
    fn known_zeros(&self, _offset: u64) -> Result<u64> {
        Ok(0)
    }

    /// Returns all bytes if they are contiguous in memory.
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
