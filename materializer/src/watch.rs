//! Being told by the kernel in which directories something happened. The only module that knows inotify.
//!
//! There is one watch for each directory that is not left out by a rule, and no thread: what the kernel noted is read when
//! the caller asks. A directory that is new to the watch counts as dirty with all below it, so nothing that happened before it was
//! watched is missed. What the kernel does not tell is not noticed either: writes through a memory map, and writes through a name outside of the
//! directory. A look at everything finds those.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use amalgam_engine::{Name, TreePath};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::capture::names;
use crate::error::{Error, Result};
use crate::host::HostDir;
use crate::rules::{Chain, RULES_FILE, Rules};

/// Room for what the kernel noted.
const EVENTS_BYTES: usize = 64 << 10;

/// Where something happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dirty {
    /// Nowhere.
    Nothing,
    /// In these directories.
    Directories(BTreeSet<TreePath>),
    /// Perhaps anywhere: more happened than the kernel could note, or not everything is watched.
    Everything,
}

/// Watches a directory with all below it.
pub struct Watcher {
    host: HostDir,
    rules: Rules,
    inotify: OwnedFd,
    state: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    /// Each watched directory with the rules that hold in it.
    directories: HashMap<i32, (TreePath, Chain)>,
    by_path: BTreeMap<TreePath, i32>,
    dirty: BTreeSet<TreePath>,
    is_lost: bool,
    incomplete: Option<String>,
}

impl Watcher {
    /// Begins to watch. What happens from here on is noted.
    pub fn start(directory: &HostDir, rules: &Rules) -> Result<Self> {
        let host = HostDir::open(directory.path())?;
        if host.identity() != directory.identity() {
            let why = "it was exchanged for another directory".to_owned();
            return Err(Error::NotThis { path: directory.path().display().to_string(), why });
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

    /// Where something happened since the last time it was asked.
    pub fn take_dirty(&self) -> Dirty {
        let mut state = self.state.lock();
        self.drain(&mut state);
        let dirty = std::mem::take(&mut state.dirty);
        if std::mem::take(&mut state.is_lost) || state.incomplete.is_some() {
            return Dirty::Everything;
        }
        if dirty.is_empty() { Dirty::Nothing } else { Dirty::Directories(dirty) }
    }

    /// Waits until something happened, and no longer than this. Whether something did.
    pub fn wait(&self, at_most: Duration) -> Result<bool> {
        {
            let state = self.state.lock();
            if state.is_lost || !state.dirty.is_empty() {
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

    /// Why not everything is watched, and what to do about it; nothing when all is well.
    pub fn incomplete(&self) -> Option<String> {
        self.state.lock().incomplete.clone()
    }

    /// How many directories are watched.
    pub fn watches(&self) -> usize {
        self.state.lock().directories.len()
    }

    fn drain(&self, state: &mut Watched) {
        let mut buffer = vec![MaybeUninit::uninit(); EVENTS_BYTES];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            match events.next() {
                Ok(event) => {
                    let name = event.file_name().and_then(|name| Name::new(name.to_bytes()).ok());
                    self.note(state, event.wd(), event.events(), name);
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

    fn note(&self, state: &mut Watched, watch: i32, what: ReadFlags, name: Option<Name>) {
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            state.is_lost = true;
            // The kernel may not have reported new directories.
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
        if name.as_bytes() == RULES_FILE {
            // Other directories are left out now.
            state.is_lost = true;
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
        if (is_there || is_other) && !chain.leaves_out(below.as_bytes(), true) {
            self.watch(state, below, chain);
        }
    }

    /// Watches a directory and all below it. They count as dirty.
    fn watch(&self, state: &mut Watched, path: TreePath, chain: Chain) {
        let mut open = vec![(path, chain)];
        while let Some((path, chain)) = open.pop() {
            if state.incomplete.is_some() {
                return;
            }
            // What cannot be opened cannot be captured either; its parent tells when that changes.
            let Ok(directory) = self.host.directory(&path) else { continue };
            let Ok(stat) = rustix::fs::fstat(&directory) else { continue };
            if stat.st_dev != self.host.identity().device || self.rules.is_ours(stat.st_dev, stat.st_ino) {
                continue;
            }
            let (chain, _) = chain.enter(&self.host, &path);
            if let Err(error) = self.add(state, &directory, &path, &chain) {
                state.incomplete = Some(trouble(error));
                return;
            }
            state.dirty.insert(path.clone());
            let Ok(listed) = names(directory.as_fd()) else { continue };
            for (name, kind) in listed.names {
                let below = path.join(&name);
                if matches!(kind, FileType::Directory | FileType::Unknown) && !chain.leaves_out(below.as_bytes(), true)
                {
                    open.push((below, chain.clone()));
                }
            }
        }
    }

    fn add(&self, state: &mut Watched, directory: &OwnedFd, path: &TreePath, chain: &Chain) -> rustix::io::Result<()> {
        let what = WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONLYDIR
            | WatchFlags::EXCL_UNLINK;
        // By its handle: a path could lead somewhere else by now.
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

    fn unwatch(&self, state: &mut Watched, path: &TreePath) {
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

impl Watched {
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

fn trouble(error: Errno) -> String {
    match error {
        Errno::NOSPC => "the system's limit for watched directories is reached, so everything is looked at each time; \
                         raise fs.inotify.max_user_watches"
            .to_owned(),
        other => format!("a directory cannot be watched: {other}"),
    }
}
