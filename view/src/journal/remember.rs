//! What a remount needs to show the same numbers and times: written when a view is closed, read once, and gone. Lost with a
//! crash: then numbers come from places and times from the tree, and whoever compared them looks again.

use std::path::Path;

use amalgam_engine::{Name, Time};

use super::Journal;
use super::record::{Reader, Writer};
use crate::error::Result;
use crate::inodes::{Inodes, Kept, Place, Remembered};

const NAME: &str = "inodes";
const MAGIC: &[u8; 8] = b"AMINOD1\n";

impl Journal {
    /// Writes down what the table has beyond the tree.
    pub(crate) fn remember(directory: &Path, inodes: &Inodes) -> Result<()> {
        let Remembered { kept, moved } = inodes.remembered();
        if kept.is_empty() && moved.is_empty() {
            return Ok(());
        }
        let mut bytes = MAGIC.to_vec();
        let mut out = Writer(&mut bytes);
        out.u64(kept.len() as u64);
        for (ino, Kept { ctime, atime }) in kept {
            out.u64(ino);
            for time in [ctime, atime] {
                out.u8(u8::from(time.is_some())).u64(time.unwrap_or_default().0 as u64);
            }
        }
        for (ino, Place { parent, name }) in moved {
            out.u64(ino).u64(parent).bytes(name.as_bytes());
        }
        super::replace_file(directory, NAME, &super::seal(bytes))
    }

    /// Reads it into a new table, and removes it.
    pub(crate) fn recall(directory: &Path, inodes: &mut Inodes) {
        let path = directory.join(NAME);
        let Ok(bytes) = std::fs::read(&path) else { return };
        std::fs::remove_file(&path).ok();
        // Damaged or foreign: as if it were not there.
        read(&bytes, inodes);
    }
}

fn read(bytes: &[u8], inodes: &mut Inodes) -> Option<()> {
    let mut from = Reader(super::unsealed(bytes)?.strip_prefix(MAGIC)?);
    for _ in 0..from.u64()? {
        let ino = from.u64()?;
        let mut time = || -> Option<Option<Time>> {
            let there = from.u8()? == 1;
            let time = Time(from.u64()? as i64);
            Some(there.then_some(time))
        };
        let kept = Kept { ctime: time()?, atime: time()? };
        inodes.keep(ino, kept);
    }
    while !from.0.is_empty() {
        let (ino, parent) = (from.u64()?, from.u64()?);
        let name = Name::new(from.bytes()?).ok()?;
        inodes.recall(ino, Place { parent, name });
    }
    Some(())
}
