//! What a target's head came of, remembered from fold to fold: then the base of a merge is found by walking over what the
//! source has new, instead of over all that the target took in since.

use std::collections::HashSet;

use crate::error::{Error, Result};
use crate::history::History;
use crate::id::SnapshotId;
use crate::store::Store;

/// More ancestors than this are not remembered.
const KNOWN_MAX: usize = 1 << 20;

/// A head, and all that it came of.
pub(super) struct Known {
    head: SnapshotId,
    all: HashSet<SnapshotId>,
}

/// Where a snapshot meets what is known.
pub(super) struct Met {
    /// The snapshots of its history that are not known, itself first.
    pub(super) new: Vec<SnapshotId>,
    /// The known ones that these came of. If it is one, it is the best common ancestor.
    pub(super) edge: Vec<SnapshotId>,
}

impl Known {
    /// Walks a whole history; nothing when that is too long.
    pub(super) fn walk(history: &History, head: SnapshotId) -> Result<Option<Self>> {
        let all = history.range(head, &[])?;
        Ok((all.len() <= KNOWN_MAX).then(|| Self { head, all: all.into_iter().collect() }))
    }

    /// Whether this is of a head; if that has only moved on since, it is made so.
    pub(super) fn catch_up(&mut self, store: &Store, head: SnapshotId) -> Result<bool> {
        if head == self.head {
            return Ok(true);
        }
        let met = self.meet(store, head)?;
        // A head that was moved back, or elsewhere, did not come of all that is known.
        if !met.edge.contains(&self.head) {
            return Ok(false);
        }
        self.advance(&met, head);
        Ok(true)
    }

    /// Where a snapshot's history meets what is known. Records that are gone end it.
    pub(super) fn meet(&self, store: &Store, from: SnapshotId) -> Result<Met> {
        let mut met = Met { new: Vec::new(), edge: Vec::new() };
        let mut seen = HashSet::from([from]);
        let mut open = vec![from];
        while let Some(here) = open.pop() {
            if self.all.contains(&here) {
                met.edge.push(here);
                continue;
            }
            met.new.push(here);
            let parents = match store.snapshot(here) {
                Ok(snapshot) => snapshot.parents.clone(),
                Err(Error::Missing { .. }) => Vec::new(),
                Err(error) => return Err(error),
            };
            open.extend(parents.into_iter().filter(|parent| seen.insert(*parent)));
        }
        Ok(met)
    }

    /// What was met is part of the history of a new head now.
    pub(super) fn advance(&mut self, met: &Met, head: SnapshotId) {
        self.all.extend(met.new.iter().copied());
        self.all.insert(head);
        self.head = head;
    }

    pub(super) fn is_small(&self) -> bool {
        self.all.len() <= KNOWN_MAX
    }
}
