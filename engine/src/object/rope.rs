//! A rope: the chunks and holes of a large file, in order. The ids of the chunks decide where nodes are cut, so a change in the
//! middle of a file only rewrites the nodes around it.

use super::codec::{Reader, Writer};
use super::sequence::{Sequence, SequenceNode, id_hash, key_hash};
use crate::id::{ChunkId, ObjectId, ObjectKind, RopeId};
use crate::malformed::Malformed;

/// Maximum size of a file, in bytes.
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Files up to this size, in bytes, are stored as one chunk.
pub const SINGLE_CHUNK_BYTES_MAX: u64 = 64 << 10;
/// Runs of zeros of at least this many bytes are stored as holes.
pub const HOLE_BYTES_MIN: u64 = 64 << 10;
/// Maximum size of a chunk, in bytes.
pub const CHUNK_BYTES_MAX: usize = 128 << 10;

/// The sequence of a file's segments.
#[derive(Debug)]
pub enum Ropes {}

/// A run of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Length in bytes.
    pub length: u64,
    /// The location of the bytes.
    pub source: SegmentSource,
}

/// The location of a segment's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentSource {
    /// In a chunk.
    Chunk(ChunkId),
    /// All bytes are zero and not stored.
    Hole,
}

/// The link of an inner node to one child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeLink {
    /// The id of the child.
    pub id: RopeId,
    /// The number of segments below the child.
    pub count: u64,
    /// The number of bytes below the child.
    pub length: u64,
}

impl SequenceNode<Ropes> {
    /// Returns the number of bytes below this node.
    pub fn length(&self) -> u64 {
        match self {
            Self::Leaf(items) => items.iter().map(|segment| segment.length).sum(),
            Self::Inner { links, .. } => links.iter().map(|link| link.length).sum(),
        }
    }
}

impl Sequence for Ropes {
    const KIND: ObjectKind = ObjectKind::Rope;
    type Item = Segment;
    type Link = RopeLink;

    fn item_hash(segment: &Segment) -> u64 {
        match segment.source {
            SegmentSource::Chunk(id) => id_hash(id.as_bytes()),
            SegmentSource::Hole => key_hash(0, &[&segment.length.to_le_bytes()]),
        }
    }

    fn link_hash(link: &RopeLink, _level: u32) -> u64 {
        id_hash(link.id.as_bytes())
    }

    fn link_id(link: &RopeLink) -> ObjectId {
        link.id.object()
    }

    fn link_count(link: &RopeLink) -> u64 {
        link.count
    }

    fn describe(node: &SequenceNode<Self>, id: ObjectId) -> Result<RopeLink, Malformed> {
        Ok(RopeLink { id: RopeId::from_bytes(id.hash), count: node.count(), length: node.length() })
    }

    fn describes(link: &RopeLink, node: &SequenceNode<Self>) -> bool {
        link.count == node.count() && link.length == node.length()
    }

    fn write_item(segment: &Segment, out: &mut Writer) {
        if let SegmentSource::Chunk(id) = segment.source {
            out.bytes(1, id.as_bytes());
        }
        out.uint(2, segment.length);
    }

    fn write_link(link: &RopeLink, out: &mut Writer) {
        out.bytes(1, link.id.as_bytes());
        out.uint(2, link.length);
        out.uint(3, link.count);
    }

    fn read_item(mut from: Reader) -> Result<Segment, Malformed> {
        let mut segment = Segment { length: 0, source: SegmentSource::Hole };
        while let Some((field, value)) = from.next_field()? {
            match field {
                1 => segment.source = SegmentSource::Chunk(ChunkId::from_bytes(value.hash(1)?)),
                2 => segment.length = value.number(2)?,
                number => return Err(Malformed::Field { number }),
            }
        }
        let fits = match segment.source {
            SegmentSource::Chunk(_) => (1..=CHUNK_BYTES_MAX as u64).contains(&segment.length),
            SegmentSource::Hole => (HOLE_BYTES_MIN..=FILE_BYTES_MAX).contains(&segment.length),
        };
        if fits { Ok(segment) } else { Err(Malformed::Rule("a segment of an impossible length")) }
    }

    fn read_link(mut from: Reader) -> Result<RopeLink, Malformed> {
        let (mut id, mut length, mut count) = (None, 0, 0);
        while let Some((field, value)) = from.next_field()? {
            match field {
                1 => id = Some(RopeId::from_bytes(value.hash(1)?)),
                2 => length = value.number(2)?,
                3 => count = value.number(3)?,
                number => return Err(Malformed::Field { number }),
            }
        }
        match id {
            Some(id) if length >= count => Ok(RopeLink { id, count, length }),
            _ => Err(Malformed::Rule("a rope link without a hash or shorter than its segments")),
        }
    }

    fn check_items(segments: &[Segment]) -> Result<(), Malformed> {
        let holes_touch = |pair: &[Segment]| pair.iter().all(|segment| segment.source == SegmentSource::Hole);
        if segments.windows(2).any(holes_touch) {
            return Err(Malformed::Rule("two holes side by side"));
        }
        check_total(segments.iter().map(|segment| segment.length))
    }

    fn check_links(links: &[RopeLink]) -> Result<(), Malformed> {
        check_total(links.iter().map(|link| link.length))
    }

    fn item_outgoing(segment: &Segment, into: &mut Vec<ObjectId>) {
        if let SegmentSource::Chunk(id) = segment.source {
            into.push(id.object());
        }
    }
}

fn check_total(mut lengths: impl Iterator<Item = u64>) -> Result<(), Malformed> {
    match lengths.try_fold(0_u64, u64::checked_add) {
        Some(total) if total <= FILE_BYTES_MAX => Ok(()),
        _ => Err(Malformed::Overflow),
    }
}
