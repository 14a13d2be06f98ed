//! An edited file: an extent map over the stored content and ranges of segments. Bytes without an extent are zeros.

use std::ops::Range;
use std::sync::Arc;

use super::ordmap::OrdMap;
use super::segment::{SegmentLog, SegmentRange};
use crate::content::{self, Base, ByteSource, update_content, write_content};
use crate::error::{Error, Result};
use crate::object::{Content, FILE_BYTES_MAX};
use crate::store::{Store, WriteSession};

/// Limits the search for the next hole: runs of edited bytes, of which a run of stored bytes costs as many as [`STORED_DATA_COST`].
const DATA_COST_MAX: usize = 65_536;
const STORED_DATA_COST: usize = 1_024;

#[derive(Clone)]
pub(super) struct FileData {
    base: Base,
    size: u64,
    extents: OrdMap<u64, Extent>,
}

#[derive(Clone)]
struct Extent {
    length: u64,
    source: Source,
}

#[derive(Clone)]
enum Source {
    /// The stored content, at the same offset.
    Base,
    Segment(SegmentRange),
}

impl Extent {
    /// Returns the rest of the extent after `skip` bytes.
    fn tail(&self, skip: u64) -> Self {
        let source = match &self.source {
            Source::Base => Source::Base,
            Source::Segment(range) => {
                let segment = Arc::clone(&range.segment);
                Source::Segment(SegmentRange { segment, offset: range.offset + skip })
            }
        };
        Self { length: self.length - skip, source }
    }

    fn head(&self, length: u64) -> Self {
        Self { length, source: self.source.clone() }
    }

    /// Returns whether `next` continues this extent in the same segment.
    fn goes_on_in(&self, next: &SegmentRange) -> bool {
        match &self.source {
            Source::Segment(range) => {
                Arc::ptr_eq(&range.segment, &next.segment) && range.offset + self.length == next.offset
            }
            Source::Base => false,
        }
    }
}

impl FileData {
    pub(super) fn empty() -> Self {
        Self::stored(Content::Empty, 0)
    }

    pub(super) fn stored(content: Content, size: u64) -> Self {
        let mut extents = OrdMap::default();
        if size > 0 {
            extents.insert(0, Extent { length: size, source: Source::Base });
        }
        Self { base: Base { content, size }, size, extents }
    }

    /// Returns the stored content and size if the file has no edits.
    pub(super) fn as_stored(&self) -> Option<(Content, u64)> {
        (self.size == self.base.size && self.dirty().is_empty()).then_some((self.base.content, self.size))
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn write_at(&mut self, log: &dyn SegmentLog, offset: u64, bytes: &[u8]) -> Result<()> {
        let length = bytes.len() as u64;
        end_of(offset, length)?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.write_range(offset, log.append(bytes)?, length)
    }

    /// Writes bytes that are already in a segment.
    pub(super) fn write_range(&mut self, offset: u64, range: SegmentRange, length: u64) -> Result<()> {
        let end = end_of(offset, length)?;
        if length == 0 {
            return Ok(());
        }
        self.clear(offset..end);
        self.size = self.size.max(end);
        if let Some((start, before)) = offset.checked_sub(1).and_then(|last| self.extents.floor(&last))
            && start + before.length == offset
            && before.goes_on_in(&range)
        {
            let (start, longer) = (*start, before.length + length);
            self.extents.get_mut(&start).expect("it was just found").length = longer;
            return Ok(());
        }
        self.extents.insert(offset, Extent { length, source: Source::Segment(range) });
        Ok(())
    }

    pub(super) fn truncate(&mut self, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(Error::TooLarge { what: "a file", value: size, max: FILE_BYTES_MAX });
        }
        if size < self.size {
            self.clear(size..self.size);
        }
        self.size = size;
        Ok(())
    }

    /// Makes a range read as zeros. The size does not change.
    pub(super) fn punch_hole(&mut self, range: Range<u64>) {
        self.clear(range.start.min(self.size)..range.end.min(self.size));
    }

    /// Removes a range from the extent map, splitting extents at its ends.
    fn clear(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if let Some((start, extent)) = self.extents.floor(&range.start) {
            let (start, extent) = (*start, extent.clone());
            let end = start + extent.length;
            if end > range.start {
                if start < range.start {
                    self.extents.insert(start, extent.head(range.start - start));
                } else {
                    self.extents.remove(&start);
                }
                if end > range.end {
                    self.extents.insert(range.end, extent.tail(range.end - start));
                }
            }
        }
        while let Some((start, extent)) = self.extents.iter_from(&range.start).next() {
            if *start >= range.end {
                break;
            }
            let (start, extent) = (*start, extent.clone());
            self.extents.remove(&start);
            if start + extent.length > range.end {
                self.extents.insert(range.end, extent.tail(range.end - start));
            }
        }
    }

    pub(super) fn read_at(&self, store: &Store, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let end = offset + buffer.len() as u64;
        debug_assert!(end <= self.size, "the caller reads within the file");
        let mut filled = offset;
        let first = self.extents.floor(&offset).map_or(offset, |(start, _)| *start);
        for (start, extent) in self.extents.iter_from(&first) {
            if *start >= end {
                break;
            }
            let from = offset.max(*start);
            let to = end.min(start + extent.length);
            if from >= to {
                continue;
            }
            buffer[(filled - offset) as usize..(from - offset) as usize].fill(0);
            let target = &mut buffer[(from - offset) as usize..(to - offset) as usize];
            match &extent.source {
                Source::Base => content::read_at(store, &self.base.content, self.base.size, from, target)?,
                Source::Segment(range) => range.segment.read_at(range.offset + (from - start), target)?,
            }
            filled = to;
        }
        buffer[(filled - offset) as usize..].fill(0);
        Ok(())
    }

    /// Returns how many bytes from this offset on are known to be zero.
    pub(super) fn hole_at(&self, store: &Store, offset: u64) -> Result<u64> {
        let mut end = offset;
        while end < self.size {
            let zeros = match self.extents.floor(&end) {
                Some((start, extent)) if start + extent.length > end => match extent.source {
                    Source::Segment(_) => 0,
                    Source::Base => {
                        let stored = content::hole_at(store, &self.base.content, self.base.size, end)?;
                        stored.min(start + extent.length - end)
                    }
                },
                _ => self.extents.iter_from(&end).next().map_or(self.size, |(next, _)| *next) - end,
            };
            if zeros == 0 {
                break;
            }
            end += zeros;
        }
        Ok(end - offset)
    }

    /// Returns how many bytes from this offset on are data, up to the next hole or the end. Behind a very long run of data the rest of
    /// the file counts as data, too.
    pub(super) fn data_at(&self, store: &Store, offset: u64) -> Result<u64> {
        let (mut end, mut cost) = (offset, 0);
        while end < self.size && self.hole_at(store, end)? == 0 {
            if cost > DATA_COST_MAX {
                return Ok(self.size - offset);
            }
            end = match self.extents.floor(&end) {
                Some((start, extent)) if start + extent.length > end => match extent.source {
                    Source::Segment(_) => {
                        cost += 1;
                        start + extent.length
                    }
                    Source::Base => {
                        cost += STORED_DATA_COST;
                        let stored = content::data_at(store, &self.base.content, self.base.size, end)?;
                        (start + extent.length).min(end + stored)
                    }
                },
                _ => break,
            };
        }
        Ok(end - offset)
    }

    /// Returns the base content if the file is unchanged at `offset`, with the length of the unchanged range that begins there.
    /// Returns `None` where the file was edited or extended.
    pub(super) fn base_at(&self, offset: u64) -> Option<(Content, u64)> {
        let (start, extent) = self.extents.floor(&offset)?;
        let length = (start + extent.length).checked_sub(offset).filter(|length| *length > 0)?;
        matches!(extent.source, Source::Base).then_some((self.base.content, length))
    }

    /// Estimates how many bytes a freeze has to read.
    pub(super) fn dirty_bytes(&self) -> u64 {
        self.dirty().iter().map(|range| range.end - range.start).sum()
    }

    /// Returns the ranges that may differ from the base.
    fn dirty(&self) -> Vec<Range<u64>> {
        let mut dirty: Vec<Range<u64>> = Vec::new();
        let mut add = |range: Range<u64>| match dirty.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.end == range.start => last.end = range.end,
            _ => dirty.push(range),
        };
        let mut position = 0;
        for (start, extent) in self.extents.iter() {
            add(position..*start);
            position = start + extent.length;
            if matches!(extent.source, Source::Segment(_)) {
                add(*start..position);
            }
        }
        add(position..self.size);
        dirty
    }

    /// Returns whether reading the file needs the base.
    pub(super) fn needs_base(&self) -> bool {
        self.extents.iter().any(|(_, extent)| matches!(extent.source, Source::Base))
    }

    /// Returns this file with the result of a freeze of an earlier state as its base. Returns `None` if the file reads bytes of
    /// its old base that the frozen state did not have at the same offset.
    pub(super) fn over(&self, frozen: &Self, content: Content) -> Option<Self> {
        if self.base != frozen.base {
            return None;
        }
        let mut extents = OrdMap::default();
        for (start, extent) in self.extents.iter() {
            let frozen_extent = frozen.extents.floor(start);
            let within = frozen_extent.filter(|(begin, other)| *begin + other.length >= start + extent.length);
            let stored = within.is_some_and(|(begin, other)| match (&other.source, &extent.source) {
                (Source::Base, Source::Base) => true,
                (Source::Segment(theirs), Source::Segment(ours)) => {
                    Arc::ptr_eq(&theirs.segment, &ours.segment) && theirs.offset + (start - begin) == ours.offset
                }
                _ => false,
            });
            let source = match &extent.source {
                _ if stored => Source::Base,
                Source::Base => return None,
                Source::Segment(range) => Source::Segment(range.clone()),
            };
            extents.insert(*start, Extent { length: extent.length, source });
        }
        Some(Self { base: Base { content, size: frozen.size }, size: self.size, extents })
    }

    /// Puts the new parts and returns the content.
    pub(super) fn freeze(&self, session: &WriteSession) -> Result<Content> {
        let dirty = self.dirty();
        if dirty.is_empty() && self.size == self.base.size {
            return Ok(self.base.content);
        }
        let source = Reading { data: self, store: session.store() };
        if self.base.size == 0 {
            return write_content(session, &source);
        }
        update_content(session, &self.base, &source, &dirty)
    }
}

/// Returns the end of a write, or an error if it exceeds the maximum file size.
fn end_of(offset: u64, length: u64) -> Result<u64> {
    let end = offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX);
    end.ok_or(Error::TooLarge { what: "a file", value: offset, max: FILE_BYTES_MAX })
}

struct Reading<'a> {
    data: &'a FileData,
    store: &'a Store,
}

impl ByteSource for Reading<'_> {
    fn length(&self) -> u64 {
        self.data.size
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.data.read_at(self.store, offset, buffer)
    }

    fn known_zeros(&self, offset: u64) -> Result<u64> {
        self.data.hole_at(self.store, offset)
    }
}
