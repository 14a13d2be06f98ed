//! Limits of one call: the maximum number of paths of a walk, and cancellation by the caller.
//!
//! A tree is a directed acyclic graph: one directory may be at very many paths, so that a few kilobytes can represent more paths
//! than can ever be listed. Where possible, a query reads each distinct directory once. A walk over paths counts them and ends
//! with an error at the limit.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// Default maximum number of paths of one walk.
pub(crate) const PATHS_MAX: u64 = 16 << 20;
/// A walk that holds its paths in memory may visit this fraction of the maximum: one in `HELD_FRACTION`.
const HELD_FRACTION: u64 = 4;

/// Counts the paths of a walk, and fails when the limit is exceeded.
#[derive(Clone, Debug)]
pub struct PathCount {
    left: u64,
    most: u64,
}

impl PathCount {
    pub(crate) fn new(most: u64) -> Self {
        Self { left: most, most }
    }

    /// Creates the counter for a walk that holds all its paths in memory.
    pub(crate) fn held(most: u64) -> Self {
        Self::new(most / HELD_FRACTION)
    }

    /// Counts paths. Fails if the limit is exceeded.
    pub fn add(&mut self, paths: u64) -> Result<()> {
        match self.left.checked_sub(paths) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Error::TooWide { most: self.most }),
        }
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Cancellation>> = const { RefCell::new(None) };
}

/// Cancels the work of a thread whose caller has gone: from then on every read of an object on that thread fails.
///
/// Use it only for read-only work: in the middle of a change a failing read has the effect of a crash.
#[derive(Clone, Debug, Default)]
pub struct Cancellation(Arc<AtomicBool>);

impl Cancellation {
    /// Cancels the work.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Runs `work` on this thread so that it can be cancelled.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let _restored = Restored(CURRENT.replace(Some(self.clone())));
        work()
    }
}

/// Runs work on this thread that must not be cancelled, because it changes state: all of it is done, or none.
pub(crate) fn without_cancellation<T>(work: impl FnOnce() -> T) -> T {
    let _restored = Restored(CURRENT.replace(None));
    work()
}

/// Restores the previous value on drop.
struct Restored(Option<Cancellation>);

impl Drop for Restored {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Fails if the work of this thread was cancelled.
pub(crate) fn check_cancelled() -> Result<()> {
    let is_cancelled = CURRENT.with_borrow(|current| current.as_ref().is_some_and(|it| it.0.load(Ordering::Relaxed)));
    if is_cancelled { Err(Error::Interrupted) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_counted_up_to_the_limit() {
        let mut count = PathCount::new(3);
        count.add(2).expect("two of three");
        count.add(1).expect("three of three");
        assert!(matches!(count.add(1), Err(Error::TooWide { most: 3 })));
        assert!(PathCount::new(u64::MAX).add(u64::MAX).is_ok());
    }

    #[test]
    fn only_work_that_was_interrupted_fails() {
        let cancellation = Cancellation::default();
        let other = Cancellation::default();
        cancellation.during(|| {
            check_cancelled().expect("not yet");
            cancellation.cancel();
            check_cancelled().expect_err("interrupted");
            other.during(check_cancelled).expect("another one");
            check_cancelled().expect_err("still interrupted");
            without_cancellation(check_cancelled).expect("nothing interrupts this");
            check_cancelled().expect_err("still interrupted");
        });
        check_cancelled().expect("nothing to interrupt here");
    }
}
