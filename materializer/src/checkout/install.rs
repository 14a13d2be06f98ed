//! Installs and removes entries under their final names, each in one step that readers see as a whole, and only while the
//! name has what the index describes.
//!
//! The kernel has no call that replaces a name only if it has a certain stamp. So a file that loses its name is exchanged
//! or moved to a temporary name, checked again there, and moved back if it is another file or was written since. Two changes
//! go unnoticed: a write within these microseconds that keeps size and `mtime`, and a change of extended attributes alone.

use amalgam_engine::{Entry, EntryKind, Name, TreePath};
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use std::os::fd::AsFd;

use super::context::Context;
use super::open_directory::OpenDirectory;
use super::unchanged::{ChangeGuard, Proof};
use crate::compare::{ContentMatch, compare};
use crate::error::{Error, Result};
use crate::host::is_absent;
use crate::plan::is_directory;
use crate::report::Why;
use crate::stamp::Stamp;

/// How many names are tried for an entry that cannot get its own name back.
const OTHER_NAMES_MAX: u32 = 100;
/// The kernel's limit for a name.
const NAME_BYTES_MAX: usize = 255;

/// Result of a change of a name.
pub(super) enum Installed {
    Done,
    /// The name was left as it is.
    Skipped(Why),
}

/// Changes names while they are unchanged.
pub(super) struct Installer<'c> {
    cx: &'c Context<'c>,
    pub(super) guard: ChangeGuard<'c>,
}

impl<'c> Installer<'c> {
    pub(super) fn new(cx: &'c Context<'c>) -> Self {
        Self { cx, guard: ChangeGuard::new(cx) }
    }

    /// Renames a new entry from its temporary name to its final name, replacing `before`.
    pub(super) fn install(
        &self,
        at: &OpenDirectory,
        temporary: &Name,
        name: &Name,
        path: &TreePath,
        before: Option<&Entry>,
    ) -> Result<Installed> {
        match before {
            None => match at.rename_to_free(temporary, name) {
                Ok(()) => Ok(Installed::Done),
                Err(Errno::EXIST) => Ok(Installed::Skipped(Why::ChangedSince)),
                Err(errno) => Err(Error::host("put in place", path, errno)),
            },
            Some(before) if before.kind() == EntryKind::Directory => self.replace_directory(at, temporary, name, path),
            Some(before) => {
                let act = |proof: &Proof| self.exchange(at, temporary, name, path, proof);
                let moved = self.guard.while_unchanged(at, name, path, before, act)?;
                Ok(if moved.is_some() { Installed::Done } else { Installed::Skipped(Why::ChangedSince) })
            }
        }
    }

    /// Exchanges a new entry with the old one, and removes the old one if it still matches the proof. Otherwise undoes the
    /// exchange.
    fn exchange(
        &self,
        at: &OpenDirectory,
        made: &Name,
        name: &Name,
        path: &TreePath,
        proof: &Proof,
    ) -> Result<Option<()>> {
        let failed = |errno: Errno| Error::host("put in place", path, errno);
        let looked = |source: std::io::Error| Error::host("look at", path, source);
        let ours = at.stamp(made).map_err(looked)?;
        match at.exchange(made, name) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::INVAL | Errno::NOSYS) => return self.replace(at, made, name, path, proof),
            Err(errno) => return Err(failed(errno)),
        }
        let is_expected = self.is_proved(at, made, path, proof);
        if !matches!(is_expected, Ok(true)) {
            self.undo_exchange(at, made, name, path, ours.inode)?;
            return is_expected.map(|_| None);
        }
        at.unlink(made).map(Some).map_err(failed)
    }

    /// Replaces a name on a file system that cannot exchange names. A file that changes between the check and the rename is
    /// overwritten.
    fn replace(
        &self,
        at: &OpenDirectory,
        made: &Name,
        name: &Name,
        path: &TreePath,
        proof: &Proof,
    ) -> Result<Option<()>> {
        let failed = |errno: Errno| Error::host("put in place", path, errno);
        let looked = |source: std::io::Error| Error::host("look at", path, source);
        if at.stamp(made).map_err(looked)?.kind() == FileType::Directory {
            // A directory can replace only an empty directory.
            let removed = self.remove_proved(at, name, path, proof)?;
            return removed.map(|()| at.rename_to_free(made, name).map_err(failed)).transpose();
        }
        match at.stamp(name) {
            Ok(present) if present == proof.stamp => at.rename(made, name).map(Some).map_err(failed),
            Ok(_) => Ok(None),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(looked(error)),
        }
    }

    /// Returns whether an entry that was moved from its name matches the proof. The move changes only its `ctime`.
    fn is_proved(&self, at: &OpenDirectory, moved: &Name, path: &TreePath, proof: &Proof) -> Result<bool> {
        let present = at.stamp(moved).map_err(|source| Error::host("look at", path, source))?;
        if (Stamp { ctime: proof.stamp.ctime, ..present }) != proof.stamp {
            return Ok(false);
        }
        let Some(entry) = &proof.bytes_of else { return Ok(true) };
        let compared = compare(self.cx.store, at.handle.as_fd(), moved, entry, present, self.cx.options.progress)?;
        Ok(compared.outcome == ContentMatch::Equal(present))
    }

    /// Undoes an exchange. `ours` is the inode of the new entry. If another program has put a file there since, that file keeps
    /// the name.
    fn undo_exchange(&self, at: &OpenDirectory, made: &Name, name: &Name, path: &TreePath, ours: u64) -> Result<()> {
        self.cx.touch(&at.path);
        let is_ours = |name: &Name| at.stamp(name).is_ok_and(|present| present.inode == ours);
        match at.exchange(made, name) {
            Ok(()) if is_ours(made) => Ok(()),
            Ok(()) => {
                let newest = at.exchange(made, name);
                newest.map_err(|errno| Error::host("put back", path, errno))?;
                self.keep_under_other_name(at, made, name, path)
            }
            // Another program removed the new entry.
            Err(_) => self.restore_name(at, made, name, path),
        }
    }

    /// Moves an entry back to its name, or to another name if that one is taken by now.
    fn restore_name(&self, at: &OpenDirectory, moved: &Name, name: &Name, path: &TreePath) -> Result<()> {
        self.cx.touch(&at.path);
        match at.rename_to_free(moved, name) {
            Ok(()) => Ok(()),
            Err(_) => self.keep_under_other_name(at, moved, name, path),
        }
    }

    /// Keeps an entry that no snapshot has under another name in the same directory, with a notice.
    fn keep_under_other_name(&self, at: &OpenDirectory, moved: &Name, name: &Name, path: &TreePath) -> Result<()> {
        let mut result = Err(Errno::EXIST);
        for number in 1..=OTHER_NAMES_MAX {
            let other = other_name(name, number);
            result = at.rename_to_free(moved, &other);
            match result {
                Ok(()) => {
                    self.cx.notice(path, Why::KeptBeside(other.to_string()));
                    return Ok(());
                }
                Err(Errno::EXIST) => {}
                Err(_) => break,
            }
        }
        result.map_err(|errno| Error::host("put back", path, errno))
    }

    /// Exchanges a new entry with an empty directory, so that the name always exists, then removes the directory.
    fn replace_directory(
        &self,
        at: &OpenDirectory,
        temporary: &Name,
        name: &Name,
        path: &TreePath,
    ) -> Result<Installed> {
        let failed = |errno: Errno| Error::host("replace", path, errno);
        if !self.guard.is_same_directory(at, name, path)? {
            return Ok(Installed::Skipped(Why::ChangedSince));
        }
        if !at.is_empty(name).map_err(failed)? {
            return Ok(Installed::Skipped(Why::NotEmpty));
        }
        let looked = |source: std::io::Error| Error::host("look at", path, source);
        let ours = at.stamp(temporary).map_err(looked)?;
        self.cx.staging.pause(path);
        match at.exchange(temporary, name) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(Installed::Skipped(Why::ChangedSince)),
            Err(Errno::INVAL | Errno::NOSYS) => {
                return match at.remove_directory(name) {
                    Ok(()) => at.rename_to_free(temporary, name).map(|()| Installed::Done).map_err(failed),
                    Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Installed::Skipped(Why::NotEmpty)),
                    Err(errno) => Err(failed(errno)),
                };
            }
            Err(errno) => return Err(failed(errno)),
        }
        let known = self.cx.index.stamp(path).map(|known| known.inode);
        let displaced = at.stamp(temporary).ok().map(|displaced| displaced.inode);
        let removed = match displaced == known {
            true => at.remove_directory(temporary),
            false => Err(Errno::STALE),
        };
        match removed {
            Ok(()) => Ok(Installed::Done),
            Err(errno) => {
                self.undo_exchange(at, temporary, name, path, ours.inode)?;
                match errno {
                    Errno::NOTEMPTY | Errno::EXIST => Ok(Installed::Skipped(Why::NotEmpty)),
                    Errno::STALE => Ok(Installed::Skipped(Why::ChangedSince)),
                    errno => Err(failed(errno)),
                }
            }
        }
    }

    /// Removes an entry that is no directory.
    pub(super) fn remove(&self, at: &OpenDirectory, name: &Name, path: &TreePath, before: &Entry) -> Result<Installed> {
        let act = |proof: &Proof| self.remove_proved(at, name, path, proof);
        let removed = self.guard.while_unchanged(at, name, path, before, act)?;
        Ok(if removed.is_some() { Installed::Done } else { Installed::Skipped(Why::ChangedSince) })
    }

    /// Moves an entry to a temporary name, and removes it if it still matches the proof. Otherwise moves it back.
    fn remove_proved(&self, at: &OpenDirectory, name: &Name, path: &TreePath, proof: &Proof) -> Result<Option<()>> {
        let failed = |errno: Errno| Error::host("remove", path, errno);
        let aside = self.cx.temporary_name();
        match at.rename(name, &aside) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        }
        let is_expected = self.is_proved(at, &aside, path, proof);
        if !matches!(is_expected, Ok(true)) {
            self.restore_name(at, &aside, name, path)?;
            return is_expected.map(|_| None);
        }
        at.unlink(&aside).map(Some).map_err(failed)
    }

    /// Removes a new entry that could not be installed. After an exchange the temporary name may have another program's file,
    /// which stays.
    pub(super) fn discard(&self, at: &OpenDirectory, made: &Name, ours: u64) {
        if at.stamp(made).is_ok_and(|present| present.inode == ours) {
            at.unlink(made).ok();
        }
    }

    /// Removes a directory that was emptied. The kernel refuses if it is not empty.
    pub(super) fn remove_emptied(&self, at: &OpenDirectory, name: &Name, path: &TreePath) -> Result<Installed> {
        if !self.guard.is_same_directory(at, name, path)? {
            return Ok(Installed::Skipped(Why::ChangedSince));
        }
        self.cx.staging.pause(path);
        match at.remove_directory(name) {
            Ok(()) => Ok(Installed::Done),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Installed::Skipped(Why::NotEmpty)),
            Err(errno) => Err(Error::host("remove", path, errno)),
        }
    }

    /// Creates a directory, writable for now. Returns its inode, or why it was skipped.
    pub(super) fn make_directory(
        &self,
        at: &OpenDirectory,
        name: &Name,
        path: &TreePath,
        before: Option<&Entry>,
        after: &Entry,
    ) -> Result<Result<u64, Why>> {
        debug_assert!(!is_directory(before), "a directory that stays is not made");
        let failed = |errno: Errno| Error::host("make the directory", path, errno);
        let mode = Mode::from_raw_mode(after.mode & 0o777 | 0o700);
        let make = |name: &Name| at.make_directory(name, mode);
        match before {
            None => match make(name) {
                Ok(()) => {}
                Err(Errno::EXIST) => return Ok(Err(Why::ChangedSince)),
                Err(errno) => return Err(failed(errno)),
            },
            Some(before) => {
                let temporary = self.cx.temporary_name();
                make(&temporary).map_err(failed)?;
                let act = |proof: &Proof| self.exchange(at, &temporary, name, path, proof);
                let made = self.guard.while_unchanged(at, name, path, before, act);
                if !matches!(made, Ok(Some(()))) {
                    // Another program may have created files in it while it had the name. After a failure the old file may
                    // have this name.
                    if let Err(Errno::NOTEMPTY | Errno::EXIST) = at.remove_directory(&temporary) {
                        self.keep_under_other_name(at, &temporary, name, path)?;
                    }
                }
                if made?.is_none() {
                    return Ok(Err(Why::ChangedSince));
                }
            }
        }
        let stamp = at.stamp(name).map_err(|source| Error::host("look at", path, source))?;
        Ok(if stamp.kind() == FileType::Directory { Ok(stamp.inode) } else { Err(Why::ChangedSince) })
    }
}

/// Returns a name for an entry that cannot get its own name back.
fn other_name(name: &Name, number: u32) -> Name {
    let suffix = format!(".amalgam-kept-{number}");
    let stem = &name.as_bytes()[..name.as_bytes().len().min(NAME_BYTES_MAX - suffix.len())];
    Name::new(&[stem, suffix.as_bytes()].concat()).expect("a name with a suffix of plain letters")
}
