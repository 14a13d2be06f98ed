//! Progress counters of a long call, and its cancellation. The worker advances the counters; another thread reads them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The caller cancelled a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Cancelled;

/// A request to cancel a call, set by one thread and checked by another.
#[derive(Debug, Default)]
pub struct CancelFlag(AtomicBool);

impl CancelFlag {
    /// Requests cancellation.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether cancellation was requested.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails if cancellation was requested.
    pub fn check(&self) -> Result<(), Cancelled> {
        if self.is_cancelled() { Err(Cancelled) } else { Ok(()) }
    }
}

/// Progress of a call that moves objects and snapshots into a store or out of one.
#[derive(Debug, Default)]
pub struct Progress {
    /// Objects, archive members or paths handled so far.
    pub items: AtomicU64,
    /// Bytes read from the input or written to the output so far.
    pub bytes: AtomicU64,
    /// Snapshots handled so far.
    pub snapshots: AtomicU64,
    /// Total number of snapshots; 0 while unknown.
    pub snapshots_total: AtomicU64,
    cancel: CancelFlag,
}

impl Progress {
    /// Requests cancellation; the work stops at the next item or block.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Returns whether cancellation was requested.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Fails if cancellation was requested.
    pub fn check(&self) -> Result<(), Cancelled> {
        self.cancel.check()
    }

    /// Counts items.
    pub fn add_items(&self, items: u64) {
        self.items.fetch_add(items, Ordering::Relaxed);
    }

    /// Counts snapshots.
    pub fn add_snapshots(&self, snapshots: u64) {
        self.snapshots.fetch_add(snapshots, Ordering::Relaxed);
    }
}
