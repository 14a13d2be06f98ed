//! Converts an edited tree into objects. Only dirty nodes are read, hashed and put, children before parents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rayon::prelude::*;

use super::WorkingTree;
use super::node::{Body, Child, Dir, GroupKey, Leaf, Meta, XattrsNow};
use super::ordmap::OrdMap;
use crate::changed_paths::MarkBuilder;
use crate::directory;
use crate::error::{Error, Result};
use crate::id::{LinkGroup, LinksId, RootId, SnapshotId, StateId};
use crate::merkle::{self, Items, Keyed, Splice, find};
use crate::name::{Name, TreePath};
use crate::object::{
    DirectoryRef, Entry, ITEMS_MAX, KeyHash, LinkMember, Links, Node, OBJECT_BYTES_MAX, Root, StateItem, States,
};
use crate::store::{Pin, Store, WriteSession};

/// Maximum length of a path of a file with several names, in bytes: a node of the hard-link map holds up to [`ITEMS_MAX`] of
/// them.
const LINKED_PATH_BYTES_MAX: usize = OBJECT_BYTES_MAX / ITEMS_MAX - 128;
/// Number of bytes of a too long path that the error message shows.
const LINKED_PATH_SHOWN_BYTES: usize = 64;

/// From this many dirty bytes on, files are frozen on all cores.
const PARALLEL_BYTES_MIN: u64 = 1 << 20;

/// A tree at one point in time. Freezing copies a pointer; the working tree can be edited further while this one is written.
pub struct Frozen {
    pub(super) tree: WorkingTree,
}

/// The result of writing a frozen tree.
pub(crate) struct WrittenTree {
    pub(crate) root: Arc<Root>,
    pub(crate) id: RootId,
    pub(super) assigned: OrdMap<u64, LinkGroup>,
    /// The contents of a root directory and the paths that differ from it. `None` if the differences were not tracked.
    pub(crate) marks: Option<(Option<DirectoryRef>, MarkBuilder)>,
}

impl WorkingTree {
    /// Returns the current state of the tree, in constant time.
    pub fn freeze(&self) -> Frozen {
        Frozen { tree: self.fork() }
    }
}

impl Frozen {
    /// Returns the store that the tree is written to.
    pub fn store(&self) -> &Store {
        self.tree.store()
    }

    /// Returns the snapshot that the next commit follows: the one that the tree was opened at or last committed as, or that
    /// [`rebase`](WorkingTree::rebase) set.
    pub fn base(&self) -> Option<SnapshotId> {
        self.tree.base()
    }

    /// Puts the objects that are not stored yet and returns the root. The objects become part of the store when the session is
    /// committed.
    pub fn write(&self, session: &WriteSession) -> Result<RootId> {
        self.write_root(session).map(|written| written.id)
    }

    /// Writes the tree to the store without a commit and keeps it there while the pin exists. Nodes cache their frozen entry, so
    /// a later freeze, in any session, reads only later edits.
    pub fn hold(&self) -> Result<(RootId, Pin)> {
        let session = self.store().session();
        let root = self.write(&session)?;
        let pin = session.keep(root)?;
        Ok((root, pin))
    }

    /// Puts the dirty nodes of the tree into a session, children before parents, and returns the root.
    pub(crate) fn write_root(&self, session: &WriteSession) -> Result<WrittenTree> {
        let mut tree = self.tree.fork();
        let mut assigned = tree.state.assigned.clone();
        let links = freeze_links(&mut tree, session, &mut assigned)?;
        freeze_leaves(session, &tree.state.root)?;
        let (directory, marks) = freeze_directories(session, &tree.state.root)?;
        let state = freeze_values(&tree, session)?;
        let root = Root { directory, links, state };
        let id = session.put_root(&root)?;
        let marks = marks.map(|marks| (tree.state.root.base, marks));
        Ok(WrittenTree { root: Arc::new(root), id, assigned, marks })
    }
}

/// Freezes all dirty files first, so that the remaining work for directories is small. The files are stored in path order.
fn freeze_leaves(session: &WriteSession, root: &Arc<Dir>) -> Result<()> {
    let mut leaves: Vec<&Leaf> = Vec::new();
    let mut open: Vec<&Dir> = vec![root];
    while let Some(dir) = open.pop() {
        if dir.memo.get(session.pin()).is_some() {
            continue;
        }
        let others = open.len();
        for (_, child) in dir.edits.iter() {
            match child {
                Some(Child::Dir(below)) => open.push(below),
                Some(Child::Leaf(leaf)) if leaf.memo.get(session.pin()).is_none() => leaves.push(leaf),
                _ => {}
            }
        }
        // `open` is a stack: the last one is popped first.
        open[others..].reverse();
    }
    let dirty_bytes = |leaf: &Leaf| match &leaf.body {
        Body::File(data) => data.dirty_bytes(),
        Body::Other(_) => 0,
    };
    let freeze = |leaf: &Leaf| freeze_leaf(session, leaf).map(drop);
    if leaves.len() > 1 && leaves.iter().map(|leaf| dirty_bytes(leaf)).sum::<u64>() >= PARALLEL_BYTES_MIN {
        let freeze = |(place, leaf): (usize, &Leaf)| WriteSession::at_write_position(place as u64, || freeze(leaf));
        return leaves.into_par_iter().enumerate().try_for_each(freeze);
    }
    leaves.into_iter().try_for_each(freeze)
}

fn freeze_leaf(session: &WriteSession, leaf: &Leaf) -> Result<Entry> {
    if let Some(entry) = leaf.memo.get(session.pin()) {
        return Ok(entry);
    }
    let node = match &leaf.body {
        Body::File(data) => Node::File { size: data.size(), content: data.freeze(session)? },
        Body::Other(node) => node.clone(),
    };
    let entry = entry(session, node, &leaf.meta)?;
    leaf.memo.set(entry.clone(), session.pin());
    Ok(entry)
}

fn entry(session: &WriteSession, node: Node, meta: &Meta) -> Result<Entry> {
    let entry = Entry::new(node, meta.mode, meta.mtime);
    let xattrs = match &meta.xattrs {
        XattrsNow::Stored(xattrs) => xattrs.clone(),
        XattrsNow::Edited(list) => session.put_xattrs(list.to_vec())?,
    };
    Ok(entry.with_extra(|extra| {
        extra.owner = meta.owner;
        extra.xattrs = xattrs;
    }))
}

/// A dirty directory. The list of them is in discovery order: parents before children.
struct DirtyDirectory<'a> {
    dir: &'a Dir,
    parent: usize,
    name: Option<&'a Name>,
    /// The hash of its path, with a trailing slash unless it is the root.
    path: KeyHash,
    frozen: Vec<FrozenBelow>,
}

/// A frozen directory, and the marks of its changed paths if it is at the same path as its base.
struct FrozenBelow {
    name: Name,
    entry: Entry,
    marks: MarkBuilder,
}

/// Returns the root directory's entry, and the marks of the changed paths below it if they were tracked.
fn freeze_directories(session: &WriteSession, root: &Arc<Dir>) -> Result<(Entry, Option<MarkBuilder>)> {
    if let Some(entry) = root.memo.get(session.pin()) {
        let is_base = root.edits.is_empty() && entry.node == Node::Directory(root.base);
        return Ok((entry, is_base.then(MarkBuilder::default)));
    }
    let mut found =
        vec![DirtyDirectory { dir: root, parent: 0, name: None, path: KeyHash::new(0), frozen: Vec::new() }];
    let mut next = 0;
    while next < found.len() {
        for (name, child) in found[next].dir.edits.iter() {
            if let Some(Child::Dir(below)) = child
                && below.memo.get(session.pin()).is_none()
            {
                let path = found[next].path.add(name.as_bytes()).add(b"/");
                found.push(DirtyDirectory { dir: below, parent: next, name: Some(name), path, frozen: Vec::new() });
            }
        }
        next += 1;
    }
    while let Some(DirtyDirectory { dir, parent, name, path, frozen }) = found.pop() {
        let (entry, marks) = freeze_directory(session, dir, path, frozen)?;
        match name {
            Some(name) => found[parent].frozen.push(FrozenBelow { name: name.clone(), entry, marks }),
            None => return Ok((entry, Some(marks))),
        }
    }
    unreachable!("the root comes last")
}

/// Freezes one directory. Its dirty sub-directories are already frozen and given in descending order of names.
fn freeze_directory(
    session: &WriteSession,
    dir: &Dir,
    path: KeyHash,
    mut below: Vec<FrozenBelow>,
) -> Result<(Entry, MarkBuilder)> {
    let mut edits = Vec::new();
    // Directories that may be at the same path as their bases: their index among the edits, base and marks.
    let mut followed = Vec::new();
    for (name, child) in dir.edits.iter() {
        let entry = match child {
            None => None,
            Some(Child::Clean(entry)) => Some(entry.clone()),
            Some(Child::Leaf(leaf)) => Some(freeze_leaf(session, leaf)?),
            Some(Child::Dir(child)) => match below.pop_if(|frozen| frozen.name == *name) {
                Some(FrozenBelow { entry, marks, .. }) => {
                    followed.push((edits.len(), child.base, marks));
                    Some(entry)
                }
                None => Some(child.memo.get(session.pin()).expect("it was frozen before")),
            },
            Some(Child::Linked(_)) => unreachable!("links are resolved before directories are frozen"),
        };
        edits.push((name.clone(), entry));
    }
    let mut marks = MarkBuilder::default();
    let mut followed = followed.into_iter().peekable();
    let contents = directory::apply_observed(session, dir.base, edits, |at, name, before| {
        let path = path.add(name.as_bytes());
        while followed.next_if(|(followed, ..)| *followed < at).is_some() {}
        match (followed.next_if(|(followed, ..)| *followed == at), before) {
            (Some((_, base, below)), Some(before)) if before.node == Node::Directory(base) => {
                marks.add(path.add(b"/"));
                marks.append(below);
            }
            _ => marks.add(path),
        }
    })?;
    let entry = entry(session, Node::Directory(contents), &dir.meta)?;
    dir.memo.set(entry.clone(), session.pin());
    Ok((entry, marks))
}

/// Assigns an id to every edited group, writes its entry to all its names, and returns the new hard-link map.
fn freeze_links(
    tree: &mut WorkingTree,
    session: &WriteSession,
    assigned: &mut OrdMap<u64, LinkGroup>,
) -> Result<Option<LinksId>> {
    let before = tree.state.base.root.as_ref().and_then(|root| root.links);
    if tree.state.groups.is_empty() {
        return Ok(before);
    }
    let groups: Vec<_> = tree.state.groups.iter().map(|(key, group)| (*key, Arc::clone(group))).collect();
    let ids = group_ids(tree, assigned)?;
    let mut members: BTreeMap<LinkMember, Option<LinkMember>> = BTreeMap::new();
    for (key, group) in groups {
        if let GroupKey::Known(link) = key {
            let stored = tree.stored_members(link)?.into_iter().map(|path| LinkMember { group: link, path });
            members.extend(stored.map(|member| (member, None)));
        }
        let link = ids.get(&key).copied();
        let entry = freeze_leaf(session, &group.leaf)?.with_extra(|extra| extra.link = link);
        for (path, ()) in group.members.iter() {
            if link.is_some() {
                check_linked_path(path)?;
            }
            let (parent, name) = path.split_last().expect("a file is not the root");
            tree.directory_mut(&parent)?.set(name, Child::Clean(entry.clone()));
            if let Some(group) = link {
                let member = LinkMember { group, path: path.clone() };
                members.insert(member.clone(), Some(member));
            }
        }
    }
    let top = apply::<Links, _>(session, before.map(|links| links.object()), members)?;
    Ok(top.map(|link| link.id))
}

/// Rejects a path of a hard link that would make a node of the hard-link map larger than the object size limit.
pub(super) fn check_linked_path(path: &TreePath) -> Result<()> {
    let bytes = path.as_bytes().len();
    if bytes <= LINKED_PATH_BYTES_MAX {
        return Ok(());
    }
    let begins = path.as_bytes()[..LINKED_PATH_SHOWN_BYTES].escape_ascii();
    let why = format!(
        "a path of a file with several names has at most {LINKED_PATH_BYTES_MAX} bytes; {begins}... has {bytes}"
    );
    Err(Error::Invalid { what: "hard link", why })
}

/// Returns the ids of the groups that have at least two names. New groups get their ids in the order of their smallest names, so
/// that the order of edits does not matter.
fn group_ids(tree: &WorkingTree, assigned: &mut OrdMap<u64, LinkGroup>) -> Result<BTreeMap<GroupKey, LinkGroup>> {
    let mut ids = BTreeMap::new();
    let mut taken = BTreeSet::new();
    let mut new: Vec<(TreePath, u64)> = Vec::new();
    for (key, group) in tree.state.groups.iter() {
        let mut members = group.members.iter();
        let (Some((smallest, ())), Some(_)) = (members.next(), members.next()) else {
            continue;
        };
        match key {
            GroupKey::Known(link) => {
                ids.insert(*key, *link);
                taken.insert(*link);
            }
            GroupKey::New(number) => new.push((smallest.clone(), *number)),
        }
    }
    new.sort();
    for (smallest, number) in new {
        let mut attempt = 0;
        let link = loop {
            let link = match assigned.get(&number) {
                Some(link) if attempt == 0 => *link,
                _ => LinkGroup::first_seen_at(smallest.as_bytes(), attempt),
            };
            let stored = tree.state.groups.get(&GroupKey::Known(link)).is_none() && is_stored(tree, link)?;
            if !stored && taken.insert(link) {
                break link;
            }
            attempt += 1;
        };
        assigned.insert(number, link);
        ids.insert(GroupKey::New(number), link);
    }
    Ok(ids)
}

fn is_stored(tree: &WorkingTree, group: LinkGroup) -> Result<bool> {
    let top = tree.state.base.root.as_ref().and_then(|root| root.links).map(|links| links.object());
    let first = LinkMember { group, path: TreePath::root() };
    let next = Items::<Links>::from(tree.store(), top, &first)?.next().transpose()?;
    Ok(next.is_some_and(|member| member.group == group))
}

fn freeze_values(tree: &WorkingTree, session: &WriteSession) -> Result<Option<StateId>> {
    let before = tree.state.base.root.as_ref().and_then(|root| root.state);
    if tree.state.values.is_empty() {
        return Ok(before);
    }
    let values = tree.state.values.iter();
    let edits: BTreeMap<_, _> = values
        .map(|(key, value)| {
            (key.clone(), value.as_ref().map(|value| StateItem { key: key.clone(), value: value.clone() }))
        })
        .collect();
    let top = apply::<States, _>(session, before.map(|state| state.object()), edits)?;
    Ok(top.map(|link| link.id))
}

/// Applies edits to a sorted sequence: sets these keys or, with `None`, removes them.
fn apply<S: Keyed, K: std::borrow::Borrow<S::Key>>(
    session: &WriteSession,
    top: Option<crate::id::ObjectId>,
    edits: BTreeMap<K, Option<S::Item>>,
) -> Result<Option<S::Link>> {
    let store: &Store = session.store();
    let mut splices = Vec::new();
    for (key, item) in edits {
        let (index, there) = match top {
            Some(top) => {
                let found = find::<S>(store, top, key.borrow())?;
                (found.index, u64::from(found.item.is_some()))
            }
            None => (0, 0),
        };
        if there == 1 || item.is_some() {
            splices.push(Splice { range: index..index + there, items: item.into_iter().collect() });
        }
    }
    merkle::splice::<S>(session, top, splices)
}
