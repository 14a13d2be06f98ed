//! Inode numbers and times that a remount needs: saved when a view is closed, loaded once, then removed. After a crash the file is
//! missing: then numbers are derived from dentries and times from the tree.

use std::path::Path;

use amalgam_engine::{Name, Time};

use crate::dentry::Dentry;
use crate::encoding::{Reader, Writer, replace_file, seal, unseal};
use crate::error::Result;
use crate::inodes::{ExtraTimes, InodeTable, SavedInodes};

const FILE_NAME: &str = "inodes";
const MAGIC: &[u8; 8] = b"AMINOD1\n";

/// Saves the numbers and times of a table that cannot be derived from the tree.
pub(crate) fn save(directory: &Path, inodes: &InodeTable) -> Result<()> {
    let SavedInodes { times, numbers } = inodes.to_saved();
    if times.is_empty() && numbers.is_empty() {
        return Ok(());
    }
    let mut bytes = MAGIC.to_vec();
    let mut out = Writer(&mut bytes);
    out.u64(times.len() as u64);
    for (ino, ExtraTimes { ctime, atime }) in times {
        out.u64(ino);
        for time in [ctime, atime] {
            out.u8(u8::from(time.is_some())).u64(time.unwrap_or_default().0 as u64);
        }
    }
    for (ino, Dentry { parent, name }) in numbers {
        out.u64(ino).u64(parent).bytes(name.as_bytes());
    }
    replace_file(directory, FILE_NAME, &seal(bytes))
}

/// Loads the saved numbers and times into a new table, and removes the file.
pub(crate) fn load(directory: &Path, inodes: &mut InodeTable) {
    let path = directory.join(FILE_NAME);
    let Ok(bytes) = std::fs::read(&path) else { return };
    std::fs::remove_file(&path).ok();
    // A damaged file is ignored from the damage on.
    decode(&bytes, inodes);
}

fn decode(bytes: &[u8], inodes: &mut InodeTable) -> Option<()> {
    let mut from = Reader(unseal(bytes)?.strip_prefix(MAGIC)?);
    for _ in 0..from.u64()? {
        let ino = from.u64()?;
        let mut time = || -> Option<Option<Time>> {
            let is_set = from.u8()? == 1;
            let time = Time(from.u64()? as i64);
            Some(is_set.then_some(time))
        };
        let times = ExtraTimes { ctime: time()?, atime: time()? };
        inodes.set_times(ino, times);
    }
    while !from.0.is_empty() {
        let (ino, parent) = (from.u64()?, from.u64()?);
        let name = Name::new(from.bytes()?).ok()?;
        inodes.reserve_number(ino, Dentry { parent, name });
    }
    Some(())
}
