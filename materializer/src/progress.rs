//! Progress counters of a capture or checkout, and its cancellation.

use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_engine::CancelFlag;

use crate::error::Result;

/// Counters that only grow while the work runs; another thread may read them.
#[derive(Debug, Default)]
pub struct Progress {
    /// Names seen so far.
    pub seen: AtomicU64,
    /// Files read or written so far.
    pub files: AtomicU64,
    /// Bytes read or written so far.
    pub bytes: AtomicU64,
    /// Total number of files; 0 while unknown.
    pub files_total: AtomicU64,
    /// Total number of bytes; 0 while unknown.
    pub bytes_total: AtomicU64,
    cancel: CancelFlag,
}

impl Progress {
    /// Requests cancellation; the work stops at the next file or block.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Fails if cancellation was requested.
    pub fn check(&self) -> Result<()> {
        Ok(self.cancel.check()?)
    }

    /// Counts names that were seen.
    pub fn count_names(&self, names: u64) {
        self.seen.fetch_add(names, Ordering::Relaxed);
    }

    /// Counts a file that is done.
    pub fn count_file(&self, bytes: u64) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
