//! Counts the requests that a node sends.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of requests that a node has sent, repeated ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloudCalls {
    /// Statements sent to PostgreSQL, except for heartbeats.
    pub statements: u64,
    /// Packs put into the bucket.
    pub puts: u64,
    /// Ranges read from the bucket.
    pub gets: u64,
    /// Packs deleted from the bucket.
    pub deletes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) statements: AtomicU64,
    pub(crate) puts: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) deletes: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn read(&self) -> CloudCalls {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CloudCalls {
            statements: read(&self.statements),
            puts: read(&self.puts),
            gets: read(&self.gets),
            deletes: read(&self.deletes),
        }
    }
}
