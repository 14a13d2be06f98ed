//! The requests with an id that run now, so that a caller who lost its connection can ask about one.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// A request as its caller knows it: the caller, the method, the id.
type Key = (String, &'static str, String);

/// The running requests of a store. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunningRequests {
    /// How often each one runs: a retry may arrive before the first attempt has ended.
    counts: Arc<Mutex<HashMap<Key, u32>>>,
}

impl RunningRequests {
    /// Counts a request as running until the guard is dropped.
    pub(crate) fn begin(&self, caller: &str, method: &'static str, id: &str) -> RunningRequest {
        let key = (caller.to_owned(), method, id.to_owned());
        *self.counts.lock().entry(key.clone()).or_default() += 1;
        RunningRequest { requests: self.clone(), key }
    }

    /// Returns whether a request runs.
    pub(crate) fn is_running(&self, caller: &str, method: &'static str, id: &str) -> bool {
        self.counts.lock().contains_key(&(caller.to_owned(), method, id.to_owned()))
    }
}

/// A request that runs, until this is dropped.
#[derive(Debug)]
pub(crate) struct RunningRequest {
    requests: RunningRequests,
    key: Key,
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        let mut counts = self.requests.counts.lock();
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_runs_until_its_last_attempt_has_ended() {
        let requests = RunningRequests::default();
        let (first, retry) = (requests.begin("ann", "CommitEdits", "1"), requests.begin("ann", "CommitEdits", "1"));
        drop(first);
        assert!(requests.is_running("ann", "CommitEdits", "1"));
        assert!(!requests.is_running("bob", "CommitEdits", "1"));
        drop(retry);
        assert!(!requests.is_running("ann", "CommitEdits", "1"));
        assert!(requests.counts.lock().is_empty());
    }
}
