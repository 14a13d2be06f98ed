//! Files of a backup, written atomically.

use std::fs::{self, File};
use std::path::Path;

use crate::error::{Error, Result};

pub(super) fn failed(action: &str, path: &Path, source: std::io::Error) -> Error {
    Error::host(format!("{action} {}", path.display()), source)
}

/// Writes a file atomically: under a temporary name, synced, then renamed.
pub(super) fn write_new<T>(directory: &Path, name: &str, write: impl FnOnce(&mut File) -> Result<T>) -> Result<T> {
    let (path, new) = (directory.join(name), directory.join(format!("{name}.new")));
    let mut file = File::create(&new).map_err(|source| failed("write", &new, source))?;
    let written = write(&mut file)?;
    file.sync_all().map_err(|source| failed("write", &new, source))?;
    fs::rename(&new, &path).map_err(|source| failed("write", &path, source))?;
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|source| failed("write", directory, source))?;
    Ok(written)
}
