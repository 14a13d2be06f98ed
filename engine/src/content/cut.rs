//! Finds the boundaries of segments in a byte source.

use fastcdc::v2020::{Normalization, cut, select_masks};

use super::ByteSource;
use crate::error::Result;
use crate::object::{HOLE_BYTES_MIN, SINGLE_CHUNK_BYTES_MAX};

const HOLE: usize = HOLE_BYTES_MIN as usize;
/// The read window grows from the minimum to the maximum: a short scan around an edit reads little, a long scan reads in large
/// steps.
const WINDOW_BYTES_MIN: u64 = 256 << 10;
const WINDOW_BYTES_MAX: u64 = 1 << 20;

/// Minimum, average and maximum size of chunks, in bytes. Depends on the size of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SizeClass {
    min: usize,
    average: usize,
    max: usize,
}

/// Chunk sizes of files of 64 KiB to 64 MiB.
const MEDIUM: SizeClass = SizeClass { min: 2 << 10, average: 8 << 10, max: 64 << 10 };
/// Chunk sizes of larger files.
const LARGE: SizeClass = SizeClass { min: 8 << 10, average: 32 << 10, max: 128 << 10 };
const MEDIUM_FILE_BYTES_MAX: u64 = 64 << 20;

impl SizeClass {
    /// Returns the class for a file of this size; `None` for a file that is a single chunk.
    pub(super) fn of(file_bytes: u64) -> Option<Self> {
        match file_bytes {
            ..=SINGLE_CHUNK_BYTES_MAX => None,
            size if size <= MEDIUM_FILE_BYTES_MAX => Some(MEDIUM),
            _ => Some(LARGE),
        }
    }

    /// Returns the length of the first chunk of a run of data. It depends on the bytes of the chunk and on the byte after it. If
    /// the run is shorter than the maximum chunk, it also depends on the end of the run.
    fn cut(self, data: &[u8]) -> usize {
        let (mask_s, mask_l) = select_masks(self.average, Normalization::Level1);
        cut(data, self.min, self.average, self.max, mask_s, mask_l, mask_s << 1, mask_l << 1).1
    }
}

/// One segment of the source.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    Data(&'a [u8]),
    Hole(u64),
}

/// Iterates over the segments of a source, starting at a segment boundary.
pub(super) struct Cutter<'a, B: ByteSource> {
    source: &'a B,
    class: SizeClass,
    length: u64,
    position: u64,
    /// The bytes of the source that have been read, from `window_start` on.
    window: Vec<u8>,
    window_start: u64,
    /// The length of the window after its next move.
    window_bytes: u64,
    /// The first hole at or after the position, as far as the search has gone.
    next_hole: Option<u64>,
    /// No hole other than `next_hole` begins before this offset.
    looked_until: u64,
}

impl<'a, B: ByteSource> Cutter<'a, B> {
    pub(super) fn new(source: &'a B, class: SizeClass, start: u64) -> Self {
        Self {
            source,
            class,
            length: source.length(),
            position: start,
            window: Vec::new(),
            window_start: start,
            window_bytes: 0,
            next_hole: None,
            looked_until: start,
        }
    }

    /// Returns the offset of the next segment.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the next segment and its offset.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Piece<'_>)>> {
        let start = self.position;
        if start >= self.length {
            return Ok(None);
        }
        let known = self.source.known_zeros(start)?.min(self.length - start);
        if known >= HOLE_BYTES_MIN {
            let end = self.end_of_zeros(start + known)?;
            return Ok(Some((start, self.hole(start, end))));
        }
        let reach = (start + self.class.max as u64).min(self.length);
        self.fill(start, (reach + HOLE_BYTES_MIN).min(self.length))?;
        self.look_for_hole(reach);
        let end = match self.next_hole {
            Some(hole) if hole == start => {
                let end = self.end_of_zeros(start + HOLE_BYTES_MIN)?;
                return Ok(Some((start, self.hole(start, end))));
            }
            Some(hole) => hole.min(reach),
            None => reach,
        };
        let from = (start - self.window_start) as usize;
        let to = (end - self.window_start) as usize;
        let length = self.class.cut(&self.window[from..to]);
        self.position = start + length as u64;
        Ok(Some((start, Piece::Data(&self.window[from..from + length]))))
    }

    fn hole(&mut self, start: u64, end: u64) -> Piece<'static> {
        self.position = end;
        self.next_hole = None;
        self.looked_until = end;
        Piece::Hole(end - start)
    }

    /// Makes the window cover this range. Reads ahead in large steps.
    fn fill(&mut self, start: u64, end: u64) -> Result<()> {
        let window_end = self.window_start + self.window.len() as u64;
        if start >= self.window_start && end <= window_end {
            return Ok(());
        }
        if start >= window_end || start < self.window_start {
            self.window.clear();
        } else {
            self.window.drain(..(start - self.window_start) as usize);
        }
        self.window_start = start;
        let have = self.window.len();
        let want = (end - start).max(self.window_bytes).min(self.length - start) as usize;
        self.window_bytes = (self.window_bytes * 2).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX);
        self.window.resize(want, 0);
        self.source.read_at(start + have as u64, &mut self.window[have..])
    }

    /// Finds the first hole that begins before `reach`. A run of 64 KiB covers every 65,536th byte, so few bytes are checked.
    fn look_for_hole(&mut self, reach: u64) {
        if self.next_hole.is_some_and(|hole| hole >= self.position) {
            return;
        }
        self.next_hole = None;
        let mut candidate = self.looked_until.max(self.position);
        let window_end = self.window_start + self.window.len() as u64;
        while candidate < reach && candidate + HOLE_BYTES_MIN <= window_end {
            let at = (candidate - self.window_start) as usize;
            let run = &self.window[at..at + HOLE];
            match run.iter().rposition(|byte| *byte != 0) {
                None => {
                    self.next_hole = Some(candidate);
                    break;
                }
                Some(last) => candidate += last as u64 + 1,
            }
        }
        // If the window ends with the source, no further hole can begin.
        self.looked_until = candidate;
    }

    /// Returns the end of a run of zeros that extends at least to `from`.
    fn end_of_zeros(&mut self, from: u64) -> Result<u64> {
        let mut end = from;
        while end < self.length {
            let known = self.source.known_zeros(end)?.min(self.length - end);
            if known > 0 {
                end += known;
                continue;
            }
            let mut block = [0; 16 << 10];
            let block = &mut block[..(self.length - end).min(16 << 10) as usize];
            self.source.read_at(end, block)?;
            match block.iter().position(|byte| *byte != 0) {
                Some(first) => return Ok(end + first as u64),
                None => end += block.len() as u64,
            }
        }
        Ok(end)
    }
}
