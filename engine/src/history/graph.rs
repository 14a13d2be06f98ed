//! The graph of snapshots in memory.

use std::collections::{BinaryHeap, HashMap};

use crate::changed_paths::{ChangedPaths, PathMarks};
use crate::error::{Error, Result};
use crate::id::{DirectoryId, RootId, SnapshotId};
use crate::object::Node;
use crate::store::Store;

/// The index of a snapshot in the graph.
pub(super) type GraphIndex = u32;

/// The cached data of a snapshot.
struct GraphNode {
    id: SnapshotId,
    root: RootId,
    generation: u64,
    parents: Parents,
    top: Top,
    /// The paths that differ from the first parent, if they are known and the parent exists.
    touched: Option<ChangedPaths>,
}

/// The root directory of a snapshot's tree.
#[derive(Clone, Copy)]
enum Top {
    Unread,
    /// The tree was dropped.
    Gone,
    Is(Option<DirectoryId>),
}

/// The parents. Nearly all snapshots have at most one. A parent whose record was deleted is omitted.
enum Parents {
    Unread(Vec<SnapshotId>),
    One(GraphIndex),
    Several(Vec<GraphIndex>),
}

/// The snapshots visited so far.
#[derive(Default)]
pub(super) struct Graph {
    places: HashMap<SnapshotId, GraphIndex>,
    nodes: Vec<GraphNode>,
}

impl Graph {
    pub(super) fn id(&self, place: GraphIndex) -> SnapshotId {
        self.nodes[place as usize].id
    }

    pub(super) fn root(&self, place: GraphIndex) -> RootId {
        self.nodes[place as usize].root
    }

    pub(super) fn generation(&self, place: GraphIndex) -> u64 {
        self.nodes[place as usize].generation
    }

    /// Returns the index of a snapshot, or an error if it does not exist.
    pub(super) fn need(&mut self, store: &Store, id: SnapshotId) -> Result<GraphIndex> {
        self.place(store, id)?.ok_or_else(|| absent(id))
    }

    fn place(&mut self, store: &Store, id: SnapshotId) -> Result<Option<GraphIndex>> {
        if let Some(place) = self.places.get(&id) {
            return Ok(Some(*place));
        }
        let (snapshot, touched) = match store.snapshot_and_changed_paths(id) {
            Ok(found) => found,
            Err(Error::Missing { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let place = GraphIndex::try_from(self.nodes.len()).map_err(|_| Error::TooLarge {
            what: "a history",
            value: self.nodes.len() as u64,
            max: u64::from(GraphIndex::MAX),
        })?;
        let parents = Parents::Unread(snapshot.parents.clone());
        let (root, generation) = (snapshot.root, snapshot.generation);
        self.nodes.push(GraphNode { id, root, generation, parents, top: Top::Unread, touched });
        self.places.insert(id, place);
        Ok(Some(place))
    }

    /// Returns the top nodes of the root directories of some snapshots. The outer `None` stands for a dropped tree.
    pub(super) fn tops(&mut self, store: &Store, of: &[GraphIndex]) -> Result<Vec<Option<Option<DirectoryId>>>> {
        let is_unread = |place: &&GraphIndex| matches!(self.nodes[**place as usize].top, Top::Unread);
        let unread: Vec<_> = of.iter().filter(is_unread).copied().collect();
        let roots: Vec<_> = unread.iter().map(|place| self.root(*place)).collect();
        for (place, root) in unread.into_iter().zip(store.roots(&roots)?) {
            self.nodes[place as usize].top = match root.as_ref().map(|root| &root.directory.node) {
                None => Top::Gone,
                Some(Node::Directory(contents)) => Top::Is(contents.map(|contents| contents.id)),
                Some(_) => Top::Is(None),
            };
        }
        let top = |place: &GraphIndex| match self.nodes[*place as usize].top {
            Top::Is(top) => Some(top),
            Top::Gone | Top::Unread => None,
        };
        Ok(of.iter().map(top).collect())
    }

    /// Returns the parents whose records exist.
    pub(super) fn parents(&mut self, store: &Store, of: GraphIndex) -> Result<ParentList> {
        if let Parents::Unread(ids) = &self.nodes[of as usize].parents {
            let ids = ids.clone();
            let mut places = Vec::with_capacity(ids.len());
            for (number, id) in ids.into_iter().enumerate() {
                let place = self.place(store, id)?;
                if number == 0 && place.is_none() {
                    // The marks are relative to the deleted parent, and now another parent is the first.
                    self.nodes[of as usize].touched = None;
                }
                places.extend(place);
            }
            self.nodes[of as usize].parents = match places[..] {
                [one] => Parents::One(one),
                _ => Parents::Several(places),
            };
        }
        Ok(match &self.nodes[of as usize].parents {
            Parents::One(one) => ParentList::One(Some(*one)),
            Parents::Several(several) => ParentList::Several(several.clone().into_iter()),
            Parents::Unread(_) => unreachable!("they were read above"),
        })
    }
}

/// The parent in which a path is unchanged.
pub(super) enum SameAs {
    /// The first and only parent.
    OnlyParent(GraphIndex),
    /// The first of several parents.
    FirstParent(GraphIndex),
}

impl Graph {
    /// Returns the first parent, if a path is certainly the same in it. Reads no tree.
    pub(super) fn untouched(&mut self, store: &Store, of: GraphIndex, path: &PathMarks) -> Result<Option<SameAs>> {
        let mut parents = self.parents(store, of)?;
        let is_same = self.nodes[of as usize].touched.as_ref().is_some_and(|touched| !touched.may(path));
        Ok(match (is_same, parents.next(), parents.next()) {
            (true, Some(first), None) => Some(SameAs::OnlyParent(first)),
            (true, Some(first), Some(_)) => Some(SameAs::FirstParent(first)),
            _ => None,
        })
    }
}

/// Iterates over parents. Allocates only for merges.
pub(super) enum ParentList {
    One(Option<GraphIndex>),
    Several(std::vec::IntoIter<GraphIndex>),
}

impl Iterator for ParentList {
    type Item = GraphIndex;

    fn next(&mut self) -> Option<GraphIndex> {
        match self {
            Self::One(place) => place.take(),
            Self::Several(places) => places.next(),
        }
    }
}

/// Walks down from some snapshots in generation order, so that every snapshot is visited after all its descendants. The caller
/// propagates flags to the parents.
#[derive(Default)]
pub(super) struct Walk {
    open: BinaryHeap<(u64, GraphIndex)>,
    /// The flags of each visited snapshot, by index; 0 for the others.
    flags: Vec<u8>,
    /// Number of open snapshots with each combination of flags.
    counts: [usize; 8],
}

impl Walk {
    /// Adds flags to a snapshot and opens it.
    pub(super) fn start(&mut self, graph: &Graph, place: GraphIndex, flags: u8) {
        if self.flags.len() <= place as usize {
            self.flags.resize(graph.nodes.len().max(place as usize + 1), 0);
        }
        let before = self.flags[place as usize];
        let after = before | flags;
        if before == after {
            return;
        }
        self.flags[place as usize] = after;
        if before == 0 {
            self.open.push((graph.generation(place), place));
        } else {
            self.counts[usize::from(before)] -= 1;
        }
        self.counts[usize::from(after)] += 1;
    }

    /// Returns the next snapshot with its final flags, provided that the generations are correct.
    pub(super) fn next(&mut self) -> Option<(GraphIndex, u8)> {
        let (_, place) = self.open.pop()?;
        let flags = self.flags[place as usize];
        self.counts[usize::from(flags)] -= 1;
        Some((place, flags))
    }

    /// Returns the number of open snapshots without a flag.
    pub(super) fn open_without(&self, flag: u8) -> usize {
        (0..8_u8).filter(|flags| flags & flag == 0).map(|flags| self.counts[usize::from(flags)]).sum()
    }
}

/// Returns the error for a snapshot that the store does not have.
pub(super) fn absent(id: SnapshotId) -> Error {
    Error::Absent { what: format!("snapshot {}", id.short()), hint: "the store has no record of it".to_owned() }
}
