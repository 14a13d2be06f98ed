//! Remembers which threads got `ESTALE` for a name. The kernel repeats a lookup once; a second `ESTALE` would reach the application.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Limit of remembered threads.
const THREADS_MAX: usize = 1 << 10;

/// The names for which threads got `ESTALE`, until their next lookup succeeds.
#[derive(Default)]
pub(crate) struct StaleRetries {
    by_thread: Mutex<HashMap<u32, (u64, Vec<u8>)>>,
    /// Whether the map has entries, so that most requests need not lock it.
    is_used: AtomicBool,
}

impl StaleRetries {
    /// Returns whether a thread may get `ESTALE` for a name: not if it just got it.
    pub(crate) fn may_retry(&self, thread: u32, directory: u64, name: &[u8]) -> bool {
        let mut by_thread = self.by_thread.lock();
        let is_repeated = by_thread.remove(&thread).is_some_and(|(other, known)| other == directory && known == name);
        if !is_repeated && by_thread.len() < THREADS_MAX {
            by_thread.insert(thread, (directory, name.to_vec()));
        }
        self.is_used.store(!by_thread.is_empty(), Ordering::Relaxed);
        !is_repeated
    }

    /// Forgets a thread after a successful lookup.
    pub(crate) fn lookup_succeeded(&self, thread: u32) {
        if self.is_used.load(Ordering::Relaxed) {
            let mut by_thread = self.by_thread.lock();
            by_thread.remove(&thread);
            self.is_used.store(!by_thread.is_empty(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_looks_again_once_until_it_has_found_something() {
        let retries = StaleRetries::default();
        assert!(retries.may_retry(1, 1, b"a"));
        assert!(retries.may_retry(2, 1, b"a"), "another may, too");
        assert!(!retries.may_retry(1, 1, b"a"));
        assert!(retries.may_retry(1, 1, b"a"), "that was another time");
        retries.lookup_succeeded(1);
        assert!(retries.may_retry(1, 1, b"a"));
        assert!(retries.may_retry(1, 2, b"a"), "in another directory");
        assert!(retries.may_retry(1, 2, b"b"), "another name");
        assert!(!retries.may_retry(2, 1, b"a"));
    }
}
