//! A store as its rows: what verification reads and repair writes. Nothing here is interpreted, so damage shows as it is.

use bytes::Bytes;

use super::Sweep;
use crate::error::Result;
use crate::id::ObjectKind;

/// The families of rows that a store consists of. `docs/FORMAT.md` says what their keys and values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Hash -> kind, epoch, stored size, object number.
    Index,
    /// Object number -> stored chunk.
    Chunks,
    /// Object number -> canonical bytes of anything but chunks and snapshots.
    Trees,
    /// Object number -> canonical bytes of a snapshot.
    Snapshots,
    /// Name -> operation and value.
    Refs,
    /// Operation number -> record.
    Operations,
    /// Request id -> operation number.
    Requests,
    /// What repair took out of the others.
    Quarantine,
    /// Kind and hash of a purged object -> when, who, why.
    Tombstones,
}

impl Family {
    /// Every family.
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
    /// Those that hold objects.
    pub const OBJECTS: [Self; 3] = [Self::Chunks, Self::Trees, Self::Snapshots];

    /// The family of an object's bytes.
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

    /// Its name on disk.
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

/// Some rows of a family, in the order of their keys.
#[derive(Clone, Debug)]
pub struct Page {
    /// Keys and values.
    pub rows: Vec<(Bytes, Bytes)>,
    /// Why there are no more of them.
    pub end: PageEnd,
}

/// Where a page ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageEnd {
    /// With the range that was asked for.
    Range,
    /// With its room; go on behind its last row.
    Room,
    /// Where the database cannot read on. What lies behind can be read from a later key on.
    Damaged {
        /// The database's words.
        why: String,
    },
}

/// One row set, or removed where there is no value.
#[derive(Clone, Debug)]
pub struct RowEdit {
    /// Where.
    pub family: Family,
    /// Its key.
    pub key: Bytes,
    /// What it becomes.
    pub value: Option<Bytes>,
}

/// Rows as they are, for verification and repair alone.
pub trait Inspect: Sweep {
    /// The rows of a family with `from <= key < until`, until about so many bytes of them are read. Fills no cache.
    fn rows(&self, family: Family, from: &[u8], until: Option<&[u8]>, room_bytes: usize) -> Result<Page>;

    /// Sets and removes rows, all or nothing, durable when it returns. Checks nothing: it is for whoever has the store to
    /// himself, as repair has. (Suites plant damage with it.)
    fn edit(&self, edits: Vec<RowEdit>) -> Result<()>;

    /// Makes sure that the bytes of rows that were removed are in no file of the store any more. Takes as long as rewriting
    /// the files that they were in. An empty key stands for any row of its family.
    fn scrub(&self, removed: &[(Family, Bytes)]) -> Result<()>;
}
