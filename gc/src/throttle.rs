//! Throttle: makes a collection yield to commits. On a machine with few cores a collection competes with committing threads.
//! While other threads commit, it sleeps after each step for longer than the step took; otherwise it runs at full speed.

use std::num::NonZero;
use std::time::Duration;

use amalgam_engine::{Result, Store};

/// Upper limit of a pause: a step that took longer was blocked itself.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Runs a closure on a new thread with low priority.
pub fn run_at_low_priority<T: Send>(does: impl FnOnce() -> T + Send) -> T {
    let done = std::thread::scope(|scope| {
        let lowered = || {
            lower_priority();
            does()
        };
        scope.spawn(lowered).join()
    });
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Lowers the priority of the current thread (on Linux it is per thread). A failure is ignored.
fn lower_priority() {
    let _ = rustix::process::setpriority_process(None, 10);
}

/// Creates a thread pool with low priority for the reads of a collection. It has one thread fewer than there are cores, so
/// that committing threads keep a core to themselves. Returns `None` if it cannot be created.
pub fn low_priority_readers() -> Option<rayon::ThreadPool> {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = rayon::ThreadPoolBuilder::new().num_threads(processors.saturating_sub(1).max(1));
    threads.thread_name(|_| "collector".to_owned()).start_handler(|_| lower_priority()).build().ok()
}

/// Pauses a collection while other threads commit. Call [`pause`](Self::pause) at each step, from the progress callback.
pub struct Throttle<'a> {
    store: &'a Store,
    clock: &'a (dyn Fn() -> Duration + Sync),
    sleep: &'a (dyn Fn(Duration) + Sync),
    /// The newest operation and the time at the end of the last pause.
    seen: (u64, Duration),
}

impl<'a> Throttle<'a> {
    /// Starts now. `clock` is monotonic with any origin.
    pub fn new(
        store: &'a Store,
        clock: &'a (dyn Fn() -> Duration + Sync),
        sleep: &'a (dyn Fn(Duration) + Sync),
    ) -> Result<Self> {
        Ok(Self { store, clock, sleep, seen: (store.last_operation()?, clock()) })
    }

    /// Sleeps 1.5 times as long as the last step took, if another thread committed during it.
    pub fn pause(&mut self) -> Result<()> {
        let (operation, time) = (self.store.last_operation()?, (self.clock)());
        if operation != self.seen.0 {
            let worked = time.saturating_sub(self.seen.1);
            (self.sleep)((worked * 3 / 2).min(PAUSE_MAX));
        }
        self.seen = (operation, (self.clock)());
        Ok(())
    }
}
