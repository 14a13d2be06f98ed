//! Collection of a store that several processes share: each process reports the objects that its sessions and pins keep, and the
//! collector deletes none of them. A backend of one process needs none of this.

use std::time::Duration;

use super::Epoch;
use crate::id::ObjectId;

/// The epoch and the objects that the sessions and pins of a process keep from collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The epoch of the oldest open session.
    pub oldest: Option<Epoch>,
    /// The pinned objects.
    pub pins: Vec<ObjectId>,
}

/// The sessions and pins of a store, for the collectors of other processes.
pub trait Holder: Send + Sync + 'static {
    /// Returns the sessions and pins of this moment; `None` after the store was closed.
    fn held(&self) -> Option<Held>;
}

/// The result of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// Whether each object was deleted.
    Done(Vec<bool>),
    /// Nothing was deleted: other processes have pinned these objects since the collector last asked.
    Pinned(Vec<ObjectId>),
}

impl Deletion {
    /// Returns whether each object was deleted: none if other processes had pinned objects meanwhile.
    pub fn deleted(self) -> Vec<bool> {
        match self {
            Self::Done(deleted) => deleted,
            Self::Pinned(_) => Vec::new(),
        }
    }
}

/// The last complete collection of a store that several processes share, and the size of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedCollection {
    /// The time since then; `None` if there was none.
    pub age: Option<Duration>,
    /// The stored bytes after it.
    pub bytes_after: u64,
    /// The stored bytes now.
    pub bytes: u64,
    /// Whether a process collects now.
    pub is_under_way: bool,
}
