//! Read-ahead in large stored files that are read sequentially.
//!
//! A kernel reads 128 KiB at a time: one or two chunks and a part of a third. A file that is read sequentially is therefore read in
//! windows, each once, and worker threads prefetch the next windows. A window belongs to a content, which never changes, so it is
//! never invalidated. The worker threads also drop the windows of a view in which no file was read sequentially for some time.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use amalgam_engine::object::Content;
use amalgam_engine::work::LooseFile;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::attributes::Ino;
use crate::error::Result;

/// Size of a window.
const WINDOW_BYTES: u64 = 1 << 20;
/// Limit of cached windows.
const WINDOWS_MAX: usize = 32;
/// Limit of files whose readers are tracked.
const READERS_MAX: usize = 16;
/// Windows that are prefetched behind the current one.
const PREFETCH_WINDOWS: u64 = 24;
/// Worker threads, shared by all views: a disk serves many requests as quickly as one, and each thread sends one at a time.
const WORKERS: usize = 12;
/// How long a reader waits for a window in flight.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long windows are kept after the last sequential read of their view. Shorter than this, a slow reader would have the same windows
/// fetched again and again.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Time between two searches for idle views, while any has windows.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Smaller files are not prefetched.
const FILE_BYTES_MIN: u64 = 2 * WINDOW_BYTES;

/// The window caches that may have windows. May be locked while a cache is locked, not the other way round.
static CACHES: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// The window cache of a view.
#[derive(Default)]
pub(crate) struct FilePrefetch {
    shared: Arc<Shared>,
}

/// A window for a worker to fetch.
struct Job {
    shared: Arc<Shared>,
    file: LooseFile,
    key: Key,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    fetched: Condvar,
}

#[derive(Default)]
struct State {
    /// Where the last read of each file ended, newest last.
    readers: VecDeque<(Ino, u64)>,
    /// Newest last. `None` for a window in flight.
    windows: VecDeque<(Key, Option<Bytes>)>,
    /// Time of the last sequential read.
    last_read: Option<Instant>,
    /// Whether the cache is in [`CACHES`].
    is_registered: bool,
}

/// Identifies a window of a content.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    content: Content,
    window: u64,
}

impl State {
    /// Records a read, and returns whether it continues the last one of the file.
    fn is_sequential(&mut self, ino: Ino, offset: u64, end: u64) -> bool {
        let place = self.readers.iter().position(|(other, _)| *other == ino);
        // A kernel that reads ahead with several threads sends requests slightly out of order.
        let before = place.and_then(|place| self.readers.remove(place)).map(|(_, end)| end);
        let in_order = before.is_some_and(|end| offset <= end + WINDOW_BYTES / 2 && offset + WINDOW_BYTES / 2 >= end);
        self.readers.push_back((ino, before.filter(|_| in_order).map_or(end, |before| before.max(end))));
        if self.readers.len() > READERS_MAX {
            self.readers.pop_front();
        }
        in_order
    }

    fn window(&self, key: Key) -> Option<&Option<Bytes>> {
        self.windows.iter().find(|(other, _)| *other == key).map(|(_, bytes)| bytes)
    }

    fn put(&mut self, key: Key, bytes: Option<Bytes>) {
        self.windows.retain(|(other, _)| *other != key);
        self.windows.push_back((key, bytes));
        while self.windows.len() > WINDOWS_MAX {
            self.windows.pop_front();
        }
    }

    /// Drops windows that the reader has passed. Keeps the previous window, which a kernel that reads ahead may still request, and drops
    /// all at the end of the file.
    fn drop_passed(&mut self, content: Content, end: u64, size: u64) {
        let passed = (end / WINDOW_BYTES).saturating_sub(1);
        self.windows.retain(|(key, bytes)| {
            let is_behind = end == size || key.window < passed;
            key.content != content || bytes.is_none() || !is_behind
        });
    }

    fn drop_window(&mut self, key: Key) {
        self.windows.retain(|(other, _)| *other != key);
    }
}

impl FilePrefetch {
    /// Returns whether a file is read in windows.
    pub(crate) fn applies_to(file: &LooseFile) -> bool {
        Self::content_of(file).is_some()
    }

    fn content_of(file: &LooseFile) -> Option<(Content, u64)> {
        file.stored().filter(|(content, size)| matches!(content, Content::Rope(_)) && *size >= FILE_BYTES_MIN)
    }

    /// Returns whether a range is cached.
    pub(crate) fn is_cached(&self, file: &LooseFile, offset: u64, length: usize) -> bool {
        let Some((content, size)) = Self::content_of(file) else { return false };
        let end = offset.saturating_add(length as u64).min(size);
        let state = self.shared.state.lock();
        let windows = offset / WINDOW_BYTES..end.div_ceil(WINDOW_BYTES);
        offset < end && windows.into_iter().all(|window| matches!(state.window(Key { content, window }), Some(Some(_))))
    }

    /// Reads a range and prefetches behind it. `None` if the file is not read in windows, or not sequentially.
    pub(crate) fn read(&self, ino: Ino, file: &LooseFile, offset: u64, length: usize) -> Result<Option<Bytes>> {
        let Some((content, size)) = Self::content_of(file) else { return Ok(None) };
        let end = offset.saturating_add(length as u64).min(size);
        let mut state = self.shared.state.lock();
        if !state.is_sequential(ino, offset, end) || offset >= end {
            return Ok(None);
        }
        state.last_read = Some(Instant::now());
        drop(state);
        let mut pieces = Vec::new();
        let mut at = offset;
        while at < end {
            let window = at / WINDOW_BYTES;
            let whole = self.window(file, Key { content, window })?;
            for next in window + 1..=window + PREFETCH_WINDOWS {
                if next * WINDOW_BYTES < size {
                    self.prefetch(file, Key { content, window: next });
                }
            }
            let from = (at - window * WINDOW_BYTES) as usize;
            let to = whole.len().min((end - window * WINDOW_BYTES) as usize);
            pieces.push(whole.slice(from..to));
            at = window * WINDOW_BYTES + to as u64;
        }
        self.shared.state.lock().drop_passed(content, end, size);
        // A range within one window is not copied.
        match pieces.as_slice() {
            [piece] => Ok(Some(piece.clone())),
            pieces => Ok(Some(pieces.concat().into())),
        }
    }

    /// Returns a window. Waits for it if it is in flight.
    fn window(&self, file: &LooseFile, key: Key) -> Result<Bytes> {
        let mut state = self.shared.state.lock();
        loop {
            match state.window(key) {
                Some(Some(bytes)) => return Ok(bytes.clone()),
                Some(None) => {
                    // The worker that fetches it may have failed.
                    if self.shared.fetched.wait_for(&mut state, WAIT_MAX).timed_out() {
                        break;
                    }
                }
                None => break,
            }
        }
        state.put(key, None);
        drop(state);
        self.shared.load(file, key)
    }

    /// Queues a window for a worker thread to fetch, unless it is cached or in flight, or the queue is full.
    fn prefetch(&self, file: &LooseFile, key: Key) {
        static QUEUE: OnceLock<SyncSender<Job>> = OnceLock::new();
        let mut state = self.shared.state.lock();
        if state.window(key).is_some() {
            return;
        }
        // Before the job, so that the worker that takes it looks for idle caches.
        if !state.is_registered {
            state.is_registered = true;
            CACHES.lock().push(Arc::downgrade(&self.shared));
        }
        let job = Job { shared: Arc::clone(&self.shared), file: file.clone(), key };
        if QUEUE.get_or_init(spawn_workers).try_send(job).is_ok() {
            state.put(key, None);
        }
    }
}

impl Shared {
    fn load(&self, file: &LooseFile, key: Key) -> Result<Bytes> {
        let read = file.read_at(key.window * WINDOW_BYTES, WINDOW_BYTES as usize).map(Bytes::from);
        let mut state = self.state.lock();
        match &read {
            Ok(bytes) => state.put(key, Some(bytes.clone())),
            Err(_) => state.drop_window(key),
        }
        self.fetched.notify_all();
        Ok(read?)
    }

    /// Drops the windows if nothing was read sequentially for some time. Returns whether the cache stays registered.
    fn drop_if_idle(&self, now: Instant) -> bool {
        let state = &mut *self.state.lock();
        let is_idle = state.last_read.is_none_or(|last| now.saturating_duration_since(last) > IDLE_MAX);
        // A reader may wait for a window in flight.
        if is_idle && state.windows.iter().all(|(_, bytes)| bytes.is_some()) {
            state.windows = VecDeque::new();
        }
        state.is_registered = !state.windows.is_empty();
        state.is_registered
    }
}

/// Drops the windows of idle caches.
fn drop_idle_windows() {
    // The list is not locked while a cache is.
    let mut caches = std::mem::take(&mut *CACHES.lock());
    let now = Instant::now();
    caches.retain(|cache| cache.upgrade().is_some_and(|shared| shared.drop_if_idle(now)));
    CACHES.lock().append(&mut caches);
}

/// The receiving end of the queue, which one worker at a time waits for.
struct JobQueue {
    receiver: Receiver<Job>,
    /// When idle windows were last dropped.
    cleaned: Instant,
}

impl JobQueue {
    /// Waits for a job, and drops the windows of idle caches meanwhile. Returns `None` when the queue is closed.
    fn next_job(&mut self) -> Option<Job> {
        loop {
            if CACHES.lock().is_empty() {
                return self.receiver.recv().ok();
            }
            let rest = IDLE_CHECK_INTERVAL.saturating_sub(self.cleaned.elapsed());
            if rest.is_zero() {
                drop_idle_windows();
                self.cleaned = Instant::now();
                continue;
            }
            match self.receiver.recv_timeout(rest) {
                Ok(job) => return Some(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}

/// Starts the worker threads.
fn spawn_workers() -> SyncSender<Job> {
    let (sender, receiver) = sync_channel::<Job>(PREFETCH_WINDOWS as usize);
    let queue = Arc::new(Mutex::new(JobQueue { receiver, cleaned: Instant::now() }));
    for _ in 0..WORKERS {
        let queue = Arc::clone(&queue);
        let fetch = move || {
            loop {
                // The lock is released before the window is fetched.
                let next = queue.lock().next_job();
                let Some(Job { shared, file, key }) = next else { return };
                // The next reader of the window gets the error.
                shared.load(&file, key).ok();
            }
        };
        // Without any worker the channel is closed, and nothing is prefetched.
        std::thread::Builder::new().name("amalgam-prefetch".to_owned()).spawn(fetch).ok();
    }
    sender
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_dropped_when_the_reader_has_passed_them() {
        let content = Content::Hole;
        let mut state = State::default();
        let size = 10 * WINDOW_BYTES;
        let key = |window| Key { content, window };
        for window in 0..6 {
            state.put(key(window), (window != 5).then(|| Bytes::from_static(b"bytes")));
        }
        let there = |state: &State| state.windows.iter().map(|(key, _)| key.window).collect::<Vec<_>>();
        state.drop_passed(Content::Empty, size, size);
        assert_eq!(there(&state), [0, 1, 2, 3, 4, 5], "another file's end");
        state.drop_passed(content, 3 * WINDOW_BYTES + 1, size);
        assert_eq!(there(&state), [2, 3, 4, 5], "a piece just before may still be asked for");
        state.drop_passed(content, size, size);
        assert_eq!(there(&state), [5], "what is on its way is waited for");
    }

    #[test]
    fn windows_are_dropped_when_nothing_was_read_for_some_time() {
        let (shared, now) = (Arc::new(Shared::default()), Instant::now());
        let key = |window| Key { content: Content::Hole, window };
        {
            let mut state = shared.state.lock();
            for window in 0..4 {
                state.put(key(window), (window != 3).then(|| Bytes::from_static(b"bytes")));
            }
            state.last_read = Some(now);
        }
        let there = || shared.state.lock().windows.len();
        assert!(shared.drop_if_idle(now + IDLE_MAX));
        assert_eq!(there(), 4, "it was just read");
        let later = now + 2 * IDLE_MAX;
        assert!(shared.drop_if_idle(later));
        assert_eq!(there(), 4, "a reader may wait for what is on its way");
        shared.state.lock().put(key(3), Some(Bytes::from_static(b"bytes")));
        assert!(!shared.drop_if_idle(later), "no window is left");
        assert_eq!(there(), 0);
    }

    #[test]
    fn workers_drop_the_windows_of_idle_caches() {
        let shared = Arc::new(Shared::default());
        let key = Key { content: Content::Hole, window: 0 };
        shared.state.lock().put(key, Some(Bytes::from_static(b"bytes")));
        shared.state.lock().is_registered = true;
        CACHES.lock().push(Arc::downgrade(&shared));
        let workers = spawn_workers();
        let until = Instant::now() + Duration::from_secs(20);
        while !shared.state.lock().windows.is_empty() {
            assert!(Instant::now() < until, "nothing was read");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(workers);
        assert!(!shared.state.lock().is_registered);
    }
}
