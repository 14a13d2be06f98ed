//! Checks that a name still has the file that the index describes, before a checkout changes it.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::AsFd;

use amalgam_engine::{Entry, LinkGroup, Name, TreePath, entry_at};
use parking_lot::Mutex;
use rustix::fs::FileType;

use super::context::Context;
use super::open_directory::OpenDirectory;
use crate::compare::{ContentMatch, compare};
use crate::error::{Error, Result};
use crate::host::is_absent;
use crate::index::Trust;
use crate::plan::displayed_entry;
use crate::stamp::Stamp;

/// Evidence that a name is unchanged.
pub(super) struct Proof {
    /// The stamp of the file.
    pub(super) stamp: Stamp,
    /// The entry whose bytes the file was compared with, if the stamp alone is no proof.
    pub(super) bytes_of: Option<Entry>,
}

/// Compares names with the index, and remembers this checkout's own changes of files with several names.
pub(super) struct ChangeGuard<'c> {
    cx: &'c Context<'c>,
    own_changes: Mutex<OwnChanges>,
    /// Link groups of which a name was removed or whose file was changed: the stamps of all their names differ now.
    changed_groups: Mutex<BTreeSet<LinkGroup>>,
}

/// By inode: the stamp after this checkout's last change of the file, and what the file holds.
type OwnChanges = HashMap<u64, (Stamp, Entry)>;

impl<'c> ChangeGuard<'c> {
    pub(super) fn new(cx: &'c Context<'c>) -> Self {
        Self { cx, own_changes: Mutex::default(), changed_groups: Mutex::default() }
    }

    /// Calls `act` on a name if it is unchanged since the index was made; returns `None` otherwise. `act` gets the proof, and
    /// returns `None` if it finds a change after all. `leaves` is what the file holds afterwards, for its other names.
    pub(super) fn while_unchanged<T>(
        &self,
        at: &OpenDirectory,
        name: &Name,
        path: &TreePath,
        leaves: &Entry,
        act: impl FnOnce(&Proof) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let failed = |source: io::Error| Error::host("look at", path, source);
        // A file with several names changes under all of them at once. The lock keeps this checkout's change of one name from
        // looking like another program's change of the next.
        let has_links = self.cx.index.stamp(path).is_some_and(|known| known.links > 1);
        let mut own_changes = has_links.then(|| self.own_changes.lock());
        let present = match at.stamp(name) {
            Ok(present) => present,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let Some(proof) = self.prove(at, name, path, &present, own_changes.as_deref())? else { return Ok(None) };
        let held = match &own_changes {
            Some(_) => Some(at.hold(name).map_err(|errno| failed(errno.into()))?),
            None => None,
        };
        self.cx.staging.pause(path);
        let Some(value) = act(&proof)? else { return Ok(None) };
        if let (Some(own_changes), Some(held)) = (&mut own_changes, held) {
            let stamp = Stamp::of(held.as_fd()).map_err(failed)?;
            if stamp.links > 0 {
                own_changes.insert(stamp.inode, (stamp, leaves.clone()));
            } else {
                // The next new file may get its inode.
                own_changes.remove(&stamp.inode);
            }
            if let Some(group) = leaves.link() {
                self.changed_groups.lock().insert(group);
            }
        }
        Ok(Some(value))
    }

    /// Returns the inode of a name that is unchanged, `None` for any other name.
    pub(super) fn unchanged_inode(&self, at: &OpenDirectory, name: &Name, path: &TreePath) -> Result<Option<u64>> {
        let own_changes = self.own_changes.lock();
        let Ok(present) = at.stamp(name) else { return Ok(None) };
        let proof = self.prove(at, name, path, &present, Some(&own_changes))?;
        Ok(proof.map(|_| present.inode))
    }

    /// Returns whether a name is still the directory that the index describes.
    pub(super) fn is_same_directory(&self, at: &OpenDirectory, name: &Name, path: &TreePath) -> Result<bool> {
        let known = self.cx.index.stamp(path);
        match at.stamp(name) {
            Ok(present) => {
                let is_directory = present.kind() == FileType::Directory;
                Ok(is_directory && known.is_some_and(|known| known.inode == present.inode))
            }
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(Error::host("look at", path, error)),
        }
    }

    /// Records this checkout's own change of a file with several names.
    pub(super) fn record_own_change(&self, stamp: Stamp, entry: Entry) {
        self.own_changes.lock().insert(stamp.inode, (stamp, entry));
    }

    pub(super) fn take_changed_groups(&self) -> BTreeSet<LinkGroup> {
        std::mem::take(&mut self.changed_groups.lock())
    }

    /// Hands the contents of files with several names to the recorder.
    pub(super) fn record_contents(&self) {
        for (stamp, entry) in std::mem::take(&mut *self.own_changes.lock()).into_values() {
            self.cx.recorder.known(stamp, entry);
        }
    }

    /// Returns the proof that a name has what the index describes, or what this checkout made of it; `None` otherwise. A racy
    /// stamp proves nothing, so the bytes are compared.
    fn prove(
        &self,
        at: &OpenDirectory,
        name: &Name,
        path: &TreePath,
        present: &Stamp,
        own_changes: Option<&OwnChanges>,
    ) -> Result<Option<Proof>> {
        let cx = self.cx;
        let Some((known, trust)) = cx.index.stamp_and_trust(path) else { return Ok(None) };
        if known.inode != present.inode {
            return Ok(None);
        }
        let by_stamp = Proof { stamp: *present, bytes_of: None };
        if own_changes.and_then(|own| own.get(&present.inode)).is_some_and(|(stamp, _)| stamp == present) {
            return Ok(Some(by_stamp));
        }
        if known != *present {
            return Ok(None);
        }
        if trust != Trust::Racy {
            return Ok(Some(by_stamp));
        }
        let Some(before) = &cx.before else { return Ok(None) };
        let Some(entry) = entry_at(cx.store, before, path)?.and_then(displayed_entry) else { return Ok(None) };
        let compared = compare(cx.store, at.handle.as_fd(), name, &entry, *present, cx.options.progress)?;
        let is_equal = compared.outcome == ContentMatch::Equal(*present);
        Ok(is_equal.then_some(Proof { bytes_of: Some(entry), ..by_stamp }))
    }
}
