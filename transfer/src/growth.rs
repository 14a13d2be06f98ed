//! Growth by a snapshot: the objects that it reaches and none of its parents does.
//!
//! The tree is walked beside those of the parents, as a sender does, and equal parts are never opened. The remaining objects
//! may still be elsewhere in a parent, moved or copied. Objects are numbered in the order of writing, so those written after
//! the parents are in none of them. The rest is searched first in the parent nodes that were opened, then in the whole trees.

use std::collections::{HashMap, HashSet};

use amalgam_engine::backend::{IndexRow, NumberSet};
use amalgam_engine::lean::{HeldTree, hold_tree};
use amalgam_engine::object;
use amalgam_engine::{Error as EngineError, ObjectId, RootId, Rows, SnapshotId, Store, Tally};

use crate::diff_walk::{SeenIds, WalkEvent, diff_walk};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Objects that are looked up at once.
const PAGE: usize = 256;

/// Measures what a snapshot added: its record, and the objects of its tree that none of its parents has. A parent whose tree
/// was dropped is replaced by its nearest ancestors with trees. Returns `None` if the snapshot's own tree was dropped. Purged
/// content is not counted.
pub fn growth(store: &Store, snapshot: SnapshotId, progress: &Progress) -> Result<Option<Tally>> {
    let Some(tree) = hold(store, snapshot)? else { return Ok(None) };
    let rows = store.rows()?;
    let parents = with_trees(store, store.snapshot(snapshot)?.parents.clone(), progress)?;
    let mut grown = GrowthCount::new(&rows, progress, newest_number(&rows, &parents)?);
    grown.count(&[snapshot.object()])?;
    grown.compare_with_parents(store, tree.root, &parents)?;
    for (_, held) in &parents {
        grown.search_doubtful(store, held)?;
    }
    Ok(Some(grown.total()))
}

/// Measures what a tree added to the store: its objects that were written after the parents. Objects from further in the past
/// existed already and are not counted. The caller pins the tree.
pub fn added(store: &Store, tree: RootId, parents: &[SnapshotId], progress: &Progress) -> Result<Tally> {
    let rows = store.rows()?;
    let parents = with_trees(store, parents.to_vec(), progress)?;
    let mut grown = GrowthCount::new(&rows, progress, newest_number(&rows, &parents)?);
    grown.compare_with_parents(store, tree, &parents)?;
    Ok(grown.tally)
}

/// Measures the objects that the tree of a snapshot added to the store; an empty tally if the snapshot was dropped.
pub fn added_by(store: &Store, snapshot: SnapshotId, progress: &Progress) -> Result<Tally> {
    match hold(store, snapshot)? {
        Some(tree) => added(store, tree.root, &store.snapshot(snapshot)?.parents, progress),
        None => Ok(Tally::default()),
    }
}

/// Pins the tree of a snapshot, if it exists.
fn hold(store: &Store, snapshot: SnapshotId) -> Result<Option<HeldTree>> {
    match hold_tree(store, snapshot) {
        Ok(held) => Ok(Some(held)),
        Err(EngineError::Absent { .. } | EngineError::Missing { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Pins the trees of snapshots; replaces those without a tree by their nearest ancestors with one.
fn with_trees(store: &Store, mut open: Vec<SnapshotId>, progress: &Progress) -> Result<Vec<(SnapshotId, HeldTree)>> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    while let Some(id) = open.pop() {
        progress.check()?;
        if !seen.insert(id) {
            continue;
        }
        match hold(store, id)? {
            Some(held) => found.push((id, held)),
            None => match store.snapshot(id) {
                Ok(record) => open.extend(record.parents.iter().copied()),
                // Ancestors may be missing.
                Err(EngineError::Missing { .. }) => {}
                Err(error) => return Err(error.into()),
            },
        }
    }
    Ok(found)
}

/// Returns the largest object number of the parents: later objects are in none of them.
fn newest_number(rows: &Rows, parents: &[(SnapshotId, HeldTree)]) -> Result<u64> {
    let ids: Vec<_> = parents.iter().flat_map(|(id, held)| [id.object(), held.root.object()]).collect();
    Ok(rows.look_up(&ids)?.into_iter().flatten().map(|row| row.number).max().unwrap_or(0))
}

fn note_children(store: &Store, id: ObjectId, beside: &mut HashSet<ObjectId>) -> Result<()> {
    let bytes = store.canonical(id)?;
    let children = object::children(id.kind, &bytes).map_err(|source| EngineError::Malformed { id, source })?;
    beside.extend(children.list.iter().map(|child| child.id));
    Ok(())
}

/// Counts the objects that a snapshot added.
struct GrowthCount<'a> {
    rows: &'a Rows,
    progress: &'a Progress,
    /// The largest object number of the parents.
    written_after: u64,
    counted: NumberSet,
    tally: Tally,
    /// Objects that a parent may have elsewhere.
    doubtful: HashMap<ObjectId, u64>,
}

impl<'a> GrowthCount<'a> {
    fn new(rows: &'a Rows, progress: &'a Progress, written_after: u64) -> Self {
        Self {
            rows,
            progress,
            written_after,
            counted: NumberSet::default(),
            tally: Tally::default(),
            doubtful: HashMap::new(),
        }
    }

    /// Counts objects, each once: the walk may reach one again.
    fn count(&mut self, ids: &[ObjectId]) -> Result<()> {
        self.progress.check()?;
        // A missing object was purged.
        for IndexRow { id, stored_bytes, number, .. } in self.rows.look_up(ids)?.into_iter().flatten() {
            if !self.counted.insert(number) {
                continue;
            }
            if number < self.written_after {
                self.doubtful.insert(id, stored_bytes);
            } else {
                self.tally.objects += 1;
                self.tally.bytes += stored_bytes;
            }
        }
        Ok(())
    }

    /// Counts the objects of a tree that the parents lack at the same place. Those in parent nodes that were opened are not
    /// doubtful any more.
    fn compare_with_parents(&mut self, store: &Store, tree: RootId, parents: &[(SnapshotId, HeldTree)]) -> Result<()> {
        let bases = parents.iter().map(|(_, held)| held.root.object()).collect();
        let (mut beside, mut waiting) = (HashSet::new(), Vec::new());
        diff_walk(store, tree.object(), bases, &mut SeenIds::new(), &mut |event| {
            match event {
                WalkEvent::Opened(ids) => ids.iter().try_for_each(|id| note_children(store, *id, &mut beside))?,
                WalkEvent::Leaf(id) | WalkEvent::Node(id, _) => waiting.push(id),
            }
            if waiting.len() < PAGE { Ok(()) } else { self.count(&std::mem::take(&mut waiting)) }
        })?;
        self.count(&waiting)?;
        self.doubtful.retain(|id, _| !beside.contains(id));
        Ok(())
    }

    /// Searches a whole tree for doubtful objects, until none is left.
    fn search_doubtful(&mut self, store: &Store, held: &HeldTree) -> Result<()> {
        if self.doubtful.is_empty() {
            return Ok(());
        }
        let (doubtful, progress) = (&mut self.doubtful, self.progress);
        let looked = diff_walk(store, held.root.object(), Vec::new(), &mut SeenIds::new(), &mut |event| {
            if let WalkEvent::Leaf(id) | WalkEvent::Node(id, _) = event {
                doubtful.remove(&id);
            }
            progress.check()?;
            // Ends the walk early.
            if doubtful.is_empty() { Err(Error::Cancelled) } else { Ok(()) }
        });
        match looked {
            Err(Error::Cancelled) if self.doubtful.is_empty() => Ok(()),
            looked => looked,
        }
    }

    fn total(&self) -> Tally {
        Tally {
            objects: self.tally.objects + self.doubtful.len() as u64,
            bytes: self.tally.bytes + self.doubtful.values().sum::<u64>(),
        }
    }
}
