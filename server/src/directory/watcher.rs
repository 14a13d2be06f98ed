//! The watcher of a directory, which all its watches share, and the watches of a store.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use amalgam_engine::Time;
use amalgam_materializer::{Dirty, Watcher};
use amalgam_proto::Reason;
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use crate::error::Error;

/// The watches of a store.
#[derive(Default)]
pub(crate) struct Watches {
    /// The ids of directories that are watched now.
    pub(super) active: Mutex<BTreeSet<String>>,
    /// The ids of directories whose background watch has a thread.
    pub(super) supervised: Mutex<HashSet<String>>,
    /// The states of background watches, by the ids of their directories.
    pub(super) background: Mutex<BTreeMap<String, BackgroundState>>,
    /// Notified when a background watch was changed or the process ends.
    pub(super) changed: Condvar,
    /// The number of calls that watch.
    pub(super) foreground: AtomicUsize,
    pub(super) last_session: AtomicU64,
    /// Whether this process stays when a call has ended.
    pub(super) is_lasting: AtomicBool,
    pub(super) is_ending: AtomicBool,
}

/// The state of a background watch.
#[derive(Clone, Debug, Default)]
pub(super) struct BackgroundState {
    /// Why it does not run; `None` while it runs.
    pub(super) problem: Option<String>,
    /// When this process resumed it, if another process started it.
    pub(super) resumed: Option<Time>,
}

/// The watcher of a directory, with the sessions that need it.
pub(super) struct Watch {
    pub(super) eye: Arc<SharedWatcher>,
    pub(super) sessions: BTreeSet<u64>,
    /// The directory's id.
    pub(super) id: String,
    pub(super) watches: Arc<Watches>,
}

/// A watcher, and the events since the last capture.
pub(super) struct SharedWatcher {
    pub(super) watcher: Watcher,
    /// The events since the last capture.
    pub(super) since: Mutex<Dirty>,
    /// The number of reads that found events. Each session remembers the number that it has seen.
    pub(super) events: watch::Sender<u64>,
    /// Why foreground watches end, once they do.
    pub(super) lost: watch::Sender<Option<Arc<Error>>>,
    /// Whether a task reads the inotify events.
    pub(super) is_tended: AtomicBool,
    pub(super) ended: AtomicBool,
}

impl Watch {
    /// Takes the directories with events since the last capture. From now on only new events count.
    pub(super) fn take_dirty(&self) -> Dirty {
        self.eye.gather();
        std::mem::replace(&mut self.eye.since.lock(), Dirty::Nothing)
    }

    /// Returns the directories with events since the last capture, and leaves them for the next one.
    pub(super) fn look_dirty(&self) -> Dirty {
        self.eye.gather();
        self.eye.since.lock().clone()
    }

    /// Marks everything dirty, because a capture failed after it took the events.
    pub(super) fn mark_all_dirty(&self) {
        *self.eye.since.lock() = Dirty::Everything;
    }
}

impl SharedWatcher {
    /// Shares a watcher that has just started. The first capture reads everything, and so finds the changes before that.
    pub(super) fn new(watcher: Watcher) -> Self {
        Self {
            watcher,
            since: Mutex::new(Dirty::Everything),
            events: watch::Sender::new(0),
            lost: watch::Sender::new(None),
            is_tended: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// Reads the inotify events.
    pub(super) fn gather(&self) {
        let mut since = self.since.lock();
        let before = std::mem::replace(&mut *since, Dirty::Nothing);
        let new = self.watcher.take_dirty();
        if new != Dirty::Nothing {
            self.events.send_modify(|events| *events += 1);
        }
        *since = match (before, new) {
            (Dirty::Nothing, new) => new,
            (old, Dirty::Nothing) => old,
            (Dirty::Directories(mut old), Dirty::Directories(new)) => {
                old.extend(new);
                Dirty::Directories(old)
            }
            _ => Dirty::Everything,
        };
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        let message =
            "the directory was detached, attached anew, or got other ignore rules; run `amalgam watch` again to go on";
        self.lose(Error::new(Reason::NoDirectory, message));
    }

    /// Ends the foreground watches. Only the first reason counts.
    pub(super) fn lose(&self, why: Error) {
        self.lost.send_if_modified(|lost| {
            let is_first = lost.is_none();
            lost.get_or_insert_with(|| Arc::new(why));
            is_first
        });
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.eye.end();
        self.watches.active.lock().remove(&self.id);
        self.watches.changed.notify_all();
    }
}

impl Watches {
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    pub(super) fn note(&self, id: &str, change: impl FnOnce(&mut BackgroundState)) {
        change(self.background.lock().entry(id.to_owned()).or_default());
    }
}
