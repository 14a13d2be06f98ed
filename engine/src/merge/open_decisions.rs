//! Finds the conflicts of earlier merges that are not entries of the tree and that no later snapshot decided.

use std::collections::BTreeSet;

use super::record::{MERGE_RECORD_KEY, MergeRecord};
use super::undecided::Undecided;
use crate::error::Result;
use crate::history::{History, LogOrder};
use crate::id::SnapshotId;

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
        if let Some(ids) = entry.snapshot.metadata.get(DECIDED_KEY) {
            decided.extend(ids.split_ascii_whitespace().map(str::to_owned));
        }
        let Some(text) = entry.snapshot.metadata.get(MERGE_RECORD_KEY) else { continue };
        let undecided = MergeRecord::from_json(text).map(|record| record.undecided).unwrap_or_default();
        let open = undecided.into_iter().enumerate();
        let open = open.map(|(number, undecided)| OpenDecision { merge: entry.id, number, undecided });
        found.extend(open.filter(|subject| !decided.contains(&subject.id())));
    }
    Ok(found)
}
