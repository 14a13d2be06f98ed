//! The calls under way: their number, the open streams of each caller, the threads that they may take, and how they end with the
//! process.
//!
//! A short call takes a thread of the runtime's pool for blocking work. Calls that may take long need permits, of which there are
//! far fewer than threads in that pool, so that short ones always find a thread. Calls that wait for a permit take no thread, and
//! neither do watches.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use amalgam_proto::Reason;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::error::{Error, Result};

/// The most streams that one caller may have open.
const STREAMS_PER_CALLER_MAX: u32 = 4_096;
/// The most streams that may be open at all.
const STREAMS_MAX: u32 = 16_384;
/// The most threads that wait for clients that do not read. Together with the threads of all kinds they are fewer than the runtime
/// has.
const WAITING_MAX: usize = 128;
/// How often the drain checks whether calls have ended.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Calls of this process whose work runs on threads of the runtime itself at the moment.
static ON_RUNTIME: AtomicUsize = AtomicUsize::new(0);

/// The right to run work on a thread of the runtime, until it is dropped.
pub(crate) struct RuntimePermit(());

impl RuntimePermit {
    /// Takes a permit, if one is free. At most half of the runtime's threads may be taken, so that one slow disk access does not
    /// stop the others; a runtime with one thread has none.
    pub(crate) fn take() -> Option<Self> {
        let permits = tokio::runtime::Handle::try_current().ok()?.metrics().num_workers() / 2;
        let more = |taken: usize| (taken < permits).then_some(taken + 1);
        ON_RUNTIME.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok().then(|| Self(()))
    }
}

impl Drop for RuntimePermit {
    fn drop(&mut self) {
        ON_RUNTIME.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The kinds of long calls. A call waits only for permits of its own kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Reads, captures, checkouts, collections.
    Work,
    /// Merges, which may run tests; a test may make calls of the other kinds.
    Merge,
    /// Streams to and from other stores, whose pace the other side sets.
    Transfer,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Work, Self::Merge, Self::Transfer];

    /// Returns how many calls of a kind may run at the same time.
    const fn threads_max(self) -> usize {
        match self {
            Self::Work => 64,
            Self::Merge => 48,
            Self::Transfer => 32,
        }
    }
}

/// The stage of the end of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    /// The process continues.
    No,
    /// Watches end, other calls finish.
    Watches,
    /// Everything ends.
    All,
}

/// The calls under way, and when the last one ended.
pub struct Calls {
    under_way: AtomicU32,
    last: Mutex<Instant>,
    stop: Notify,
    /// Notified when a call finds that the store was removed.
    store_removed: Notify,
    is_forced: AtomicBool,
    /// Whether the process stays even if it is idle.
    is_kept: AtomicBool,
    ending: watch::Sender<Ending>,
    /// The number of open streams of each caller, and of all callers.
    streams: Mutex<(HashMap<String, u32>, u32)>,
    permits: [Arc<Semaphore>; 3],
    /// Permits for threads that wait for clients that do not read.
    waiting: Arc<Semaphore>,
}

/// A call under way, until it is dropped.
pub(crate) struct Call(Arc<Calls>);

impl Drop for Call {
    fn drop(&mut self) {
        *self.0.last.lock() = Instant::now();
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream that counts for its caller, until it is dropped.
pub(crate) struct OpenStream {
    call: Call,
    caller: String,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let (by_caller, all) = &mut *self.call.0.streams.lock();
        *all -= 1;
        if let Some(count) = by_caller.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                by_caller.remove(&self.caller);
            }
        }
    }
}

impl Calls {
    /// Creates the counters of a process without calls.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            under_way: AtomicU32::new(0),
            last: Mutex::new(Instant::now()),
            stop: Notify::new(),
            store_removed: Notify::new(),
            is_forced: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
            ending: watch::Sender::new(Ending::No),
            streams: Mutex::default(),
            permits: Kind::ALL.map(|kind| Arc::new(Semaphore::new(kind.threads_max()))),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
        })
    }

    pub(crate) fn begin(self: &Arc<Self>) -> Call {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Call(Arc::clone(self))
    }

    /// Counts a stream of a caller. Refuses it when the caller, or all callers together, have too many.
    pub(crate) fn open_stream(self: &Arc<Self>, caller: &str) -> Result<OpenStream> {
        let (by_caller, all) = &mut *self.streams.lock();
        let count = by_caller.get(caller).copied().unwrap_or(0);
        if count >= STREAMS_PER_CALLER_MAX {
            let message = format!(
                "{caller} has {count} calls and watches open, which is the most for one caller; end some, then try again"
            );
            return Err(Error::new(Reason::TooMany, message));
        }
        if *all >= STREAMS_MAX {
            let message =
                format!("{all} calls and watches are open, which is the most; try again when some have ended");
            return Err(Error::new(Reason::TooMany, message));
        }
        by_caller.insert(caller.to_owned(), count + 1);
        *all += 1;
        Ok(OpenStream { call: self.begin(), caller: caller.to_owned() })
    }

    /// Waits for a permit of a kind of long calls.
    pub(crate) async fn permit(&self, kind: Kind) -> OwnedSemaphorePermit {
        let permits = Arc::clone(&self.permits[kind as usize]);
        permits.acquire_owned().await.expect("the permits are never closed")
    }

    /// Counts a thread that waits for its client to read. Refuses it when there are too many.
    pub(crate) fn wait_for_reader(&self) -> Result<OwnedSemaphorePermit> {
        Arc::clone(&self.waiting).try_acquire_owned().map_err(|_| {
            let message = format!("{WAITING_MAX} callers do not read their answers, so this one was ended; try again");
            Error::new(Reason::TooMany, message)
        })
    }

    /// Returns the number of calls under way.
    pub fn under_way(&self) -> u32 {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Asks the server to end. With force, calls under way are cancelled.
    pub fn stop(&self, force: bool) {
        self.is_forced.fetch_or(force, Ordering::Relaxed);
        self.stop.notify_one();
    }

    /// Reports that the directory of the store was removed or replaced.
    pub(crate) fn report_removed_store(&self) {
        self.store_removed.notify_one();
    }

    /// Waits until a call finds that the directory of the store was removed or replaced.
    pub(crate) async fn store_removed(&self) {
        self.store_removed.notified().await;
    }

    /// Keeps the process from ending because it is idle, or lets it end again.
    pub fn keep_process(&self, is_kept: bool) {
        self.is_kept.store(is_kept, Ordering::Relaxed);
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::Relaxed)
    }

    pub(crate) fn is_forced(&self) -> bool {
        self.is_forced.load(Ordering::Relaxed)
    }

    /// Waits for a request to end the server.
    pub(crate) async fn asked_to_stop(&self) {
        self.stop.notified().await;
    }

    /// Returns the time since the last call ended; zero while a call is under way.
    pub(crate) fn idle_for(&self) -> Duration {
        if self.under_way() > 0 { Duration::ZERO } else { self.last.lock().elapsed() }
    }

    /// Waits until watches are to end.
    pub(crate) async fn watches_end(&self) {
        self.reached(Ending::Watches).await;
    }

    /// Waits until every call is to end.
    pub(crate) async fn cancelled(&self) {
        self.reached(Ending::All).await;
    }

    async fn reached(&self, ending: Ending) {
        // The sender lives as long as `self`.
        let _ = self.ending.subscribe().wait_for(|now| *now >= ending).await;
    }

    /// Makes watches end.
    pub(crate) fn end_watches(&self) {
        self.ending.send_if_modified(|now| std::mem::replace(now, (*now).max(Ending::Watches)) < Ending::Watches);
    }

    /// Cancels every call.
    pub(crate) fn cancel(&self) {
        self.ending.send_replace(Ending::All);
    }

    /// Waits until no call is under way, but at most `within`. Returns whether none is.
    pub(crate) async fn drained(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        while self.under_way() > 0 {
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(DRAIN_CHECK_INTERVAL).await;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_has_a_bound_of_open_streams() {
        let calls = Calls::new();
        let mut open: Vec<_> = (0..STREAMS_PER_CALLER_MAX).map(|_| calls.open_stream("ada").expect("open")).collect();
        let refused = calls.open_stream("ada").err().expect("one too many");
        assert_eq!(refused.reason(), Reason::TooMany);
        assert!(refused.to_string().contains("end some"), "{}", refused);
        drop(calls.open_stream("bob").expect("another caller"));
        open.pop();
        drop(calls.open_stream("ada").expect("one has ended"));
        drop(open);
        assert_eq!((calls.under_way(), calls.streams.lock().0.len()), (0, 0));
    }
}
