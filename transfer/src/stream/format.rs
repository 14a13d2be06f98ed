//! Constants and frames of the stream format.

use amalgam_engine::backend::StoredObject;
use amalgam_engine::object::OBJECT_BYTES_MAX;
use amalgam_engine::reference::{RefName, RefValue};
use amalgam_engine::{ObjectId, SnapshotId, Tombstone};
use bytes::Bytes;

/// First bytes of a stream; the version follows.
pub(crate) const MAGIC: &[u8; 15] = b"amalgam stream\n";
/// The version that is written, and the newest that is read.
pub(crate) const VERSION: u8 = 1;
/// Length of a frame's head: its type and the length of its body.
pub(crate) const HEAD_BYTES: usize = 5;
/// Length of an id with its kind.
pub(crate) const ID_BYTES: usize = 33;
/// The longest body.
pub(crate) const BODY_BYTES_MAX: usize = OBJECT_BYTES_MAX + ID_BYTES;
/// Most nodes in one frame of opened nodes.
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

/// A frame of a stream.
#[derive(Clone, Debug)]
pub enum Frame {
    /// A snapshot whose tree the receiver must have: later frames omit parts of it.
    Base(SnapshotId),
    /// Nodes of bases whose children are omitted unless they are sent.
    Opened(Vec<ObjectId>),
    /// An object in stored form, children before parents; a snapshot in canonical bytes.
    Object(StoredObject),
    /// The record of a snapshot whose tree was dropped.
    Thinned(Bytes),
    /// The tombstone of a purged chunk, in its place.
    Purged(ObjectId, Tombstone),
    /// A snapshot that was asked for.
    Tip(SnapshotId),
    /// A reference and its value.
    Name(RefName, RefValue),
    /// A frame of a damaged stream that could not be parsed. Only [`StreamReader::salvaging`](super::StreamReader::salvaging)
    /// returns it.
    Unreadable {
        /// The reason.
        why: String,
    },
    /// The end, with the number of preceding objects and names.
    End {
        /// Whether the checksum and the counts match. Always true for a reader that does not salvage.
        is_intact: bool,
        /// Objects and records of thinned snapshots.
        objects: u64,
        /// Names.
        names: u64,
    },
}
