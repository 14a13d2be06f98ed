//! Watches a directory with inotify. No other module uses inotify.
//!
//! Each directory that no rule excludes has one watch. There is no thread: events are read when the caller asks. A newly
//! watched directory counts as dirty with all below it, so no change before the watch is missed. The kernel reports neither
//! writes through a memory map nor writes through a name outside of the directory; only a complete scan finds those.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use amalgam_engine::{Name, TreePath};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::capture::list_names;
use crate::error::{Error, Result};
use crate::host::HostDir;
use crate::rules::{Chain, RULES_FILE, Rules};

/// Buffer size for events.
const EVENTS_BYTES: usize = 64 << 10;

/// Directories in which something changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dirty {
    /// None.
    Nothing,
    /// These.
    Directories(BTreeSet<TreePath>),
    /// Possibly any: the event queue overflowed, or not everything is watched.
    Everything,
}

/// Watches a directory with all below it.
pub struct Watcher {
    host: HostDir,
    rules: Rules,
    inotify: OwnedFd,
    state: Mutex<WatchState>,
}

#[derive(Default)]
struct WatchState {
    /// Each watched directory with its ignore rules.
    directories: HashMap<i32, (TreePath, Chain)>,
    by_path: BTreeMap<TreePath, i32>,
    dirty: BTreeSet<TreePath>,
    has_lost_events: bool,
    incomplete: Option<String>,
}

/// Readable when events are pending.
impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl Watcher {
    /// Starts to watch.
    pub fn start(directory: &HostDir, rules: &Rules) -> Result<Self> {
        let host = HostDir::open(directory.path())?;
        if host.identity() != directory.identity() {
            let why = "it was exchanged for another directory".to_owned();
            return Err(Error::WrongDirectory { path: directory.path().display().to_string(), why });
        }
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
            .map_err(|error| Error::host("watch", &TreePath::root(), error))?;
        let watcher = Self { host, rules: rules.clone(), inotify, state: Mutex::default() };
        {
            let mut state = watcher.state.lock();
            watcher.watch(&mut state, TreePath::root(), watcher.rules.settings());
            state.dirty.clear();
        }
        Ok(watcher)
    }

    /// Returns the directories that changed since the last call.
    pub fn take_dirty(&self) -> Dirty {
        let mut state = self.state.lock();
        self.drain(&mut state);
        let dirty = std::mem::take(&mut state.dirty);
        if std::mem::take(&mut state.has_lost_events) || state.incomplete.is_some() {
            return Dirty::Everything;
        }
        if dirty.is_empty() { Dirty::Nothing } else { Dirty::Directories(dirty) }
    }

    /// Waits for a change, at most this long. Returns whether there is one.
    pub fn wait(&self, at_most: Duration) -> Result<bool> {
        {
            let state = self.state.lock();
            if state.has_lost_events || !state.dirty.is_empty() {
                return Ok(true);
            }
        }
        let timeout = Timespec::try_from(at_most).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let mut polled = [PollFd::new(&self.inotify, PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(Error::host("wait for changes in", &TreePath::root(), error)),
        }
    }

    /// Returns why not everything is watched, and what to do about it; `None` if everything is.
    pub fn incomplete(&self) -> Option<String> {
        self.state.lock().incomplete.clone()
    }

    /// Returns the number of watched directories.
    pub fn watches(&self) -> usize {
        self.state.lock().directories.len()
    }

    fn drain(&self, state: &mut WatchState) {
        let mut buffer = vec![MaybeUninit::uninit(); EVENTS_BYTES];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            match events.next() {
                Ok(event) => {
                    let name = event.file_name().and_then(|name| Name::new(name.to_bytes()).ok());
                    self.handle_event(state, event.wd(), event.events(), name);
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return,
                Err(error) => {
                    state.incomplete = Some(format!("changes cannot be read: {error}"));
                    return;
                }
            }
        }
    }

    fn handle_event(&self, state: &mut WatchState, watch: i32, what: ReadFlags, name: Option<Name>) {
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            state.has_lost_events = true;
            // Events about new directories may be lost.
            self.watch(state, TreePath::root(), self.rules.settings());
            return;
        }
        let Some((path, chain)) = state.directories.get(&watch).cloned() else { return };
        if what.contains(ReadFlags::IGNORED) {
            state.directories.remove(&watch);
            if state.by_path.get(&path) == Some(&watch) {
                state.by_path.remove(&path);
            }
            if path.is_root() {
                state.incomplete = Some("the directory is gone".to_owned());
            }
            return;
        }
        state.dirty.insert(path.clone());
        let Some(name) = name else { return };
        if name.as_bytes() == RULES_FILE && self.rules.uses_files() {
            // The rules exclude other directories now.
            state.has_lost_events = true;
            let above = path.split_last().and_then(|(parent, _)| state.chain(&parent));
            let chain = above.unwrap_or_else(|| self.rules.settings());
            self.watch(state, path, chain);
            return;
        }
        if !what.contains(ReadFlags::ISDIR) {
            return;
        }
        let below = path.join(&name);
        if what.intersects(ReadFlags::MOVED_FROM | ReadFlags::DELETE) {
            self.unwatch(state, &below);
        }
        let is_there = what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        let is_other = what.contains(ReadFlags::ATTRIB) && !state.by_path.contains_key(&below);
        if (is_there || is_other) && !chain.excludes_directory(below.as_bytes()) {
            self.watch(state, below, chain);
        }
    }

    /// Watches a directory and all below it, and marks them as dirty.
    fn watch(&self, state: &mut WatchState, path: TreePath, chain: Chain) {
        let mut open = vec![(path, chain)];
        while let Some((path, chain)) = open.pop() {
            if state.incomplete.is_some() {
                return;
            }
            // A directory that cannot be opened cannot be captured either; its parent reports when that changes.
            let Ok(directory) = self.host.directory(&path) else { continue };
            let Ok(stat) = rustix::fs::fstat(&directory) else { continue };
            if stat.st_dev != self.host.identity().device || self.rules.is_ours(stat.st_dev, stat.st_ino) {
                continue;
            }
            let chain = if self.rules.uses_files() { chain.enter(&self.host, &path).0 } else { chain };
            if let Err(error) = self.add(state, &directory, &path, &chain) {
                state.incomplete = Some(watch_failure(error));
                return;
            }
            state.dirty.insert(path.clone());
            let Ok(listed) = list_names(directory.as_fd()) else { continue };
            for (name, kind) in listed.names {
                let below = path.join(&name);
                if matches!(kind, FileType::Directory | FileType::Unknown)
                    && !chain.excludes_directory(below.as_bytes())
                {
                    open.push((below, chain.clone()));
                }
            }
        }
    }

    fn add(
        &self,
        state: &mut WatchState,
        directory: &OwnedFd,
        path: &TreePath,
        chain: &Chain,
    ) -> rustix::io::Result<()> {
        let what = WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONLYDIR
            | WatchFlags::EXCL_UNLINK;
        // By its handle: the path could lead elsewhere by now.
        let handle = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let watch = inotify::add_watch(&self.inotify, handle, what)?;
        if let Some((before, _)) = state.directories.insert(watch, (path.clone(), chain.clone()))
            && before != *path
        {
            state.by_path.remove(&before);
        }
        state.by_path.insert(path.clone(), watch);
        Ok(())
    }

    fn unwatch(&self, state: &mut WatchState, path: &TreePath) {
        let below = state.by_path.range(path.clone()..).take_while(|(below, _)| below.below(path).is_some());
        let below: Vec<_> = below.map(|(path, watch)| (path.clone(), *watch)).collect();
        for (path, watch) in below {
            state.by_path.remove(&path);
            state.directories.remove(&watch);
            // It may be gone already.
            let _ = inotify::remove_watch(&self.inotify, watch);
        }
    }
}

impl WatchState {
    fn chain(&self, path: &TreePath) -> Option<Chain> {
        let watch = self.by_path.get(path)?;
        Some(self.directories.get(watch)?.1.clone())
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("path", &self.host.path()).finish_non_exhaustive()
    }
}

fn watch_failure(error: Errno) -> String {
    match error {
        Errno::NOSPC => "the system's limit for watched directories is reached, so everything is looked at each time; \
                         raise fs.inotify.max_user_watches"
            .to_owned(),
        other => format!("a directory cannot be watched: {other}"),
    }
}
