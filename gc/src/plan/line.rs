//! The snapshots that led to some heads, newest first, as a walk that tells when only one way is left.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;

use amalgam_engine::object::Snapshot;
use amalgam_engine::{Error, Result, SnapshotId, Store, Time};

/// A walk down a history. As in a log, no snapshot comes before one that came of it, whatever the clocks said.
#[derive(Default)]
pub(super) struct Line {
    open: BinaryHeap<Open>,
    /// Those that were met: two ways may lead to one.
    met: HashSet<SnapshotId>,
}

struct Open {
    rank: (Time, u64),
    id: SnapshotId,
    snapshot: Arc<Snapshot>,
}

impl Line {
    /// From these heads, whose records have to be there.
    pub(super) fn from(store: &Store, heads: &[SnapshotId]) -> Result<Self> {
        let mut line = Self::default();
        for head in heads {
            let snapshot = store.snapshot(*head)?;
            line.push(*head, snapshot, None);
        }
        Ok(line)
    }

    /// The one snapshot that is open, if it is one, and its time.
    pub(super) fn only(&self) -> Option<(SnapshotId, Time)> {
        let only = if self.open.len() == 1 { self.open.peek() } else { None };
        only.map(|open| (open.id, open.snapshot.time))
    }

    /// The next snapshot. A parent whose record is gone is left out.
    pub(super) fn next(&mut self, store: &Store) -> Result<Option<(SnapshotId, Arc<Snapshot>)>> {
        let Some(Open { rank, id, snapshot }) = self.open.pop() else { return Ok(None) };
        for parent in &snapshot.parents {
            match store.snapshot(*parent) {
                Ok(found) => self.push(*parent, found, Some(rank.0)),
                Err(Error::Missing { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some((id, snapshot)))
    }

    fn push(&mut self, id: SnapshotId, snapshot: Arc<Snapshot>, child: Option<Time>) {
        if self.met.insert(id) {
            let time = child.map_or(snapshot.time, |child| child.min(snapshot.time));
            self.open.push(Open { rank: (time, snapshot.generation), id, snapshot });
        }
    }
}

impl Open {
    /// Among equals the later one, then any fixed order.
    fn key(&self) -> ((Time, u64), Time, SnapshotId) {
        (self.rank, self.snapshot.time, self.id)
    }
}

impl Ord for Open {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Open {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Open {}
