//! What waits until the walk is over, in this order: directories that were emptied go or make room, deepest first; files with
//! several names get them; files that lost theirs become files of their own; and directories get the times and modes that all of
//! this would have changed again.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

use amalgam_engine::{Entry, LinkGroup, Name, TreePath, entry_at, linked_paths};

use super::attributes::Handle;
use super::fill::Wanted;
use super::walk::Open;
use super::{Members, Placed, Run};
use crate::error::{Error, Result};
use crate::host::is_absent;
use crate::plan::{Pair, shown};
use crate::stamp::Stamp;

/// What waits.
#[derive(Default)]
pub(super) struct Late {
    /// Directories whose contents go, and what takes their place.
    pub(super) emptied: BTreeMap<TreePath, Option<Entry>>,
    /// Members of link groups of the target that differ.
    pub(super) groups: BTreeMap<LinkGroup, Members>,
    /// Files that belonged to a group and do not any more.
    pub(super) unlinked: Vec<Wanted>,
    /// Groups some of whose names went or whose file was changed: the stamps of all their names are others now.
    pub(super) loosened: BTreeSet<LinkGroup>,
    /// Directories whose owner was let in for the time: inode and mode.
    pub(super) opened: BTreeMap<TreePath, (u64, u32)>,
    /// Directories whose mode would keep their owner out: inode and attributes.
    pub(super) closing: BTreeMap<TreePath, (u64, Pair)>,
    /// Directories in which names were changed late.
    renamed_in: BTreeSet<TreePath>,
}

impl Run<'_> {
    pub(super) fn finish_late(&self) -> Result<()> {
        let emptied = std::mem::take(&mut self.late.lock().emptied);
        for (path, after) in emptied.into_iter().rev() {
            self.check()?;
            match after {
                Some(entry) if entry.link().is_some() => {
                    let group = entry.link().expect("it has one");
                    let pair = Pair { before: Some(Entry::empty_directory(0, entry.mtime)), after: Some(entry) };
                    self.late.lock().groups.entry(group).or_default().insert(path, pair);
                }
                after => self.end_directory(&path, after)?,
            }
        }
        let groups = std::mem::take(&mut self.late.lock().groups);
        for (group, members) in groups {
            self.check()?;
            self.settle_group(group, &members)?;
        }
        let unlinked = std::mem::take(&mut self.late.lock().unlinked);
        for wanted in unlinked {
            self.check()?;
            self.part(&wanted)?;
        }
        self.touch_loosened()?;
        self.set_late_times()
    }

    /// Removes an emptied directory, or puts something in its place.
    fn end_directory(&self, path: &TreePath, after: Option<Entry>) -> Result<()> {
        let Some((at, name)) = self.open_again(path)? else { return Ok(()) };
        match after {
            None => {
                let removed = self.remove_emptied(&at, &name, path);
                match self.settle(path, removed)? {
                    Some(Placed::There) => {
                        self.done.lock().removed += 1;
                        self.changed_late(&at);
                    }
                    Some(Placed::Left(why)) => self.notice(path, why),
                    None => {}
                }
            }
            Some(entry) => {
                let before = Some(Entry::empty_directory(0, entry.mtime));
                let wanted = Wanted { path: path.clone(), name, before, entry };
                self.put_late(&at, &wanted)?;
            }
        }
        Ok(())
    }

    /// Makes a file of its own of one that belonged to a group.
    fn part(&self, wanted: &Wanted) -> Result<()> {
        let Some((at, _)) = self.open_again(&wanted.path)? else { return Ok(()) };
        let present = Stamp::at(at.handle.as_fd(), &wanted.name);
        let is_alone = present.is_ok_and(|present| present.links == 1);
        let is_alike = wanted.before.as_ref().is_some_and(|before| before.node == wanted.entry.node);
        if is_alone && is_alike {
            self.dress_in_place(&at, wanted)?;
            return Ok(());
        }
        self.put_late(&at, wanted)?;
        Ok(())
    }

    pub(super) fn put_late(&self, at: &Open, wanted: &Wanted) -> Result<Option<Stamp>> {
        let put = self.put(at, wanted, None);
        let stamp = self.settle(&wanted.path, put)?.flatten();
        if stamp.is_some() {
            self.changed_late(at);
        }
        Ok(stamp)
    }

    /// Opens the directory of a path once more; nothing where it is gone, which is reported.
    pub(super) fn open_again(&self, path: &TreePath) -> Result<Option<(Open, Name)>> {
        let opened = self.directory.parent(path).and_then(|parent| {
            let Some((handle, name)) = parent else { return Ok(None) };
            let inode = Stamp::of(handle.as_fd())?.inode;
            let (directory, _) = path.split_last().expect("it has a parent");
            Ok(Some((Open::again(directory, handle, inode), name)))
        });
        let opened = opened.map_err(|source| Error::host("open the directory of", path, source));
        Ok(self.settle(path, opened)?.flatten())
    }

    pub(super) fn changed_late(&self, at: &Open) {
        self.touch(&at.path);
        self.late.lock().renamed_in.insert(at.path.clone());
    }

    /// The other names of files that were changed under one have other stamps now.
    fn touch_loosened(&self) -> Result<()> {
        let loosened = std::mem::take(&mut self.late.lock().loosened);
        let Some(before) = &self.before else { return Ok(()) };
        for group in loosened {
            for path in linked_paths(self.store, before, group)? {
                if let Some((parent, _)) = path.split_last() {
                    self.touch(&parent);
                }
            }
        }
        Ok(())
    }

    fn set_late_times(&self) -> Result<()> {
        let renamed_in = std::mem::take(&mut self.late.lock().renamed_in);
        for path in renamed_in.into_iter().rev() {
            let entry = entry_at(self.store, &self.after, &path)?.and_then(shown);
            let Some(after) = entry else { continue };
            match self.directory.directory(&path) {
                Ok(handle) => self.set_directory_time(Handle::Open(handle.as_fd()), &path, &after)?,
                Err(error) if is_absent(&error) => {}
                Err(error) => {
                    self.settle::<()>(&path, Err(Error::host("open the directory", &path, error)))?;
                }
            }
        }
        Ok(())
    }

    /// Gives directories that were opened for the time their modes, the new ones or those they had; deepest first.
    pub(super) fn close_directories(&self) -> Result<()> {
        let (opened, closing) = {
            let mut late = self.late.lock();
            (std::mem::take(&mut late.opened), std::mem::take(&mut late.closing))
        };
        let paths: BTreeSet<&TreePath> = opened.keys().chain(closing.keys()).collect();
        let mut first_error = Ok(());
        for path in paths.into_iter().rev() {
            let Ok(handle) = self.directory.directory(path) else { continue };
            let Ok(present) = Stamp::of(handle.as_fd()) else { continue };
            let handle = Handle::Open(handle.as_fd());
            let closed = match (closing.get(path), opened.get(path)) {
                (Some((inode, pair)), _) if *inode == present.inode => self.dress_directory(handle, path, pair),
                (None, Some((inode, mode))) if *inode == present.inode => self.close(handle, path, *mode),
                _ => Ok(()),
            };
            if first_error.is_ok() {
                first_error = closed;
            }
        }
        first_error
    }

    fn close(&self, handle: Handle<'_>, path: &TreePath, mode: u32) -> Result<()> {
        // Its mode may have been set to a new one in the meantime.
        let wanted = entry_at(self.store, &self.after, path)?.and_then(shown).map(|entry| entry.mode);
        let before = match &self.before {
            Some(before) => entry_at(self.store, before, path)?.and_then(shown).map(|entry| entry.mode),
            None => None,
        };
        let is_new = before != wanted && handle.stamp().is_ok_and(|present| Some(present.permissions()) == wanted);
        if is_new {
            return Ok(());
        }
        let set = handle.set_mode(mode).map_err(|errno| Error::host("set the mode of", path, errno));
        self.settle(path, set).map(|_| ())
    }
}
