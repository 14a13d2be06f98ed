//! Ancestors of a target's head, cached between folds. With them, the merge base is found by walking over the new snapshots of
//! the source instead of over all snapshots that the target received since.

use std::collections::HashSet;

use crate::error::{Error, Result};
use crate::history::History;
use crate::id::SnapshotId;
use crate::store::Store;

/// Maximum number of ancestors that are cached.
const ANCESTORS_MAX: usize = 1 << 20;

/// A head with all its ancestors.
pub(super) struct Ancestors {
    head: SnapshotId,
    all: HashSet<SnapshotId>,
}

/// The boundary between a snapshot's history and the cached ancestors.
pub(super) struct HistoryBoundary {
    /// The snapshots of its history that are not cached, itself first.
    pub(super) new: Vec<SnapshotId>,
    /// The cached parents of those. If there is exactly one, it is the best common ancestor.
    pub(super) edge: Vec<SnapshotId>,
}

impl Ancestors {
    /// Walks a whole history. Returns `None` if it is too long.
    pub(super) fn walk(history: &History, head: SnapshotId) -> Result<Option<Self>> {
        let all = history.range(head, &[])?;
        Ok((all.len() <= ANCESTORS_MAX).then(|| Self { head, all: all.into_iter().collect() }))
    }

    /// Updates the cache to a new head that descends from the cached one. Returns false if it does not.
    pub(super) fn catch_up(&mut self, store: &Store, head: SnapshotId) -> Result<bool> {
        if head == self.head {
            return Ok(true);
        }
        let boundary = self.meet(store, head)?;
        // A head that was reset does not descend from all cached snapshots.
        if !boundary.edge.contains(&self.head) {
            return Ok(false);
        }
        self.advance(&boundary, head);
        Ok(true)
    }

    /// Finds the boundary between a snapshot's history and the cached ancestors. Deleted snapshots end the walk.
    pub(super) fn meet(&self, store: &Store, from: SnapshotId) -> Result<HistoryBoundary> {
        let mut boundary = HistoryBoundary { new: Vec::new(), edge: Vec::new() };
        let mut seen = HashSet::from([from]);
        let mut open = vec![from];
        while let Some(here) = open.pop() {
            if self.all.contains(&here) {
                boundary.edge.push(here);
                continue;
            }
            boundary.new.push(here);
            let parents = match store.snapshot(here) {
                Ok(snapshot) => snapshot.parents.clone(),
                Err(Error::Missing { .. }) => Vec::new(),
                Err(error) => return Err(error),
            };
            open.extend(parents.into_iter().filter(|parent| seen.insert(*parent)));
        }
        Ok(boundary)
    }

    /// Adds the new snapshots to the history of a new head.
    pub(super) fn advance(&mut self, boundary: &HistoryBoundary, head: SnapshotId) {
        self.all.extend(boundary.new.iter().copied());
        self.all.insert(head);
        self.head = head;
    }

    pub(super) fn is_small(&self) -> bool {
        self.all.len() <= ANCESTORS_MAX
    }
}
