//! Options of a view, and the disk space that it may use.

use std::sync::Arc;

use amalgam_engine::object::{Conflict, Entry, Owner};
use amalgam_engine::workspace::JournaledCommit;
use amalgam_engine::{Store, Time, TreePath};
use amalgam_policy::Guard;

/// Returns the current time.
pub type Clock = fn() -> Time;

/// Returns the stored file that shows a conflict at a path, or `None` if the conflict cannot be shown as a file.
pub type ShowConflict =
    Arc<dyn Fn(&Store, &TreePath, &Conflict) -> amalgam_engine::Result<Option<Entry>> + Send + Sync>;

/// Measures the disk that the journal and the store are on.
pub type MeasureDisk = Arc<dyn Fn() -> DiskSpace + Send + Sync>;

/// Space of the disk that the journal and the store are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    /// Total bytes of the disk.
    pub total_bytes: u64,
    /// Free bytes of the disk.
    pub free_bytes: u64,
    /// Free bytes that views leave unused, so that undo and garbage collection can write.
    pub floor_bytes: u64,
}

impl DiskSpace {
    /// Returns the bytes that files may still take.
    pub fn usable_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.floor_bytes)
    }
}

/// A limit of uncommitted bytes, and how much of it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The limit.
    pub max_bytes: u64,
    /// Bytes that were written since the last commit, without those that a measured checkpoint has given back.
    pub used_bytes: u64,
}

/// Options of a view.
#[derive(Clone)]
pub struct ViewOptions {
    /// The owner of entries that are stored without one.
    pub owner: Owner,
    /// The clock of the view.
    pub clock: Clock,
    /// Limit of bytes that may be written between two commits. Removed bytes make room once a checkpoint was measured: see
    /// [`View::set_checkpointed_bytes`](crate::View::set_checkpointed_bytes). [`View::set_quota`](crate::View::set_quota) replaces it.
    pub quota_bytes: Option<u64>,
    /// Journal size from which a checkpoint is due, so that recovery stays quick.
    pub checkpoint_bytes: u64,
    /// Measures the disk, for `statfs`. Writes that would go below its floor are refused.
    pub disk: Option<MeasureDisk>,
    /// Shows conflicts as files. A write to such a file replaces the conflict. Without it, and for conflicts that it cannot show, the
    /// view shows the first version, read-only.
    pub show_conflict: Option<ShowConflict>,
    /// The last commit of the workspace that was taken from a live view. If a power cut lost the journal's record of that commit, the
    /// journal is replayed from after the commit.
    pub journaled_commit: Option<JournaledCommit>,
    /// The agents on whose behalf the view is used. [`View::set_guard`](crate::View::set_guard) replaces it.
    pub guard: Arc<Guard>,
    /// Called when the tree changes, while the view is locked: it must return at once.
    pub on_change: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl ViewOptions {
    /// Returns the default options: no quota, a checkpoint each 256 MiB, conflicts shown as their first version.
    pub fn new(owner: Owner, clock: Clock) -> Self {
        Self {
            owner,
            clock,
            quota_bytes: None,
            checkpoint_bytes: 256 << 20,
            disk: None,
            show_conflict: None,
            journaled_commit: None,
            guard: Arc::default(),
            on_change: None,
        }
    }
}
