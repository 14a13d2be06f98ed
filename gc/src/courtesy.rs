//! A collection that makes way. On a small machine it takes the processors that others commit with; so while other threads commit it rests after
//! each step for longer than the step took, and goes on at full speed when none does: most commits then meet one that rests, and have the
//! processors' caches and the memory for themselves.

use std::num::NonZero;
use std::time::Duration;

use amalgam_engine::{Result, Store};

/// No rest is longer: a step that took long was waiting itself.
const REST_MAX: Duration = Duration::from_millis(250);

/// Does something on a thread of its own that gives way to others.
pub fn yielding<T: Send>(does: impl FnOnce() -> T + Send) -> T {
    let done = std::thread::scope(|scope| {
        let lowered = || {
            lower_priority();
            does()
        };
        scope.spawn(lowered).join()
    });
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// On Linux a priority is that of a thread. If it cannot be lowered it makes way by resting alone.
fn lower_priority() {
    let _ = rustix::process::setpriority_process(None, 10);
}

/// Threads that read for a collection and give way to others: of low priority, and one processor fewer than there are, so that whoever
/// commits keeps one whose caches are its own. Nothing if they cannot be had.
pub fn yielding_readers() -> Option<rayon::ThreadPool> {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = rayon::ThreadPoolBuilder::new().num_threads(processors.saturating_sub(1).max(1));
    threads.thread_name(|_| "collector".to_owned()).start_handler(|_| lower_priority()).build().ok()
}

/// What a collection rests by. Asked at each of its steps, where the collector tells its progress.
pub struct Courtesy<'a> {
    store: &'a Store,
    clock: &'a (dyn Fn() -> Duration + Sync),
    sleep: &'a (dyn Fn(Duration) + Sync),
    /// The newest operation, and the time, at the end of the last rest.
    seen: (u64, Duration),
}

impl<'a> Courtesy<'a> {
    /// From now on. The clock counts from anywhere; the collector has none of its own.
    pub fn new(
        store: &'a Store,
        clock: &'a (dyn Fn() -> Duration + Sync),
        sleep: &'a (dyn Fn(Duration) + Sync),
    ) -> Result<Self> {
        Ok(Self { store, clock, sleep, seen: (store.last_operation()?, clock()) })
    }

    /// Rests if anybody committed since the last time, half as long again as it was since then.
    pub fn rest(&mut self) -> Result<()> {
        let (operation, time) = (self.store.last_operation()?, (self.clock)());
        if operation != self.seen.0 {
            let worked = time.saturating_sub(self.seen.1);
            (self.sleep)((worked * 3 / 2).min(REST_MAX));
        }
        self.seen = (operation, (self.clock)());
        Ok(())
    }
}
