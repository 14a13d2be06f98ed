//! Advisory locks on files, among the threads and processes that use a cache directory.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockMode {
    Shared,
    Exclusive,
}

/// A lock that ends with the value.
pub(super) struct FileLock {
    path: PathBuf,
    file: File,
}

impl FileLock {
    /// Waits for a lock.
    pub(super) fn take(path: &Path, mode: LockMode) -> Result<Self> {
        loop {
            let file = open(path)?;
            let locked = match mode {
                LockMode::Shared => file.lock_shared(),
                LockMode::Exclusive => file.lock(),
            };
            locked.map_err(|source| failed(path, source))?;
            let lock = Self { path: path.to_owned(), file };
            if lock.is_current()? {
                return Ok(lock);
            }
        }
    }

    /// Takes an exclusive lock if no other is held.
    pub(super) fn try_exclusive(path: &Path) -> Result<Option<Self>> {
        loop {
            let file = open(path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(source)) => return Err(failed(path, source)),
            }
            let lock = Self { path: path.to_owned(), file };
            if lock.is_current()? {
                return Ok(Some(lock));
            }
        }
    }

    /// Returns whether the file still has its name. The holder of an exclusive lock may have removed it meanwhile.
    fn is_current(&self) -> Result<bool> {
        Ok(self.file.metadata().map_err(|source| failed(&self.path, source))?.nlink() > 0)
    }

    /// Removes the file of an exclusive lock. A waiting thread makes a new one.
    pub(super) fn remove(self) {
        drop(fs::remove_file(&self.path));
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // A process that another thread starts has a copy of the descriptor until it executes its program, so closing is not enough.
        drop(self.file.unlock());
    }
}

fn open(path: &Path) -> Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true).open(path).map_err(|source| failed(path, source))
}

fn failed(path: &Path, source: std::io::Error) -> Error {
    Error::host(format!("lock {}", path.display()), source)
}
