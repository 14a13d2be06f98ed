//! Names: putting something in its place, making room for it, removing what goes. Each in one step that a reader sees whole, and
//! only while what is there is what the index says.

use std::os::fd::{AsFd, OwnedFd};

use amalgam_engine::{Entry, EntryKind, Name, TreePath};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, Result as KernelResult};

use super::walk::Open;
use super::{Placed, Run};
use crate::error::{Error, Result};
use crate::host::{c_name, is_absent};
use crate::plan::is_directory;
use crate::report::Why;
use crate::stamp::Stamp;

/// How something is held without being opened.
pub(super) const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Run<'_> {
    /// Does something to a name, unless it changed since the index was made; then nothing. `leaves` is what the file holds
    /// afterwards, for its other names.
    pub(super) fn while_unchanged<T>(
        &self,
        at: &Open,
        name: &Name,
        path: &TreePath,
        leaves: &Entry,
        act: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        let looked = |source: std::io::Error| Error::host("look at", path, source);
        // Files with several names change under all of them at once: what this checkout did to one must not look like
        // somebody else's change of the next.
        let mut ours = self.index.stamp(path).is_some_and(|known| known.links > 1).then(|| self.ours.lock());
        let present = match Stamp::at(at.handle.as_fd(), name) {
            Ok(present) => present,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(looked(error)),
        };
        if !self.is_unchanged(at, name, path, &present, ours.as_deref())? {
            return Ok(None);
        }
        let held = match &ours {
            Some(_) => Some(hold(at, name).map_err(|errno| looked(errno.into()))?),
            None => None,
        };
        let value = act()?;
        if let (Some(ours), Some(held)) = (&mut ours, held) {
            let stamp = Stamp::of(held.as_fd()).map_err(looked)?;
            if stamp.links > 0 {
                ours.insert(stamp.inode, (stamp, leaves.clone()));
            } else {
                // The next file that is made may get its inode.
                ours.remove(&stamp.inode);
            }
            if let Some(group) = leaves.link() {
                self.late.lock().loosened.insert(group);
            }
        }
        Ok(Some(value))
    }

    /// Moves something that was made under a temporary name to its place, over what was there before.
    pub(super) fn place(
        &self,
        at: &Open,
        temporary: &Name,
        name: &Name,
        path: &TreePath,
        before: Option<&Entry>,
    ) -> Result<Placed> {
        let failed = |errno: Errno| Error::host("put in place", path, errno);
        match before {
            None => match move_to_free(at, temporary, name) {
                Ok(()) => Ok(Placed::There),
                Err(Errno::EXIST) => Ok(Placed::Left(Why::ChangedSince)),
                Err(errno) => Err(failed(errno)),
            },
            Some(before) if before.kind() == EntryKind::Directory => {
                self.place_over_directory(at, temporary, name, path)
            }
            Some(before) => {
                let act = || rename(at, temporary, name).map_err(failed);
                let moved = self.while_unchanged(at, name, path, before, act)?;
                Ok(if moved.is_some() { Placed::There } else { Placed::Left(Why::ChangedSince) })
            }
        }
    }

    /// The two change places, so that there is never nothing; then the directory, which must be empty, goes.
    fn place_over_directory(&self, at: &Open, temporary: &Name, name: &Name, path: &TreePath) -> Result<Placed> {
        let failed = |errno: Errno| Error::host("replace", path, errno);
        if !self.is_same_directory(at, name, path)? {
            return Ok(Placed::Left(Why::ChangedSince));
        }
        if !is_empty(at, name).map_err(failed)? {
            return Ok(Placed::Left(Why::NotEmpty));
        }
        match rename_with(at, temporary, name, RenameFlags::EXCHANGE) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOSYS) => {
                return match remove_directory(at, name) {
                    Ok(()) => move_to_free(at, temporary, name).map(|()| Placed::There).map_err(failed),
                    Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Placed::Left(Why::NotEmpty)),
                    Err(errno) => Err(failed(errno)),
                };
            }
            Err(errno) => return Err(failed(errno)),
        }
        match remove_directory(at, temporary) {
            Ok(()) => Ok(Placed::There),
            Err(errno) => {
                // Somebody put something into it in the last moment: it comes back.
                rename_with(at, temporary, name, RenameFlags::EXCHANGE).map_err(failed)?;
                match errno {
                    Errno::NOTEMPTY | Errno::EXIST => Ok(Placed::Left(Why::NotEmpty)),
                    errno => Err(failed(errno)),
                }
            }
        }
    }

    /// Removes something that is no directory.
    pub(super) fn remove(&self, at: &Open, name: &Name, path: &TreePath, before: &Entry) -> Result<Placed> {
        let act = || unlink(at, name).map_err(|errno| Error::host("remove", path, errno));
        let removed = self.while_unchanged(at, name, path, before, act)?;
        Ok(if removed.is_some() { Placed::There } else { Placed::Left(Why::ChangedSince) })
    }

    /// Removes a directory that was emptied.
    pub(super) fn remove_emptied(&self, at: &Open, name: &Name, path: &TreePath) -> Result<Placed> {
        if !self.is_same_directory(at, name, path)? {
            return Ok(Placed::Left(Why::ChangedSince));
        }
        match remove_directory(at, name) {
            Ok(()) => Ok(Placed::There),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Placed::Left(Why::NotEmpty)),
            Err(errno) => Err(Error::host("remove", path, errno)),
        }
    }

    /// Makes a directory, writable for the time, and says which inode it is; or why not.
    pub(super) fn make_directory(
        &self,
        at: &Open,
        name: &Name,
        path: &TreePath,
        before: Option<&Entry>,
        after: &Entry,
    ) -> Result<Result<u64, Why>> {
        debug_assert!(!is_directory(before), "a directory that stays is not made");
        let failed = |errno: Errno| Error::host("make the directory", path, errno);
        let mode = Mode::from_raw_mode(after.mode & 0o777 | 0o700);
        let make = |name: &Name| rustix::fs::mkdirat(&at.handle, c_name(name), mode);
        match before {
            None => match make(name) {
                Ok(()) => {}
                Err(Errno::EXIST) => return Ok(Err(Why::ChangedSince)),
                Err(errno) => return Err(failed(errno)),
            },
            Some(before) => {
                let temporary = self.temporary();
                make(&temporary).map_err(failed)?;
                let act = || match rename_with(at, &temporary, name, RenameFlags::EXCHANGE) {
                    Ok(()) => unlink(at, &temporary).map_err(failed),
                    Err(Errno::INVAL | Errno::NOSYS) => {
                        unlink(at, name).and_then(|()| move_to_free(at, &temporary, name)).map_err(failed)
                    }
                    Err(errno) => Err(failed(errno)),
                };
                let made = self.while_unchanged(at, name, path, before, act);
                if !matches!(made, Ok(Some(()))) {
                    // Where the exchange happened it is the old file that has this name, and that is no directory.
                    remove_directory(at, &temporary).ok();
                }
                if made?.is_none() {
                    return Ok(Err(Why::ChangedSince));
                }
            }
        }
        let stamp = Stamp::at(at.handle.as_fd(), name).map_err(|source| Error::host("look at", path, source))?;
        Ok(if stamp.kind() == FileType::Directory { Ok(stamp.inode) } else { Err(Why::ChangedSince) })
    }

    fn is_same_directory(&self, at: &Open, name: &Name, path: &TreePath) -> Result<bool> {
        let known = self.index.stamp(path);
        match Stamp::at(at.handle.as_fd(), name) {
            Ok(present) => {
                let is_directory = present.kind() == FileType::Directory;
                Ok(is_directory && known.is_some_and(|known| known.inode == present.inode))
            }
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(Error::host("look at", path, error)),
        }
    }
}

/// Holds a name as a place.
pub(super) fn hold(at: &Open, name: &Name) -> KernelResult<OwnedFd> {
    rustix::fs::openat(&at.handle, c_name(name), PLACE, Mode::empty())
}

pub(super) fn unlink(at: &Open, name: &Name) -> KernelResult<()> {
    rustix::fs::unlinkat(&at.handle, c_name(name), AtFlags::empty())
}

fn remove_directory(at: &Open, name: &Name) -> KernelResult<()> {
    rustix::fs::unlinkat(&at.handle, c_name(name), AtFlags::REMOVEDIR)
}

fn rename(at: &Open, from: &Name, to: &Name) -> KernelResult<()> {
    rustix::fs::renameat(&at.handle, c_name(from), &at.handle, c_name(to))
}

fn rename_with(at: &Open, from: &Name, to: &Name, flags: RenameFlags) -> KernelResult<()> {
    rustix::fs::renameat_with(&at.handle, c_name(from), &at.handle, c_name(to), flags)
}

/// Moves to a name that must be free.
fn move_to_free(at: &Open, from: &Name, to: &Name) -> KernelResult<()> {
    match rename_with(at, from, to, RenameFlags::NOREPLACE) {
        // File systems that do not know the flag know links; where they do not, a directory is renamed only over an empty one.
        Err(Errno::INVAL | Errno::NOSYS) => {
            match rustix::fs::linkat(&at.handle, c_name(from), &at.handle, c_name(to), AtFlags::empty()) {
                Ok(()) => unlink(at, from),
                Err(Errno::PERM) => rename(at, from, to),
                Err(errno) => Err(errno),
            }
        }
        other => other,
    }
}

fn is_empty(at: &Open, name: &Name) -> KernelResult<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(&at.handle, c_name(name), flags, Mode::empty())?;
    for item in Dir::read_from(&directory)? {
        if !matches!(item?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}
