//! The caller of a running call: its origin, and whether it still waits for the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use amalgam_engine::Cancellation;
use amalgam_proto::Reason;
use parking_lot::Mutex;

use crate::error::{Error, Result};

/// Where a call comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The store's user on the same machine, through the Unix socket or in the same process.
    Local,
    /// The network. No call may name a path of the host, and no answer does.
    Network,
    /// This process, for a caller on the network: calls may name paths of the host, but no error does, because the caller gets it.
    Server,
}

/// The client of a call that runs. It can disconnect at any time.
#[derive(Clone, Default)]
pub(crate) struct Caller {
    interrupt: Cancellation,
    is_gone: Arc<AtomicBool>,
    /// Where the stages of its merge are recorded; `None` for most callers.
    merge: Option<Arc<MergeWatch>>,
}

/// A stage of a merge through the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergeStage {
    /// Uncommitted changes of the source are captured.
    Capture,
    /// Other merges into the target run.
    Wait,
    /// The target is merged into.
    Merge,
    /// The test of an entry runs.
    Test,
    /// A command of a rule makes files anew.
    Regenerate,
}

impl MergeStage {
    /// Returns the word for the wire.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Capture => "capture",
            Self::Wait => "wait",
            Self::Merge => "merge",
            Self::Test => "test",
            Self::Regenerate => "regenerate",
        }
    }
}

/// The progress of the merge of a caller.
#[derive(Clone, Debug)]
pub(crate) struct MergeState {
    pub(crate) stage: MergeStage,
    pub(crate) since: Instant,
    /// Number of entries of the queue that are merged before it.
    pub(crate) entries_ahead: usize,
    /// The id of its entry; empty before it has one.
    pub(crate) entry: String,
}

/// The state of a merge, for the task that reports it to the caller.
#[derive(Debug)]
pub(crate) struct MergeWatch(Mutex<MergeState>);

impl Default for MergeWatch {
    fn default() -> Self {
        let (stage, since) = (MergeStage::Wait, Instant::now());
        Self(Mutex::new(MergeState { stage, since, entries_ahead: 0, entry: String::new() }))
    }
}

impl MergeWatch {
    pub(crate) fn state(&self) -> MergeState {
        self.0.lock().clone()
    }
}

impl Caller {
    /// Records that the client disconnected, and interrupts walks.
    pub(crate) fn leave(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
        self.interrupt.cancel();
    }

    /// Returns whether the client disconnected or the process ends.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    /// Returns an error when the client disconnected or the process ends.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_gone() { Err(gone()) } else { Ok(()) }
    }

    /// Returns a copy of this caller that records the stages of its merge in `watch`.
    pub(crate) fn watching_merge(&self, watch: &Arc<MergeWatch>) -> Self {
        Self { merge: Some(Arc::clone(watch)), ..self.clone() }
    }

    /// Records that the merge of the caller is at a stage.
    pub(crate) fn enter(&self, stage: MergeStage) {
        let Some(watch) = &self.merge else { return };
        let state = &mut *watch.0.lock();
        if state.stage != stage {
            (state.stage, state.since) = (stage, Instant::now());
        }
        if stage != MergeStage::Wait {
            state.entries_ahead = 0;
        }
    }

    /// Records the entry of the queue that the caller waits for.
    pub(crate) fn awaits_entry(&self, id: &str) {
        if let Some(watch) = &self.merge {
            id.clone_into(&mut watch.0.lock().entry);
        }
    }

    /// Records how many entries are merged before that of the caller. Calls `count` only if the caller watches its merge.
    pub(crate) fn set_entries_ahead(&self, count: impl FnOnce() -> usize) {
        if let Some(watch) = &self.merge {
            let count = count();
            watch.0.lock().entries_ahead = count;
        }
    }

    /// Runs work that only reads. It is interrupted when the client disconnects.
    pub(crate) fn walking<R>(&self, walk: impl FnOnce() -> R) -> R {
        self.interrupt.during(walk)
    }
}

/// Returns the error of a call whose client disconnected.
pub(crate) fn gone() -> Error {
    Error::new(Reason::Cancelled, "the caller went away")
}

/// Returns the error of a call that the end of the process cancels.
pub(crate) fn ends() -> Error {
    Error::new(Reason::Busy, "the background process was told to end; run the command again")
}
