//! Staying awake between requests that come thick and fast.
//!
//! Waking a thread that sleeps on another processor takes longer than most requests. So whoever answers does not sleep while
//! one request follows the other: reading the device then returns at once, with or without one. A watchman ends that as soon
//! as there was a lull, and whoever answers does so itself when it notices that somebody else wants its processor: the time
//! that it waited to run is told by the kernel.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

/// Requests that follow each other within this are thick and fast, if there are so many of them.
const NEAR: Duration = Duration::from_micros(100);
const MANY: u64 = 16;
/// A lull: no request for so long, and up to twice that.
const LULL: Duration = Duration::from_millis(1);
/// After so many requests it is looked whether somebody else wants the processor, and a wait of one in so many parts of the
/// time says so.
const LOOK_EVERY: u64 = 64;
const WAITED_PART: u64 = 10;
/// How long it is left alone then: at first, and at most, doubled each time.
const REST_MIN: Duration = Duration::from_millis(20);
const REST_MAX: Duration = Duration::from_secs(2);
/// Where the kernel says how long a thread ran and how long it waited for a processor, in nanoseconds.
const TIMES: &str = "/proc/thread-self/schedstat";

/// What the one thread knows that answers.
pub(crate) struct Attention {
    /// Nothing where there was no other handle to be had.
    watched: Option<Arc<Watched>>,
    can_stay_awake: bool,
    since: Instant,
    last: AtomicU64,
    in_row: AtomicU64,
    state: Mutex<Busy>,
}

/// What is rarely looked at.
#[derive(Default)]
struct Busy {
    watchman: Option<JoinHandle<()>>,
    times: Option<File>,
    ran: u64,
    waited: u64,
    rest: Duration,
    rest_until: Duration,
}

/// What the watchman sees.
struct Watched {
    device: OwnedFd,
    is_awake: AtomicBool,
    turning: Mutex<()>,
    requests: AtomicU64,
    has_ended: AtomicBool,
}

impl Attention {
    /// For whoever reads this device, another handle of which is given.
    pub(crate) fn new(device: Option<OwnedFd>) -> Self {
        // With one processor whoever stays awake keeps others from running.
        let can_stay_awake = std::thread::available_parallelism().is_ok_and(|number| number.get() > 1);
        let watched = device.map(|device| {
            let (is_awake, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
            Arc::new(Watched { device, is_awake, turning: Mutex::new(()), requests: AtomicU64::new(0), has_ended })
        });
        let (last, in_row) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { watched, can_stay_awake, since: Instant::now(), last, in_row, state: Mutex::default() }
    }

    /// A request came. Called by the thread that reads the device, and by no other.
    pub(crate) fn came(&self) {
        let Some(watched) = self.watched.as_ref().filter(|_| self.can_stay_awake) else { return };
        let number = watched.requests.load(Relaxed) + 1;
        watched.requests.store(number, Relaxed);
        if watched.is_awake.load(Relaxed) {
            if number.is_multiple_of(LOOK_EVERY) && self.state.lock().is_in_the_way(self.since.elapsed()) {
                watched.set_awake(false);
            }
            return;
        }
        let now = self.since.elapsed();
        let now_nanoseconds = now.as_nanos() as u64;
        let gap = now_nanoseconds.saturating_sub(self.last.swap(now_nanoseconds, Relaxed));
        if gap > NEAR.as_nanos() as u64 {
            self.in_row.store(0, Relaxed);
            return;
        }
        let in_row = self.in_row.load(Relaxed) + 1;
        self.in_row.store(in_row, Relaxed);
        if in_row >= MANY {
            self.in_row.store(0, Relaxed);
            self.stay_awake(watched, now);
        }
    }

    /// Whether another request waits already, as far as can be told.
    pub(crate) fn do_others_wait(&self) -> bool {
        let Some(watched) = &self.watched else { return true };
        let mut device = [PollFd::new(&watched.device, PollFlags::IN)];
        !matches!(poll(&mut device, Some(&Timespec::default())), Ok(0))
    }

    fn stay_awake(&self, watched: &Arc<Watched>, now: Duration) {
        let mut state = self.state.lock();
        if now < state.rest_until || !state.begin() {
            return;
        }
        if state.watchman.is_none() {
            let watched = Arc::clone(watched);
            let watch = std::thread::Builder::new().name("amalgam-watchman".to_owned()).spawn(move || watched.watch());
            state.watchman = watch.ok();
        }
        let Some(watchman) = &state.watchman else { return };
        if watched.set_awake(true) {
            watchman.thread().unpark();
        }
    }
}

impl Busy {
    /// Begins to measure. False when that cannot be done.
    fn begin(&mut self) -> bool {
        if self.times.is_none() {
            self.times = File::open(TIMES).ok();
        }
        let Some((ran, waited)) = self.times.as_ref().and_then(read_times) else { return false };
        (self.ran, self.waited) = (ran, waited);
        true
    }

    /// Whether somebody else wanted the processor since it was last asked, or begun.
    fn is_in_the_way(&mut self, now: Duration) -> bool {
        let (ran_before, waited_before) = (self.ran, self.waited);
        if !self.begin() {
            return true;
        }
        self.judge(self.ran.saturating_sub(ran_before), self.waited.saturating_sub(waited_before), now)
    }

    /// Whether so long a wait beside so long a run is too long; then it rests.
    fn judge(&mut self, ran: u64, waited: u64, now: Duration) -> bool {
        if waited * WAITED_PART <= ran + waited {
            self.rest = self.rest.saturating_sub(REST_MIN / 16);
            return false;
        }
        self.rest = (self.rest * 2).clamp(REST_MIN, REST_MAX);
        self.rest_until = now + self.rest;
        true
    }
}

/// How long the thread that opened the file ran and waited.
fn read_times(file: &File) -> Option<(u64, u64)> {
    let mut buffer = [0; 96];
    let length = file.read_at(&mut buffer, 0).ok()?;
    let mut numbers = std::str::from_utf8(&buffer[..length]).ok()?.split_ascii_whitespace();
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

impl Watched {
    /// Has a read of the device wait for a request, or return at once. True when it does as it was told.
    fn set_awake(&self, awake: bool) -> bool {
        // What is known and what the device does change together, whoever comes first: nobody would end a wakefulness that is not
        // known.
        let _one = self.turning.lock();
        let Ok(flags) = rustix::fs::fcntl_getfl(&self.device) else { return false };
        let flags = if awake { flags | OFlags::NONBLOCK } else { flags - OFlags::NONBLOCK };
        let is_done = rustix::fs::fcntl_setfl(&self.device, flags).is_ok();
        if is_done {
            self.is_awake.store(awake, Relaxed);
        }
        is_done
    }

    /// Looks after whoever stays awake, until the end.
    fn watch(&self) {
        while !self.has_ended.load(Relaxed) {
            if !self.is_awake.load(Relaxed) {
                std::thread::park();
                continue;
            }
            let before = self.requests.load(Relaxed);
            std::thread::sleep(LULL);
            if self.requests.load(Relaxed) == before {
                self.set_awake(false);
            }
        }
    }
}

impl Drop for Attention {
    fn drop(&mut self) {
        if let (Some(watched), Some(watchman)) = (&self.watched, self.state.get_mut().watchman.take()) {
            watched.has_ended.store(true, Relaxed);
            watchman.thread().unpark();
            watchman.join().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn returns_at_once(device: &UnixStream) -> bool {
        rustix::fs::fcntl_getfl(device).expect("flags").contains(OFlags::NONBLOCK)
    }

    #[test]
    fn requests_thick_and_fast_keep_it_awake_until_there_is_a_lull() {
        let (device, _other) = UnixStream::pair().expect("a pair");
        let attention = Attention::new(device.try_clone().ok().map(OwnedFd::from));
        for _ in 0..MANY / 2 {
            attention.came();
        }
        assert!(!returns_at_once(&device), "a few are no reason");
        if !attention.can_stay_awake || File::open(TIMES).is_err() {
            return;
        }
        let awake =
            |attention: &Attention| attention.watched.as_ref().is_some_and(|watched| watched.is_awake.load(Relaxed));
        // Whoever is held up in between begins anew.
        while !awake(&attention) {
            attention.came();
        }
        // Nobody asks any more.
        while awake(&attention) {
            std::thread::sleep(LULL);
        }
        assert!(!returns_at_once(&device));
    }

    #[test]
    fn somebody_who_waited_for_the_processor_is_left_alone_for_longer_each_time() {
        let mut busy = Busy::default();
        let now = Duration::from_secs(5);
        assert!(!busy.judge(1_000_000, 1_000, now), "a little is nothing");
        assert_eq!(busy.rest_until, Duration::ZERO);
        let mut rest = REST_MIN;
        while rest < REST_MAX {
            assert!(busy.judge(1_000_000, 500_000, now));
            assert_eq!(busy.rest_until, now + rest);
            rest = (rest * 2).min(REST_MAX);
        }
        assert!(busy.judge(0, 1, now));
        assert_eq!(busy.rest, REST_MAX, "and not for ever");
    }
}
