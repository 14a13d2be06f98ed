//! A name in a directory, and the inode number that is derived from it.

use amalgam_engine::Name;

use crate::attributes::Ino;

/// Bit of inode numbers that come from a counter. Numbers that are hashes do not have it.
pub(crate) const COUNTER_BIT: u64 = 1 << 62;

/// A directory entry: a parent directory and a name in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Dentry {
    pub(crate) parent: Ino,
    pub(crate) name: Name,
}

impl Dentry {
    /// Returns the inode number that is derived from the entry: FNV-1a with a final mix, equal on every machine and in every version.
    pub(crate) fn hashed_ino(&self) -> Ino {
        let mut state = 0xcbf2_9ce4_8422_2325_u64;
        for byte in self.parent.to_le_bytes().iter().chain(self.name.as_bytes()) {
            state = (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        state ^= state >> 32;
        state = state.wrapping_mul(0xd6e8_feb8_6659_fd93);
        state ^= state >> 32;
        state & (COUNTER_BIT - 1)
    }
}
