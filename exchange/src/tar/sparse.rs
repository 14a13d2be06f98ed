//! Decodes the maps of sparse members, in all four formats of GNU tar.

use std::io::Read;

use super::format::BLOCK_BYTES;
use super::header::{Header, number};
use super::pax::{MemberRecords, damaged, decimal};
use crate::error::{Error, Result};
use crate::source::DataRange;

/// The most ranges of one file.
const RANGES_MAX: usize = 1 << 20;

/// A map that was read: the size of the file and its ranges with data.
pub(super) struct SparseMap {
    pub(super) size: u64,
    pub(super) ranges: Vec<DataRange>,
    /// Bytes of the member that the map itself took.
    pub(super) consumed: u64,
}

/// Reads the map of the old GNU format: four ranges in the header, more in blocks behind it.
pub(super) fn of_header(
    header: &Header,
    offset: u64,
    mut block: impl FnMut() -> Result<[u8; BLOCK_BYTES]>,
) -> Result<SparseMap> {
    let size = size(number(&header.0[483..495]), offset)?;
    let mut ranges = Vec::new();
    take_ranges(&header.0[386..482], &mut ranges, offset)?;
    let mut is_extended = header.0[482] != 0;
    while is_extended {
        let block = block()?;
        take_ranges(&block[..504], &mut ranges, offset)?;
        is_extended = block[504] != 0;
    }
    checked(size, ranges, 0, offset)
}

fn take_ranges(field: &[u8], ranges: &mut Vec<DataRange>, offset: u64) -> Result<()> {
    for pair in field.chunks_exact(24) {
        if pair.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let (start, length) = (size(number(&pair[..12]), offset)?, size(number(&pair[12..]), offset)?);
        push(ranges, start, length, offset)?;
    }
    Ok(())
}

/// Reads the map of versions 0.0 and 0.1, which lies in PAX records. Returns `None` if there is none.
pub(super) fn of_records(records: &MemberRecords, offset: u64) -> Result<Option<SparseMap>> {
    let Some(size) = records.number("GNU.sparse.size", offset)? else { return Ok(None) };
    let numbers = match records.get("GNU.sparse.map") {
        Some(map) => {
            let numbers = map.split(|byte| *byte == b',').map(decimal).collect::<Option<Vec<_>>>();
            numbers.ok_or_else(|| damaged(offset, "a sparse map holds something that is no number"))?
        }
        None => records.sparse_pairs().to_vec(),
    };
    if numbers.len() % 2 != 0 {
        return Err(damaged(offset, "a sparse map ends in the middle of a range"));
    }
    let mut ranges = Vec::new();
    for pair in numbers.chunks_exact(2) {
        push(&mut ranges, pair[0], pair[1], offset)?;
    }
    checked(size, ranges, 0, offset).map(Some)
}

/// Returns whether the records announce a map of version 1.0, which precedes the data.
pub(super) fn is_in_data(records: &MemberRecords) -> bool {
    records.get("GNU.sparse.major") == Some(b"1") && records.get("GNU.sparse.minor") == Some(b"0")
}

/// Reads the map of version 1.0, which lies before the data.
pub(super) fn of_data(records: &MemberRecords, input: &mut impl Read, length: u64, offset: u64) -> Result<SparseMap> {
    let size = records.number("GNU.sparse.realsize", offset)?;
    let size = size.ok_or_else(|| damaged(offset, "a sparse file does not say its size"))?;
    let mut lines = Lines { input, block: Vec::new(), at: 0, left: length, offset };
    let count = lines.number()?;
    let mut ranges = Vec::new();
    for _ in 0..count {
        let (start, length) = (lines.number()?, lines.number()?);
        push(&mut ranges, start, length, offset)?;
    }
    let consumed = length - lines.left;
    checked(size, ranges, consumed, offset)
}

/// Decimal lines in blocks.
struct Lines<'a, R> {
    input: &'a mut R,
    block: Vec<u8>,
    at: usize,
    left: u64,
    offset: u64,
}

impl<R: Read> Lines<'_, R> {
    fn number(&mut self) -> Result<u64> {
        let mut digits = Vec::new();
        loop {
            match self.byte()? {
                b'\n' => break,
                digit => digits.push(digit),
            }
            if digits.len() > 20 {
                break;
            }
        }
        decimal(&digits).ok_or_else(|| damaged(self.offset, "a sparse map holds something that is no number"))
    }

    fn byte(&mut self) -> Result<u8> {
        if self.at == self.block.len() {
            if self.left < BLOCK_BYTES as u64 {
                return Err(damaged(self.offset, "a sparse map does not end"));
            }
            self.block.resize(BLOCK_BYTES, 0);
            self.input.read_exact(&mut self.block).map_err(|source| Error::host("read a sparse map", source))?;
            self.left -= BLOCK_BYTES as u64;
            self.at = 0;
        }
        self.at += 1;
        Ok(self.block[self.at - 1])
    }
}

fn size(value: Option<i128>, offset: u64) -> Result<u64> {
    let size = value.and_then(|value| u64::try_from(value).ok());
    size.ok_or_else(|| damaged(offset, "a sparse map holds something that is no size"))
}

fn push(ranges: &mut Vec<DataRange>, start: u64, length: u64, offset: u64) -> Result<()> {
    if ranges.len() >= RANGES_MAX {
        return Err(damaged(offset, format!("a sparse map has more than {RANGES_MAX} ranges")));
    }
    ranges.push(DataRange { start, length });
    Ok(())
}

fn checked(size: u64, mut ranges: Vec<DataRange>, consumed: u64, offset: u64) -> Result<SparseMap> {
    let mut end = 0;
    for range in &ranges {
        let next = range.start.checked_add(range.length);
        match next {
            Some(next) if range.start >= end && next <= size => end = next,
            _ => return Err(damaged(offset, "the ranges of a sparse file overlap or exceed it")),
        }
    }
    ranges.retain(|range| range.length > 0);
    Ok(SparseMap { size, ranges, consumed })
}
