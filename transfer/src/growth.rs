//! What a snapshot brought: the objects that it leads to and none of its parents does.
//!
//! The tree is laid beside those of the parents, as a sender does, and equal parts are never opened. What is left over may still lie
//! elsewhere in a parent: moved, or copied. Objects are numbered in the order of writing, so what was written after the parents is in none of
//! them. The rest is looked for among what the parents have beside it, and only then in all of them.

use std::collections::{HashMap, HashSet};

use amalgam_engine::backend::{IndexRow, NumberSet};
use amalgam_engine::lean::{HeldTree, hold_tree};
use amalgam_engine::object;
use amalgam_engine::{Error as EngineError, ObjectId, RootId, Rows, SnapshotId, Store, Tally};

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::walk::{Met, Seen, walk};

/// Objects that are looked up at once.
const PAGE: usize = 256;

/// What a snapshot brought: its record, and what of its tree none of its parents has. Of parents whose trees were dropped the nearest that
/// came before them and are still there take the place. Nothing for a snapshot whose own tree was dropped; of content that
/// was purged nothing is counted.
pub fn growth(store: &Store, snapshot: SnapshotId, progress: &Progress) -> Result<Option<Tally>> {
    let Some(tree) = hold(store, snapshot)? else { return Ok(None) };
    let rows = store.rows()?;
    let parents = with_trees(store, store.snapshot(snapshot)?.parents.clone(), progress)?;
    let mut grown = Grown::new(&rows, progress, written(&rows, &parents)?);
    grown.take(&[snapshot.object()])?;
    grown.lay_beside(store, tree.root, &parents)?;
    for (_, held) in &parents {
        grown.look_for_doubtful(store, held)?;
    }
    Ok(Some(grown.total()))
}

/// What a tree added to the store: what of it was written after the snapshots that it came of. What comes back from further in the past was
/// there already, and is not counted. The caller keeps the tree in the store.
pub fn added(store: &Store, tree: RootId, parents: &[SnapshotId], progress: &Progress) -> Result<Tally> {
    let rows = store.rows()?;
    let parents = with_trees(store, parents.to_vec(), progress)?;
    let mut grown = Grown::new(&rows, progress, written(&rows, &parents)?);
    grown.lay_beside(store, tree, &parents)?;
    Ok(grown.tally)
}

/// The same for a snapshot; nothing where its tree was dropped.
pub fn added_by(store: &Store, snapshot: SnapshotId, progress: &Progress) -> Result<Tally> {
    match hold(store, snapshot)? {
        Some(tree) => added(store, tree.root, &store.snapshot(snapshot)?.parents, progress),
        None => Ok(Tally::default()),
    }
}

/// The tree of a snapshot, if there is one.
fn hold(store: &Store, snapshot: SnapshotId) -> Result<Option<HeldTree>> {
    match hold_tree(store, snapshot) {
        Ok(held) => Ok(Some(held)),
        Err(EngineError::Absent { .. } | EngineError::Missing { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Those of these that have their trees; for the others the nearest that they came of, by any way.
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
                // History is weak.
                Err(EngineError::Missing { .. }) => {}
                Err(error) => return Err(error.into()),
            },
        }
    }
    Ok(found)
}

/// What has a greater number than this was written after all of these.
fn written(rows: &Rows, parents: &[(SnapshotId, HeldTree)]) -> Result<u64> {
    let ids: Vec<_> = parents.iter().flat_map(|(id, held)| [id.object(), held.root.object()]).collect();
    Ok(rows.look_up(&ids)?.into_iter().flatten().map(|row| row.number).max().unwrap_or(0))
}

fn note_children(store: &Store, id: ObjectId, beside: &mut HashSet<ObjectId>) -> Result<()> {
    let bytes = store.canonical(id)?;
    let children = object::children(id.kind, &bytes).map_err(|source| EngineError::Malformed { id, source })?;
    beside.extend(children.list.iter().map(|child| child.id));
    Ok(())
}

/// What was brought, as far as it is known.
struct Grown<'a> {
    rows: &'a Rows,
    progress: &'a Progress,
    /// The newest of the parents.
    written_after: u64,
    counted: NumberSet,
    tally: Tally,
    /// What a parent may have elsewhere.
    doubtful: HashMap<ObjectId, u64>,
}

impl<'a> Grown<'a> {
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

    /// Counts objects, each once: the walk may come to one again.
    fn take(&mut self, ids: &[ObjectId]) -> Result<()> {
        self.progress.check()?;
        // What is not in the index was purged.
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

    /// Takes what a tree has and these have not at the same place. What they have elsewhere, where they were opened, is in doubt no more.
    fn lay_beside(&mut self, store: &Store, tree: RootId, parents: &[(SnapshotId, HeldTree)]) -> Result<()> {
        let bases = parents.iter().map(|(_, held)| held.root.object()).collect();
        let (mut beside, mut waiting) = (HashSet::new(), Vec::new());
        walk(store, tree.object(), bases, &mut Seen::new(), &mut |met| {
            match met {
                Met::Opened(ids) => ids.iter().try_for_each(|id| note_children(store, *id, &mut beside))?,
                Met::Leaf(id) | Met::Node(id, _) => waiting.push(id),
            }
            if waiting.len() < PAGE { Ok(()) } else { self.take(&std::mem::take(&mut waiting)) }
        })?;
        self.take(&waiting)?;
        self.doubtful.retain(|id, _| !beside.contains(id));
        Ok(())
    }

    /// Looks through a whole tree for what is doubtful, until nothing is.
    fn look_for_doubtful(&mut self, store: &Store, held: &HeldTree) -> Result<()> {
        if self.doubtful.is_empty() {
            return Ok(());
        }
        let (doubtful, progress) = (&mut self.doubtful, self.progress);
        let looked = walk(store, held.root.object(), Vec::new(), &mut Seen::new(), &mut |met| {
            if let Met::Leaf(id) | Met::Node(id, _) = met {
                doubtful.remove(&id);
            }
            progress.check()?;
            // Nothing is looked for any more.
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
