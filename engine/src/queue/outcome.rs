//! The result of one entry of a fold.

use super::RefusedChange;
use super::entry::QueueEntry;
use crate::id::SnapshotId;
use crate::merge::{FileMerged, PathConflict};

/// An entry that a fold has processed.
#[derive(Clone, Debug)]
pub struct Folded {
    /// The entry.
    pub entry: QueueEntry,
    /// The result.
    pub outcome: EntryOutcome,
    /// The files whose bytes both sides changed, and the strategy that decided each.
    pub files: Vec<FileMerged>,
    /// The conflicts.
    pub conflicts: Vec<PathConflict>,
    /// The changes that the policy refused. If the entry landed, it landed without them.
    pub refused: Vec<RefusedChange>,
    /// Number of changed paths of the target.
    pub changed: u64,
    /// Whether the source workspace was removed.
    pub is_ended: bool,
}

/// The result of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryOutcome {
    /// It was merged into the target in this snapshot.
    Landed(SnapshotId),
    /// The target already contained it.
    Already,
    /// It became a review. Besides its conflicts, this is the reason.
    Review(String),
    /// Its test could not be started, for this reason. It left the queue, and nothing was changed.
    Refused(String),
}

impl Folded {
    /// Creates the result of an entry that changed no path.
    pub(super) fn new(entry: &QueueEntry, outcome: EntryOutcome, conflicts: Vec<PathConflict>) -> Self {
        let (files, refused) = (Vec::new(), Vec::new());
        Self { entry: entry.clone(), outcome, files, conflicts, refused, changed: 0, is_ended: false }
    }
}

impl EntryOutcome {
    /// Returns whether the target does not contain the entry.
    pub(super) fn is_left(&self) -> bool {
        matches!(self, Self::Review(_) | Self::Refused(_))
    }
}
