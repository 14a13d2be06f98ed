//! How far a long piece of work is, for another thread to read, and the way to stop it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Counts that only grow while the work goes on.
#[derive(Debug, Default)]
pub struct Progress {
    /// Names seen so far.
    pub seen: AtomicU64,
    /// Files read or written so far.
    pub files: AtomicU64,
    /// Bytes read or written so far.
    pub bytes: AtomicU64,
    /// How many files there will be; 0 while that is not known.
    pub files_total: AtomicU64,
    /// How many bytes there will be; 0 while that is not known.
    pub bytes_total: AtomicU64,
    cancelled: AtomicBool,
}

impl Progress {
    /// Asks the work to stop; it does at the next file or block.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Returns an error once the caller asked to stop.
    pub fn check(&self) -> Result<()> {
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Counts a name that was seen.
    pub fn saw(&self, names: u64) {
        self.seen.fetch_add(names, Ordering::Relaxed);
    }

    /// Counts a file that is done.
    pub fn did(&self, bytes: u64) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
