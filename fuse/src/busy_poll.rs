//! Busy polling of the FUSE device while requests follow each other closely.
//!
//! Waking a thread that sleeps on another processor takes longer than most requests. So the FUSE thread does not sleep during a burst of
//! requests: it sets the device to non-blocking, and reads return at once, with or without a request. A monitor thread ends the polling
//! after a pause. The FUSE thread ends it when other threads want its processor, which the kernel's scheduler statistics show.

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

/// Longest gap between two requests of a burst.
const BURST_GAP_MAX: Duration = Duration::from_micros(100);
/// Requests in a row that make a burst.
const BURST_REQUESTS_MIN: u64 = 16;
/// Pause after which polling ends; it may take up to twice as long.
const PAUSE: Duration = Duration::from_millis(1);
/// Requests between two checks of the scheduler statistics.
const CHECK_EVERY_REQUESTS: u64 = 64;
/// Polling ends if the thread waited for a processor for more than one in this many parts of its time.
const WAIT_ONE_IN: u64 = 10;
/// Time without polling after that: the minimum and the maximum, doubled each time.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Scheduler statistics of the current thread: run time and wait time in nanoseconds.
const SCHEDSTAT: &str = "/proc/thread-self/schedstat";

/// Decides when the FUSE thread polls.
pub(crate) struct BusyPoll {
    /// `None` if the device could not be duplicated: then the thread never polls.
    polled: Option<Arc<PolledDevice>>,
    has_several_processors: bool,
    start: Instant,
    /// Time of the last request, in nanoseconds since the start.
    last_request: AtomicU64,
    /// Requests of the current burst.
    burst_requests: AtomicU64,
    state: Mutex<PollState>,
}

/// State that is rarely used.
#[derive(Default)]
struct PollState {
    monitor: Option<JoinHandle<()>>,
    schedstat: Option<File>,
    ran: u64,
    waited: u64,
    backoff: Duration,
    backoff_until: Duration,
}

/// State that the FUSE thread and the monitor thread share.
struct PolledDevice {
    device: OwnedFd,
    is_polling: AtomicBool,
    switching: Mutex<()>,
    requests: AtomicU64,
    has_ended: AtomicBool,
}

impl BusyPoll {
    /// Takes a duplicate of the device that the FUSE thread reads.
    pub(crate) fn new(device: Option<OwnedFd>) -> Self {
        // With one processor, a polling thread would keep all others from running.
        let has_several_processors = std::thread::available_parallelism().is_ok_and(|number| number.get() > 1);
        let polled = device.map(|device| {
            let (is_polling, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
            let (switching, requests) = (Mutex::new(()), AtomicU64::new(0));
            Arc::new(PolledDevice { device, is_polling, switching, requests, has_ended })
        });
        Self {
            polled,
            has_several_processors,
            start: Instant::now(),
            last_request: AtomicU64::new(0),
            burst_requests: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    /// Counts a request. Called by the FUSE thread alone.
    pub(crate) fn request_arrived(&self) {
        let Some(polled) = self.polled.as_ref().filter(|_| self.has_several_processors) else { return };
        let number = polled.requests.load(Relaxed) + 1;
        polled.requests.store(number, Relaxed);
        if polled.is_polling.load(Relaxed) {
            if number.is_multiple_of(CHECK_EVERY_REQUESTS) && self.state.lock().should_back_off(self.start.elapsed()) {
                polled.set_mode(DeviceMode::Blocking);
            }
            return;
        }
        let now = self.start.elapsed();
        let now_nanoseconds = now.as_nanos() as u64;
        let gap = now_nanoseconds.saturating_sub(self.last_request.swap(now_nanoseconds, Relaxed));
        if gap > BURST_GAP_MAX.as_nanos() as u64 {
            self.burst_requests.store(0, Relaxed);
            return;
        }
        let burst_requests = self.burst_requests.load(Relaxed) + 1;
        self.burst_requests.store(burst_requests, Relaxed);
        if burst_requests >= BURST_REQUESTS_MIN {
            self.burst_requests.store(0, Relaxed);
            self.start_polling(polled, now);
        }
    }

    /// Returns whether another request is waiting. True if that is unknown.
    pub(crate) fn has_waiting_request(&self) -> bool {
        let Some(polled) = &self.polled else { return true };
        let mut device = [PollFd::new(&polled.device, PollFlags::IN)];
        !matches!(poll(&mut device, Some(&Timespec::default())), Ok(0))
    }

    fn start_polling(&self, polled: &Arc<PolledDevice>, now: Duration) {
        let mut state = self.state.lock();
        if now < state.backoff_until || !state.read_schedstat() {
            return;
        }
        if state.monitor.is_none() {
            let polled = Arc::clone(polled);
            let monitor =
                std::thread::Builder::new().name("amalgam-poll-monitor".to_owned()).spawn(move || polled.monitor());
            state.monitor = monitor.ok();
        }
        let Some(monitor) = &state.monitor else { return };
        if polled.set_mode(DeviceMode::Polling) {
            monitor.thread().unpark();
        }
    }
}

impl PollState {
    /// Reads the scheduler statistics. Returns false if the kernel has none.
    fn read_schedstat(&mut self) -> bool {
        if self.schedstat.is_none() {
            self.schedstat = File::open(SCHEDSTAT).ok();
        }
        let Some((ran, waited)) = self.schedstat.as_ref().and_then(read_times) else { return false };
        (self.ran, self.waited) = (ran, waited);
        true
    }

    /// Returns whether other threads wanted the processor since the last call.
    fn should_back_off(&mut self, now: Duration) -> bool {
        let (ran_before, waited_before) = (self.ran, self.waited);
        if !self.read_schedstat() {
            return true;
        }
        self.is_wait_too_long(self.ran.saturating_sub(ran_before), self.waited.saturating_sub(waited_before), now)
    }

    /// Returns whether the wait time is too long compared with the run time, and then starts a back-off.
    fn is_wait_too_long(&mut self, ran: u64, waited: u64, now: Duration) -> bool {
        if waited * WAIT_ONE_IN <= ran + waited {
            self.backoff = self.backoff.saturating_sub(BACKOFF_MIN / 16);
            return false;
        }
        self.backoff = (self.backoff * 2).clamp(BACKOFF_MIN, BACKOFF_MAX);
        self.backoff_until = now + self.backoff;
        true
    }
}

/// Returns run time and wait time of the thread that opened the file.
fn read_times(file: &File) -> Option<(u64, u64)> {
    let mut buffer = [0; 96];
    let length = file.read_at(&mut buffer, 0).ok()?;
    let mut numbers = std::str::from_utf8(&buffer[..length]).ok()?.split_ascii_whitespace();
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether a read of the device waits for a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeviceMode {
    /// Waits for one.
    Blocking,
    /// Returns at once.
    Polling,
}

impl PolledDevice {
    /// Sets the mode of the device. Returns whether that succeeded.
    fn set_mode(&self, mode: DeviceMode) -> bool {
        // Flag and device change together: polling that the flag does not show would never end.
        let _one = self.switching.lock();
        let Ok(flags) = rustix::fs::fcntl_getfl(&self.device) else { return false };
        let is_polling = mode == DeviceMode::Polling;
        let flags = if is_polling { flags | OFlags::NONBLOCK } else { flags - OFlags::NONBLOCK };
        let is_done = rustix::fs::fcntl_setfl(&self.device, flags).is_ok();
        if is_done {
            self.is_polling.store(is_polling, Relaxed);
        }
        is_done
    }

    /// Ends polling after a pause, until the mount ends.
    fn monitor(&self) {
        while !self.has_ended.load(Relaxed) {
            if !self.is_polling.load(Relaxed) {
                std::thread::park();
                continue;
            }
            let before = self.requests.load(Relaxed);
            std::thread::sleep(PAUSE);
            if self.requests.load(Relaxed) == before {
                self.set_mode(DeviceMode::Blocking);
            }
        }
    }
}

impl Drop for BusyPoll {
    fn drop(&mut self) {
        if let (Some(polled), Some(monitor)) = (&self.polled, self.state.get_mut().monitor.take()) {
            polled.has_ended.store(true, Relaxed);
            monitor.thread().unpark();
            monitor.join().ok();
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
    fn a_burst_of_requests_starts_polling_and_a_pause_ends_it() {
        let (device, _other) = UnixStream::pair().expect("a pair");
        let busy_poll = BusyPoll::new(device.try_clone().ok().map(OwnedFd::from));
        for _ in 0..BURST_REQUESTS_MIN / 2 {
            busy_poll.request_arrived();
        }
        assert!(!returns_at_once(&device), "a few are no reason");
        if !busy_poll.has_several_processors || File::open(SCHEDSTAT).is_err() {
            return;
        }
        let is_polling = |poll: &BusyPoll| poll.polled.as_ref().is_some_and(|polled| polled.is_polling.load(Relaxed));
        // A thread that is preempted begins a new burst.
        while !is_polling(&busy_poll) {
            busy_poll.request_arrived();
        }
        // No more requests.
        while is_polling(&busy_poll) {
            std::thread::sleep(PAUSE);
        }
        assert!(!returns_at_once(&device));
    }

    #[test]
    fn back_off_doubles_each_time_the_thread_waited_for_the_processor() {
        let mut state = PollState::default();
        let now = Duration::from_secs(5);
        assert!(!state.is_wait_too_long(1_000_000, 1_000, now), "a little is nothing");
        assert_eq!(state.backoff_until, Duration::ZERO);
        let mut rest = BACKOFF_MIN;
        while rest < BACKOFF_MAX {
            assert!(state.is_wait_too_long(1_000_000, 500_000, now));
            assert_eq!(state.backoff_until, now + rest);
            rest = (rest * 2).min(BACKOFF_MAX);
        }
        assert!(state.is_wait_too_long(0, 1, now));
        assert_eq!(state.backoff, BACKOFF_MAX, "and not for ever");
    }
}
