//! Advisory locks on byte ranges of files, shared by all protocols that serve a view. Kept in memory until the view ends.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::attributes::Ino;

/// How often a waiting thread checks whether it should give up.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Allows other shared locks.
    Shared,
    /// Allows no other lock.
    Exclusive,
}

/// A lock on a byte range, held or requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The lock owner, as the protocol identifies it.
    pub owner: u64,
    /// The process of the owner, reported to others.
    pub pid: u32,
    /// Shared or exclusive.
    pub kind: LockKind,
    /// The first byte.
    pub start: u64,
    /// The last byte, inclusive.
    pub end: u64,
}

impl Lock {
    fn overlaps(&self, other: &Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    fn conflicts(&self, other: &Self) -> bool {
        let exclusive = self.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive;
        self.owner != other.owner && exclusive && self.overlaps(other)
    }
}

/// The held locks of a view, by inode.
#[derive(Default)]
pub(crate) struct LockTable {
    held: Mutex<HashMap<Ino, Vec<Lock>>>,
    released: Condvar,
}

impl LockTable {
    /// Returns a lock that conflicts with the requested one.
    pub(crate) fn find_conflict(&self, ino: Ino, wanted: &Lock) -> Option<Lock> {
        let held = self.held.lock();
        held.get(&ino)?.iter().find(|lock| lock.conflicts(wanted)).copied()
    }

    /// Takes a lock, and replaces the owner's locks in the range. Returns false if another lock conflicts.
    pub(crate) fn try_lock(&self, ino: Ino, wanted: &Lock) -> bool {
        let mut held = self.held.lock();
        acquire(held.entry(ino).or_default(), wanted)
    }

    /// Waits for a lock. Returns false if `give_up` returned true, which is called after each release and in intervals.
    pub(crate) fn wait_lock(&self, ino: Ino, wanted: &Lock, give_up: impl Fn() -> bool) -> bool {
        let mut held = self.held.lock();
        loop {
            if acquire(held.entry(ino).or_default(), wanted) {
                return true;
            }
            if give_up() {
                return false;
            }
            self.released.wait_for(&mut held, POLL_INTERVAL);
        }
    }

    /// Releases the locks of an owner in a range.
    pub(crate) fn unlock(&self, ino: Ino, owner: u64, start: u64, end: u64) {
        let mut held = self.held.lock();
        if let Some(locks) = held.get_mut(&ino) {
            release(locks, owner, start, end);
            if locks.is_empty() {
                held.remove(&ino);
            }
        }
        self.released.notify_all();
    }
}

fn acquire(locks: &mut Vec<Lock>, wanted: &Lock) -> bool {
    if locks.iter().any(|lock| lock.conflicts(wanted)) {
        return false;
    }
    release(locks, wanted.owner, wanted.start, wanted.end);
    locks.push(*wanted);
    true
}

/// Removes a range from an owner's locks.
fn release(locks: &mut Vec<Lock>, owner: u64, start: u64, end: u64) {
    let mut rest = Vec::new();
    locks.retain(|lock| {
        if lock.owner != owner || lock.end < start || lock.start > end {
            return true;
        }
        if lock.start < start {
            rest.push(Lock { end: start - 1, ..*lock });
        }
        if lock.end > end {
            rest.push(Lock { start: end + 1, ..*lock });
        }
        false
    });
    locks.append(&mut rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(owner: u64, kind: LockKind, start: u64, end: u64) -> Lock {
        Lock { owner, pid: 0, kind, start, end }
    }

    #[test]
    fn ranges_split_and_join_as_posix_has_it() {
        let mut locks = Vec::new();
        assert!(acquire(&mut locks, &lock(1, LockKind::Exclusive, 0, 99)));
        assert!(!acquire(&mut locks, &lock(2, LockKind::Shared, 50, 60)));
        release(&mut locks, 1, 50, 59);
        assert!(acquire(&mut locks, &lock(2, LockKind::Shared, 50, 59)));
        assert!(!acquire(&mut locks, &lock(2, LockKind::Shared, 50, 60)));
        assert!(acquire(&mut locks, &lock(1, LockKind::Shared, 0, 49)));
        assert!(acquire(&mut locks, &lock(2, LockKind::Shared, 0, 59)));
        assert!(!acquire(&mut locks, &lock(1, LockKind::Exclusive, 0, 0)));
        release(&mut locks, 2, 0, u64::MAX);
        assert!(acquire(&mut locks, &lock(1, LockKind::Exclusive, 0, u64::MAX)));
        assert_eq!(locks.len(), 1);
    }
}
