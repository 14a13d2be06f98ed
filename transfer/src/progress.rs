//! How far a transfer has come, for another thread to read, and the request to stop it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// What was done so far. Shared between the worker and the thread that reports progress.
#[derive(Debug, Default)]
pub struct Progress {
    /// Objects sent, or taken in and found there already.
    pub objects: AtomicU64,
    /// Bytes of the stream so far.
    pub bytes: AtomicU64,
    /// Snapshots sent or received.
    pub snapshots: AtomicU64,
    /// How many snapshots there will be; 0 while that is not known.
    pub snapshots_total: AtomicU64,
    cancelled: AtomicBool,
}

impl Progress {
    /// Asks the work to stop; it does at the next object or batch.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Returns an error once the caller asked to stop.
    pub fn check(&self) -> Result<()> {
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    pub(crate) fn add(&self, objects: u64, snapshots: u64) {
        self.objects.fetch_add(objects, Ordering::Relaxed);
        self.snapshots.fetch_add(snapshots, Ordering::Relaxed);
    }
}
