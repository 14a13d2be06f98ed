//! Work that is deferred until the walk is over, in this order: emptied directories are removed or replaced, deepest first;
//! files with several names get them; files that left a link group become files of their own; and directories get the times
//! that all of this would have changed again.

use std::collections::BTreeMap;

use amalgam_engine::{Entry, LinkGroup, TreePath, linked_paths};
use parking_lot::Mutex;

use super::deferred_writer::DeferredWriter;
use super::entry_writer::WantedEntry;
use super::install::Installed;
use super::links::{Members, write_link_group};
use crate::error::Result;
use crate::plan::EntryPair;

/// The deferred work, collected by the threads of the walk.
#[derive(Default)]
pub(super) struct Deferred {
    work: Mutex<Work>,
}

#[derive(Default)]
struct Work {
    /// Directories whose contents are removed, and the entries that replace them.
    emptied: BTreeMap<TreePath, Option<Entry>>,
    /// Differing members of link groups of the target.
    groups: BTreeMap<LinkGroup, Members>,
    /// Files that were in a link group and are not any more.
    unlinked: Vec<WantedEntry>,
}

impl Deferred {
    /// Defers the removal of a directory that the walk empties, or its replacement by `after`.
    pub(super) fn add_emptied(&self, directory: TreePath, after: Option<Entry>) {
        self.work.lock().emptied.insert(directory, after);
    }

    /// Defers a file that is a member of a link group.
    pub(super) fn add_member(&self, group: LinkGroup, path: TreePath, pair: EntryPair) {
        self.work.lock().groups.entry(group).or_default().insert(path, pair);
    }

    /// Defers a file that leaves its link group.
    pub(super) fn add_unlinked(&self, wanted: WantedEntry) {
        self.work.lock().unlinked.push(wanted);
    }

    /// Does the deferred work.
    pub(super) fn finish(&self, writer: &DeferredWriter<'_>) -> Result<()> {
        let Work { emptied, mut groups, unlinked } = std::mem::take(&mut *self.work.lock());
        for (path, after) in emptied.into_iter().rev() {
            writer.cx.check()?;
            match after {
                Some(entry) if entry.link().is_some() => {
                    let group = entry.link().expect("it has one");
                    let pair = EntryPair { before: Some(Entry::empty_directory(0, entry.mtime)), after: Some(entry) };
                    groups.entry(group).or_default().insert(path, pair);
                }
                after => end_directory(writer, &path, after)?,
            }
        }
        for (group, members) in groups {
            writer.cx.check()?;
            write_link_group(writer, group, &members)?;
        }
        for wanted in unlinked {
            writer.cx.check()?;
            detach(writer, &wanted)?;
        }
        touch_changed_groups(writer)?;
        writer.set_directory_times()
    }
}

/// Removes an emptied directory, or replaces it by an entry.
fn end_directory(writer: &DeferredWriter<'_>, path: &TreePath, after: Option<Entry>) -> Result<()> {
    let Some((at, name)) = writer.open_parent(path)? else { return Ok(()) };
    match after {
        None => {
            let removed = writer.entries.installer.remove_emptied(&at, &name, path);
            match writer.cx.tolerate(path, removed)? {
                Some(Installed::Done) => {
                    writer.cx.recorder.removed();
                    writer.record_change(&at);
                }
                Some(Installed::Skipped(why)) => writer.cx.notice(path, why),
                None => {}
            }
        }
        Some(entry) => {
            let before = Some(Entry::empty_directory(0, entry.mtime));
            writer.write(&at, &WantedEntry { path: path.clone(), name, before, entry })?;
        }
    }
    Ok(())
}

/// Makes a member of a link group a file of its own.
fn detach(writer: &DeferredWriter<'_>, wanted: &WantedEntry) -> Result<()> {
    let Some((at, _)) = writer.open_parent(&wanted.path)? else { return Ok(()) };
    let has_one_link = at.stamp(&wanted.name).is_ok_and(|present| present.links == 1);
    let has_same_bytes = wanted.before.as_ref().is_some_and(|before| before.node == wanted.entry.node);
    if has_one_link && has_same_bytes {
        writer.entries.update_attributes(&at, wanted)?;
        return Ok(());
    }
    writer.write(&at, wanted)?;
    Ok(())
}

/// Records the directories of all names of changed link groups: their stamps differ now.
fn touch_changed_groups(writer: &DeferredWriter<'_>) -> Result<()> {
    let cx = writer.cx;
    let changed = writer.entries.installer.guard.take_changed_groups();
    let Some(before) = &cx.before else { return Ok(()) };
    for group in changed {
        for path in linked_paths(cx.store, before, group)? {
            if let Some((parent, _)) = path.split_last() {
                cx.touch(&parent);
            }
        }
    }
    Ok(())
}
