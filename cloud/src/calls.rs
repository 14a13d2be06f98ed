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
    /// Reads of objects.
    pub cache: CacheCounts,
}

/// Where the objects came from that a node read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Objects that were in memory.
    pub memory_hits: u64,
    /// Objects that were in the cache on disk.
    pub disk_hits: u64,
    /// Objects that were read from the bucket or from PostgreSQL.
    pub misses: u64,
    /// Entries of the cache on disk whose bytes were wrong, and which were read again elsewhere.
    pub damaged: u64,
    /// Bytes of the hits.
    pub hit_bytes: u64,
    /// Bytes that were read from the bucket, neighbours included.
    pub read_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) statements: AtomicU64,
    pub(crate) puts: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) deletes: AtomicU64,
    pub(crate) memory_hits: AtomicU64,
    pub(crate) disk_hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) hit_bytes: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    add(counter, 1);
}

pub(crate) fn add(counter: &AtomicU64, number: usize) {
    counter.fetch_add(number as u64, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn read(&self) -> CloudCalls {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CloudCalls {
            statements: read(&self.statements),
            puts: read(&self.puts),
            gets: read(&self.gets),
            deletes: read(&self.deletes),
            cache: CacheCounts {
                memory_hits: read(&self.memory_hits),
                disk_hits: read(&self.disk_hits),
                misses: read(&self.misses),
                damaged: read(&self.damaged),
                hit_bytes: read(&self.hit_bytes),
                read_bytes: read(&self.read_bytes),
            },
        }
    }
}
