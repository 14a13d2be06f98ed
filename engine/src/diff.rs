//! Compares two trees in time proportional to their difference: equal sub-trees are never read.
//!
//! It reports paths and entries. [`insight`](crate::insight()) compares the lines of files and finds similar renames.

mod rename;
mod width;

pub use rename::diff_with_renames;
pub(crate) use rename::{Kinds, find as find_renames};
pub use width::count_differing_paths;

use crate::error::{Error, Result};
use crate::id::{ObjectId, RootId, SnapshotId};
use crate::limit::PathCount;
use crate::malformed::Malformed;
use crate::merkle::{Comparison, compare};
use crate::name::{DEPTH_MAX, InvalidName, Name, TreePath};
use crate::object::{Directories, DirectoryItem, DirectoryLink, DirectoryRef, Entry, Node, Root, StateItem, States};
use crate::store::Store;

/// A path that differs between two trees.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The path; for a rename, the new path.
    pub path: TreePath,
    /// The kind of the change.
    pub what: What,
    /// The attributes that differ, in addition to the contents.
    pub metadata: MetadataChange,
    /// The entry before, if it existed.
    pub before: Option<Entry>,
    /// The entry after, if it exists.
    pub after: Option<Entry>,
}

/// The kind of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The entry is new.
    Added,
    /// The entry was removed.
    Removed,
    /// The contents differ: bytes, a symlink's target, a device number, or the terms of a conflict.
    Modified,
    /// The kind of the entry differs.
    KindChanged,
    /// Only attributes differ.
    Metadata,
    /// The entry was renamed.
    Renamed {
        /// The old path.
        from: TreePath,
    },
}

/// The attributes that differ between two entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataChange {
    /// Permission bits.
    pub mode: bool,
    /// The modification time. Compared only if the caller asks for it.
    pub mtime: bool,
    /// The owner.
    pub owner: bool,
    /// Extended attributes.
    pub xattrs: bool,
    /// The hard-link group.
    pub link: bool,
}

/// Options of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiffOptions {
    /// Report entries that differ only in their time. Off by default: two trees that differ only in times then count as equal,
    /// which the comparison detects at the root.
    pub times: bool,
    /// Omit every entry called `.git`, with everything below it.
    pub without_git: bool,
}

/// The name of a Git repository inside a working directory.
const GIT: &[u8] = b".git";

impl MetadataChange {
    pub(crate) fn between(before: &Entry, after: &Entry, times: bool) -> Self {
        Self {
            mode: before.mode != after.mode,
            mtime: times && before.mtime != after.mtime,
            owner: before.owner() != after.owner(),
            xattrs: before.xattrs() != after.xattrs(),
            link: before.link() != after.link(),
        }
    }

    /// Returns whether any attribute differs.
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// Iterates over the differences of two trees, sorted by path, component by component. Reads nodes on demand. Ends with an error
/// if there are more paths than the store's limit.
pub struct Diff {
    store: Store,
    options: DiffOptions,
    /// Whether to list the entries below an added or removed directory.
    descend: bool,
    root: Option<Change>,
    open: Vec<Frame>,
    count: PathCount,
}

struct Frame {
    path: TreePath,
    differing: Comparison<Directories>,
}

/// Compares two snapshots.
pub fn diff(store: &Store, before: SnapshotId, after: SnapshotId, options: DiffOptions) -> Result<Diff> {
    diff_roots(store, Some(store.snapshot(before)?.root), Some(store.snapshot(after)?.root), options)
}

/// Compares two trees; `None` stands for an empty tree.
pub fn diff_roots(store: &Store, before: Option<RootId>, after: Option<RootId>, options: DiffOptions) -> Result<Diff> {
    Diff::new(store, before, after, options, true)
}

/// Compares the entries at a path in two trees, with everything below them.
pub fn diff_entries(
    store: &Store,
    path: TreePath,
    before: Option<Entry>,
    after: Option<Entry>,
    options: DiffOptions,
) -> Result<Diff> {
    let mut diff =
        Diff { store: store.clone(), options, descend: true, root: None, open: Vec::new(), count: store.path_count() };
    let same = match (&before, &after) {
        (Some(before), Some(after)) if !options.times => before.equal_but_for_times(after),
        (before, after) => before == after,
    };
    if !same {
        diff.root = diff.change(path, before, after)?;
    }
    Ok(diff)
}

/// A name that differs between two directories.
#[derive(Clone, Debug, PartialEq)]
pub struct NameChange {
    /// The name.
    pub name: Name,
    /// The entry before, if it existed.
    pub before: Option<Entry>,
    /// The entry after, if it exists.
    pub after: Option<Entry>,
}

/// Compares two directories without descending: returns the names that differ, in order, with the entry of each side. For callers
/// that walk two trees in an order of their own.
pub fn diff_directories(
    store: &Store,
    before: Option<DirectoryRef>,
    after: Option<DirectoryRef>,
    options: DiffOptions,
) -> Result<impl Iterator<Item = Result<NameChange>> + use<>> {
    let (before, after) = (before.map(|side| side.id.object()), after.map(|side| side.id.object()));
    let differing = compare_sides(store, before, after, options)?;
    Ok(differing.map(|pair| {
        let (before, after) = pair?;
        let name = before.as_ref().or(after.as_ref()).map(|item| item.name.clone()).expect("one side is there");
        Ok(NameChange { name, before: before.map(|item| item.entry), after: after.map(|item| item.entry) })
    }))
}

fn compare_sides(
    store: &Store,
    before: Option<ObjectId>,
    after: Option<ObjectId>,
    options: DiffOptions,
) -> Result<Comparison<Directories>> {
    if options.times {
        compare(store, before, after, same_link, same_item)
    } else {
        compare(store, before, after, same_link_but_for_times, same_item_but_for_times)
    }
}

impl Diff {
    /// Collects all changes in memory.
    pub(crate) fn into_changes(mut self) -> Result<Vec<Change>> {
        self.count = self.store.held_path_count();
        self.collect()
    }

    fn new(
        store: &Store,
        before: Option<RootId>,
        after: Option<RootId>,
        options: DiffOptions,
        descend: bool,
    ) -> Result<Self> {
        let mut diff =
            Self { store: store.clone(), options, descend, root: None, open: Vec::new(), count: store.path_count() };
        if before == after {
            return Ok(diff);
        }
        let load = |root: Option<RootId>| root.map(|root| store.root(root)).transpose();
        let (before, after) = (load(before)?, load(after)?);
        let (before, after) = (before.map(|root| root.directory.clone()), after.map(|root| root.directory.clone()));
        if let (Some(before), Some(after)) = (&before, &after) {
            let metadata = MetadataChange::between(before, after, options.times);
            diff.root = metadata.any().then(|| Change {
                path: TreePath::root(),
                what: What::Metadata,
                metadata,
                before: Some(before.clone()),
                after: Some(after.clone()),
            });
        }
        diff.push(TreePath::root(), before.as_ref().and_then(contents), after.as_ref().and_then(contents))?;
        Ok(diff)
    }

    fn push(&mut self, path: TreePath, before: Option<DirectoryRef>, after: Option<DirectoryRef>) -> Result<()> {
        let key = |side: Option<DirectoryRef>| match self.options.times {
            true => side.map(|side| *side.id.as_bytes()),
            false => side.map(|side| *side.bare.as_bytes()),
        };
        if key(before) == key(after) {
            return Ok(());
        }
        if self.open.len() >= DEPTH_MAX {
            let id = after.or(before).expect("one differs from the other").id.object();
            return Err(Error::Malformed { id, source: Malformed::Name(InvalidName::TooDeep) });
        }
        let (before, after) = (before.map(|side| side.id.object()), after.map(|side| side.id.object()));
        let differing = compare_sides(&self.store, before, after, self.options)?;
        self.open.push(Frame { path, differing });
        Ok(())
    }

    fn advance(&mut self) -> Result<Option<Change>> {
        if let Some(root) = self.root.take() {
            return Ok(Some(root));
        }
        while let Some(frame) = self.open.last_mut() {
            let Some(differing) = frame.differing.next().transpose()? else {
                self.open.pop();
                continue;
            };
            let name = match &differing {
                (Some(item), _) | (None, Some(item)) => item.name.clone(),
                (None, None) => unreachable!("one side is there"),
            };
            if self.options.without_git && name.as_bytes() == GIT {
                continue;
            }
            self.count.add(1)?;
            let path = frame.path.join(&name);
            let (before, after) = (differing.0.map(|item| item.entry), differing.1.map(|item| item.entry));
            if let Some(change) = self.change(path, before, after)? {
                return Ok(Some(change));
            }
        }
        Ok(None)
    }

    fn change(&mut self, path: TreePath, before: Option<Entry>, after: Option<Entry>) -> Result<Option<Change>> {
        let both = before.is_some() && after.is_some();
        let (contents_before, contents_after) = (before.as_ref().and_then(contents), after.as_ref().and_then(contents));
        if both || self.descend {
            self.push(path.clone(), contents_before, contents_after)?;
        }
        let (what, metadata) = match (&before, &after) {
            (None, _) => (What::Added, MetadataChange::default()),
            (_, None) => (What::Removed, MetadataChange::default()),
            (Some(before), Some(after)) => {
                let metadata = MetadataChange::between(before, after, self.options.times);
                let what = match (&before.node, &after.node) {
                    (Node::Directory(_), Node::Directory(_)) if !metadata.any() => return Ok(None),
                    (Node::Directory(_), Node::Directory(_)) => What::Metadata,
                    _ if before.kind() != after.kind() => What::KindChanged,
                    (ours, theirs) if ours == theirs => What::Metadata,
                    _ => What::Modified,
                };
                (what, metadata)
            }
        };
        Ok(Some(Change { path, what, metadata, before, after }))
    }
}

impl Iterator for Diff {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(change) => change.map(Ok),
            Err(error) => {
                self.open.clear();
                Some(Err(error))
            }
        }
    }
}

fn contents(entry: &Entry) -> Option<DirectoryRef> {
    match entry.node {
        Node::Directory(contents) => contents,
        _ => None,
    }
}

fn same_link(before: &DirectoryLink, after: &DirectoryLink) -> bool {
    before.id == after.id
}

fn same_item(before: &DirectoryItem, after: &DirectoryItem) -> bool {
    before.entry == after.entry
}

fn same_link_but_for_times(before: &DirectoryLink, after: &DirectoryLink) -> bool {
    before.bare == after.bare
}

fn same_item_but_for_times(before: &DirectoryItem, after: &DirectoryItem) -> bool {
    before.entry.equal_but_for_times(&after.entry)
}

/// A state value that differs between two trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateChange {
    /// The key.
    pub key: String,
    /// The value before, as JSON text.
    pub before: Option<String>,
    /// The value after, as JSON text.
    pub after: Option<String>,
}

/// Compares the state values of two trees. The result is sorted by key.
pub fn diff_state(
    store: &Store,
    before: &Root,
    after: &Root,
) -> Result<impl Iterator<Item = Result<StateChange>> + use<>> {
    let top = |root: &Root| root.state.map(|state| state.object());
    let differing =
        compare::<States>(store, top(before), top(after), |a, b| a.id == b.id, |a: &StateItem, b| a.value == b.value)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(differing.map(move |pair| {
        let (before, after) = pair?;
        let key = before.as_ref().or(after.as_ref()).map(|item| text(&item.key)).unwrap_or_default();
        let value = |item: Option<StateItem>| item.map(|item| text(&item.value));
        Ok(StateChange { key, before: value(before), after: value(after) })
    }))
}
