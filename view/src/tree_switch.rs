//! Replacement of the whole tree while it is in use: restores, other snapshots, and changes of local entries.
//!
//! Directories keep their inodes, and so do files whose data is equal in both trees. All other inodes are detached: callers that hold them
//! can still use them. All that can fail is done before the first change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use amalgam_engine::object::{Entry, EntryKind, Node, Root};
use amalgam_engine::work::Stat;
use amalgam_engine::{Change, DiffOptions, Name, RootId, SnapshotId, TreePath, WorkingTree, diff_entries, entry_at};
use amalgam_policy::Guard;
use foldhash::HashMap;

use crate::attributes::{Attributes, Ino, Kind, ROOT};
use crate::dentry::Dentry;
use crate::error::{Error, Result};
use crate::file_system::{FileSystem, StateVersion};
use crate::inodes::Location;
use crate::invalidation::Invalidation;
use crate::local_entries::{LocalEntries, LocalEntry};
use crate::namespace;

/// The result of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Number of paths that changed.
    pub changed: usize,
}

/// The tree of a view in stored form.
#[derive(Clone, Copy, Debug)]
pub struct Captured {
    /// The version of the view before its tree was read.
    pub version: StateVersion,
    /// The stored tree.
    pub root: RootId,
}

/// Replaces the tree by that of a snapshot. Returns the earlier tree. `head` is the snapshot that the next commit follows.
/// If the view was not changed since it was captured, files with edits whose data is that of the snapshot keep their inodes.
pub(crate) fn restore(
    fs: &mut FileSystem,
    state: SnapshotId,
    head: Option<SnapshotId>,
    captured: Option<Captured>,
) -> Result<(WorkingTree, Restored)> {
    fs.ensure_writable()?;
    let before = fs.tree.fork();
    let now = fs.now();
    let mut after = WorkingTree::open(before.store(), state)?;
    let changed = ChangedPath::between(&before, &after)?;
    let restored = Restored { changed: changed.len() };
    let captured = captured.filter(|captured| captured.version == fs.version());
    let captured = captured.map(|captured| before.store().root(captured.root)).transpose()?;
    let switch = InodeSwitch::prepare(fs, &after, changed, captured.as_deref())?;
    // From here on nothing may fail, because the journal has the restore.
    fs.journal.as_mut().ok_or(Error::ReadOnly)?.record_restore(state, head, now)?;
    fs.report_change();
    after.rebase(head);
    switch.apply(fs);
    fs.tree = after;
    fs.inodes.invalidate_all();
    Ok((before, restored))
}

/// Shows another snapshot in a read-only view.
pub(crate) fn show(fs: &mut FileSystem, snapshot: SnapshotId) -> Result<Restored> {
    if fs.journal.is_some() {
        return Err(Error::Invalid("a view with changes of its own goes to a snapshot by a restore"));
    }
    let after = WorkingTree::open(fs.tree.store(), snapshot)?;
    let changed = ChangedPath::between(&fs.tree, &after)?;
    let restored = Restored { changed: changed.len() };
    InodeSwitch::prepare(fs, &after, changed, None)?.apply(fs);
    fs.tree = after;
    fs.inodes.invalidate_all();
    Ok(restored)
}

/// Replaces the local entries. Inodes of covered or removed entries are detached.
pub(crate) fn set_local_entries(fs: &mut FileSystem, entries: BTreeMap<TreePath, LocalEntry>) -> Result<()> {
    let entries = LocalEntries::new(entries, fs.now())?;
    fs.ensure_writable()?;
    let changed = fs.local.changed_paths(&entries);
    let mut detachment = Detachment::default();
    for ino in changed.iter().filter_map(|path| fs.inodes.ino_of(path)) {
        detachment.prepare(fs, ino, None)?;
    }
    for path in &changed {
        if let Some(ino) = fs.inodes.ino_of(path) {
            detachment.apply(fs, ino);
        }
        let (above, name) = path.split_last().expect("the root is never a local entry");
        if let Some(parent) = fs.inodes.ino_of(&above) {
            fs.watchers.notify_all(&Invalidation::Entry { parent, name });
            fs.watchers.notify_all(&Invalidation::Contents(parent));
        }
    }
    fs.local = entries;
    Ok(())
}

/// Replaces the agents on whose behalf the view is used. Watchers drop their caches of each name whose level changed, whether it
/// was visible or not: they may remember that a hidden name does not exist.
pub(crate) fn set_guard(fs: &mut FileSystem, guard: Arc<Guard>) -> Result<()> {
    let before = std::mem::replace(&mut fs.guard, guard);
    let guard = Arc::clone(&fs.guard);
    if before.is_same(&guard) {
        return Ok(());
    }
    for directory in fs.inodes.directories() {
        // The tree need not have the path of a local directory, which shows nothing of the tree.
        let Some(path) = fs.inodes.path(directory)?.filter(|path| !fs.local.covers(path)) else { continue };
        let mut is_changed = false;
        for item in fs.tree.list(&path)? {
            let (name, stat) = item?;
            let child = path.join(&name);
            let is_directory = stat.kind == EntryKind::Directory;
            let verdict =
                |guard: &Guard| (guard.level(child.as_bytes()), guard.is_visible(child.as_bytes(), is_directory));
            // Other names of a hard link may have other levels.
            if verdict(&before) == verdict(&guard) && stat.links <= 1 {
                continue;
            }
            is_changed = true;
            if let Some(ino) = fs.inodes.ino_at(&Dentry { parent: directory, name: name.clone() }) {
                fs.watchers.notify_all(&Invalidation::Contents(ino));
            }
            fs.watchers.notify_all(&Invalidation::Entry { parent: directory, name });
        }
        if is_changed {
            fs.watchers.notify_all(&Invalidation::Contents(directory));
        }
    }
    Ok(())
}

/// The fate of the inodes at a path that a group of edits changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InodeFate {
    /// The inode stays, with other data or attributes.
    Kept,
    /// A directory stays, with other attributes; everything else is replaced.
    Taken,
    /// The inode at the path and all below it are detached.
    Replaced,
    /// The inode loses this name, and stays under other names of the file.
    Unnamed,
}

/// The prepared changes of the inode table for the tree after a group of edits.
#[derive(Default)]
pub(crate) struct GroupSwitch {
    changes: Vec<GroupChange>,
    detachment: Detachment,
}

/// The prepared change of the inode table at a path.
struct GroupChange {
    path: TreePath,
    fate: InodeFate,
    /// Whether the path existed before.
    existed: bool,
    /// The inode of a hard link that is in the table under other names only.
    linked: Option<Ino>,
    /// A name that the file keeps, if none of those is in the table.
    remaining: Option<Dentry>,
}

/// Computes the changes of the inode table for a group of edits.
pub(crate) fn prepare_group(
    fs: &mut FileSystem,
    after: &WorkingTree,
    fates: &BTreeMap<TreePath, InodeFate>,
) -> Result<GroupSwitch> {
    let mut switch = GroupSwitch::default();
    for (path, fate) in fates {
        match switch.change_at(fs, after, (path, *fate), fates) {
            Ok(change) => switch.changes.push(change),
            Err(error) => {
                evict_unused(fs, switch.changes.iter().filter_map(|change| change.remaining.as_ref()));
                return Err(error);
            }
        }
    }
    Ok(switch)
}

/// Evicts the directories of names that were prepared and are not in the table.
fn evict_unused<'a>(fs: &mut FileSystem, remaining: impl IntoIterator<Item = &'a Dentry>) {
    for dentry in remaining {
        fs.inodes.evict_if_unheld(dentry.parent);
    }
}

/// Returns whether a group of edits may put another entry at a path.
fn may_be_replaced(fates: &BTreeMap<TreePath, InodeFate>, path: &TreePath) -> bool {
    let mut above = std::iter::successors(path.split_last(), |(above, _)| above.split_last());
    fates.get(path).is_some_and(|fate| *fate != InodeFate::Kept)
        || above.any(|(above, _)| fates.get(&above) == Some(&InodeFate::Replaced))
}

impl GroupSwitch {
    /// Computes the change at a path.
    fn change_at(
        &mut self,
        fs: &mut FileSystem,
        after: &WorkingTree,
        (path, fate): (&TreePath, InodeFate),
        fates: &BTreeMap<TreePath, InodeFate>,
    ) -> Result<GroupChange> {
        let (stat, ino) = (fs.tree.stat(path)?, fs.inodes.ino_of(path));
        let existed = stat.is_some();
        let mut change = GroupChange { path: path.clone(), fate, existed, linked: None, remaining: None };
        if stat.is_some_and(|stat| stat.kind != Kind::Directory && stat.links > 1)
            && change.prepare_link(fs, after, ino, fates)?
        {
            return Ok(change);
        }
        if let Some(ino) = ino {
            let kind = fs.inodes.get(ino)?.kind;
            // A conflict that is shown as a file is replaced by that file.
            let may_stay = match fate {
                InodeFate::Kept => true,
                InodeFate::Taken => kind == Kind::Directory,
                InodeFate::Replaced | InodeFate::Unnamed => false,
            };
            let is_kept = may_stay && after.stat(path)?.is_some_and(|stat| stat.kind == kind);
            change.fate = if is_kept { InodeFate::Kept } else { InodeFate::Replaced };
            if ino != ROOT && !is_kept {
                self.detachment.prepare(fs, ino, None)?;
            }
        } else if fate == InodeFate::Taken {
            change.fate = InodeFate::Replaced;
        }
        Ok(change)
    }

    /// Switches to the tree after the group, and notifies all watchers.
    pub(crate) fn finish(mut self, fs: &mut FileSystem, after: WorkingTree) {
        let watchers = Arc::clone(&fs.watchers);
        let (mut directories, mut prepared) = (BTreeSet::new(), Vec::new());
        for GroupChange { path, fate, existed, linked, remaining } in self.changes {
            let ino = fs.inodes.ino_of(&path);
            match (ino.or(linked), fate) {
                (Some(ino), InodeFate::Kept | InodeFate::Unnamed) => {
                    fs.inodes.set_times(ino, Default::default());
                    fs.inodes.invalidate(ino);
                    watchers.notify_all(&Invalidation::Contents(ino));
                }
                (Some(found), InodeFate::Replaced) if ino.is_some() && found != ROOT => {
                    self.detachment.apply(fs, found);
                }
                _ => {}
            }
            if let (Some(linked), InodeFate::Unnamed) = (linked, fate) {
                // Its handle may be known by the removed name.
                fs.inodes.update_handle(linked);
            }
            prepared.extend(remaining.clone());
            let Some((above, name)) = path.split_last().filter(|_| fate != InodeFate::Kept) else { continue };
            let Some(parent) = fs.inodes.ino_of(&above) else { continue };
            let dentry = Dentry { parent, name: name.clone() };
            match (ino, existed) {
                _ if fate == InodeFate::Unnamed => fs.inodes.remove_link(&dentry, remaining),
                (Some(_), _) => {}
                // The number may be that of the inode under another name, which has a change of its own.
                (None, true) if linked.is_some() => fs.inodes.remove_link(&dentry, None),
                (None, true) => fs.inodes.retire(&dentry),
                (None, false) => fs.inodes.retire_handle_at(&dentry),
            }
            watchers.notify_all(&Invalidation::Entry { parent, name });
            directories.insert(parent);
        }
        evict_unused(fs, &prepared);
        fs.tree = after;
        for ino in directories {
            fs.inodes.invalidate_directory(ino);
            watchers.notify_all(&Invalidation::Contents(ino));
        }
    }
}

impl GroupChange {
    /// Prepares the change of a hard link, whose inode is `ino` if the table has this name. Returns whether the file keeps other names.
    fn prepare_link(
        &mut self,
        fs: &mut FileSystem,
        after: &WorkingTree,
        ino: Option<Ino>,
        fates: &BTreeMap<TreePath, InodeFate>,
    ) -> Result<bool> {
        let mut others = fs.tree.names_of(&self.path)?;
        others.retain(|other| *other != self.path);
        let file = ino.or_else(|| others.iter().find_map(|other| fs.inodes.ino_of(other)));
        self.linked = file.filter(|_| ino.is_none());
        let mut kept = Vec::with_capacity(others.len());
        for other in others {
            if !may_be_replaced(fates, &other) && after.exists(&other)? {
                kept.push(other);
            }
        }
        let Some(first) = kept.first() else { return Ok(false) };
        if after.exists(&self.path)? && after.names_of(&self.path)?.iter().any(|name| kept.contains(name)) {
            self.fate = InodeFate::Kept;
            return Ok(true);
        }
        self.fate = InodeFate::Unnamed;
        let is_cached = file.is_some() && kept.iter().any(|other| fs.inodes.ino_of(other) == file);
        if !is_cached && (file.is_some() || fs.inodes.handles().is_some()) {
            self.remaining = Some(namespace::dentry_of(fs, first)?);
        }
        Ok(true)
    }
}

/// A path at which two trees of one store may differ.
struct ChangedPath {
    path: TreePath,
    /// The stored entries of both trees, if neither has edits.
    stored: Option<[Option<Entry>; 2]>,
}

impl ChangedPath {
    /// Returns the edited paths of both trees and the paths at which their stored entries may differ, sorted. `after` has no edits.
    fn between(before: &WorkingTree, after: &WorkingTree) -> Result<Vec<Self>> {
        let mut edited: BTreeSet<TreePath> = before.edited().into_iter().chain(after.edited()).collect();
        let (old, new) = (before.base_directory().cloned(), after.base_directory().cloned());
        let options = DiffOptions { times: true, ..DiffOptions::default() };
        let changes = diff_entries(before.store(), TreePath::root(), old, new, options)?;
        if edited.is_empty() {
            let stored = |change: Change| Self { path: change.path, stored: Some([change.before, change.after]) };
            return Ok(changes.map(|change| change.map(stored)).collect::<Result<_, _>>()?);
        }
        // Below a directory that an edit moved, the entries of the bases are not those of the trees.
        for change in changes {
            edited.insert(change?.path);
        }
        for (path, contents) in before.moved_directories()? {
            let entry = after.stat(&path)?.and_then(|stat| stat.entry);
            let Some(entry) = entry.filter(|entry| matches!(entry.node, Node::Directory(_))) else { continue };
            let moved = Entry { node: Node::Directory(contents), ..entry.clone() };
            for change in diff_entries(before.store(), path, Some(moved), Some(entry), options)? {
                edited.insert(change?.path);
            }
        }
        Ok(edited.into_iter().map(|path| Self { path, stored: None }).collect())
    }

    /// Returns the entries of both trees.
    fn sides(&self, before: &WorkingTree, after: &WorkingTree) -> Result<[Option<Side>; 2]> {
        match &self.stored {
            Some(sides) if !sides.iter().flatten().any(|entry| entry.link().is_some()) => {
                Ok(sides.clone().map(|side| side.map(Side::stored)))
            }
            _ => Ok([before.stat(&self.path)?.map(Side::from), after.stat(&self.path)?.map(Side::from)]),
        }
    }
}

/// The entry of a tree at a path, as far as it matters for inodes.
struct Side {
    kind: EntryKind,
    links: u64,
    /// The stored entry, if it has no edits.
    entry: Option<Entry>,
}

impl Side {
    fn stored(entry: Entry) -> Self {
        Self { kind: entry.kind(), links: 1, entry: Some(entry) }
    }

    /// Returns whether both entries have one inode.
    fn has_same_inode(&self, other: &Self) -> bool {
        if self.kind != other.kind {
            return false;
        }
        // A file that gets more hard links gets a new inode, because the links may have had different ones.
        self.kind == EntryKind::Directory
            || self.links >= other.links
                && self
                    .entry
                    .as_ref()
                    .zip(other.entry.as_ref())
                    .is_some_and(|(one, other)| has_same_data(&one.node, &other.node))
    }
}

impl From<Stat> for Side {
    fn from(stat: Stat) -> Self {
        Self { kind: stat.kind, links: stat.links, entry: stat.entry }
    }
}

/// The changes of the inode table for another tree.
struct InodeSwitch {
    changes: Vec<(TreePath, InodeChange)>,
    detachment: Detachment,
    /// Inodes of hard links that may have another number of names afterwards.
    linked: BTreeSet<Ino>,
}

/// The change of the inode at a path.
enum InodeChange {
    /// The inode stays.
    Kept {
        /// The hard links of the file in the new tree, if several are in the table.
        links: Vec<TreePath>,
    },
    /// The path is removed.
    Removed,
    /// The path has another inode.
    Replaced,
}

impl InodeSwitch {
    /// Computes the changes at these paths, which are sorted.
    fn prepare(
        fs: &FileSystem,
        after: &WorkingTree,
        changed: Vec<ChangedPath>,
        captured: Option<&Root>,
    ) -> Result<Self> {
        let linked = linked_inodes(fs, after, &changed)?;
        let mut switch = Self { changes: Vec::with_capacity(changed.len()), detachment: Detachment::default(), linked };
        for changed in changed {
            if let Some(change) = switch.change_at(fs, after, &changed, captured)? {
                switch.changes.push((changed.path, change));
            }
        }
        Ok(switch)
    }

    /// Returns the change at a path; `None` if its directory is not in the table, or an unchanged inode is not.
    fn change_at(
        &mut self,
        fs: &FileSystem,
        after: &WorkingTree,
        changed: &ChangedPath,
        captured: Option<&Root>,
    ) -> Result<Option<InodeChange>> {
        let path = &changed.path;
        let Some((above, name)) = path.split_last() else { return Ok(Some(InodeChange::Kept { links: Vec::new() })) };
        if fs.local.covers(path) {
            return Ok(None);
        }
        let Some(parent) = fs.inodes.ino_of(&above) else { return Ok(None) };
        let ino = fs.inodes.ino_at(&Dentry { parent, name });
        let [mut old, new] = changed.sides(&fs.tree, after)?;
        if let (Some(old), Some(captured)) = (&mut old, captured)
            && old.entry.is_none()
            && new.is_some()
        {
            old.entry = entry_at(fs.tree.store(), captured, path)?;
        }
        if old.as_ref().zip(new.as_ref()).is_some_and(|(old, new)| old.has_same_inode(new)) {
            let Some(ino) = ino else { return Ok(None) };
            let links = if fs.inodes.has_several_dentries(ino) { after.names_of(path)? } else { Vec::new() };
            return Ok(Some(InodeChange::Kept { links }));
        }
        if let Some(ino) = ino {
            self.detachment.prepare(fs, ino, old.as_ref().and_then(|old| old.entry.as_ref()))?;
        }
        Ok(Some(if new.is_some() { InodeChange::Replaced } else { InodeChange::Removed }))
    }

    /// Applies the changes and notifies all watchers.
    fn apply(mut self, fs: &mut FileSystem) {
        let watchers = Arc::clone(&fs.watchers);
        let notify = |invalidation: Invalidation| watchers.notify_all(&invalidation);
        // Changed directories, each invalidated once.
        let mut directories = BTreeSet::new();
        for (path, change) in self.changes {
            let Some((above, name)) = path.split_last() else {
                directories.insert(ROOT);
                continue;
            };
            // Detached together with its directory.
            let Some(parent) = fs.inodes.ino_of(&above) else { continue };
            let dentry = Dentry { parent, name };
            match (fs.inodes.ino_at(&dentry), &change) {
                (Some(ino), InodeChange::Kept { links }) => {
                    keep_links(fs, ino, &path, links);
                    fs.inodes.set_times(ino, Default::default());
                    // The name is not invalidated: the working directory of a process would lose its path.
                    let is_directory = fs.inodes.get(ino).is_ok_and(|inode| inode.kind == Kind::Directory);
                    match is_directory {
                        true => drop(directories.insert(ino)),
                        false => notify(Invalidation::Attributes(ino)),
                    }
                    continue;
                }
                (Some(ino), InodeChange::Removed | InodeChange::Replaced) if fs.inodes.has_several_dentries(ino) => {
                    // The inode keeps its other names. Those at which the data differs have changes of their own.
                    fs.inodes.remove_dentry(&dentry);
                    notify(Invalidation::Attributes(ino));
                    notify(Invalidation::Entry { parent, name: dentry.name });
                }
                (Some(ino), _) => self.detachment.apply(fs, ino),
                (None, _) => {
                    fs.inodes.retire(&dentry);
                    notify(Invalidation::Entry { parent, name: dentry.name });
                }
            }
            directories.insert(parent);
        }
        directories.into_iter().for_each(|ino| notify(Invalidation::Contents(ino)));
        self.linked.into_iter().for_each(|ino| notify(Invalidation::Attributes(ino)));
    }
}

/// Returns the inodes in the table that share a file with a changed path in one of the trees. Their number of links changes with
/// that path, even if their own entries are equal.
fn linked_inodes(fs: &FileSystem, after: &WorkingTree, changed: &[ChangedPath]) -> Result<BTreeSet<Ino>> {
    let mut inodes = BTreeSet::new();
    for tree in [&fs.tree, after].into_iter().filter(|tree| tree.has_hard_links()) {
        let mut seen = BTreeSet::new();
        for ChangedPath { path, .. } in changed {
            if seen.contains(path) {
                continue;
            }
            let Ok(Some(stat)) = tree.stat(path) else { continue };
            if stat.kind == EntryKind::Directory || stat.links < 2 {
                continue;
            }
            let names = tree.names_of(path)?;
            inodes.extend(names.iter().filter_map(|name| fs.inodes.ino_of(name)));
            seen.extend(names);
        }
    }
    Ok(inodes)
}

fn has_same_data(one: &Node, other: &Node) -> bool {
    match (one, other) {
        (Node::File { content: one, .. }, Node::File { content: other, .. }) => one == other,
        (one, other) => one == other,
    }
}

/// Removes the names of an inode that are not hard links of its file in the new tree.
fn keep_links(fs: &mut FileSystem, ino: Ino, path: &TreePath, links: &[TreePath]) {
    let Ok(Location::Linked(dentries)) = fs.inodes.get(ino).map(|inode| &inode.location) else { return };
    if dentries.len() < 2 {
        return;
    }
    for dentry in dentries.clone() {
        let above = fs.inodes.path(dentry.parent).ok().flatten();
        let other = above.map(|above| above.join(&dentry.name));
        if !other.is_some_and(|other| other == *path || links.contains(&other)) {
            fs.inodes.remove_dentry(&dentry);
        }
    }
}

/// Inodes that are detached from the tree, with their new locations.
#[derive(Default)]
struct Detachment {
    locations: HashMap<Ino, Location>,
    /// The names in the table by directory, computed when first needed.
    below: Option<HashMap<Ino, Vec<(Name, Ino)>>>,
}

impl Detachment {
    /// Computes the new locations of an inode and of all inodes below it. `stored` is its stored entry, if known.
    fn prepare(&mut self, fs: &FileSystem, ino: Ino, stored: Option<&Entry>) -> Result<()> {
        let mut stored = stored.filter(|entry| matches!(entry.node, Node::File { .. }));
        let mut open = vec![ino];
        while let Some(ino) = open.pop() {
            let stored = stored.take();
            let inode = fs.inodes.get(ino)?;
            if self.locations.contains_key(&ino) || !matches!(inode.location, Location::Linked(_)) {
                continue;
            }
            let location = match inode.kind {
                Kind::Directory => {
                    let attributes = fs.attributes(ino)?;
                    Location::RemovedDirectory(Box::new(Attributes { links: 0, ..attributes }))
                }
                _ => Location::Unlinked(Box::new(match stored {
                    Some(entry) => fs.tree.loose_entry(Some(entry)),
                    None => fs.file(ino)?,
                })),
            };
            self.locations.insert(ino, location);
            if inode.children > 0 {
                let below = self.below.get_or_insert_with(|| fs.inodes.by_directory());
                open.extend(below.get(&ino).into_iter().flatten().map(|(_, ino)| *ino));
            }
        }
        Ok(())
    }

    /// Detaches a prepared inode and all inodes below it. A file with a name elsewhere keeps that name.
    fn apply(&mut self, fs: &mut FileSystem, ino: Ino) {
        let watchers = Arc::clone(&fs.watchers);
        let notify = |invalidation: Invalidation| watchers.notify_all(&invalidation);
        let (mut going, mut at) = (vec![ino], 0);
        while let Some(parent) = going.get(at).copied() {
            at += 1;
            let below = self.below.as_mut().and_then(|below| below.remove(&parent)).unwrap_or_default();
            for (name, ino) in below {
                let dentry = Dentry { parent, name };
                if fs.inodes.ino_at(&dentry) != Some(ino) {
                    continue;
                }
                if !fs.inodes.has_several_dentries(ino) {
                    going.push(ino);
                    continue;
                }
                fs.inodes.remove_dentry(&dentry);
                notify(Invalidation::Entry { parent, name: dentry.name });
                notify(Invalidation::Attributes(ino));
            }
        }
        let now = fs.now();
        // Children before their directories.
        for ino in going.into_iter().rev() {
            let Some(location) = self.locations.remove(&ino) else { continue };
            let Ok(Location::Linked(dentries)) = fs.inodes.get(ino).map(|inode| &inode.location) else { continue };
            for dentry in dentries.clone() {
                fs.inodes.remove_dentry(&dentry);
                notify(Invalidation::Entry { parent: dentry.parent, name: dentry.name });
            }
            fs.inodes.detach(ino, location, now);
            notify(Invalidation::Attributes(ino));
        }
    }
}
