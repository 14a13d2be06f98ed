//! Reads a content at any offset.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::id::RopeId;
use crate::malformed::Malformed;
use crate::merkle::{load_child, load_top};
use crate::object::{Content, Ropes, Segment, SegmentSource, SequenceNode};
use crate::store::Store;

/// Maximum number of segments that are looked up and read in one batch.
const SEGMENTS_AT_ONCE: usize = 4_096;

/// A segment with its offset and index in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacedSegment {
    pub(super) segment: Segment,
    pub(super) start: u64,
    pub(super) index: u64,
}

impl PlacedSegment {
    pub(super) fn end(&self) -> u64 {
        self.start + self.segment.length
    }
}

/// Iterates over the segments of a rope.
pub(super) struct Segments {
    store: Store,
    path: Vec<(Arc<SequenceNode<Ropes>>, usize)>,
    start: u64,
    index: u64,
}

impl Segments {
    /// Starts at the segment that holds this offset, or at the last segment if the offset is beyond the end. `size` is the
    /// expected length of the rope; any other length is an error.
    pub(super) fn from(store: &Store, rope: RopeId, size: u64, offset: u64) -> Result<Self> {
        let mut segments = Self { store: store.clone(), path: Vec::new(), start: 0, index: 0 };
        let mut node = load_top::<Ropes>(store, rope.object())?;
        if node.length() != size {
            return Err(Error::Malformed { id: rope.object(), source: Malformed::Link });
        }
        loop {
            let mut at = 0;
            let below = match &*node {
                SequenceNode::Leaf(items) => {
                    while at + 1 < items.len() && segments.start + items[at].length <= offset {
                        segments.start += items[at].length;
                        segments.index += 1;
                        at += 1;
                    }
                    None
                }
                SequenceNode::Inner { level, links } => {
                    while at + 1 < links.len() && segments.start + links[at].length <= offset {
                        segments.start += links[at].length;
                        segments.index += links[at].count;
                        at += 1;
                    }
                    Some(load_child::<Ropes>(store, *level, &links[at])?)
                }
            };
            segments.path.push((node, at));
            match below {
                Some(below) => node = below,
                None => return Ok(segments),
            }
        }
    }

    fn advance(&mut self) -> Result<Option<PlacedSegment>> {
        while let Some((node, at)) = self.path.last_mut() {
            match &**node {
                SequenceNode::Leaf(items) => {
                    if let Some(segment) = items.get(*at) {
                        *at += 1;
                        let placed = PlacedSegment { segment: *segment, start: self.start, index: self.index };
                        self.start = placed.end();
                        self.index += 1;
                        return Ok(Some(placed));
                    }
                }
                SequenceNode::Inner { level, links } => {
                    *at += 1;
                    if let Some(link) = links.get(*at) {
                        let below = load_child::<Ropes>(&self.store, *level, link)?;
                        self.go_down(below)?;
                        continue;
                    }
                }
            }
            self.path.pop();
        }
        Ok(None)
    }

    fn go_down(&mut self, mut node: Arc<SequenceNode<Ropes>>) -> Result<()> {
        loop {
            let first = match &*node {
                SequenceNode::Leaf(_) => None,
                SequenceNode::Inner { level, links } => Some(load_child::<Ropes>(&self.store, *level, &links[0])?),
            };
            self.path.push((node, 0));
            match first {
                Some(below) => node = below,
                None => return Ok(()),
            }
        }
    }
}

impl Iterator for Segments {
    type Item = Result<PlacedSegment>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(placed) => placed.map(Ok),
            Err(error) => {
                self.path.clear();
                Some(Err(error))
            }
        }
    }
}

/// Fills the buffer with the bytes of a content from this offset. The requested range must lie within `size`.
pub fn read_at(store: &Store, content: &Content, size: u64, offset: u64, buffer: &mut [u8]) -> Result<()> {
    let mut rest = &mut *buffer;
    let length = rest.len() as u64;
    read_pieces(store, content, size, offset, length, &mut |piece| {
        let (now, later) = std::mem::take(&mut rest).split_at_mut(piece.length());
        match piece {
            Piece::Zeros(_) => now.fill(0),
            Piece::Data(bytes) => now.copy_from_slice(bytes),
        }
        rest = later;
    })
}

/// Returns the bytes of a content from this offset. The requested range must lie within `size`.
pub fn read(store: &Store, content: &Content, size: u64, offset: u64, length: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_pieces(store, content, size, offset, length, &mut |piece| {
        if bytes.capacity() == 0 {
            // Allocates only after the first piece was read: the length may come from an untrusted object.
            bytes.reserve_exact(length as usize);
        }
        match piece {
            Piece::Zeros(zeros) => bytes.resize(bytes.len() + zeros, 0),
            Piece::Data(data) => bytes.extend_from_slice(data),
        }
    })?;
    Ok(bytes)
}

/// A consecutive part of a content.
enum Piece<'a> {
    Zeros(usize),
    Data(&'a [u8]),
}

impl Piece<'_> {
    fn length(&self) -> usize {
        match self {
            Piece::Zeros(length) => *length,
            Piece::Data(bytes) => bytes.len(),
        }
    }
}

fn read_pieces(
    store: &Store,
    content: &Content,
    size: u64,
    offset: u64,
    length: u64,
    take: &mut dyn FnMut(Piece<'_>),
) -> Result<()> {
    let end = offset.checked_add(length).filter(|end| *end <= size);
    let end = end.ok_or(Error::TooLarge { what: "a read behind the end", value: offset, max: size })?;
    match content {
        Content::Empty => Ok(()),
        Content::Hole => {
            take(Piece::Zeros(length as usize));
            Ok(())
        }
        Content::Chunk(id) => {
            let chunk = store.chunk(*id, size)?;
            take(Piece::Data(&chunk[offset as usize..end as usize]));
            Ok(())
        }
        Content::Rope(_) if length == 0 => Ok(()),
        Content::Rope(rope) => read_rope(store, *rope, size, offset..end, take),
    }
}

fn read_rope(store: &Store, rope: RopeId, size: u64, range: Range<u64>, take: &mut dyn FnMut(Piece<'_>)) -> Result<()> {
    let mut segments = Segments::from(store, rope, size, range.start)?;
    let mut done = range.start;
    // Reads in batches: a hostile rope may have segments of one byte each, which no cutter produces, and must not exhaust the
    // memory.
    while done < range.end {
        let mut batch: Vec<PlacedSegment> = Vec::new();
        while batch.len() < SEGMENTS_AT_ONCE && done < range.end {
            let placed =
                segments.next().unwrap_or(Err(Error::Malformed { id: rope.object(), source: Malformed::Link }))?;
            done = placed.end();
            batch.push(placed);
        }
        read_batch(store, &batch, &range, take)?;
    }
    Ok(())
}

fn read_batch(
    store: &Store,
    batch: &[PlacedSegment],
    range: &Range<u64>,
    take: &mut dyn FnMut(Piece<'_>),
) -> Result<()> {
    let wanted: Vec<_> = batch
        .iter()
        .filter_map(|placed| match placed.segment.source {
            SegmentSource::Chunk(id) => Some((id, placed.segment.length)),
            SegmentSource::Hole => None,
        })
        .collect();
    let mut batch = batch.iter();
    // Emits the segments before the next chunk, in order.
    let mut pass = |take: &mut dyn FnMut(Piece<'_>), chunk: Option<&[u8]>| {
        for placed in batch.by_ref() {
            let from = placed.start.max(range.start);
            let to = placed.end().min(range.end);
            match (placed.segment.source, chunk) {
                (SegmentSource::Hole, _) => take(Piece::Zeros((to - from) as usize)),
                (SegmentSource::Chunk(_), Some(chunk)) => {
                    return take(Piece::Data(&chunk[(from - placed.start) as usize..(to - placed.start) as usize]));
                }
                (SegmentSource::Chunk(_), None) => unreachable!("every chunk was shown"),
            }
        }
    };
    if let [(id, length)] = wanted[..] {
        pass(take, Some(&store.chunk(id, length)?));
        pass(take, None);
        return Ok(());
    }
    // Chunks that were written together arrive in order. Others are buffered until their turn.
    let mut next = 0;
    let mut early: BTreeMap<usize, Bytes> = BTreeMap::new();
    store.look_at_chunks(&wanted, &mut |place, chunk| {
        if place != next {
            early.insert(place, Bytes::copy_from_slice(chunk));
            return;
        }
        pass(take, Some(chunk));
        next += 1;
        while let Some(chunk) = early.remove(&next) {
            pass(take, Some(&chunk));
            next += 1;
        }
    })?;
    pass(take, None);
    Ok(())
}

/// Returns how many bytes from this offset on lie in a hole; 0 in data.
pub fn hole_at(store: &Store, content: &Content, size: u64, offset: u64) -> Result<u64> {
    match content {
        Content::Hole => Ok(size.saturating_sub(offset)),
        Content::Rope(rope) if offset < size => {
            let placed = Segments::from(store, *rope, size, offset)?.next().transpose()?;
            Ok(placed
                .filter(|placed| placed.segment.source == SegmentSource::Hole && placed.end() > offset)
                .map_or(0, |placed| placed.end() - offset))
        }
        _ => Ok(0),
    }
}

/// Segments that [`data_at`] looks at in one call. A few kilobytes of objects can represent a file of 2^43 segments.
const DATA_SEGMENTS_MAX: usize = 8_192;

/// Returns how many bytes from this offset on are data, up to the next hole or the end; 0 in a hole. In a long run of data it returns
/// the length of a part: the caller asks again at its end.
pub fn data_at(store: &Store, content: &Content, size: u64, offset: u64) -> Result<u64> {
    match content {
        Content::Hole | Content::Empty => Ok(0),
        Content::Chunk(_) => Ok(size.saturating_sub(offset)),
        Content::Rope(_) if offset >= size => Ok(0),
        Content::Rope(rope) => {
            let mut end = offset;
            for placed in Segments::from(store, *rope, size, offset)?.take(DATA_SEGMENTS_MAX) {
                let placed = placed?;
                if placed.segment.source == SegmentSource::Hole {
                    break;
                }
                end = placed.end();
            }
            Ok(end - offset)
        }
    }
}
