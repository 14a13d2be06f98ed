//! Locks of Git: whether a Git command works in a repository, and `index.lock`, which keeps others from it while a checkout writes.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};

use amalgam_engine::{Name, TreePath};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::host::{HostDir, is_absent};
use crate::staging::Staging;

/// The lock that every Git command takes that writes the index.
const INDEX_LOCK: &std::ffi::CStr = c"index.lock";
/// The beginning of an `index.lock` of a checkout; its token follows.
const OUR_LOCK: &[u8] = b"amalgam ";
/// How the names of lock files end.
const LOCK_SUFFIX: &[u8] = b".lock";
/// Directories of a repository that hold references and repositories of submodules and worktrees.
const SEARCHED: [&[u8]; 3] = [b"refs", b"modules", b"worktrees"];
/// Directories of these repositories without locks that matter.
const SKIPPED: [&[u8]; 3] = [b"objects", b"logs", b"hooks"];
/// The most names that a search looks at: a repository with more has loose references, and no command waits for all of them.
const NAMES_MAX: usize = 200_000;

/// The `index.lock` files of repositories that a checkout writes, until this is dropped.
#[derive(Debug, Default)]
pub struct GitLocks {
    held: Vec<OwnedFd>,
}

impl GitLocks {
    /// Takes the `index.lock` of each repository that exists. Returns the path of the lock that another program holds as the error.
    pub fn take(
        directory: &HostDir,
        repositories: &[TreePath],
        staging: &Staging<'_>,
    ) -> Result<std::result::Result<Self, TreePath>> {
        let mut locks = Self::default();
        for repository in repositories {
            let handle = match directory.directory(repository) {
                Ok(handle) => handle,
                // A `.git` file, or nothing yet; what cannot be opened cannot be written either.
                Err(_) => continue,
            };
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::openat(&handle, INDEX_LOCK, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => {
                    locks.held.push(handle);
                    let words = [OUR_LOCK, staging.token().as_bytes(), b"\n"].concat();
                    let written = std::fs::File::from(file).write_all(&words);
                    written.map_err(|source| Error::host("lock the repository", repository, source))?;
                }
                Err(Errno::EXIST) => {
                    let name = Name::new(INDEX_LOCK.to_bytes()).expect("a name");
                    return Ok(Err(repository.join(&name)));
                }
                // The checkout reports the paths that it cannot write.
                Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {}
                Err(errno) => return Err(Error::host("lock the repository", repository, errno)),
            }
        }
        Ok(Ok(locks))
    }
}

impl Drop for GitLocks {
    fn drop(&mut self) {
        for handle in &self.held {
            // A checkout that removed the repository removed the lock with it.
            let _ = rustix::fs::unlinkat(handle, INDEX_LOCK, AtFlags::empty());
        }
    }
}

/// Returns the lock file that shows that a Git command works in a repository. The `index.lock` that a killed checkout left is
/// removed.
pub fn find_git_lock(directory: &HostDir, repository: &TreePath) -> Result<Option<TreePath>> {
    let mut open = vec![repository.clone()];
    let mut seen = 0;
    while let Some(path) = open.pop() {
        let handle = match directory.directory(&path) {
            Ok(handle) => handle,
            Err(error) if is_absent(&error) => continue,
            Err(_) if path != *repository => continue,
            Err(error) => return Err(Error::host("open", &path, error)),
        };
        let failed = |source: Errno| Error::host("list", &path, source);
        for item in Dir::read_from(&handle).map_err(failed)? {
            let item = item.map_err(failed)?;
            let bytes = item.file_name().to_bytes();
            seen += 1;
            if seen > NAMES_MAX {
                return Ok(None);
            }
            let Some(name) = Name::new(bytes).ok().filter(|_| !matches!(bytes, b"." | b"..")) else { continue };
            let is_searched = if path == *repository { SEARCHED.contains(&bytes) } else { !SKIPPED.contains(&bytes) };
            match item.file_type() {
                FileType::Directory if is_searched => open.push(path.join(&name)),
                FileType::RegularFile if bytes.ends_with(LOCK_SUFFIX) && !remove_own(&handle, bytes) => {
                    return Ok(Some(path.join(&name)));
                }
                _ => {}
            }
        }
    }
    Ok(None)
}

/// Removes an `index.lock` that a checkout of a dead process left. Returns whether it was one.
fn remove_own(directory: &OwnedFd, name: &[u8]) -> bool {
    if name != INDEX_LOCK.to_bytes() {
        return false;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(directory.as_fd(), INDEX_LOCK, flags, Mode::empty()) else { return false };
    let mut words = Vec::new();
    let read = std::fs::File::from(file).take(64).read_to_end(&mut words);
    let token = words.strip_prefix(OUR_LOCK).map(|token| String::from_utf8_lossy(token.trim_ascii()));
    let is_dead = read.is_ok() && token.is_some_and(|token| !Staging::is_running(&token));
    is_dead && rustix::fs::unlinkat(directory, INDEX_LOCK, AtFlags::empty()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_once_and_the_one_of_a_dead_checkout_is_removed() {
        let place = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(place.path().join(".git/refs/heads")).expect("made");
        let (host, git) = (HostDir::open(place.path()).expect("open"), TreePath::new(".git").expect("a path"));
        let lock = place.path().join(".git/index.lock");
        let staging = Staging::new();
        let locks = GitLocks::take(&host, std::slice::from_ref(&git), &staging).expect("looked").expect("taken");
        assert!(lock.exists());
        let other = Staging::new();
        let refused = GitLocks::take(&host, std::slice::from_ref(&git), &other).expect("looked").expect_err("held");
        assert_eq!(refused, TreePath::new(".git/index.lock").expect("a path"));
        assert!(lock.exists(), "who does not hold a lock does not remove it");
        assert_eq!(find_git_lock(&host, &git).expect("looked"), Some(refused));
        drop(locks);
        assert!(!lock.exists());
        assert_eq!(find_git_lock(&host, &git).expect("looked"), None);

        std::fs::write(&lock, "amalgam 0000000000000001\n").expect("written");
        assert_eq!(find_git_lock(&host, &git).expect("looked"), None);
        assert!(!lock.exists());
        std::fs::write(place.path().join(".git/refs/heads/main.lock"), "").expect("written");
        let found = find_git_lock(&host, &git).expect("looked").expect("a lock");
        assert_eq!(found, TreePath::new(".git/refs/heads/main.lock").expect("a path"));
    }
}
