//! Who was told to look again at a name. The kernel does so once: told a second time, it would tell whoever asked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// So many threads are remembered at a time.
const THREADS_MAX: usize = 1 << 10;

/// The names that threads were told to look at again, as long as they have not found anything there.
#[derive(Default)]
pub(crate) struct Again {
    by_thread: Mutex<HashMap<u32, (u64, Vec<u8>)>>,
    /// Whether anything is in there, so that most need not look.
    is_used: AtomicBool,
}

impl Again {
    /// Whether a thread may be told to look at this name again: not when it has just been.
    pub(crate) fn may_look(&self, thread: u32, directory: u64, name: &[u8]) -> bool {
        let mut by_thread = self.by_thread.lock();
        let told = by_thread.remove(&thread).is_some_and(|(other, known)| other == directory && known == name);
        if !told && by_thread.len() < THREADS_MAX {
            by_thread.insert(thread, (directory, name.to_vec()));
        }
        self.is_used.store(!by_thread.is_empty(), Ordering::Relaxed);
        !told
    }

    /// A thread has found what it looked for.
    pub(crate) fn found(&self, thread: u32) {
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
        let again = Again::default();
        assert!(again.may_look(1, 1, b"a"));
        assert!(again.may_look(2, 1, b"a"), "another may, too");
        assert!(!again.may_look(1, 1, b"a"));
        assert!(again.may_look(1, 1, b"a"), "that was another time");
        again.found(1);
        assert!(again.may_look(1, 1, b"a"));
        assert!(again.may_look(1, 2, b"a"), "in another directory");
        assert!(again.may_look(1, 2, b"b"), "another name");
        assert!(!again.may_look(2, 1, b"a"));
    }
}
