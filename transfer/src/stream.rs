//! The stream itself: a header, frames, an end with a count and a checksum. `docs/STREAM.md` has the bytes. Knows no store.

mod reader;
mod writer;

pub use reader::StreamReader;
pub use writer::StreamWriter;

use amalgam_engine::backend::StoredObject;
use amalgam_engine::object::OBJECT_BYTES_MAX;
use amalgam_engine::reference::{RefName, RefValue};
use amalgam_engine::{ObjectId, SnapshotId, Tombstone};
use bytes::Bytes;

/// How a stream begins; the version follows.
pub(crate) const MAGIC: &[u8; 15] = b"amalgam stream\n";
/// The version that is written, and the newest that is read.
pub(crate) const VERSION: u8 = 1;
/// A frame's head: its type and the length of its body.
pub(crate) const HEAD_BYTES: usize = 5;
/// An id with its kind.
pub(crate) const ID_BYTES: usize = 33;
/// The longest body.
pub(crate) const BODY_BYTES_MAX: usize = OBJECT_BYTES_MAX + ID_BYTES;
/// How many nodes one frame opens at most.
pub(crate) const OPENED_MAX: usize = 1_024;
pub(crate) const CHECK_BYTES: usize = 32;

pub(crate) const BASE: u8 = 1;
pub(crate) const OPENED: u8 = 2;
pub(crate) const OBJECT: u8 = 3;
pub(crate) const THINNED: u8 = 4;
pub(crate) const TIP: u8 = 5;
pub(crate) const NAME: u8 = 6;
pub(crate) const END: u8 = 7;
pub(crate) const PURGED: u8 = 8;

/// One thing that a stream says.
#[derive(Clone, Debug)]
pub enum Frame {
    /// A snapshot whose tree the receiver must have: what follows leaves parts of it out.
    Base(SnapshotId),
    /// Nodes of bases whose children are left out where they are not sent.
    Opened(Vec<ObjectId>),
    /// An object as it is stored, children before parents. A snapshot comes in its canonical bytes.
    Object(StoredObject),
    /// The record of a snapshot whose tree is gone.
    Thinned(Bytes),
    /// A chunk that was purged, in its place.
    Purged(ObjectId, Tombstone),
    /// A snapshot that was asked for.
    Tip(SnapshotId),
    /// A reference and what it holds.
    Name(RefName, RefValue),
    /// A frame of a damaged stream that could not be parsed. Only a [salvaging](StreamReader::salvaging) reader returns it.
    Unreadable {
        /// The reason.
        why: String,
    },
    /// The end: how many objects and records, and how many names, came before it.
    End {
        /// Whether the checksum and the counts match. Always true for a reader that does not salvage.
        is_intact: bool,
        /// Objects and records of thinned snapshots.
        objects: u64,
        /// Names.
        names: u64,
    },
}
