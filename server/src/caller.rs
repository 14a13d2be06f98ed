//! The caller of a call that runs: where it is, and whether it still waits for the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use amalgam_engine::Cancellation;
use amalgam_proto::Reason;

use crate::error::{Error, Result};

/// Where a call comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The store's user on the same machine, through the Unix socket or in the same process.
    Local,
    /// The network. No call may name a path of the host, and no answer does.
    Network,
}

/// The client of a call that runs. It can disconnect at any time.
#[derive(Clone, Default)]
pub(crate) struct Caller {
    interrupt: Cancellation,
    is_gone: Arc<AtomicBool>,
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

    /// Runs work that only reads. It is interrupted when the client disconnects.
    pub(crate) fn walking<R>(&self, walk: impl FnOnce() -> R) -> R {
        self.interrupt.during(walk)
    }
}

/// The error of a call whose client disconnected.
pub(crate) fn gone() -> Error {
    Error::new(Reason::Cancelled, "the caller went away")
}

/// The error of a call that the end of the process cuts short.
pub(crate) fn ends() -> Error {
    Error::new(Reason::Busy, "the background process was told to end; run the command again")
}
