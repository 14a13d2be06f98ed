//! A tree walked beside others: what it has that they have not, children before parents.

use std::collections::HashSet;

use amalgam_engine::object::{self, Child};
use amalgam_engine::{Error as EngineError, ErrorKind, ObjectId, ObjectKind, Store};
use bytes::Bytes;

use crate::error::Result;

/// So many objects of other versions are looked at beside one.
const BESIDE_MAX: usize = 256;
/// Places of the table of ids.
const SEEN_PLACES: usize = 1 << 19;

/// Ids that the receiver has, or will have when it comes to what follows. Forgets some, and never takes one for another.
pub(crate) struct Seen(Vec<[u8; 32]>);

impl Seen {
    pub(crate) fn new() -> Self {
        Self(vec![[0; 32]; SEEN_PLACES])
    }

    /// A table without places, to be put in the place of one that is lent.
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }

    /// The hash is keyed by the kind, so it alone says which object it is.
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

/// Something that the walk came to.
pub(crate) enum Met {
    /// Nodes of the others that were opened: what they hold is taken as known.
    Opened(Vec<ObjectId>),
    /// A chunk or attributes.
    Leaf(ObjectId),
    /// Any other object, with its canonical bytes.
    Node(ObjectId, Bytes),
}

enum Task {
    /// Look at an object, beside those that may be other versions of it.
    Open(ObjectId, Vec<ObjectId>),
    /// All below it is done.
    Close(ObjectId, Bytes),
}

/// What the others have beside one object.
#[derive(Default)]
struct Beside {
    children: Vec<Child>,
    ids: HashSet<ObjectId>,
    /// Versions that are less high: they lie beside the object's children.
    lower: Vec<ObjectId>,
    opened: Vec<ObjectId>,
}

/// Walks all below an object, leaving out what was seen and what the bases have.
pub(crate) fn walk(
    store: &Store,
    top: ObjectId,
    bases: Vec<ObjectId>,
    seen: &mut Seen,
    meet: &mut dyn FnMut(Met) -> Result<()>,
) -> Result<()> {
    let mut open = vec![Task::Open(top, bases)];
    // The table forgets. Below one top no node is walked twice, whatever else has its place there.
    let mut walked = HashSet::new();
    while let Some(task) = open.pop() {
        let (id, bases) = match task {
            Task::Open(id, bases) => (id, bases),
            Task::Close(id, bytes) => {
                seen.add(id);
                walked.insert(id);
                meet(Met::Node(id, bytes))?;
                continue;
            }
        };
        if seen.has(id) || bases.contains(&id) || walked.contains(&id) {
            continue;
        }
        if matches!(id.kind, ObjectKind::Chunk | ObjectKind::Xattrs) {
            seen.add(id);
            meet(Met::Leaf(id))?;
            continue;
        }
        let bytes = store.canonical(id)?;
        let children = read_children(id, &bytes)?;
        let beside = Beside::read(store, id.kind, children.level, bases)?;
        beside.children.iter().for_each(|child| seen.add(child.id));
        if !beside.opened.is_empty() {
            meet(Met::Opened(beside.opened.clone()))?;
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

impl Beside {
    /// Opens the other versions down to the level of the object.
    fn read(store: &Store, kind: ObjectKind, level: u32, bases: Vec<ObjectId>) -> Result<Self> {
        let mut beside = Self::default();
        let mut open = bases;
        while let Some(id) = open.pop() {
            if id.kind != kind || beside.opened.len() == BESIDE_MAX {
                continue;
            }
            let bytes = match store.canonical(id) {
                Ok(bytes) => bytes,
                // A version that cannot be read is none to build on.
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

    /// What may be another version of a child that reaches from its key to this end.
    fn versions(&self, child: &Child, end: Option<&[u8]>, level: u32) -> Vec<ObjectId> {
        let below = |key: &[u8]| self.children.partition_point(|other| &other.key[..] < key);
        let until = |key: &[u8]| self.children.partition_point(|other| &other.key[..] <= key);
        let range = match level {
            0 => below(&child.key)..until(&child.key),
            // The one that begins before it may reach into it.
            _ => until(&child.key).saturating_sub(1)..end.map_or(self.children.len(), below),
        };
        let others = self.children.get(range).unwrap_or(&[]);
        let mut versions: Vec<_> =
            others.iter().map(|other| other.id).filter(|id| id.kind == child.id.kind).take(BESIDE_MAX).collect();
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
        // Each has the one below it under two names, with another between them that takes its place in the table.
        for _ in 0..40 {
            below = put(&session, vec![("a", below.clone()), ("b", between.clone()), ("c", below)]);
        }
        let directory = Entry::new(below, 0o755, Time::EPOCH);
        let root = session.put_root(&Root { directory, links: None, state: None }).expect("put");
        session.commit(root, RefMove::default()).expect("committed");
        let (mut seen, mut met) = (Seen(vec![[0; 32]; 1]), 0);
        let walked = walk(&store, root.object(), Vec::new(), &mut seen, &mut |_| {
            met += 1;
            Ok(())
        });
        walked.expect("walked");
        assert_eq!(met, 43, "forty directories, the two below them, and the root");
    }
}
