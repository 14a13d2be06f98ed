//! Raw access to the rows of a store, for verification and repair. Rows are not interpreted, so that damage is visible.

use bytes::Bytes;

use super::Sweep;
use crate::error::Result;
use crate::id::{ObjectId, ObjectKind};

/// The row families of a store. `docs/FORMAT.md` specifies their keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Hash -> kind, epoch, stored size, object number.
    Index,
    /// Object number -> stored chunk.
    Chunks,
    /// Object number -> canonical bytes of any object except chunks and snapshots.
    Trees,
    /// Object number -> canonical bytes of a snapshot.
    Snapshots,
    /// Name -> operation and value.
    Refs,
    /// Operation number -> record.
    Operations,
    /// Request id -> operation number.
    Requests,
    /// Rows that a repair moved out of the other families.
    Quarantine,
    /// Kind and hash of a purged object -> tombstone.
    Tombstones,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 9] = [
        Self::Index,
        Self::Chunks,
        Self::Trees,
        Self::Snapshots,
        Self::Refs,
        Self::Operations,
        Self::Requests,
        Self::Quarantine,
        Self::Tombstones,
    ];
    /// The families that hold objects.
    pub const OBJECTS: [Self; 3] = [Self::Chunks, Self::Trees, Self::Snapshots];

    /// Returns the family of an object's bytes.
    pub fn of(kind: ObjectKind) -> Self {
        match kind {
            ObjectKind::Chunk => Self::Chunks,
            ObjectKind::Snapshot => Self::Snapshots,
            ObjectKind::Rope
            | ObjectKind::Directory
            | ObjectKind::Root
            | ObjectKind::Links
            | ObjectKind::State
            | ObjectKind::Xattrs => Self::Trees,
        }
    }

    /// Returns the name on disk.
    pub fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Chunks => "chunks",
            Self::Trees => "trees",
            Self::Snapshots => "snapshots",
            Self::Refs => "refs",
            Self::Operations => "operations",
            Self::Requests => "requests",
            Self::Quarantine => "quarantine",
            Self::Tombstones => "tombstones",
        }
    }
}

/// Some rows of a family, in key order.
#[derive(Clone, Debug)]
pub struct Page {
    /// Keys and values.
    pub rows: Vec<(Bytes, Bytes)>,
    /// The reason why the page ends.
    pub end: PageEnd,
}

/// The reason why a page ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageEnd {
    /// The requested range is complete.
    Range,
    /// The page is full; continue after its last row.
    Room,
    /// The database cannot read further. Rows after the damage can be read from a later key on.
    Damaged {
        /// The error message of the database.
        why: String,
    },
}

/// Sets one row, or removes it if there is no value.
#[derive(Clone, Debug)]
pub struct RowEdit {
    /// The family.
    pub family: Family,
    /// The key.
    pub key: Bytes,
    /// The new value.
    pub value: Option<Bytes>,
}

/// Raw access to rows, only for verification and repair.
pub trait Inspect: Sweep {
    /// Returns the rows of a family with `from <= key < until`, up to about `room_bytes` bytes. Does not fill the cache.
    fn rows(&self, family: Family, from: &[u8], until: Option<&[u8]>, room_bytes: usize) -> Result<Page>;

    /// Sets and removes rows atomically. Durable on return. Checks nothing: the caller must have exclusive access to the store,
    /// as a repair has. (Tests use it to plant damage.)
    fn edit(&self, edits: Vec<RowEdit>) -> Result<()>;

    /// Stores damaged and missing objects again, from copies outside of the store, for example a cache. Returns those that were
    /// restored.
    fn restore_objects(&self) -> Result<Vec<ObjectId>> {
        Ok(Vec::new())
    }

    /// Ensures that the bytes of removed rows are in no file of the store any more. Takes as long as rewriting the files that
    /// contained them. An empty key stands for any row of its family.
    fn scrub(&self, removed: &[(Family, Bytes)]) -> Result<()>;
}
