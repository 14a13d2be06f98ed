//! Bare repositories of workspaces in a cache directory, kept up to date by exports, and read over smart HTTP.
//!
//! [`GitCache`] exports a workspace's head into its repository ([`GitCache::refresh`]) and answers the two requests of the
//! read-only protocol ([`ServedRepository::respond`]). HTTP itself is the caller's: it routes by [`git_route`], passes bodies as
//! readers, and maps names and permissions. A repository that is dropped from the cache is exported anew when it is asked for.

mod limits;
mod locks;
mod process;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use amalgam_engine::{Progress, SnapshotId, Store};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use sha2::{Digest, Sha256};

pub use self::limits::GitServeLimits;
use self::locks::{FileLock, LockMode};
use self::process::Slots;
pub use self::process::{GitRequest, GitResponse, GitRoute, git_route};
use super::export::{GitExport, Identity, export_git};
use super::fast_import::{isolated_git, run};
use super::history::GitHistory;
use crate::error::{Error, Result};

/// The branch that a served repository has.
pub const SERVED_BRANCH: &str = "main";
/// The snapshot that the repository was exported from last, in its directory. It is written when the export is complete.
const HEAD_FILE: &str = "amalgam/head";
/// The caller's key, in the directory of the repository.
const KEY_FILE: &str = "amalgam/key";
/// Each export adds a pack. From this number on they are combined.
const PACKS_MAX: usize = 16;
/// How the names begin that git gives to packs while it writes them.
const UNFINISHED_PACK: &[u8] = b"tmp_pack_";

/// A directory of repositories that only this type writes to.
pub struct GitCache {
    directory: PathBuf,
    limits: GitServeLimits,
    slots: Arc<Slots>,
}

/// A repository that can be read. It is not removed from the cache while this lives.
pub struct ServedRepository {
    path: PathBuf,
    limits: GitServeLimits,
    slots: Arc<Slots>,
    in_use: Arc<FileLock>,
}

impl GitCache {
    /// Opens a cache directory; makes it if there is none, readable by its owner alone.
    pub fn open(directory: &Path, limits: GitServeLimits) -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let failed = |source| Error::host(format!("make {}", directory.display()), source);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let directory = directory.canonicalize().map_err(failed)?;
        Ok(Self { directory, limits, slots: Slots::new(limits.processes_max) })
    }

    /// Brings the repository of a workspace to a snapshot, and returns it. Only snapshots that it lacks are exported.
    ///
    /// The key tells workspaces apart, also one from an earlier one of the same name: clients can read every commit that was
    /// exported under a key, if they know its id.
    pub fn refresh(&self, store: &Store, key: &str, head: SnapshotId, progress: &Progress) -> Result<ServedRepository> {
        let path = self.path(key);
        let in_use = FileLock::take(&lock_path(&path, "use"), LockMode::Shared)?;
        if exported_head(&path) != Some(head) {
            let _exporting = FileLock::take(&lock_path(&path, "export"), LockMode::Exclusive)?;
            if exported_head(&path) != Some(head) {
                export(store, &path, key, head, progress)?;
            }
            self.evict(&path)?;
        }
        // The time of this file says when the repository was used last.
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: now };
        let used = fs::File::options().append(true).open(path.join(HEAD_FILE));
        let used = used.and_then(|file| Ok(rustix::fs::futimens(file, &times)?));
        used.map_err(|source| Error::host(format!("mark {} as used", path.display()), source))?;
        Ok(ServedRepository { path, limits: self.limits, slots: Arc::clone(&self.slots), in_use: Arc::new(in_use) })
    }

    /// Removes the repositories whose keys the caller does not want to keep, except those that are being read.
    pub fn retain(&self, mut is_kept: impl FnMut(&str) -> bool) -> Result<()> {
        for cached in self.cached()? {
            if !fs::read_to_string(cached.path.join(KEY_FILE)).is_ok_and(|key| is_kept(&key)) {
                self.remove(&cached.path)?;
            }
        }
        Ok(())
    }

    /// Removes all repositories except those that are being read, for example after contents were purged from the store. Returns how
    /// many are left.
    pub fn clear(&self) -> Result<usize> {
        self.retain(|_| false)?;
        Ok(self.cached()?.len())
    }

    fn path(&self, key: &str) -> PathBuf {
        let digest = Sha256::digest(key.as_bytes());
        let name: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        self.directory.join(format!("{name}.git"))
    }

    fn cached(&self) -> Result<Vec<CachedRepository>> {
        let failed = |source| Error::host(format!("list {}", self.directory.display()), source);
        let mut found = Vec::new();
        for item in fs::read_dir(&self.directory).map_err(failed)? {
            let path = item.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == "git") {
                let used = fs::metadata(path.join(HEAD_FILE)).and_then(|found| found.modified());
                let bytes = bytes_below(&path);
                found.push(CachedRepository { path, used: used.unwrap_or(SystemTime::UNIX_EPOCH), bytes });
            }
        }
        Ok(found)
    }

    /// Removes repositories, the least recently used first, until the others fit the limit. The one in use stays.
    fn evict(&self, current: &Path) -> Result<()> {
        let mut cached = self.cached()?;
        cached.sort_by_key(|cached| cached.used);
        let mut total: u64 = cached.iter().map(|cached| cached.bytes).sum();
        for cached in cached {
            if total <= self.limits.cache_bytes_max {
                break;
            }
            if cached.path != current && self.remove(&cached.path)? {
                total -= cached.bytes;
            }
        }
        Ok(())
    }

    /// Removes a repository unless it is in use; returns whether it did.
    fn remove(&self, path: &Path) -> Result<bool> {
        let Some(lock) = FileLock::try_exclusive(&lock_path(path, "use"))? else { return Ok(false) };
        match fs::remove_dir_all(path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::host(format!("remove {}", path.display()), source));
            }
            _ => {}
        }
        // No export runs either: it holds the other lock, too.
        drop(fs::remove_file(lock_path(path, "export")));
        lock.remove();
        Ok(true)
    }
}

struct CachedRepository {
    path: PathBuf,
    used: SystemTime,
    bytes: u64,
}

fn lock_path(path: &Path, what: &str) -> PathBuf {
    path.with_extension(what)
}

/// Reads the snapshot of the last complete export; `None` if there was none.
fn exported_head(path: &Path) -> Option<SnapshotId> {
    SnapshotId::from_hex(fs::read_to_string(path.join(HEAD_FILE)).ok()?.trim())
}

/// Returns the number of bytes on disk below a directory. A file that vanishes meanwhile does not count.
fn bytes_below(path: &Path) -> u64 {
    let (mut bytes, mut open) = (0, vec![path.to_owned()]);
    while let Some(directory) = open.pop() {
        for item in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let Ok(found) = item.metadata() else { continue };
            bytes += found.blocks() * 512;
            if found.is_dir() {
                open.push(item.path());
            }
        }
    }
    bytes
}

fn export(store: &Store, path: &Path, key: &str, head: SnapshotId, progress: &Progress) -> Result<()> {
    let failed = |source| Error::host(format!("write {}", path.display()), source);
    remove_unfinished_packs(path)?;
    if exported_head(path).is_none() {
        // There is none, or its first export was cut off: no client has read it.
        match fs::remove_dir_all(path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => return Err(failed(source)),
            _ => {}
        }
        let parent = path.parent().unwrap_or_else(|| Path::new("/"));
        let branch = format!("--initial-branch={SERVED_BRANCH}");
        run(isolated_git(parent).args(["init", "--quiet", "--bare", "--template=", &branch]).arg(path))?;
    }
    let options = GitExport {
        branch: SERVED_BRANCH.to_owned(),
        history: GitHistory::All,
        since: None,
        identity: Identity::default(),
        create: false,
        is_mirror: true,
        dry_run: false,
    };
    export_git(store, head, path, &options, progress)?;
    combine_packs(path)?;
    fs::write(path.join(KEY_FILE), key).map_err(failed)?;
    let (file, temporary) = (path.join(HEAD_FILE), path.join("amalgam/head.new"));
    fs::write(&temporary, format!("{head}\n")).and_then(|()| fs::rename(&temporary, &file)).map_err(failed)
}

/// Removes packs that an earlier export began and did not finish. No other export runs.
fn remove_unfinished_packs(path: &Path) -> Result<()> {
    for item in fs::read_dir(path.join("objects/pack")).into_iter().flatten().flatten() {
        if item.file_name().as_encoded_bytes().starts_with(UNFINISHED_PACK) {
            fs::remove_file(item.path())
                .map_err(|source| Error::host(format!("remove {}", item.path().display()), source))?;
        }
    }
    Ok(())
}

/// Combines small packs, so that many small exports do not slow down reading.
fn combine_packs(path: &Path) -> Result<()> {
    let packs = fs::read_dir(path.join("objects/pack")).into_iter().flatten().flatten();
    let packs = packs.filter(|item| item.path().extension().is_some_and(|extension| extension == "pack"));
    if packs.count() > PACKS_MAX {
        run(isolated_git(path).args(["repack", "--geometric=2", "-d", "-q"]))?;
    }
    Ok(())
}

impl ServedRepository {
    /// Returns the directory of the repository, for reading.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts to answer a request. The answer is read while git writes it; dropping it ends the process.
    pub fn respond(&self, request: GitRequest) -> Result<GitResponse> {
        let slot = Slots::take(&self.slots, self.limits.wait_max)?;
        process::respond(&self.path, request, &self.limits, slot, Arc::clone(&self.in_use))
    }
}
