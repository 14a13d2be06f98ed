//! Writes a content, either the whole file or only the regions around changes.

use std::borrow::Cow;
use std::ops::Range;

use rayon::prelude::*;

use super::ByteSource;
use super::cut::{Cutter, Piece, SizeClass};
use super::read::Segments;
use crate::error::{Error, Result};
use crate::id::RopeId;
use crate::merkle::{self, Splice};
use crate::object::{Content, FILE_BYTES_MAX, HOLE_BYTES_MIN, RopeLink, Ropes, Segment, SegmentSource};
use crate::store::{PackedChunk, WriteSession};

/// Data is hashed and compressed on all cores in batches of this many bytes.
const BATCH_BYTES: usize = 4 << 20;

/// Puts all bytes of a source and returns their content.
pub fn write_content<B: ByteSource>(session: &WriteSession, source: &B) -> Result<Content> {
    let size = source.length();
    if size > FILE_BYTES_MAX {
        return Err(Error::TooLarge { what: "a file", value: size, max: FILE_BYTES_MAX });
    }
    let Some(class) = SizeClass::of(size) else {
        return write_small(session, source, size);
    };
    let mut batch = Batch::new(session);
    let mut cutter = Cutter::new(source, class, 0);
    while let Some((_, piece)) = cutter.next()? {
        batch.push(&piece)?;
    }
    finish(merkle::build::<Ropes>(session, batch.finish()?)?, size)
}

fn write_small<B: ByteSource>(session: &WriteSession, source: &B, size: u64) -> Result<Content> {
    if size == 0 {
        return Ok(Content::Empty);
    }
    let bytes = match source.whole() {
        Some(bytes) => Cow::Borrowed(bytes),
        None => {
            let mut bytes = vec![0; size as usize];
            source.read_at(0, &mut bytes)?;
            Cow::Owned(bytes)
        }
    };
    if size >= HOLE_BYTES_MIN && bytes.iter().all(|byte| *byte == 0) {
        return Ok(Content::Hole);
    }
    session.put_chunk(&bytes).map(Content::Chunk)
}

fn finish(top: Option<RopeLink>, size: u64) -> Result<Content> {
    let top = top.expect("a file over 64 KiB has segments");
    debug_assert_eq!(top.length, size, "segments cover the file");
    // A chunk is never longer than a file of one chunk, so a single segment is a hole.
    Ok(if top.count == 1 { Content::Hole } else { Content::Rope(top.id) })
}

/// The stored content of a file before its edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) content: Content,
    pub(crate) size: u64,
}

/// Puts the new parts of a changed file. `dirty` lists, in ascending order, the ranges that may differ from the base at the same
/// offset; bytes beyond the end of either file always count as dirty. The result is the same as that of [`write_content`].
pub(crate) fn update_content<B: ByteSource>(
    session: &WriteSession,
    base: &Base,
    source: &B,
    dirty: &[Range<u64>],
) -> Result<Content> {
    let size = source.length();
    match (base.content, SizeClass::of(base.size), SizeClass::of(size)) {
        (Content::Rope(rope), Some(before), Some(after)) if before == after => {
            update_rope(session, rope, base.size, source, after, &regions(dirty, base.size, size))
        }
        _ => write_content(session, source),
    }
}

/// Returns the regions that must be cut again. A change can extend a run of zeros that began up to 64 KiB before it. The chunk
/// before that run may end one byte earlier: the cutter reads bytes in pairs, so a hole that begins one byte after a chunk of
/// even length lengthens that chunk.
fn regions(dirty: &[Range<u64>], before: u64, after: u64) -> Vec<Range<u64>> {
    let tail = (before != after).then(|| before.min(after)..before.max(after));
    let mut regions: Vec<Range<u64>> = Vec::with_capacity(dirty.len() + 1);
    for range in dirty.iter().cloned().chain(tail) {
        let start = range.start.saturating_sub(HOLE_BYTES_MIN + 1);
        match regions.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(range.end),
            _ => regions.push(start..range.end),
        }
    }
    regions
}

fn update_rope<B: ByteSource>(
    session: &WriteSession,
    rope: RopeId,
    old_size: u64,
    source: &B,
    class: SizeClass,
    regions: &[Range<u64>],
) -> Result<Content> {
    let size = source.length();
    let mut splices: Vec<Splice<Segment>> = Vec::new();
    let mut regions = regions.iter().peekable();
    let mut done_until = 0;
    while let Some(region) = regions.next() {
        if region.end <= done_until {
            continue;
        }
        let mut old = Segments::from(session.store(), rope, old_size, region.start)?.peekable();
        let Some(first) = old.peek().cloned().transpose()? else {
            break;
        };
        let mut end = region.end;
        let mut cutter = Cutter::new(source, class, first.start);
        let mut batch = Batch::new(session);
        let mut next_index = first.index;
        loop {
            let position = cutter.position();
            // Regions that begin inside the part that is being cut again belong to this run.
            while let Some(next) = regions.next_if(|next| next.start < position) {
                end = end.max(next.end);
            }
            while let Some(placed) = old.next_if(|placed| placed.as_ref().is_ok_and(|placed| placed.start < position)) {
                next_index = placed?.index + 1;
            }
            let meets = match old.peek() {
                Some(Ok(placed)) => placed.start == position,
                Some(Err(error)) => return Err(error.clone()),
                None => position == size && size == old_size,
            };
            if meets && position >= end {
                break;
            }
            match cutter.next()? {
                Some((_, piece)) => batch.push(&piece)?,
                None => {
                    next_index = old.last().transpose()?.map_or(next_index, |last| last.index + 1);
                    break;
                }
            }
        }
        done_until = cutter.position();
        splices.push(Splice { range: first.index..next_index, items: batch.finish()? });
    }
    finish(merkle::splice::<Ropes>(session, Some(rope.object()), splices)?, size)
}

/// Segments that wait for the store. Chunks are hashed and compressed in batches.
struct Batch<'a> {
    session: &'a WriteSession,
    segments: Vec<Segment>,
    waiting: Vec<Vec<u8>>,
    waiting_bytes: usize,
}

impl<'a> Batch<'a> {
    fn new(session: &'a WriteSession) -> Self {
        Self { session, segments: Vec::new(), waiting: Vec::new(), waiting_bytes: 0 }
    }

    fn push(&mut self, piece: &Piece<'_>) -> Result<()> {
        match piece {
            Piece::Data(bytes) => {
                self.waiting_bytes += bytes.len();
                self.waiting.push(bytes.to_vec());
                if self.waiting_bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
            }
            Piece::Hole(length) => {
                self.flush()?;
                self.segments.push(Segment { length: *length, source: SegmentSource::Hole });
                Ok(())
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        let pack = |bytes: Vec<u8>| self.session.pack_chunk(&bytes);
        let waiting = std::mem::take(&mut self.waiting);
        let few = self.waiting_bytes < BATCH_BYTES / 8;
        self.waiting_bytes = 0;
        let packed: Vec<PackedChunk> = if few {
            waiting.into_iter().map(pack).collect::<Result<_>>()?
        } else {
            waiting.into_par_iter().map(pack).collect::<Result<_>>()?
        };
        for chunk in packed {
            let length = chunk.length as u64;
            let source = SegmentSource::Chunk(self.session.put_packed(chunk)?);
            self.segments.push(Segment { length, source });
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<Segment>> {
        self.flush()?;
        Ok(self.segments)
    }
}
