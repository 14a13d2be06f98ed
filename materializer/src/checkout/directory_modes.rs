//! Modes of directories that a checkout has to open up for itself, and that it sets only at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};

use amalgam_engine::{Entry, TreePath, entry_at};
use parking_lot::Mutex;

use super::attributes::{Handle, apply_directory_attributes};
use super::context::Context;
use super::open_directory::open_path_only;
use crate::error::{Error, Result};
use crate::plan::{EntryPair, displayed_entry};
use crate::stamp::Stamp;

/// The permissions that an owner needs to work in a directory.
const OWNER_ALL: u32 = 0o700;

/// Directories that are open to their owner only while the checkout runs.
pub(super) struct DirectoryModes<'c> {
    cx: &'c Context<'c>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Directories that were opened to their owner: inode and former mode.
    opened: BTreeMap<TreePath, (u64, u32)>,
    /// Directories whose new mode locks their owner out: inode and attributes.
    closing: BTreeMap<TreePath, (u64, EntryPair)>,
}

impl<'c> DirectoryModes<'c> {
    pub(super) fn new(cx: &'c Context<'c>) -> Self {
        Self { cx, state: Mutex::default() }
    }

    /// Returns whether an existing directory lacks permissions that this process needs.
    pub(super) fn is_closed_to_owner(&self, stamp: &Stamp) -> bool {
        !self.cx.process.is_root && stamp.mode & OWNER_ALL != OWNER_ALL
    }

    /// Gives the owner of a directory all permissions until [`restore`](Self::restore).
    pub(super) fn open_to_owner(&self, handle: Handle<'_>, path: &TreePath, stamp: &Stamp) {
        // If that is refused, group or others may still have the permissions; if not, each name reports it.
        if handle.set_mode(stamp.permissions() | OWNER_ALL).is_ok() {
            self.state.lock().opened.entry(path.clone()).or_insert((stamp.inode, stamp.permissions()));
        }
    }

    /// Opens a directory to its owner that the owner may not even read, if it is the one that the index describes.
    pub(super) fn make_enterable(&self, path: &TreePath) -> Result<()> {
        let failed = |source: std::io::Error| Error::host("open the directory", path, source);
        let Some((parent, name)) = self.cx.directory.parent(path).map_err(failed)? else { return Ok(()) };
        let held = open_path_only(parent.as_fd(), &name).map_err(|errno| failed(errno.into()))?;
        let stamp = Stamp::of(held.as_fd()).map_err(failed)?;
        if self.cx.index.stamp(path).is_some_and(|known| known.inode == stamp.inode) {
            self.open_to_owner(Handle::PathOnly(held.as_fd()), path, &stamp);
        }
        Ok(())
    }

    /// Sets the attributes of a directory now, or at the end if its new mode locks its owner out.
    pub(super) fn apply(&self, handle: BorrowedFd<'_>, path: TreePath, inode: u64, pair: EntryPair) -> Result<()> {
        let locks_out = pair.after.as_ref().is_some_and(|after| after.mode & OWNER_ALL != OWNER_ALL);
        if locks_out && !self.cx.process.is_root {
            self.state.lock().closing.insert(path, (inode, pair));
            return Ok(());
        }
        apply_directory_attributes(self.cx, Handle::Open(handle), &path, &pair)
    }

    /// Returns whether mode and owner of a directory are those of the index, or those that this checkout set.
    pub(super) fn is_unchanged(&self, path: &TreePath, handle: BorrowedFd<'_>, before: &Entry) -> Result<bool> {
        let present = Stamp::of(handle).map_err(|source| Error::host("look at", path, source))?;
        let Some(known) = self.cx.index.stamp(path) else {
            // The index may not describe the root.
            return Ok(path.is_root() && present.permissions() == before.mode);
        };
        let is_opened = self.state.lock().opened.contains_key(path);
        let same_mode = present.mode == known.mode || is_opened;
        Ok(same_mode && (present.uid, present.gid) == (known.uid, known.gid))
    }

    /// Gives all directories that were opened their new or former modes, deepest first.
    pub(super) fn restore(&self) -> Result<()> {
        let State { opened, closing } = std::mem::take(&mut *self.state.lock());
        let paths: BTreeSet<&TreePath> = opened.keys().chain(closing.keys()).collect();
        let mut first_error = Ok(());
        for path in paths.into_iter().rev() {
            let Ok(handle) = self.cx.directory.directory(path) else { continue };
            let Ok(present) = Stamp::of(handle.as_fd()) else { continue };
            let handle = Handle::Open(handle.as_fd());
            let closed = match (closing.get(path), opened.get(path)) {
                (Some((inode, pair)), _) if *inode == present.inode => {
                    apply_directory_attributes(self.cx, handle, path, pair)
                }
                (None, Some((inode, mode))) if *inode == present.inode => self.restore_mode(handle, path, *mode),
                _ => Ok(()),
            };
            if first_error.is_ok() {
                first_error = closed;
            }
        }
        first_error
    }

    fn restore_mode(&self, handle: Handle<'_>, path: &TreePath, mode: u32) -> Result<()> {
        let cx = self.cx;
        // The checkout may have set a new mode in the meantime.
        let wanted = entry_at(cx.store, &cx.after, path)?.and_then(displayed_entry).map(|entry| entry.mode);
        let before = match &cx.before {
            Some(before) => entry_at(cx.store, before, path)?.and_then(displayed_entry).map(|entry| entry.mode),
            None => None,
        };
        let is_new = before != wanted && handle.stamp().is_ok_and(|present| Some(present.permissions()) == wanted);
        if is_new {
            return Ok(());
        }
        let set = handle.set_mode(mode).map_err(|errno| Error::host("set the mode of", path, errno));
        cx.tolerate(path, set).map(|_| ())
    }
}
