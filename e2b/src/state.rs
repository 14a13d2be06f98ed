//! The memory of the listener for e2b clients.

use amalgam_engine::Time;

use crate::idempotency::Idempotency;
use crate::process_table::Processes;
use crate::signature::Signers;
use crate::watchers::Watchers;

/// Everything that is remembered between requests.
pub(crate) struct State {
    pub(crate) processes: Processes,
    pub(crate) watchers: Watchers,
    pub(crate) idempotency: Idempotency,
    pub(crate) signers: Signers,
    pub(crate) now: fn() -> Time,
}

impl State {
    pub(crate) fn new(now: fn() -> Time) -> Self {
        let (processes, watchers, idempotency, signers) = Default::default();
        Self { processes, watchers, idempotency, signers, now }
    }

    /// Forgets the processes and watchers of a sandbox that has ended.
    pub(crate) fn forget(&self, sandbox: &str) {
        self.processes.forget(sandbox);
        self.watchers.forget(sandbox);
    }
}
