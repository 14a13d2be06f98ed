//! Group commit: threads that commit concurrently share one write, which one thread of each group performs.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// A queue whose items are processed in groups, in arrival order, one group at a time.
pub struct Group<T, R> {
    queue: Mutex<Queue<T, R>>,
}

struct Queue<T, R> {
    waiting: Vec<(T, Arc<Slot<R>>)>,
    led: bool,
}

struct Slot<R> {
    turn: Mutex<Turn<R>>,
    changed: Condvar,
}

enum Turn<R> {
    Waiting,
    Lead,
    Done(R),
}

impl<R> Slot<R> {
    fn set(&self, turn: Turn<R>) {
        *self.turn.lock() = turn;
        self.changed.notify_one();
    }

    /// Blocks until the item of this slot is done, or its thread becomes the leader.
    fn wait(&self) -> Option<R> {
        let mut turn = self.turn.lock();
        loop {
            match std::mem::replace(&mut *turn, Turn::Waiting) {
                Turn::Waiting => self.changed.wait(&mut turn),
                Turn::Lead => return None,
                Turn::Done(result) => return Some(result),
            }
        }
    }
}

impl<T, R> Default for Group<T, R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, R> Group<T, R> {
    /// Creates an empty queue.
    pub fn new() -> Self {
        Self { queue: Mutex::new(Queue { waiting: Vec::new(), led: false }) }
    }

    /// Submits an item. `process` receives a group of items and returns as many results; it must not panic.
    pub fn submit(&self, item: T, process: impl FnOnce(Vec<T>) -> Vec<R>) -> R {
        let slot = Arc::new(Slot { turn: Mutex::new(Turn::Waiting), changed: Condvar::new() });
        let leads = {
            let mut queue = self.queue.lock();
            queue.waiting.push((item, Arc::clone(&slot)));
            !std::mem::replace(&mut queue.led, true)
        };
        if !leads && let Some(result) = slot.wait() {
            return result;
        }
        let (items, slots): (Vec<_>, Vec<_>) = std::mem::take(&mut self.queue.lock().waiting).into_iter().unzip();
        let results = process(items);
        debug_assert_eq!(results.len(), slots.len(), "one result for each item");
        {
            // The next group starts before the threads of this one are woken.
            let mut queue = self.queue.lock();
            match queue.waiting.first() {
                Some((_, next)) => next.set(Turn::Lead),
                None => queue.led = false,
            }
        }
        let mut own = None;
        for (done, result) in slots.into_iter().zip(results) {
            if Arc::ptr_eq(&done, &slot) {
                own = Some(result);
            } else {
                done.set(Turn::Done(result));
            }
        }
        own.expect("a leader's own item is in its group")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_processed_once_and_gets_its_own_result() {
        let group = Group::new();
        let seen = Mutex::new(Vec::<u64>::new());
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (group, seen) = (&group, &seen);
                scope.spawn(move || {
                    for step in 0..500 {
                        let item = thread * 1_000 + step;
                        let result = group.submit(item, |items: Vec<u64>| {
                            seen.lock().extend(&items);
                            items.iter().map(|item| item * 2).collect()
                        });
                        assert_eq!(result, item * 2);
                    }
                });
            }
        });
        let mut seen = seen.into_inner();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 4_000);
    }
}
