//! Where everything of one user's store lies: the engine's store, the registry of directories with their indexes, the log.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use amalgam_engine::backend::recover;
use amalgam_engine::{ErrorKind, Store};
use amalgam_materializer::{HostDir, Identity};

use crate::failure::{Result, of_engine, of_io, of_materializer};

/// The directory that holds a store and what belongs to it.
#[derive(Clone, Debug)]
pub struct Home {
    path: PathBuf,
}

impl Home {
    /// The home at a path; it need not be there yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a store was made here.
    pub fn exists(&self) -> bool {
        self.store_path().join("AMALGAM").is_file()
    }

    /// Where the engine keeps its files.
    pub fn store_path(&self) -> PathBuf {
        self.path.join("store")
    }

    /// Where the registry keeps its records and indexes.
    pub fn directories_path(&self) -> PathBuf {
        self.path.join("directories")
    }

    /// Where the book of views and mounts is.
    pub fn mounts_path(&self) -> PathBuf {
        self.path.join("mounts.json")
    }

    /// Where views keep their journals.
    pub fn views_path(&self) -> PathBuf {
        self.path.join("views")
    }

    /// Where views keep what is in no snapshot.
    pub fn local_path(&self) -> PathBuf {
        self.path.join("local")
    }

    /// Where files are that read-only directories share.
    pub fn pool_path(&self) -> PathBuf {
        self.path.join("pool")
    }

    /// Where directories of attempts are made.
    pub fn forks_path(&self) -> PathBuf {
        self.path.join("forks")
    }

    /// Where the process writes its log.
    pub fn log_path(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Opens the store, making it where there is none. Readable by nobody else: it holds everything that was ever captured.
    pub fn open(&self) -> Result<Store> {
        let make = |path: &Path| {
            use std::os::unix::fs::DirBuilderExt;
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
        };
        make(&self.path).map_err(|source| of_io("make the store's directory", &source))?;
        make(&self.directories_path()).map_err(|source| of_io("make the store's directory", &source))?;
        Store::open(self.store_path()).map_err(of_engine)
    }

    /// Rebuilds what keeps the store from being opened. Returns what was done, in words. Where there is no store, or another process has it
    /// open, nothing is done.
    pub fn recover(&self) -> Result<Vec<String>> {
        if !self.store_path().join("db").is_dir() {
            return Ok(Vec::new());
        }
        match recover(&self.store_path()) {
            Err(error) if error.kind() == ErrorKind::Busy => Ok(Vec::new()),
            done => done.map_err(of_engine),
        }
    }

    /// By what its directory is known, so that it is never captured.
    pub fn identity(&self) -> Result<Identity> {
        HostDir::open(&self.path).map(|directory| directory.identity()).map_err(of_materializer)
    }
}

/// Replaces a file, so that a crash leaves the old one or the new one. What a dead process left apart ends in `.tmp`.
pub(crate) fn replace_file(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let apart = file.with_extension("tmp");
    let mut out = std::fs::File::create(&apart)?;
    out.write_all(bytes)?;
    out.sync_data()?;
    std::fs::rename(&apart, file)
}

/// By what a directory is known.
pub fn identity_of(path: &Path) -> Result<Identity> {
    HostDir::open(path).map(|directory| directory.identity()).map_err(of_materializer)
}

/// Removes a tree; directories that forbid it (module caches do) are opened first.
pub fn remove_all(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_up(path)?;
            fs::remove_dir_all(path)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn open_up(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        // The type of the entry itself: a symlink is never followed.
        if entry.file_type()?.is_dir() {
            open_up(&entry.path())?;
        }
    }
    Ok(())
}
