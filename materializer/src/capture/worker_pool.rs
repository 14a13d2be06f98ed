//! Worker pool for jobs that add further jobs; starts more threads only when enough jobs wait.
//!
//! These are plain threads rather than rayon's: a rayon worker that waits for the hashing of a large file in the engine would
//! start another job of this pool meanwhile, and hold its handles and buffers on top.

use std::sync::OnceLock;

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::progress::Progress;

/// A new thread is started when more than this many jobs wait.
const JOBS_PER_THREAD_MIN: usize = 8;

struct Queue<T> {
    waiting: Vec<T>,
    busy: usize,
    failed: Option<Error>,
}

/// Runs all jobs. Jobs that a job adds run before those that wait, in their order. Stops at the first error.
pub(crate) fn run_jobs<T: Send>(
    jobs: Vec<T>,
    progress: &Progress,
    work: impl Fn(T, &mut Vec<T>) -> Result<()> + Sync,
) -> Result<()> {
    let shared = Mutex::new(Queue { waiting: jobs.into_iter().rev().collect(), busy: 0, failed: None });
    let changed = Condvar::new();
    let next = |shared: &Mutex<Queue<T>>| {
        let mut state = shared.lock();
        loop {
            if state.failed.is_some() {
                return None;
            }
            if let Some(job) = state.waiting.pop() {
                state.busy += 1;
                return Some((job, state.waiting.len()));
            }
            if state.busy == 0 {
                return None;
            }
            changed.wait(&mut state);
        }
    };
    let turn = |job: T, more: &mut Vec<T>| {
        let done = progress.check().and_then(|()| work(job, more));
        let mut state = shared.lock();
        state.busy -= 1;
        let grown = !more.is_empty();
        // The first added job is next: neighbours in the tree are read together later.
        state.waiting.extend(more.drain(..).rev());
        if let Err(error) = done {
            state.failed.get_or_insert(error);
        }
        if grown || state.busy == 0 || state.failed.is_some() {
            changed.notify_all();
        }
    };
    let worker = || {
        let mut more = Vec::new();
        while let Some((job, _)) = next(&shared) {
            turn(job, &mut more);
        }
    };
    std::thread::scope(|scope| {
        let (mut more, mut workers) = (Vec::new(), 1);
        while let Some((job, waiting)) = next(&shared) {
            if waiting > JOBS_PER_THREAD_MIN && workers < cores() {
                workers += 1;
                scope.spawn(worker);
            }
            turn(job, &mut more);
        }
    });
    shared.into_inner().failed.map_or(Ok(()), Err)
}

fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, Into::into))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn jobs_of_jobs_are_done_once_each() {
        let done = AtomicUsize::new(0);
        let work = |depth: usize, more: &mut Vec<usize>| {
            done.fetch_add(1, Ordering::Relaxed);
            more.extend(std::iter::repeat_n(depth.saturating_sub(1), if depth > 0 { 3 } else { 0 }));
            Ok(())
        };
        run_jobs(vec![6], &Progress::default(), work).expect("no job fails");
        assert_eq!(done.into_inner(), (0..=6).map(|depth| 3_usize.pow(depth)).sum::<usize>());
    }

    #[test]
    fn an_error_and_a_cancellation_end_it() {
        let progress = Progress::default();
        let fails = |job: usize, _: &mut Vec<usize>| if job == 500 { Err(Error::Cancelled) } else { Ok(()) };
        assert!(matches!(run_jobs((0..1_000).collect(), &progress, fails), Err(Error::Cancelled)));
        progress.cancel();
        assert!(run_jobs(vec![1], &progress, |_: usize, _| Ok(())).is_err());
    }
}
