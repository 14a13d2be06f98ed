//! Lets threads wait for new operations in the log.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::Result;

/// The waiting threads. Without waiters, a notification costs one atomic load.
#[derive(Default)]
pub(super) struct Waiters {
    count: AtomicUsize,
    turn: Mutex<()>,
    changed: Condvar,
}

impl Waiters {
    /// Wakes all waiting threads.
    pub(super) fn tell(&self) {
        if self.count.load(Ordering::SeqCst) > 0 {
            drop(self.turn.lock());
            self.changed.notify_all();
        }
    }

    /// Waits until a condition holds, or until the timeout.
    pub(super) fn wait(&self, at_most: Duration, holds: impl Fn() -> Result<bool>) -> Result<()> {
        self.count.fetch_add(1, Ordering::SeqCst);
        let mut turn = self.turn.lock();
        let waited = loop {
            match holds() {
                Ok(false) => {}
                other => break other.map(drop),
            }
            if self.changed.wait_for(&mut turn, at_most).timed_out() {
                break Ok(());
            }
        };
        drop(turn);
        self.count.fetch_sub(1, Ordering::SeqCst);
        waited
    }
}
