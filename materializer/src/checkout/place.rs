//! Names: putting something in its place, making room for it, removing what goes. Each in one step that a reader sees whole, and
//! only while what is there is what the index says.
//!
//! The kernel has no call that replaces a name only while it has a certain stamp. So a file that leaves its name is exchanged or moved
//! aside, looked at again under a name that no other program knows, and given its name back if it is another one or was written to
//! since. Only a write that keeps size and `mtime` within these microseconds is not seen, and a change of extended attributes alone.

use std::os::fd::{AsFd, OwnedFd};

use amalgam_engine::{Entry, EntryKind, Name, TreePath};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, Result as KernelResult};

use super::walk::Open;
use super::{Placed, Proof, Run};
use crate::compare::{Likeness, compare};
use crate::error::{Error, Result};
use crate::host::{c_name, is_absent};
use crate::plan::is_directory;
use crate::report::Why;
use crate::stamp::Stamp;

/// How many names are tried for something that cannot go back to its own.
const BESIDE_NAMES_MAX: u32 = 100;
/// The kernel's limit for a name.
const NAME_BYTES_MAX: usize = 255;

/// How something is held without being opened.
pub(super) const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Run<'_> {
    /// Does something to a name, unless it changed since the index was made; then nothing. `act` is given what proved that, and returns
    /// nothing where it found a change after all. `leaves` is what the file holds afterwards, for its other names.
    pub(super) fn while_unchanged<T>(
        &self,
        at: &Open,
        name: &Name,
        path: &TreePath,
        leaves: &Entry,
        act: impl FnOnce(&Proof) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let looked = |source: std::io::Error| Error::host("look at", path, source);
        // Files with several names change under all of them at once: what this checkout did to one must not look like
        // another program's change of the next.
        let mut ours = self.index.stamp(path).is_some_and(|known| known.links > 1).then(|| self.ours.lock());
        let present = match Stamp::at(at.handle.as_fd(), name) {
            Ok(present) => present,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(looked(error)),
        };
        let Some(proof) = self.prove_unchanged(at, name, path, &present, ours.as_deref())? else { return Ok(None) };
        let held = match &ours {
            Some(_) => Some(hold(at, name).map_err(|errno| looked(errno.into()))?),
            None => None,
        };
        self.staging.pause(path);
        let Some(value) = act(&proof)? else { return Ok(None) };
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
        match before {
            None => match move_to_free(at, temporary, name) {
                Ok(()) => Ok(Placed::There),
                Err(Errno::EXIST) => Ok(Placed::Left(Why::ChangedSince)),
                Err(errno) => Err(Error::host("put in place", path, errno)),
            },
            Some(before) if before.kind() == EntryKind::Directory => {
                self.place_over_directory(at, temporary, name, path)
            }
            Some(before) => {
                let act = |proof: &Proof| self.exchange(at, temporary, name, path, proof);
                let moved = self.while_unchanged(at, name, path, before, act)?;
                Ok(if moved.is_some() { Placed::There } else { Placed::Left(Why::ChangedSince) })
            }
        }
    }

    /// Exchanges something that was made with what is in its place, and removes that if it is still what was looked at. If it is not,
    /// the exchange is taken back.
    fn exchange(&self, at: &Open, made: &Name, name: &Name, path: &TreePath, proof: &Proof) -> Result<Option<()>> {
        let failed = |errno: Errno| Error::host("put in place", path, errno);
        let looked = |source: std::io::Error| Error::host("look at", path, source);
        let ours = Stamp::at(at.handle.as_fd(), made).map_err(looked)?;
        match rename_with(at, made, name, RenameFlags::EXCHANGE) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::INVAL | Errno::NOSYS) => return self.replace(at, made, name, path, proof),
            Err(errno) => return Err(failed(errno)),
        }
        let is_expected = self.is_what_was_looked_at(at, made, path, proof);
        if !matches!(is_expected, Ok(true)) {
            self.take_exchange_back(at, made, name, path, ours.inode)?;
            return is_expected.map(|_| None);
        }
        unlink(at, made).map(Some).map_err(failed)
    }

    /// Replaces a name on a file system that cannot exchange two. A file that changes between this last look and the next call is
    /// overwritten.
    fn replace(&self, at: &Open, made: &Name, name: &Name, path: &TreePath, proof: &Proof) -> Result<Option<()>> {
        let failed = |errno: Errno| Error::host("put in place", path, errno);
        let looked = |source: std::io::Error| Error::host("look at", path, source);
        if Stamp::at(at.handle.as_fd(), made).map_err(looked)?.kind() == FileType::Directory {
            // A directory is renamed over an empty directory only.
            let removed = self.remove_looked_at(at, name, path, proof)?;
            return removed.map(|()| move_to_free(at, made, name).map_err(failed)).transpose();
        }
        match Stamp::at(at.handle.as_fd(), name) {
            Ok(present) if present == proof.stamp => rename(at, made, name).map(Some).map_err(failed),
            Ok(_) => Ok(None),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(looked(error)),
        }
    }

    /// Whether something that was moved away from its name is what was looked at. Moving it changes its `ctime` and nothing else.
    fn is_what_was_looked_at(&self, at: &Open, moved: &Name, path: &TreePath, proof: &Proof) -> Result<bool> {
        let present = Stamp::at(at.handle.as_fd(), moved).map_err(|source| Error::host("look at", path, source))?;
        if (Stamp { ctime: proof.stamp.ctime, ..present }) != proof.stamp {
            return Ok(false);
        }
        let Some(entry) = &proof.bytes_of else { return Ok(true) };
        let compared = compare(self.store, at.handle.as_fd(), moved, entry, present, self.job.progress)?;
        Ok(compared.likeness == Likeness::Equal(present))
    }

    /// Gives a name back to what had it before an exchange. `ours` is the inode of what was made. What another program put there
    /// since is newer and keeps the name.
    fn take_exchange_back(&self, at: &Open, made: &Name, name: &Name, path: &TreePath, ours: u64) -> Result<()> {
        self.touch(&at.path);
        let is_ours = |name: &Name| Stamp::at(at.handle.as_fd(), name).is_ok_and(|present| present.inode == ours);
        match rename_with(at, made, name, RenameFlags::EXCHANGE) {
            Ok(()) if is_ours(made) => Ok(()),
            Ok(()) => {
                let newest = rename_with(at, made, name, RenameFlags::EXCHANGE);
                newest.map_err(|errno| Error::host("put back", path, errno))?;
                self.keep_beside(at, made, name, path)
            }
            // Another program removed what was made.
            Err(_) => self.give_back(at, made, name, path),
        }
    }

    /// Gives a name back to what was moved away from it, or another name if that one is taken by now.
    fn give_back(&self, at: &Open, moved: &Name, name: &Name, path: &TreePath) -> Result<()> {
        self.touch(&at.path);
        match move_to_free(at, moved, name) {
            Ok(()) => Ok(()),
            Err(_) => self.keep_beside(at, moved, name, path),
        }
    }

    /// Keeps something that no snapshot has under a name beside the one it had, and reports that.
    fn keep_beside(&self, at: &Open, moved: &Name, name: &Name, path: &TreePath) -> Result<()> {
        let mut result = Err(Errno::EXIST);
        for number in 1..=BESIDE_NAMES_MAX {
            let beside = beside(name, number);
            result = move_to_free(at, moved, &beside);
            match result {
                Ok(()) => {
                    self.notice(path, Why::KeptBeside(beside.to_string()));
                    return Ok(());
                }
                Err(Errno::EXIST) => {}
                Err(_) => break,
            }
        }
        result.map_err(|errno| Error::host("put back", path, errno))
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
        let looked = |source: std::io::Error| Error::host("look at", path, source);
        let ours = Stamp::at(at.handle.as_fd(), temporary).map_err(looked)?;
        self.staging.pause(path);
        match rename_with(at, temporary, name, RenameFlags::EXCHANGE) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(Placed::Left(Why::ChangedSince)),
            Err(Errno::INVAL | Errno::NOSYS) => {
                return match remove_directory(at, name) {
                    Ok(()) => move_to_free(at, temporary, name).map(|()| Placed::There).map_err(failed),
                    Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Placed::Left(Why::NotEmpty)),
                    Err(errno) => Err(failed(errno)),
                };
            }
            Err(errno) => return Err(failed(errno)),
        }
        let known = self.index.stamp(path).map(|known| known.inode);
        let displaced = Stamp::at(at.handle.as_fd(), temporary).ok().map(|displaced| displaced.inode);
        let removed = match displaced == known {
            true => remove_directory(at, temporary),
            false => Err(Errno::STALE),
        };
        match removed {
            Ok(()) => Ok(Placed::There),
            Err(errno) => {
                self.take_exchange_back(at, temporary, name, path, ours.inode)?;
                match errno {
                    Errno::NOTEMPTY | Errno::EXIST => Ok(Placed::Left(Why::NotEmpty)),
                    Errno::STALE => Ok(Placed::Left(Why::ChangedSince)),
                    errno => Err(failed(errno)),
                }
            }
        }
    }

    /// Removes something that is no directory.
    pub(super) fn remove(&self, at: &Open, name: &Name, path: &TreePath, before: &Entry) -> Result<Placed> {
        let act = |proof: &Proof| self.remove_looked_at(at, name, path, proof);
        let removed = self.while_unchanged(at, name, path, before, act)?;
        Ok(if removed.is_some() { Placed::There } else { Placed::Left(Why::ChangedSince) })
    }

    /// Moves something aside, and removes it if it is still what was looked at. If it is not, it gets its name back.
    fn remove_looked_at(&self, at: &Open, name: &Name, path: &TreePath, proof: &Proof) -> Result<Option<()>> {
        let failed = |errno: Errno| Error::host("remove", path, errno);
        let aside = self.temporary();
        match rename(at, name, &aside) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        }
        let is_expected = self.is_what_was_looked_at(at, &aside, path, proof);
        if !matches!(is_expected, Ok(true)) {
            self.give_back(at, &aside, name, path)?;
            return is_expected.map(|_| None);
        }
        unlink(at, &aside).map(Some).map_err(failed)
    }

    /// Removes what this checkout made and could not put in its place. A temporary name may also have what another program put
    /// into the place: that stays.
    pub(super) fn discard(&self, at: &Open, made: &Name, ours: u64) {
        if Stamp::at(at.handle.as_fd(), made).is_ok_and(|present| present.inode == ours) {
            unlink(at, made).ok();
        }
    }

    /// Removes a directory that was emptied. The kernel removes none that holds anything.
    pub(super) fn remove_emptied(&self, at: &Open, name: &Name, path: &TreePath) -> Result<Placed> {
        if !self.is_same_directory(at, name, path)? {
            return Ok(Placed::Left(Why::ChangedSince));
        }
        self.staging.pause(path);
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
                let act = |proof: &Proof| self.exchange(at, &temporary, name, path, proof);
                let made = self.while_unchanged(at, name, path, before, act);
                if !matches!(made, Ok(Some(()))) {
                    // Another program may have put something into it while it had the name. After a failure it may be the old
                    // file that has this name.
                    if let Err(Errno::NOTEMPTY | Errno::EXIST) = remove_directory(at, &temporary) {
                        self.keep_beside(at, &temporary, name, path)?;
                    }
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

/// A name for something that cannot go back to its own.
fn beside(name: &Name, number: u32) -> Name {
    let suffix = format!(".amalgam-kept-{number}");
    let stem = &name.as_bytes()[..name.as_bytes().len().min(NAME_BYTES_MAX - suffix.len())];
    Name::new(&[stem, suffix.as_bytes()].concat()).expect("a name with a suffix of plain letters")
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
