//! The names of things on their way to their places, and what a checkout that died left of them.

use std::os::fd::AsFd;

use amalgam_engine::{Name, TreePath};
use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::host::{HostDir, c_name, is_absent};
use crate::stamp::Stamp;

const PREFIX: &[u8] = b".amalgam-tmp.";
const DIGITS: usize = 16;

/// A name for something on its way.
pub(super) fn temporary_name(number: u64) -> Name {
    let name = format!(".amalgam-tmp.{number:016x}");
    Name::new(name.as_bytes()).expect("letters, dots and digits")
}

/// Whether a name is one of those.
fn is_temporary(name: &[u8]) -> bool {
    let digits = name.strip_prefix(PREFIX);
    digits.is_some_and(|digits| {
        digits.len() == DIGITS && digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Removes what a checkout that died left in these directories, and says how many names that were. Nothing else may be checked
/// out there at the time. A directory under such a name goes only when it is empty.
pub fn clean_leftovers(directory: &HostDir, directories: &[TreePath]) -> Result<u64> {
    let mut removed = 0;
    for path in directories {
        let handle = match directory.directory(path) {
            Ok(handle) => handle,
            Err(error) if is_absent(&error) => continue,
            Err(error) => return Err(Error::host("open", path, error)),
        };
        let failed = |source: Errno| Error::host("clean up in", path, source);
        let mut left = Vec::new();
        for item in Dir::read_from(&handle).map_err(failed)? {
            let item = item.map_err(failed)?;
            let name = item.file_name().to_bytes();
            if is_temporary(name) {
                left.push(Name::new(name).expect("the kernel's names are names"));
            }
        }
        for name in left {
            let Ok(stamp) = Stamp::at(handle.as_fd(), &name) else { continue };
            let is_directory = stamp.kind() == FileType::Directory;
            let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            match rustix::fs::unlinkat(&handle, c_name(&name), flags) {
                Ok(()) => removed += 1,
                Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
    Ok(removed)
}
