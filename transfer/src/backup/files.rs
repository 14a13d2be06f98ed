//! Files of a backup, written atomically.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use crate::error::{Error, Result};

/// A backup holds the contents of private files, so only its owner can read it.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

pub(super) fn failed(action: &str, path: &Path, source: io::Error) -> Error {
    Error::host(format!("{action} {}", path.display()), source)
}

/// Creates the directory of a backup, and its parents, if they do not exist.
pub(super) fn create_directory(path: &Path) -> Result<()> {
    let created = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path);
    created.map_err(|source| failed("make", path, source))
}

/// Opens a lock file, which it creates if it does not exist. An existing file is not written to.
pub(super) fn open_lock(path: &Path) -> io::Result<File> {
    match File::options().write(true).create_new(true).mode(FILE_MODE).open(path) {
        Err(source) if source.kind() == io::ErrorKind::AlreadyExists => File::open(path),
        opened => opened,
    }
}

/// Writes a file atomically: under a temporary name, synced, then renamed.
pub(super) fn write_new<T>(directory: &Path, name: &str, write: impl FnOnce(&mut File) -> Result<T>) -> Result<T> {
    let (path, new) = (directory.join(name), directory.join(format!("{name}.new")));
    // The leftover of an interrupted backup, or a symlink that another user planted: neither is written to.
    match fs::remove_file(&new) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(failed("replace", &new, source)),
        _ => {}
    }
    let created = File::options().write(true).create_new(true).mode(FILE_MODE).open(&new);
    let mut file = created.map_err(|source| failed("write", &new, source))?;
    let written = write(&mut file)?;
    file.sync_all().map_err(|source| failed("write", &new, source))?;
    fs::rename(&new, &path).map_err(|source| failed("write", &path, source))?;
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|source| failed("write", directory, source))?;
    Ok(written)
}
