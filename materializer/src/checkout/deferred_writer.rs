//! Writes single entries after the walk, in directories that are opened again for each.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::AsFd;

use amalgam_engine::{Name, TreePath, entry_at};

use super::attributes::{Handle, set_directory_time};
use super::context::Context;
use super::entry_writer::{EntryWriter, WantedEntry};
use super::open_directory::OpenDirectory;
use crate::error::{Error, Result};
use crate::host::is_absent;
use crate::plan::displayed_entry;
use crate::stamp::Stamp;

/// Writes entries one by one, and remembers the directories whose times have to be set again. Used by one thread.
pub(super) struct DeferredWriter<'c> {
    pub(super) cx: &'c Context<'c>,
    pub(super) entries: &'c EntryWriter<'c>,
    changed: RefCell<BTreeSet<TreePath>>,
}

impl<'c> DeferredWriter<'c> {
    pub(super) fn new(cx: &'c Context<'c>, entries: &'c EntryWriter<'c>) -> Self {
        Self { cx, entries, changed: RefCell::default() }
    }

    /// Opens the directory of a path. Returns `None`, after a notice, if it is gone.
    pub(super) fn open_parent(&self, path: &TreePath) -> Result<Option<(OpenDirectory, Name)>> {
        let opened = self.cx.directory.parent(path).and_then(|parent| {
            let Some((handle, name)) = parent else { return Ok(None) };
            let inode = Stamp::of(handle.as_fd())?.inode;
            let (directory, _) = path.split_last().expect("it has a parent");
            Ok(Some((OpenDirectory::existing(directory, handle, inode), name)))
        });
        let opened = opened.map_err(|source| Error::host("open the directory of", path, source));
        Ok(self.cx.tolerate(path, opened)?.flatten())
    }

    /// Writes an entry. Returns `None`, after a notice, if its name was left as it is.
    pub(super) fn write(&self, at: &OpenDirectory, wanted: &WantedEntry) -> Result<Option<Stamp>> {
        let written = self.entries.write(at, wanted, None);
        let stamp = self.cx.tolerate(&wanted.path, written)?.flatten();
        if stamp.is_some() {
            self.record_change(at);
        }
        Ok(stamp)
    }

    /// Records that names in a directory changed.
    pub(super) fn record_change(&self, at: &OpenDirectory) {
        self.cx.touch(&at.path);
        self.changed.borrow_mut().insert(at.path.clone());
    }

    /// Sets the times of all directories in which names changed, deepest first.
    pub(super) fn set_directory_times(&self) -> Result<()> {
        let cx = self.cx;
        for path in self.changed.take().into_iter().rev() {
            let entry = entry_at(cx.store, &cx.after, &path)?.and_then(displayed_entry);
            let Some(after) = entry else { continue };
            match cx.directory.directory(&path) {
                Ok(handle) => set_directory_time(cx, Handle::Open(handle.as_fd()), &path, &after)?,
                Err(error) if is_absent(&error) => {}
                Err(error) => {
                    cx.tolerate::<()>(&path, Err(Error::host("open the directory", &path, error)))?;
                }
            }
        }
        Ok(())
    }
}
