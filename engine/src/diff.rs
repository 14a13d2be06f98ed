//! The difference of two trees, in time proportional to it: what is equal is never opened.

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

/// One path that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Where; for a rename, where it is now.
    pub path: TreePath,
    /// What happened to it.
    pub what: What,
    /// Which attributes differ, beside the contents.
    pub metadata: MetadataChange,
    /// As it was.
    pub before: Option<Entry>,
    /// As it is.
    pub after: Option<Entry>,
}

/// The kinds of change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// Its contents differ: bytes, a symlink's target, a device number, the terms of a conflict.
    Modified,
    /// It is another kind of entry than before.
    KindChanged,
    /// Only attributes differ.
    Metadata,
    /// The same contents under another name.
    Renamed {
        /// Where it was.
        from: TreePath,
    },
}

/// Which attributes differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataChange {
    /// Permission bits.
    pub mode: bool,
    /// The time of the last change; looked at only when asked for.
    pub mtime: bool,
    /// The owner.
    pub owner: bool,
    /// Extended attributes.
    pub xattrs: bool,
    /// The hard-link group.
    pub link: bool,
}

/// What to look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiffOptions {
    /// Report entries that differ in nothing but their time. Off by default: two trees that differ in times only are equal,
    /// and found to be so at the top.
    pub times: bool,
    /// Leave out every entry called `.git`, with all below it.
    pub without_git: bool,
}

/// The name of a Git repository in a directory.
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

    /// Whether any differs.
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// The differences of two trees, sorted by path name by name, read as they are asked for. Ends with an error where there are more
/// paths than the store's limit.
pub struct Diff {
    store: Store,
    options: DiffOptions,
    /// Whether to list what lies below an added or removed directory.
    descend: bool,
    root: Option<Change>,
    open: Vec<Frame>,
    count: PathCount,
}

struct Frame {
    path: TreePath,
    differing: Comparison<Directories>,
}

/// The difference of two snapshots.
pub fn diff(store: &Store, before: SnapshotId, after: SnapshotId, options: DiffOptions) -> Result<Diff> {
    diff_roots(store, Some(store.snapshot(before)?.root), Some(store.snapshot(after)?.root), options)
}

/// The difference of two trees; `None` is an empty one.
pub fn diff_roots(store: &Store, before: Option<RootId>, after: Option<RootId>, options: DiffOptions) -> Result<Diff> {
    Diff::new(store, before, after, options, true)
}

/// The difference of what is at a path in two trees, with all below it.
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

/// One name that differs between two directories.
#[derive(Clone, Debug, PartialEq)]
pub struct NameChange {
    /// The name.
    pub name: Name,
    /// As it was.
    pub before: Option<Entry>,
    /// As it is.
    pub after: Option<Entry>,
}

/// The names of two directories that differ, in order, with what each side has; nothing of what lies below them. Whoever walks
/// two trees in an order of their own starts here.
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
    /// All changes, held in memory.
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

/// A state value that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateChange {
    /// Its key.
    pub key: String,
    /// The value before, as JSON text.
    pub before: Option<String>,
    /// The value after.
    pub after: Option<String>,
}

/// The state values that differ between two trees, sorted by key.
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
