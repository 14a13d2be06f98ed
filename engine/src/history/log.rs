//! Lists snapshots, newest first.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;

use super::History;
use crate::error::{Error, Result};
use crate::id::SnapshotId;
use crate::object::Snapshot;
use crate::time::Time;
use crate::workspace::{Labels, WorkspaceName, Workspaces};

const PAGE: usize = 256;

/// The order of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogOrder {
    /// By time. A snapshot comes before its parents unless a clock ran backwards between them.
    #[default]
    Time,
    /// By generation: always before its parents, but concurrent lines of different lengths are not interleaved by time.
    Generation,
}

/// A snapshot in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The id.
    pub id: SnapshotId,
    /// The snapshot.
    pub snapshot: Arc<Snapshot>,
}

/// Iterates over the ancestors of some snapshots. Reads on demand.
pub struct Log {
    history: History,
    order: LogOrder,
    open: BinaryHeap<Open>,
    seen: HashSet<SnapshotId>,
}

struct Open {
    rank: (Time, u64),
    id: SnapshotId,
    snapshot: Arc<Snapshot>,
}

impl History {
    /// Returns the log of these snapshots and their ancestors.
    pub fn log(&self, heads: &[SnapshotId], order: LogOrder) -> Result<Log> {
        let mut log = Log { history: self.clone(), order, open: BinaryHeap::new(), seen: HashSet::new() };
        for head in heads {
            if !log.push(*head, None)? {
                return Err(super::graph::absent(*head));
            }
        }
        Ok(log)
    }

    /// Returns the log of a workspace's head.
    pub fn log_of(&self, workspace: &WorkspaceName, order: LogOrder) -> Result<Log> {
        let head = Workspaces::of(&self.store).get(workspace)?.head;
        self.log(head.as_slice(), order)
    }

    /// Returns the log of all workspace heads and labels.
    pub fn log_of_all(&self, order: LogOrder) -> Result<Log> {
        let mut heads = Vec::new();
        let (workspaces, labels) = (Workspaces::of(&self.store), Labels::of(&self.store));
        let mut after = None;
        loop {
            let page = workspaces.list("", after.as_ref(), PAGE)?;
            let Some(last) = page.last() else { break };
            after = Some(last.name.clone());
            heads.extend(page.into_iter().filter_map(|workspace| workspace.head));
        }
        let mut after = None;
        loop {
            let page = labels.list("", after.as_ref(), PAGE)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            heads.extend(page.into_iter().map(|(_, snapshot)| snapshot));
        }
        heads.sort_unstable();
        heads.dedup();
        self.log(&heads, order)
    }
}

impl Log {
    /// Returns the next entry if it is the only open one: all remaining entries are then it and its ancestors.
    pub fn only_open(&self) -> Option<LogEntry> {
        let only = if self.open.len() == 1 { self.open.peek() } else { None };
        only.map(|open| LogEntry { id: open.id, snapshot: Arc::clone(&open.snapshot) })
    }

    /// Adds a snapshot. Returns false if its record does not exist.
    fn push(&mut self, id: SnapshotId, child: Option<Time>) -> Result<bool> {
        if self.seen.contains(&id) {
            return Ok(true);
        }
        let snapshot = match self.history.store.snapshot(id) {
            Ok(snapshot) => snapshot,
            Err(Error::Missing { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        self.seen.insert(id);
        let rank = match self.order {
            // A parent is never ranked above its child, regardless of the clocks.
            LogOrder::Time => (child.map_or(snapshot.time, |child| child.min(snapshot.time)), snapshot.generation),
            LogOrder::Generation => (Time::EPOCH, snapshot.generation),
        };
        self.open.push(Open { rank, id, snapshot });
        Ok(true)
    }

    fn advance(&mut self) -> Result<Option<LogEntry>> {
        let Some(Open { rank, id, snapshot }) = self.open.pop() else { return Ok(None) };
        for parent in &snapshot.parents {
            self.push(*parent, Some(rank.0))?;
        }
        Ok(Some(LogEntry { id, snapshot }))
    }
}

impl Iterator for Log {
    type Item = Result<LogEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(entry) => entry.map(Ok),
            Err(error) => {
                self.open.clear();
                Some(Err(error))
            }
        }
    }
}

impl Open {
    /// Returns the sort key: by rank, then the later one, then by id.
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
