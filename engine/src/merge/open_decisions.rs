//! Finds the conflicts of earlier merges that are not entries of the tree and that no later snapshot decided.

use std::collections::BTreeSet;

use super::record::{MERGE_RECORD_KEY, MergeRecord};
use super::undecided::Undecided;
use crate::error::Result;
use crate::history::{History, LogOrder};
use crate::id::SnapshotId;
use crate::object::Snapshot;

/// The metadata key of a snapshot that decides open conflicts.
pub const DECIDED_KEY: &str = "decided";
/// Maximum number of ancestor snapshots that are searched for open conflicts.
const SNAPSHOTS_MAX: usize = 10_000;

/// An undecided conflict and the merge that left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenDecision {
    /// The snapshot of the merge.
    pub merge: SnapshotId,
    /// Its index in the record of that merge.
    pub number: usize,
    /// The conflict.
    pub undecided: Undecided,
}

impl OpenDecision {
    /// Returns the id of the decision.
    pub fn id(&self) -> String {
        format!("{}-{}", self.merge, self.number)
    }
}

/// Returns the conflicts left by merges in the history of a snapshot that no later snapshot decided, newest merge first.
/// [`Undecided::is_as`] tells whether a tree still has the state that the merge left.
pub fn undecided_before(history: &History, head: SnapshotId) -> Result<Vec<OpenDecision>> {
    let mut decided = BTreeSet::new();
    let mut found = Vec::new();
    // In generation order, a snapshot that decides a conflict precedes the merge that left it.
    for entry in history.log(&[head], LogOrder::Generation)?.take(SNAPSHOTS_MAX) {
        let entry = entry?;
        decided.extend(decided_by(&entry.snapshot).map(str::to_owned));
        found.extend(opened_by(entry.id, &entry.snapshot).filter(|open| !decided.contains(&open.id())));
    }
    Ok(found)
}

/// Returns the same as [`undecided_before`] for a snapshot whose only parent has `before`, without a walk.
pub fn undecided_after(before: &[OpenDecision], head: SnapshotId, snapshot: &Snapshot) -> Vec<OpenDecision> {
    let decided: BTreeSet<_> = decided_by(snapshot).collect();
    let open = opened_by(head, snapshot).chain(before.iter().cloned());
    open.filter(|open| !decided.contains(open.id().as_str())).collect()
}

fn decided_by(snapshot: &Snapshot) -> impl Iterator<Item = &str> {
    snapshot.metadata.get(DECIDED_KEY).into_iter().flat_map(|ids| ids.split_ascii_whitespace())
}

fn opened_by(merge: SnapshotId, snapshot: &Snapshot) -> impl Iterator<Item = OpenDecision> {
    let record = snapshot.metadata.get(MERGE_RECORD_KEY).and_then(|text| MergeRecord::from_json(text));
    let undecided = record.map(|record| record.undecided).unwrap_or_default();
    undecided.into_iter().enumerate().map(move |(number, undecided)| OpenDecision { merge, number, undecided })
}
