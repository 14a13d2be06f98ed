//! Threads for what may take long, so that whoever answers the kernel is free for the next request. Made as they are needed,
//! and gone when nothing was left to them for a while.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How long one waits for something to do.
const PATIENCE: Duration = Duration::from_secs(5);

type Work = Box<dyn FnOnce() + Send>;

pub(crate) struct Aside {
    shared: Arc<Shared>,
    most: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    came: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    idle: usize,
    /// Those that will look for work once more.
    alive: usize,
    threads: Vec<JoinHandle<()>>,
    has_ended: bool,
}

impl Aside {
    pub(crate) fn new(most: usize) -> Self {
        Self { shared: Arc::default(), most: most.max(1) }
    }

    /// Has something done by another thread.
    pub(crate) fn take_over(&self, work: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        state.waiting.push_back(Box::new(work));
        if state.idle >= state.waiting.len() {
            self.shared.came.notify_one();
            return;
        }
        state.threads.retain(|thread| !thread.is_finished());
        if state.alive < self.most {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("amalgam-aside".to_owned()).spawn(move || shared.help());
            state.alive += usize::from(thread.is_ok());
            state.threads.extend(thread);
        }
        if state.alive == 0 {
            // No thread is to be had: then here.
            let work = state.waiting.pop_back();
            drop(state);
            work.into_iter().for_each(|work| work());
        }
    }
}

impl Shared {
    fn help(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(work) = state.waiting.pop_front() {
                drop(state);
                // A request that is dropped is answered with an error.
                catch_unwind(AssertUnwindSafe(work)).ok();
                state = self.state.lock();
                continue;
            }
            if state.has_ended {
                state.alive -= 1;
                return;
            }
            state.idle += 1;
            let timed_out = self.came.wait_for(&mut state, PATIENCE).timed_out();
            state.idle -= 1;
            if timed_out && state.waiting.is_empty() {
                state.alive -= 1;
                return;
            }
        }
    }
}

/// What was taken over is done before the end.
impl Drop for Aside {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.has_ended = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.shared.came.notify_all();
        for thread in threads {
            thread.join().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn all_is_done_by_few_threads_before_the_end() {
        let done = Arc::new(AtomicUsize::new(0));
        let aside = Aside::new(2);
        for _ in 0..100 {
            let done = Arc::clone(&done);
            aside.take_over(move || {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(aside.shared.state.lock().alive <= 2);
        drop(aside);
        assert_eq!(done.load(Ordering::Relaxed), 100);
    }

    #[test]
    fn one_that_waits_does_not_stop_another_and_a_panic_neither() {
        let aside = Aside::new(2);
        let (go, wait) = channel::<()>();
        aside.take_over(move || {
            wait.recv().ok();
        });
        aside.take_over(|| panic!("as a test"));
        let (tell, told) = channel();
        aside.take_over(move || tell.send(()).expect("somebody listens"));
        told.recv().expect("it was done");
        drop(go);
    }
}
