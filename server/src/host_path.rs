//! Paths of the host in requests: from the wire, made canonical, and as empty directories.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use amalgam_proto::Reason;

use crate::error::{Error, Result};

/// A path from the wire.
pub(crate) fn host_path(bytes: &[u8]) -> Result<PathBuf> {
    let path = Path::new(OsStr::from_bytes(bytes));
    if !path.is_absolute() || bytes.contains(&0) {
        return Err(Error::new(Reason::Invalid, format!("`{}` is not an absolute path", path.display())));
    }
    Ok(path.to_owned())
}

/// Where a path really is. What does not exist yet is placed in its nearest parent that does.
pub(crate) fn canonical(path: &Path) -> Result<PathBuf> {
    match path.canonicalize() {
        Ok(path) => Ok(path),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => Ok(canonical(parent)?.join(name)),
            _ => Err(Error::io("find the directory")(source)),
        },
        Err(source) => Err(Error::io("find the directory")(source)),
    }
}

/// Makes sure that a directory is there and empty; true when it was made now.
pub(crate) fn make_empty(path: &Path) -> Result<bool> {
    match std::fs::read_dir(path) {
        Ok(mut names) => match names.next() {
            None => Ok(false),
            Some(_) => {
                let message = format!("{} is not empty; name a new directory", path.display());
                Err(Error::new(Reason::AlreadyExists, message))
            }
        },
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            std::fs::create_dir_all(path).map_err(Error::io(format!("make {}", path.display())))?;
            Ok(true)
        }
        Err(source) if source.kind() == std::io::ErrorKind::NotADirectory => {
            let message = format!("{} is a file; name a new directory", path.display());
            Err(Error::new(Reason::AlreadyExists, message))
        }
        Err(source) => Err(Error::io(format!("read {}", path.display()))(source)),
    }
}
