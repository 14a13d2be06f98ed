//! Limits of one call: how many paths a walk visits at most, and whether the caller still waits for its result.
//!
//! A tree is a graph: one directory may lie at very many paths, so a few kilobytes can stand for more paths than anybody can list.
//! What can be answered by looking at each distinct directory once is; a walk over paths counts them, and ends with an error.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// The most paths of one walk, unless the store is opened with another limit.
pub(crate) const PATHS_MAX: u64 = 16 << 20;
/// What a walk keeps in memory may have this fraction of the paths of one that does not.
const HELD_FRACTION: u64 = 4;

/// Counts the paths that a walk visits, and refuses one too many.
#[derive(Clone, Debug)]
pub struct PathCount {
    left: u64,
    most: u64,
}

impl PathCount {
    pub(crate) fn new(most: u64) -> Self {
        Self { left: most, most }
    }

    /// The count of a walk whose paths are all held in memory.
    pub(crate) fn held(most: u64) -> Self {
        Self::new(most / HELD_FRACTION)
    }

    /// Counts some paths.
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
    static CURRENT: RefCell<Option<Interrupt>> = const { RefCell::new(None) };
}

/// Ends what a thread does for a caller that went away: every read of an object on that thread then fails.
///
/// Only for work that changes nothing: in the middle of a change a failing read is as good as a crash.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Interrupts the work.
    pub fn interrupt(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Does some work on this thread that can be interrupted.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let _restored = Restored(CURRENT.replace(Some(self.clone())));
        work()
    }
}

/// Does some work on this thread that must not be interrupted, because it changes something: all of it is done, or none.
pub(crate) fn uninterrupted<T>(work: impl FnOnce() -> T) -> T {
    let _restored = Restored(CURRENT.replace(None));
    work()
}

/// Puts back what was current before.
struct Restored(Option<Interrupt>);

impl Drop for Restored {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Fails when what this thread does was interrupted.
pub(crate) fn check_interrupt() -> Result<()> {
    let is_interrupted = CURRENT.with_borrow(|current| current.as_ref().is_some_and(|it| it.0.load(Ordering::Relaxed)));
    if is_interrupted { Err(Error::Interrupted) } else { Ok(()) }
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
        let interrupt = Interrupt::default();
        let other = Interrupt::default();
        interrupt.during(|| {
            check_interrupt().expect("not yet");
            interrupt.interrupt();
            check_interrupt().expect_err("interrupted");
            other.during(check_interrupt).expect("another one");
            check_interrupt().expect_err("still interrupted");
            uninterrupted(check_interrupt).expect("nothing interrupts this");
            check_interrupt().expect_err("still interrupted");
        });
        check_interrupt().expect("nothing to interrupt here");
    }
}
