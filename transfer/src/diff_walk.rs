//! Walks a tree beside base trees, and reports the objects that the bases lack, children before parents.

use std::collections::HashSet;

use amalgam_engine::object::{self, Child};
use amalgam_engine::{Error as EngineError, ErrorKind, ObjectId, ObjectKind, Store};
use bytes::Bytes;

use crate::error::Result;

/// Most nodes of base trees that are opened beside one object.
const BASE_NODES_MAX: usize = 256;
/// Slots of the id table.
const SEEN_SLOTS: usize = 1 << 19;

/// Lossy set of ids that the receiver has, or will have by the time it reads on. Forgets ids, but has no false positives.
pub(crate) struct SeenIds(Vec<[u8; 32]>);

impl SeenIds {
    pub(crate) fn new() -> Self {
        Self(vec![[0; 32]; SEEN_SLOTS])
    }

    /// Creates a table without slots, as a placeholder.
    pub(crate) fn empty() -> Self {
        Self(Vec::new())
    }

    /// Returns the slot of an id. The hash is keyed by the object kind, so it identifies the object alone.
    fn place(&self, id: ObjectId) -> usize {
        let [a, b, c, d, ..] = id.hash;
        u32::from_le_bytes([a, b, c, d]) as usize % self.0.len()
    }

    pub(crate) fn has(&self, id: ObjectId) -> bool {
        self.0[self.place(id)] == id.hash
    }

    pub(crate) fn add(&mut self, id: ObjectId) {
        let place = self.place(id);
        self.0[place] = id.hash;
    }
}

/// An event of the walk.
pub(crate) enum WalkEvent {
    /// Nodes of base trees were opened: their children count as known.
    Opened(Vec<ObjectId>),
    /// A chunk or extended attributes.
    Leaf(ObjectId),
    /// Any other object, with its canonical bytes.
    Node(ObjectId, Bytes),
}

enum Task {
    /// Visit an object, beside nodes that may be other versions of it.
    Open(ObjectId, Vec<ObjectId>),
    /// Everything below the object is done.
    Close(ObjectId, Bytes),
}

/// Nodes of base trees beside one object.
#[derive(Default)]
struct BaseNodes {
    children: Vec<Child>,
    ids: HashSet<ObjectId>,
    /// Versions of a lower level: they are beside the object's children.
    lower: Vec<ObjectId>,
    opened: Vec<ObjectId>,
}

/// Walks everything below an object, except ids that were seen and children of base nodes.
pub(crate) fn diff_walk(
    store: &Store,
    top: ObjectId,
    bases: Vec<ObjectId>,
    seen: &mut SeenIds,
    meet: &mut dyn FnMut(WalkEvent) -> Result<()>,
) -> Result<()> {
    let mut open = vec![Task::Open(top, bases)];
    // The table is lossy; this set ensures that no node below one top is walked twice.
    let mut walked = HashSet::new();
    while let Some(task) = open.pop() {
        let (id, bases) = match task {
            Task::Open(id, bases) => (id, bases),
            Task::Close(id, bytes) => {
                seen.add(id);
                walked.insert(id);
                meet(WalkEvent::Node(id, bytes))?;
                continue;
            }
        };
        if seen.has(id) || bases.contains(&id) || walked.contains(&id) {
            continue;
        }
        if matches!(id.kind, ObjectKind::Chunk | ObjectKind::Xattrs) {
            seen.add(id);
            meet(WalkEvent::Leaf(id))?;
            continue;
        }
        let bytes = store.canonical(id)?;
        let children = read_children(id, &bytes)?;
        let beside = BaseNodes::read(store, id.kind, children.level, bases)?;
        beside.children.iter().for_each(|child| seen.add(child.id));
        if !beside.opened.is_empty() {
            meet(WalkEvent::Opened(beside.opened.clone()))?;
        }
        open.push(Task::Close(id, bytes));
        let mut list = children.list;
        let mut end = None;
        while let Some(child) = list.pop() {
            if !beside.ids.contains(&child.id) {
                open.push(Task::Open(child.id, beside.versions(&child, end.as_deref(), children.level)));
            }
            end = Some(child.key);
        }
    }
    Ok(())
}

fn read_children(id: ObjectId, bytes: &Bytes) -> Result<object::Children> {
    Ok(object::children(id.kind, bytes).map_err(|source| EngineError::Malformed { id, source })?)
}

impl BaseNodes {
    /// Opens the base nodes down to the level of the object.
    fn read(store: &Store, kind: ObjectKind, level: u32, bases: Vec<ObjectId>) -> Result<Self> {
        let mut beside = Self::default();
        let mut open = bases;
        while let Some(id) = open.pop() {
            if id.kind != kind || beside.opened.len() == BASE_NODES_MAX {
                continue;
            }
            let bytes = match store.canonical(id) {
                Ok(bytes) => bytes,
                // An unreadable version cannot be built on.
                Err(error) if error.kind() == ErrorKind::Corrupt => continue,
                Err(error) => return Err(error.into()),
            };
            let children = read_children(id, &bytes)?;
            if children.level < level {
                beside.lower.push(id);
                continue;
            }
            beside.opened.push(id);
            beside.ids.extend(children.list.iter().map(|child| child.id));
            if children.level > level {
                open.extend(children.list.into_iter().map(|child| child.id));
            } else {
                beside.children.extend(children.list);
            }
        }
        beside.children.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(beside)
    }

    /// Returns the nodes that may be other versions of a child, whose keys range from its own to `end`.
    fn versions(&self, child: &Child, end: Option<&[u8]>, level: u32) -> Vec<ObjectId> {
        let below = |key: &[u8]| self.children.partition_point(|other| &other.key[..] < key);
        let until = |key: &[u8]| self.children.partition_point(|other| &other.key[..] <= key);
        let range = match level {
            0 => below(&child.key)..until(&child.key),
            // The node that begins before the key may reach into the range.
            _ => until(&child.key).saturating_sub(1)..end.map_or(self.children.len(), below),
        };
        let others = self.children.get(range).unwrap_or(&[]);
        let mut versions: Vec<_> =
            others.iter().map(|other| other.id).filter(|id| id.kind == child.id.kind).take(BASE_NODES_MAX).collect();
        versions.extend(self.lower.iter().copied().filter(|id| id.kind == child.id.kind));
        versions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_engine::object::{Directories, DirectoryItem, DirectoryRef, Entry, Node, Root, SequenceNode};
    use amalgam_engine::{DirectoryId, Name, RefMove, Time, WriteSession};

    fn put(session: &WriteSession, items: Vec<(&str, Node)>) -> Node {
        let item = |(name, node): (&str, Node)| DirectoryItem {
            name: Name::new(name.as_bytes()).expect("a name"),
            entry: Entry::new(node, 0o755, Time::EPOCH),
        };
        let node = SequenceNode::<Directories>::Leaf(items.into_iter().map(item).collect());
        session.admit(ObjectKind::Directory, node.encode()).expect("valid");
        Node::Directory(Some(DirectoryRef { id: DirectoryId::of(&node.encode()), bare: node.bare(), linked: 0 }))
    }

    #[test]
    fn a_table_that_forgets_everything_walks_no_node_twice() {
        let store = Store::in_memory();
        let session = store.session();
        let between = put(&session, vec![("other", Node::Fifo)]);
        let mut below = put(&session, vec![("pipe", Node::Fifo)]);
        // Each contains the previous one twice, with another directory between them that evicts it from the table.
        for _ in 0..40 {
            below = put(&session, vec![("a", below.clone()), ("b", between.clone()), ("c", below)]);
        }
        let directory = Entry::new(below, 0o755, Time::EPOCH);
        let root = session.put_root(&Root { directory, links: None, state: None }).expect("put");
        session.commit(root, RefMove::default()).expect("committed");
        let (mut seen, mut met) = (SeenIds(vec![[0; 32]; 1]), 0);
        let walked = diff_walk(&store, root.object(), Vec::new(), &mut seen, &mut |_| {
            met += 1;
            Ok(())
        });
        walked.expect("walked");
        assert_eq!(met, 43, "forty directories, the two below them, and the root");
    }
}
