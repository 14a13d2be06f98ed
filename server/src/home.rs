//! The directory of one user's store, its home, and the files in it: the engine's store, the registry of directories with their indexes, the log.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use amalgam_engine::backend::recover;
use amalgam_engine::{ErrorKind, Store, StoreOptions};
use amalgam_materializer::{HostDir, Identity};

use crate::error::{Error, Result};

/// The directory that holds a store and what belongs to it.
#[derive(Clone, Debug)]
pub struct Home {
    path: PathBuf,
    options: StoreOptions,
}

impl Home {
    /// Returns the home at a path, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), options: StoreOptions::default() }
    }

    /// Sets the options with which the store is opened.
    #[must_use]
    pub fn with_options(self, options: StoreOptions) -> Self {
        Self { options, ..self }
    }

    /// Returns the path of the home.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the home has a store.
    pub fn exists(&self) -> bool {
        self.store_path().join("AMALGAM").is_file()
    }

    /// Returns the directory of the engine's files.
    pub fn store_path(&self) -> PathBuf {
        self.path.join("store")
    }

    /// Returns the directory of the registry's records and indexes.
    pub fn directories_path(&self) -> PathBuf {
        self.path.join("directories")
    }

    /// Returns the path of the book of views, mounts and exports.
    pub fn mounts_path(&self) -> PathBuf {
        self.path.join("mounts.json")
    }

    /// Returns the directory in which the NFS server keeps its key, recent replies, and handles of snapshots.
    pub fn exports_path(&self) -> PathBuf {
        self.path.join("exports")
    }

    /// Returns the directory in which views keep their journals.
    pub fn views_path(&self) -> PathBuf {
        self.path.join("views")
    }

    /// Returns the directory in which views keep their local paths, which are in no snapshot.
    pub fn local_path(&self) -> PathBuf {
        self.path.join("local")
    }

    /// Returns the directory of the files that read-only directories share.
    pub fn pool_path(&self) -> PathBuf {
        self.path.join("pool")
    }

    /// Returns the directory below which the directories of forks and sandboxes are made.
    pub fn forks_path(&self) -> PathBuf {
        self.path.join("forks")
    }

    /// Returns the directory of the repositories for git clients. It is a cache and can be removed at any time.
    pub fn git_cache_path(&self) -> PathBuf {
        self.path.join("git-cache")
    }

    /// Returns the directory in which followers keep the indexes of buckets. It is a cache and can be removed at any time.
    pub fn buckets_path(&self) -> PathBuf {
        self.path.join("buckets")
    }

    /// Returns the path of the background process's log.
    pub fn log_path(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Makes the directories of a node whose store is elsewhere, and removes the journals and the book of views that an earlier
    /// process left: the shared store has them.
    pub(crate) fn make_for_node(&self) -> Result<()> {
        self.make_directories()?;
        let failed = |source| Error::io("clean the node's directory")(source);
        if self.views_path().exists() {
            amalgam_materializer::remove_tree(&self.views_path()).map_err(failed)?;
        }
        match std::fs::remove_file(self.mounts_path()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        }
    }

    /// Opens the store, and creates it if needed. Only its user can read it: it holds everything that was ever captured.
    pub fn open(&self) -> Result<Store> {
        self.make_directories()?;
        Ok(Store::open_with(self.store_path(), &self.options)?)
    }

    fn make_directories(&self) -> Result<()> {
        let make = |path: &Path| {
            use std::os::unix::fs::DirBuilderExt;
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
        };
        make(&self.path).map_err(Error::io("make the store's directory"))?;
        make(&self.directories_path()).map_err(Error::io("make the store's directory"))?;
        make(&self.store_path()).map_err(Error::io("make the store's directory"))?;
        self.close_to_others().map_err(Error::io("close the store's directory to other users"))?;
        Ok(())
    }

    /// Takes the rights of other users away from the home and the store in it, if they have any: both hold everything that was ever
    /// captured, including private files. Returns the mode that the home had, if that was changed. A home of another
    /// user stays as it is.
    pub fn close_to_others(&self) -> std::io::Result<Option<u32>> {
        let home = close(&self.path)?;
        close(&self.store_path())?;
        Ok(home)
    }

    /// Repairs damage that prevents the store from opening. Returns the repairs, in words. Where there is no store, or another process has it
    /// open, nothing is done.
    pub fn recover(&self) -> Result<Vec<String>> {
        if !self.store_path().join("db").is_dir() {
            return Ok(Vec::new());
        }
        match recover(&self.store_path()) {
            Err(error) if error.kind() == ErrorKind::Busy => Ok(Vec::new()),
            done => Ok(done?),
        }
    }

    /// Returns the identity of the home's directory, so that captures can skip it.
    pub fn identity(&self) -> Result<Identity> {
        Ok(HostDir::open(&self.path).map(|directory| directory.identity())?)
    }
}

/// Gives a directory of this user mode 0700. Returns the mode that it had if others had rights there.
fn close(path: &Path) -> std::io::Result<Option<u32>> {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let found = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    let mode = found.mode() & 0o7777;
    if found.uid() != rustix::process::geteuid().as_raw() || mode & 0o077 == 0 {
        return Ok(None);
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?;
    Ok(Some(mode))
}

/// Replaces a file atomically: a crash leaves the old or the new contents. A process that dies meanwhile leaves a file that ends
/// in `.tmp`.
pub(crate) fn replace_file(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let apart = file.with_extension("tmp");
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut out = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&apart)?;
    out.write_all(bytes)?;
    out.sync_data()?;
    std::fs::rename(&apart, file)
}

/// Returns the identity of a directory.
pub fn identity_of(path: &Path) -> Result<Identity> {
    Ok(HostDir::open(path).map(|directory| directory.identity())?)
}
