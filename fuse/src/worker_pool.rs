//! Worker pool for slow requests, so that the FUSE thread can take the next one. Threads start on demand and end when they are idle.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Idle time after which a worker ends.
const IDLE_MAX: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

/// A thread pool with a limited number of threads.
pub(crate) struct WorkerPool {
    shared: Arc<Shared>,
    threads_max: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    job_queued: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    idle: usize,
    /// Workers that will check the queue again.
    alive: usize,
    threads: Vec<JoinHandle<()>>,
    has_ended: bool,
}

impl WorkerPool {
    pub(crate) fn new(threads_max: usize) -> Self {
        Self { shared: Arc::default(), threads_max: threads_max.max(1) }
    }

    /// Runs a job on a worker.
    pub(crate) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        state.queue.push_back(Box::new(job));
        if state.idle >= state.queue.len() {
            self.shared.job_queued.notify_one();
            return;
        }
        state.threads.retain(|thread| !thread.is_finished());
        if state.alive < self.threads_max {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("amalgam-worker".to_owned()).spawn(move || shared.work());
            state.alive += usize::from(thread.is_ok());
            state.threads.extend(thread);
        }
        if state.alive == 0 {
            // No thread could be started: the job runs here.
            let job = state.queue.pop_back();
            drop(state);
            job.into_iter().for_each(|job| job());
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                // A reply that is dropped by a panic is answered with an error.
                catch_unwind(AssertUnwindSafe(job)).ok();
                state = self.state.lock();
                continue;
            }
            if state.has_ended {
                state.alive -= 1;
                return;
            }
            state.idle += 1;
            let timed_out = self.job_queued.wait_for(&mut state, IDLE_MAX).timed_out();
            state.idle -= 1;
            if timed_out && state.queue.is_empty() {
                state.alive -= 1;
                return;
            }
        }
    }
}

/// Waits until all queued jobs are done.
impl Drop for WorkerPool {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.has_ended = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.shared.job_queued.notify_all();
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
    fn all_jobs_run_on_few_threads_before_the_pool_is_dropped() {
        let done = Arc::new(AtomicUsize::new(0));
        let pool = WorkerPool::new(2);
        for _ in 0..100 {
            let done = Arc::clone(&done);
            pool.spawn(move || {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(pool.shared.state.lock().alive <= 2);
        drop(pool);
        assert_eq!(done.load(Ordering::Relaxed), 100);
    }

    #[test]
    fn a_blocked_job_or_a_panic_does_not_stop_other_jobs() {
        let pool = WorkerPool::new(2);
        let (go, wait) = channel::<()>();
        pool.spawn(move || {
            wait.recv().ok();
        });
        pool.spawn(|| panic!("as a test"));
        let (tell, told) = channel();
        pool.spawn(move || tell.send(()).expect("somebody listens"));
        told.recv().expect("it was done");
        drop(go);
    }
}
