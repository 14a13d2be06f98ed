//! Notifications to watchers, for example FUSE mounts, about cached data that a change made stale.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_engine::Name;
use parking_lot::RwLock;

use crate::attributes::Ino;

/// Cached data that a watcher has to drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// The inode of a name, or its absence.
    Entry {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Name,
    },
    /// Contents and attributes of an inode; for a directory, its listing.
    Contents(Ino),
    /// Attributes of an inode.
    Attributes(Ino),
}

/// A callback for invalidations. Called while the view is locked: it must only queue the invalidation and return.
pub type Watcher = Arc<dyn Fn(Invalidation) + Send + Sync>;

/// Identifies a registered watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchId(u64);

/// The registered watchers of a view.
#[derive(Default)]
pub(crate) struct Watchers {
    next: AtomicU64,
    list: RwLock<Vec<(WatchId, Watcher)>>,
}

impl Watchers {
    pub(crate) fn add(&self, watcher: Watcher) -> WatchId {
        let id = WatchId(self.next.fetch_add(1, Ordering::Relaxed));
        self.list.write().push((id, watcher));
        id
    }

    pub(crate) fn remove(&self, id: WatchId) {
        self.list.write().retain(|(other, _)| *other != id);
    }

    /// Notifies every watcher but the origin of the change. Calls `invalidation` once per notified watcher.
    pub(crate) fn notify(&self, origin: Option<WatchId>, invalidation: impl Fn() -> Invalidation) {
        for (id, watcher) in self.list.read().iter() {
            if Some(*id) != origin {
                watcher(invalidation());
            }
        }
    }

    pub(crate) fn notify_all(&self, invalidation: &Invalidation) {
        self.notify(None, || invalidation.clone());
    }
}
