//! Telling doors what changed behind their backs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_engine::Name;
use parking_lot::RwLock;

use crate::inodes::Ino;

/// What a door has to forget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// What a name in a directory stands for.
    Entry {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Name,
    },
    /// Contents and attributes of an inode.
    Contents(Ino),
    /// Attributes of an inode.
    Attributes(Ino),
}

/// Who wants to know. Called while the view is locked: it must only take the notices and return.
pub type Watcher = Arc<dyn Fn(Notice) + Send + Sync>;

/// A door that watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchId(u64);

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

    /// Tells everybody but the door that did it. The notice is made only if somebody wants it.
    pub(crate) fn tell(&self, but: Option<WatchId>, notice: impl Fn() -> Notice) {
        for (id, watcher) in self.list.read().iter() {
            if Some(*id) != but {
                watcher(notice());
            }
        }
    }
}
