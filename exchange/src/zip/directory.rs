//! Reads the central directory: the members of an archive and their positions.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::format::{CENTRAL, END, END_64, EXTRA_64, EXTRA_TIME, FORMAT, LOCAL, LOCATOR_64};
use crate::error::{Error, Result};

const END_BYTES: u64 = 22;
const COMMENT_BYTES_MAX: u64 = 65_535;
const CENTRAL_BYTES: usize = 46;
const LOCAL_BYTES: u64 = 30;
/// The largest central directory that is read into memory.
const DIRECTORY_BYTES_MAX: u64 = 1 << 30;

/// One member as the central directory has it.
pub(super) struct ZipMember {
    pub(super) name: Vec<u8>,
    pub(super) host: u8,
    pub(super) flags: u16,
    pub(super) method: u16,
    /// Seconds since 1970.
    pub(super) mtime: i64,
    pub(super) crc: u32,
    pub(super) stored_size: u64,
    pub(super) size: u64,
    pub(super) attributes: u32,
    /// Offset of its own header.
    pub(super) offset: u64,
}

pub(super) fn damaged(place: impl Into<String>, why: impl Into<String>) -> Error {
    Error::Malformed { format: FORMAT, place: place.into(), why: why.into() }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Reads bytes of the archive; those that are not there make it a cut one.
pub(super) fn read(file: &File, offset: u64, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => damaged(format!("byte {offset}"), "the archive is cut"),
        _ => Error::host("read the archive", error),
    })?;
    Ok(bytes)
}

/// Position of the directory, and the shift of all offsets if other data precedes the archive.
struct DirectoryPosition {
    offset: u64,
    size: u64,
    entries: u64,
    shift: u64,
}

/// Reads all members, in the order of the directory. No two of them share bytes.
pub(super) fn members(file: &File) -> Result<Vec<ZipMember>> {
    let place = find(file)?;
    if place.size > DIRECTORY_BYTES_MAX {
        return Err(damaged("the directory", format!("it has more than {DIRECTORY_BYTES_MAX} bytes")));
    }
    let bytes = read(file, place.offset, place.size as usize)?;
    let mut rest = &bytes[..];
    let mut members = Vec::new();
    while !rest.is_empty() && members.len() as u64 != place.entries {
        let (mut member, after) = entry(rest, members.len())?;
        member.offset =
            member.offset.checked_add(place.shift).ok_or_else(|| damaged("the directory", "an offset is too large"))?;
        members.push(member);
        rest = after;
    }
    if members.len() as u64 != place.entries {
        let why = format!("it has {} members, and its end tells of {}", members.len(), place.entries);
        return Err(damaged("the directory", why));
    }
    check_overlap(&members, place.offset)?;
    Ok(members)
}

fn find(file: &File) -> Result<DirectoryPosition> {
    let length = file.metadata().map_err(|source| Error::host("read the archive", source))?.len();
    let tail = length.min(END_BYTES + COMMENT_BYTES_MAX);
    let bytes = read(file, length - tail, tail as usize)?;
    let is_end = |at: &usize| {
        u32_at(&bytes, *at) == END && at + END_BYTES as usize + usize::from(u16_at(&bytes, at + 20)) == bytes.len()
    };
    let at =
        (0..=bytes.len().saturating_sub(END_BYTES as usize)).rev().filter(|at| at + 22 <= bytes.len()).find(is_end);
    let at = at.ok_or_else(|| damaged("its end", "there is no directory; it is cut, or no zip archive"))?;
    let end_at = length - tail + at as u64;
    let end = &bytes[at..];
    if u16_at(end, 4) != u16_at(end, 6) || u16_at(end, 4) != 0 && u16_at(end, 4) != u16::MAX {
        return Err(Error::Unsupported {
            what: "the archive consists of several volumes".to_owned(),
            hint: "join them to one archive first",
        });
    }
    let entries = u64::from(u16_at(end, 10));
    let (mut size, mut offset, mut entries, mut behind) =
        (u64::from(u32_at(end, 12)), u64::from(u32_at(end, 16)), entries, end_at);
    let is_64 = entries == u64::from(u16::MAX) || size == u64::from(u32::MAX) || offset == u64::from(u32::MAX);
    if let Some(locator_at) = end_at.checked_sub(20).filter(|_| is_64) {
        let locator = read(file, locator_at, 20)?;
        if u32_at(&locator, 0) == LOCATOR_64 {
            let at = u64_at(&locator, 8);
            let record = read(file, at, 56)?;
            if u32_at(&record, 0) != END_64 {
                return Err(damaged(format!("byte {at}"), "there is no zip64 record where one is announced"));
            }
            (entries, size, offset, behind) = (u64_at(&record, 32), u64_at(&record, 40), u64_at(&record, 48), at);
        }
    }
    let start = behind.checked_sub(size).ok_or_else(|| damaged("the directory", "it is larger than the archive"))?;
    let shift = start.checked_sub(offset).ok_or_else(|| damaged("the directory", "it lies behind its end"))?;
    Ok(DirectoryPosition { offset: start, size, entries, shift })
}

fn entry(bytes: &[u8], number: usize) -> Result<(ZipMember, &[u8])> {
    let broken = |why: &str| damaged(format!("member {number} of the directory"), why);
    if bytes.len() < CENTRAL_BYTES || u32_at(bytes, 0) != CENTRAL {
        return Err(broken("it does not begin as a member does"));
    }
    let lengths = [u16_at(bytes, 28), u16_at(bytes, 30), u16_at(bytes, 32)].map(usize::from);
    let total = CENTRAL_BYTES + lengths.iter().sum::<usize>();
    let whole = bytes.get(..total).ok_or_else(|| broken("it is cut"))?;
    let name = whole[CENTRAL_BYTES..CENTRAL_BYTES + lengths[0]].to_vec();
    let mut member = ZipMember {
        name,
        host: bytes[5],
        flags: u16_at(bytes, 8),
        method: u16_at(bytes, 10),
        mtime: dos_time(u16_at(bytes, 14), u16_at(bytes, 12)),
        crc: u32_at(bytes, 16),
        stored_size: u64::from(u32_at(bytes, 20)),
        size: u64::from(u32_at(bytes, 24)),
        attributes: u32_at(bytes, 38),
        offset: u64::from(u32_at(bytes, 42)),
    };
    let mut extra = &whole[CENTRAL_BYTES + lengths[0]..CENTRAL_BYTES + lengths[0] + lengths[1]];
    while extra.len() >= 4 {
        let length = usize::from(u16_at(extra, 2));
        let Some(field) = extra.get(4..4 + length) else { break };
        match u16_at(extra, 0) {
            EXTRA_64 => read_64(&mut member, field).ok_or_else(|| broken("its zip64 field is cut"))?,
            EXTRA_TIME if field.len() >= 5 && field[0] & 1 != 0 => {
                member.mtime = i64::from(u32_at(field, 1).cast_signed());
            }
            _ => {}
        }
        extra = &extra[4 + length..];
    }
    Ok((member, &bytes[total..]))
}

/// Reads the numbers that did not fit into 32 bits from the zip64 field, in their order. Returns `None` if the field is too short.
fn read_64(member: &mut ZipMember, field: &[u8]) -> Option<()> {
    let mut at = 0;
    for value in [&mut member.size, &mut member.stored_size, &mut member.offset] {
        if *value == u64::from(u32::MAX) {
            field.get(at..at + 8)?;
            *value = u64_at(field, at);
            at += 8;
        }
    }
    Some(())
}

/// Converts the DOS date and time of a member to seconds since 1970. The field has no time zone; it is taken as UTC.
fn dos_time(date: u16, time: u16) -> i64 {
    let (year, month, day) = (1980 + i64::from(date >> 9), i64::from(date >> 5 & 15), i64::from(date & 31));
    let month = month.clamp(1, 12);
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let days =
        era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + (153 * month + 2) / 5 + day.max(1) - 1 - 719_468;
    let (hour, minute, second) = (i64::from(time >> 11), i64::from(time >> 5 & 63), i64::from(time & 31) * 2);
    ((days * 24 + hour) * 60 + minute) * 60 + second
}

fn check_overlap(members: &[ZipMember], directory: u64) -> Result<()> {
    let end = |member: &ZipMember| {
        let header = LOCAL_BYTES + member.name.len() as u64;
        member.offset.checked_add(header)?.checked_add(member.stored_size)
    };
    let mut ranges: Vec<_> = members.iter().map(|member| (member.offset, end(member))).collect();
    ranges.sort_unstable();
    let mut last = 0;
    for (start, end) in ranges {
        match end {
            Some(end) if start >= last && end <= directory => last = end,
            _ => return Err(damaged(format!("byte {start}"), "two members share bytes, or one exceeds the archive")),
        }
    }
    Ok(())
}

/// Returns the offset of a member's bytes. Its own header must agree with the directory.
pub(super) fn data_offset(file: &File, member: &ZipMember) -> Result<u64> {
    let header = read(file, member.offset, LOCAL_BYTES as usize)?;
    let (name, extra) = (u16_at(&header, 26), u16_at(&header, 28));
    let is_same = u32_at(&header, 0) == LOCAL
        && u16_at(&header, 8) == member.method
        && read(file, member.offset + LOCAL_BYTES, usize::from(name))? == member.name;
    if !is_same {
        return Err(Error::refused(
            &member.name,
            "its own header tells of another file than the directory of the archive",
        ));
    }
    Ok(member.offset + LOCAL_BYTES + u64::from(name) + u64::from(extra))
}
