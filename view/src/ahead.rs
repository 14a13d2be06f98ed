//! Reading ahead in large stored files that are read from front to back.
//!
//! A kernel asks for 128 KiB at a time, which is one or two chunks and a piece of a third. A file that is read in order is
//! therefore read in windows, each once, and the next windows are fetched by other threads meanwhile. A window belongs to a
//! content, which never changes, so it never has to be taken back.

use std::collections::VecDeque;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use amalgam_engine::object::Content;
use amalgam_engine::work::LooseFile;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::error::Result;
use crate::inodes::Ino;

/// How much is read at once.
const WINDOW_BYTES: u64 = 1 << 20;
/// Windows that are kept, and files whose reading is followed.
const WINDOWS_MAX: usize = 32;
const FOLLOWED_MAX: usize = 16;
/// Windows that are fetched before they are asked for.
const AHEAD: u64 = 24;
/// Threads that fetch, for all views together: a disk answers many questions as quickly as one, and each thread asks one.
const FETCHERS: usize = 12;
/// How long a window that is on its way is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Smaller files are read as they are asked for.
const FILE_BYTES_MIN: u64 = 2 * WINDOW_BYTES;

#[derive(Default)]
pub(crate) struct Ahead {
    shared: Arc<Shared>,
}

/// A window to be fetched.
struct Errand {
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
    /// Where the reading of each file went on, the newest last.
    followed: VecDeque<(Ino, u64)>,
    /// The newest last. Without bytes: on its way.
    windows: VecDeque<(Key, Option<Bytes>)>,
}

/// A piece of a content.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    content: Content,
    window: u64,
}

impl State {
    /// Whether this reading goes on where the last one ended.
    fn follow(&mut self, ino: Ino, offset: u64, end: u64) -> bool {
        let place = self.followed.iter().position(|(other, _)| *other == ino);
        // A kernel that reads ahead on several threads asks a little out of order.
        let before = place.and_then(|place| self.followed.remove(place)).map(|(_, end)| end);
        let in_order = before.is_some_and(|end| offset <= end + WINDOW_BYTES / 2 && offset + WINDOW_BYTES / 2 >= end);
        self.followed.push_back((ino, before.filter(|_| in_order).map_or(end, |before| before.max(end))));
        if self.followed.len() > FOLLOWED_MAX {
            self.followed.pop_front();
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

    /// Gives up what a reader has passed. A kernel that reads ahead may still ask for a piece just before; at the end nothing
    /// more is expected, and whoever comes late reads anew.
    fn pass(&mut self, content: Content, end: u64, size: u64) {
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

impl Ahead {
    /// Whether a file is one that is read in windows.
    pub(crate) fn is_for(file: &LooseFile) -> bool {
        Self::in_windows(file).is_some()
    }

    fn in_windows(file: &LooseFile) -> Option<(Content, u64)> {
        file.stored().filter(|(content, size)| matches!(content, Content::Rope(_)) && *size >= FILE_BYTES_MIN)
    }

    /// Whether all that is asked for was fetched already.
    pub(crate) fn is_at_hand(&self, file: &LooseFile, offset: u64, length: usize) -> bool {
        let Some((content, size)) = Self::in_windows(file) else { return false };
        let end = offset.saturating_add(length as u64).min(size);
        let state = self.shared.state.lock();
        let windows = offset / WINDOW_BYTES..end.div_ceil(WINDOW_BYTES);
        offset < end && windows.into_iter().all(|window| matches!(state.window(Key { content, window }), Some(Some(_))))
    }

    /// The bytes, if the file is one that is read in windows and is being read in order.
    pub(crate) fn read(&self, ino: Ino, file: &LooseFile, offset: u64, length: usize) -> Result<Option<Bytes>> {
        let Some((content, size)) = Self::in_windows(file) else { return Ok(None) };
        let end = offset.saturating_add(length as u64).min(size);
        if !self.shared.state.lock().follow(ino, offset, end) || offset >= end {
            return Ok(None);
        }
        let mut pieces = Vec::new();
        let mut at = offset;
        while at < end {
            let window = at / WINDOW_BYTES;
            let whole = self.window(file, Key { content, window })?;
            for next in window + 1..=window + AHEAD {
                if next * WINDOW_BYTES < size {
                    self.fetch(file, Key { content, window: next });
                }
            }
            let from = (at - window * WINDOW_BYTES) as usize;
            let to = whole.len().min((end - window * WINDOW_BYTES) as usize);
            pieces.push(whole.slice(from..to));
            at = window * WINDOW_BYTES + to as u64;
        }
        self.shared.state.lock().pass(content, end, size);
        // Most lie within one window, and are not copied.
        match pieces.as_slice() {
            [piece] => Ok(Some(piece.clone())),
            pieces => Ok(Some(pieces.concat().into())),
        }
    }

    /// A window, waited for if it is on its way.
    fn window(&self, file: &LooseFile, key: Key) -> Result<Bytes> {
        let mut state = self.shared.state.lock();
        loop {
            match state.window(key) {
                Some(Some(bytes)) => return Ok(bytes.clone()),
                Some(None) => {
                    // Whoever fetches it may have come to grief.
                    if self.shared.fetched.wait_for(&mut state, PATIENCE).timed_out() {
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

    /// Has a window fetched by another thread, unless it is there, on its way, or those threads have enough to do.
    fn fetch(&self, file: &LooseFile, key: Key) {
        static FETCHING: OnceLock<SyncSender<Errand>> = OnceLock::new();
        let mut state = self.shared.state.lock();
        if state.window(key).is_some() {
            return;
        }
        let errand = Errand { shared: Arc::clone(&self.shared), file: file.clone(), key };
        if FETCHING.get_or_init(spawn).try_send(errand).is_ok() {
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
}

/// Begins the threads that fetch.
fn spawn() -> SyncSender<Errand> {
    let (sender, receiver) = sync_channel::<Errand>(AHEAD as usize);
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..FETCHERS {
        let receiver = Arc::clone(&receiver);
        let fetch = move || {
            loop {
                // The lock is given back before the window is fetched.
                let next = receiver.lock().recv();
                let Ok(Errand { shared, file, key }) = next else { return };
                // Whoever asks for it next gets the error.
                shared.load(&file, key).ok();
            }
        };
        // Without any thread the channel is closed, and nothing is ever put on its way.
        std::thread::Builder::new().name("amalgam-ahead".to_owned()).spawn(fetch).ok();
    }
    sender
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reader_has_passed_is_given_up() {
        let content = Content::Hole;
        let mut state = State::default();
        let size = 10 * WINDOW_BYTES;
        let key = |window| Key { content, window };
        for window in 0..6 {
            state.put(key(window), (window != 5).then(|| Bytes::from_static(b"bytes")));
        }
        let there = |state: &State| state.windows.iter().map(|(key, _)| key.window).collect::<Vec<_>>();
        state.pass(Content::Empty, size, size);
        assert_eq!(there(&state), [0, 1, 2, 3, 4, 5], "another file's end");
        state.pass(content, 3 * WINDOW_BYTES + 1, size);
        assert_eq!(there(&state), [2, 3, 4, 5], "a piece just before may still be asked for");
        state.pass(content, size, size);
        assert_eq!(there(&state), [5], "what is on its way is waited for");
    }
}
