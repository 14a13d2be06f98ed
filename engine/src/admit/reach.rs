//! Walks all objects below an object: checks that they exist, protects them from collection, and counts their depth.

use super::check::AdmissionCheck;
use crate::error::Result;
use crate::id::{ObjectId, ObjectKind, RootId, SnapshotId};
use crate::malformed::Malformed;
use crate::name::{DEPTH_MAX, InvalidName};
use crate::object::{Directories, Links, Root, Ropes, Sequence, SequenceNode, Snapshot, States};
use crate::store::{CheckedObject, WriteSession};

/// The references of an object.
#[derive(Default)]
pub(super) struct Edges {
    ids: Vec<ObjectId>,
    /// 1 in a leaf of a directory, where each reference adds one name to a path; 0 otherwise.
    names: usize,
}

impl Edges {
    pub(super) fn of_node<S: Sequence>(node: &SequenceNode<S>) -> Self {
        Self { ids: node.outgoing(), names: 0 }
    }

    pub(super) fn of_directory(node: &SequenceNode<Directories>) -> Self {
        Self { ids: node.outgoing(), names: usize::from(node.level() == 0) }
    }

    pub(super) fn of_root(root: &Root) -> Self {
        Self { ids: root.outgoing(), names: 0 }
    }

    pub(super) fn of_snapshot(snapshot: &Snapshot) -> Self {
        Self { ids: vec![snapshot.root.object()], names: 0 }
    }

    /// Returns the ids, and the number of names that each reference adds to a path.
    pub(super) fn parts(&self) -> (&[ObjectId], usize) {
        (&self.ids, self.names)
    }

    pub(super) fn of_stored(session: &WriteSession, id: ObjectId) -> Result<Self> {
        Ok(match id.kind {
            ObjectKind::Chunk | ObjectKind::Xattrs => Self::default(),
            ObjectKind::Rope => Self::of_node(&*session.node::<Ropes>(id)?),
            ObjectKind::Directory => Self::of_directory(&*session.node::<Directories>(id)?),
            ObjectKind::Links => Self::of_node(&*session.node::<Links>(id)?),
            ObjectKind::State => Self::of_node(&*session.node::<States>(id)?),
            ObjectKind::Root => Self::of_root(&*session.reading(|store| store.root(RootId::from_bytes(id.hash)))?),
            ObjectKind::Snapshot => {
                Self::of_snapshot(&*session.reading(|store| store.snapshot(SnapshotId::from_bytes(id.hash)))?)
            }
        })
    }
}

/// An object on the stack of the walk, and the index of the next child.
struct Open {
    id: Option<ObjectId>,
    edges: Edges,
    next: usize,
    /// The longest path of names below it found so far.
    depth: usize,
}

impl Open {
    fn new(id: Option<ObjectId>, edges: Edges) -> Self {
        let depth = edges.names;
        Self { id, edges, next: 0, depth }
    }
}

impl AdmissionCheck<'_> {
    /// Computes the depth like [`depth`](Self::depth). If that fails, repeats the walk without the upper bounds on the depth of
    /// trees that the session rests on, which may be too high.
    pub(super) fn depth_or_exact(&self, edges: &Edges) -> Result<usize> {
        let depth = self.depth(edges);
        if depth.is_err() && self.session.forget_resting() { self.depth(edges) } else { depth }
    }

    /// Returns the longest path of names below an object with these edges. Each object below it is visited once per session,
    /// regardless of the number of paths to it. The stack is at most as deep as a path may be, times the levels of a sequence.
    fn depth(&self, edges: &Edges) -> Result<usize> {
        let mut names = edges.names;
        let mut open = vec![Open::new(None, Edges { ids: edges.ids.clone(), names: edges.names })];
        loop {
            let here = open.last_mut().expect("the first one returns");
            if let Some(id) = here.edges.ids.get(here.next).copied() {
                here.next += 1;
                if let Some(below) = self.known(id)? {
                    here.depth = here.depth.max(here.edges.names + below);
                    continue;
                }
                let edges = Edges::of_stored(self.session, id)?;
                names += edges.names;
                open.push(Open::new(Some(id), edges));
            } else {
                let done = open.pop().expect("it was just looked at");
                names -= done.edges.names;
                self.shallow(done.depth)?;
                let (Some(id), Some(parent)) = (done.id, open.last_mut()) else { return Ok(done.depth) };
                parent.depth = parent.depth.max(parent.edges.names + done.depth);
                self.session.checked_objects().lock().insert(id, CheckedObject { depth: done.depth, bytes: 0 });
            }
            self.shallow(names)?;
        }
    }

    fn shallow(&self, names: usize) -> Result<()> {
        if names > DEPTH_MAX { Err(self.refusal(Malformed::Name(InvalidName::TooDeep))) } else { Ok(()) }
    }

    /// Returns the depth below an object that has no children or was visited before. Refuses an object that does not exist.
    fn known(&self, id: ObjectId) -> Result<Option<usize>> {
        let has_none_below = matches!(id.kind, ObjectKind::Chunk | ObjectKind::Xattrs);
        if let Some(known) = self.session.checked_objects().lock().get(&id) {
            return Ok(Some(known.depth));
        }
        if let Some(depth) = self.session.resting().lock().below.get(&id) {
            return Ok(Some(if has_none_below { 0 } else { *depth }));
        }
        if !self.session.has(id)? && !self.session.is_buried(id)? {
            return Err(self.refusal(Malformed::Absent { id }));
        }
        Ok(has_none_below.then_some(0))
    }
}
