//! Locks on ranges of files, and on whole files, shared by all doors of a view. They live in memory and end with the view.

use std::collections::HashMap;

use parking_lot::{Condvar, Mutex};

use crate::inodes::Ino;

/// What a lock allows others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Others may read, too.
    Shared,
    /// Nobody else.
    Exclusive,
}

/// A lock, or the wish for one. `end` is the last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Whose it is: a process as its door sees it.
    pub owner: u64,
    /// Its process, to tell others.
    pub pid: u32,
    /// What it allows others.
    pub kind: LockKind,
    /// The first byte.
    pub start: u64,
    /// The last byte.
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

#[derive(Default)]
pub(crate) struct Locks {
    held: Mutex<HashMap<Ino, Vec<Lock>>>,
    released: Condvar,
}

impl crate::View {
    /// Who would be in the way.
    pub fn test_lock(&self, ino: Ino, wanted: &Lock) -> Option<Lock> {
        let held = self.shared.locks.held.lock();
        held.get(&ino)?.iter().find(|lock| lock.conflicts(wanted)).copied()
    }

    /// Takes a lock, or says that somebody is in the way. What the owner had in the range is replaced.
    pub fn try_lock(&self, ino: Ino, wanted: &Lock) -> bool {
        let mut held = self.shared.locks.held.lock();
        take(held.entry(ino).or_default(), wanted)
    }

    /// The same, waiting; false when `give_up` said so. That is asked whenever something is released, and now and then.
    pub fn wait_lock(&self, ino: Ino, wanted: &Lock, give_up: impl Fn() -> bool) -> bool {
        let mut held = self.shared.locks.held.lock();
        loop {
            if take(held.entry(ino).or_default(), wanted) {
                return true;
            }
            if give_up() {
                return false;
            }
            self.shared.locks.released.wait_for(&mut held, std::time::Duration::from_millis(100));
        }
    }

    /// Gives up what an owner has in a range.
    pub fn unlock(&self, ino: Ino, owner: u64, start: u64, end: u64) {
        let mut held = self.shared.locks.held.lock();
        if let Some(locks) = held.get_mut(&ino) {
            cut(locks, owner, start, end);
            if locks.is_empty() {
                held.remove(&ino);
            }
        }
        self.shared.locks.released.notify_all();
    }
}

fn take(locks: &mut Vec<Lock>, wanted: &Lock) -> bool {
    if locks.iter().any(|lock| lock.conflicts(wanted)) {
        return false;
    }
    cut(locks, wanted.owner, wanted.start, wanted.end);
    locks.push(*wanted);
    true
}

/// Takes a range out of an owner's locks.
fn cut(locks: &mut Vec<Lock>, owner: u64, start: u64, end: u64) {
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
        assert!(take(&mut locks, &lock(1, LockKind::Exclusive, 0, 99)));
        assert!(!take(&mut locks, &lock(2, LockKind::Shared, 50, 60)));
        cut(&mut locks, 1, 50, 59);
        assert!(take(&mut locks, &lock(2, LockKind::Shared, 50, 59)));
        assert!(!take(&mut locks, &lock(2, LockKind::Shared, 50, 60)));
        assert!(take(&mut locks, &lock(1, LockKind::Shared, 0, 49)));
        assert!(take(&mut locks, &lock(2, LockKind::Shared, 0, 59)));
        assert!(!take(&mut locks, &lock(1, LockKind::Exclusive, 0, 0)));
        cut(&mut locks, 2, 0, u64::MAX);
        assert!(take(&mut locks, &lock(1, LockKind::Exclusive, 0, u64::MAX)));
        assert_eq!(locks.len(), 1);
    }
}
