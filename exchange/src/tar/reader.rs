//! Reads an archive member by member. Everything that the input says is checked before it is believed.

use std::io::{self, Read};
use std::sync::Arc;

use amalgam_engine::object::Device;

use super::acl;
use super::format::BLOCK_BYTES;
use super::header::{Dialect, Header};
use super::pax::{MemberRecords, Records, damaged};
use super::sparse::{self, SparseMap};
use crate::error::{Error, Result};
use crate::source::DataRange;

/// The longest name of the GNU form.
const LONG_NAME_BYTES_MAX: u64 = 1 << 20;
/// The longest PAX header: attributes of 1 MiB, which some programs write in two forms, and a map of ranges.
const PAX_BYTES_MAX: u64 = 32 << 20;
/// The most memory for the PAX records of one member, which may have several headers.
const RECORDS_MEMORY_BYTES_MAX: usize = 64 << 20;
/// The most memory for the global PAX records of an archive, which apply to each member behind them. Usual ones hold the id of a commit.
const GLOBAL_RECORDS_MEMORY_BYTES_MAX: usize = 1 << 20;
/// Headers of names and records in a row that belong to one member.
const PREFIXES_MAX: usize = 16;

/// One member, in front of its bytes.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: MemberKind,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// Nanoseconds since 1970.
    pub(crate) mtime: i128,
    pub(crate) xattrs: Xattrs,
    /// Whether it had an ACL that cannot be kept.
    pub(crate) has_named_acl: bool,
}

/// Extended attributes: names and values.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Kind of a member.
#[derive(Debug)]
pub(crate) enum MemberKind {
    File {
        size: u64,
        /// The ranges with data, for a sparse file.
        ranges: Option<Vec<DataRange>>,
    },
    Directory,
    Symlink(Vec<u8>),
    HardLink(Vec<u8>),
    CharDevice(Device),
    BlockDevice(Device),
    Fifo,
    /// A volume label, or an unknown type.
    Other(u8),
}

/// Reads members from an uncompressed stream.
pub(crate) struct TarReader<R> {
    input: R,
    /// Bytes read so far.
    position: u64,
    /// Bytes of the present member that are still to come, and the padding behind them.
    left: u64,
    padding: u64,
    global: Arc<Records>,
    is_ended: bool,
    /// Accepts an archive without the blocks of zeros at its end.
    pub(crate) is_end_optional: bool,
}

#[derive(Default)]
struct Prefixes {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    records: Option<Records>,
}

impl<R: Read> TarReader<R> {
    pub(crate) fn new(input: R) -> Self {
        Self {
            input,
            position: 0,
            left: 0,
            padding: 0,
            global: Arc::default(),
            is_ended: false,
            is_end_optional: false,
        }
    }

    /// Returns the offset in the archive up to which the input was read.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the input, to read the present member's bytes from, and how many of those are left.
    pub(crate) fn body(&mut self) -> (&mut R, u64) {
        (&mut self.input, self.left)
    }

    /// Records how many bytes of the body were read.
    pub(crate) fn consumed(&mut self, bytes: u64) {
        assert!(bytes <= self.left, "no more than the body was read");
        self.left -= bytes;
        self.position += bytes;
    }

    /// Reads the whole body into memory.
    pub(crate) fn read_body(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let left = self.left;
        let read = (&mut self.input).take(left).read_to_end(&mut bytes).map_err(|error| self.failed(error))?;
        self.consumed(read as u64);
        if (read as u64) < left { Err(self.cut()) } else { Ok(bytes) }
    }

    /// Converts an error of the input: an early end and damaged compression become errors of the format.
    pub(crate) fn failed(&self, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.cut(),
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                damaged(self.position, format!("the compressed data: {error}"))
            }
            _ => Error::reading(error),
        }
    }

    fn cut(&self) -> Error {
        damaged(self.position, "the archive ends in the middle of a member; it was cut")
    }

    /// Goes to the next member. Returns `None` at the end.
    pub(crate) fn next_member(&mut self) -> Result<Option<Member>> {
        let mut prefixes = Prefixes::default();
        for _ in 0..=PREFIXES_MAX {
            self.skip()?;
            let offset = self.position;
            let Some(header) = self.header()? else {
                self.drain()?;
                return Ok(None);
            };
            let size = u64::try_from(header.field(124..136).unwrap_or(-1));
            let size = size.map_err(|_| damaged(offset, "the size of a member is no number"))?;
            match header.kind() {
                b'L' => prefixes.name = Some(self.long_name(size)?),
                b'K' => prefixes.link = Some(self.long_name(size)?),
                b'x' | b'X' => {
                    let mut records = prefixes.records.take().unwrap_or_default();
                    records.read(&self.prefix(size, PAX_BYTES_MAX)?, RECORDS_MEMORY_BYTES_MAX, offset)?;
                    prefixes.records = Some(records);
                }
                b'g' => {
                    let bytes = self.prefix(size, PAX_BYTES_MAX)?;
                    Arc::make_mut(&mut self.global).read(&bytes, GLOBAL_RECORDS_MEMORY_BYTES_MAX, offset)?;
                }
                _ => return self.member(&header, size, prefixes, offset).map(Some),
            }
        }
        Err(damaged(self.position, "too many headers of names and records belong to one member"))
    }

    /// Reads the next header. Returns `None` at the end of the archive.
    fn header(&mut self) -> Result<Option<Header>> {
        if self.is_ended {
            return Ok(None);
        }
        let mut block = [0; BLOCK_BYTES];
        if !self.block(&mut block)? {
            self.is_ended = true;
            if self.is_end_optional {
                return Ok(None);
            }
            let why = "the archive ends without its end marker; it was cut, or it is no tar archive";
            return Err(damaged(self.position, why));
        }
        if block.iter().all(|byte| *byte == 0) {
            self.is_ended = true;
            return Ok(None);
        }
        let header = Header(block);
        if !header.is_checksum_right() {
            let why = match self.position {
                0..=512 => "this is no tar archive, or one that is compressed in a way that is not known here",
                _ => "the checksum of a header is wrong",
            };
            return Err(damaged(self.position - BLOCK_BYTES as u64, why));
        }
        Ok(Some(header))
    }

    /// Fills a block. Returns `false` at the end of the input.
    fn block(&mut self, block: &mut [u8; BLOCK_BYTES]) -> Result<bool> {
        let mut done = 0;
        while done < BLOCK_BYTES {
            match self.input.read(&mut block[done..]) {
                Ok(0) if done == 0 => return Ok(false),
                Ok(0) => return Err(self.cut()),
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.position += BLOCK_BYTES as u64;
        Ok(true)
    }

    /// Reads the bytes behind the end, so that checksums of the compression are compared.
    fn drain(&mut self) -> Result<()> {
        let drained = io::copy(&mut self.input, &mut io::sink());
        drained.map(drop).map_err(|error| self.failed(error))
    }

    /// Skips the rest of a member.
    fn skip(&mut self) -> Result<()> {
        // A header can claim almost `u64::MAX` bytes. No input is that long, so the rest then ends early, which is an error.
        let bytes = self.left.saturating_add(self.padding);
        let mut rest = (&mut self.input).take(bytes);
        let skipped = io::copy(&mut rest, &mut io::sink()).map_err(|error| self.failed(error))?;
        self.position += skipped;
        if skipped < bytes {
            return Err(self.cut());
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }

    fn begin_body(&mut self, size: u64) {
        self.left = size;
        self.padding = size.wrapping_neg() % BLOCK_BYTES as u64;
    }

    /// Reads the body of a header that describes the next member, if it is not longer than `max`.
    fn prefix(&mut self, size: u64, max: u64) -> Result<Vec<u8>> {
        if size > max {
            return Err(damaged(self.position, format!("a header of {size} bytes; the longest is {max}")));
        }
        self.begin_body(size);
        self.read_body()
    }

    fn long_name(&mut self, size: u64) -> Result<Vec<u8>> {
        let mut name = self.prefix(size, LONG_NAME_BYTES_MAX)?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        name.truncate(end);
        Ok(name)
    }

    fn member(&mut self, header: &Header, size: u64, prefixes: Prefixes, offset: u64) -> Result<Member> {
        let records = MemberRecords { global: Arc::clone(&self.global), own: prefixes.records };
        let size = records.number("size", offset)?.unwrap_or(size);
        let mut name = match records.get("GNU.sparse.name").or_else(|| records.get("path")) {
            Some(path) => path.to_vec(),
            None => prefixes.name.unwrap_or_else(|| header.name()),
        };
        let link = match records.get("linkpath") {
            Some(path) => path.to_vec(),
            None => prefixes.link.unwrap_or_else(|| header.link_name()),
        };
        let kind = self.kind(header, &records, size, &name, link, offset)?;
        if name.ends_with(b"/") && matches!(kind, MemberKind::Directory) {
            name.truncate(name.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1));
        }
        let id = |key: &str, range| -> Result<u64> {
            let of_header = header.field(range).and_then(|id| u64::try_from(id).ok()).unwrap_or(0);
            Ok(records.number(key, offset)?.unwrap_or(of_header))
        };
        let seconds = header.field(136..148).unwrap_or(0);
        let mtime = records.time("mtime", offset)?.unwrap_or(seconds.saturating_mul(1_000_000_000));
        let (xattrs, has_named_acl) = xattrs(&records);
        Ok(Member {
            name,
            kind,
            mode: (header.field(100..108).unwrap_or(0) & 0o7777) as u32,
            uid: id("uid", 108..116)?,
            gid: id("gid", 116..124)?,
            mtime,
            xattrs,
            has_named_acl,
        })
    }

    /// Reads the kind of a member; the input is then at its bytes.
    fn kind(
        &mut self,
        header: &Header,
        records: &MemberRecords,
        size: u64,
        name: &[u8],
        link: Vec<u8>,
        offset: u64,
    ) -> Result<MemberKind> {
        let device = || {
            let number = |range| header.field(range).and_then(|number| u32::try_from(number).ok());
            match (number(329..337), number(337..345)) {
                (Some(major), Some(minor)) => Ok(Device { major, minor }),
                _ => Err(damaged(offset, "a device has no number")),
            }
        };
        // Links and directories have no body, even with a size: some programs write the size of the linked file there.
        let with_body = |reader: &mut Self, bytes, kind| {
            reader.begin_body(bytes);
            Ok(kind)
        };
        match header.kind() {
            b'S' => {
                let map = sparse::of_header(header, offset, || self.map_block())?;
                self.begin_body(size);
                self.sparse_file(map, offset)
            }
            b'0' | 0 | b'7' if header.dialect() != Dialect::Gnu && name.ends_with(b"/") && size == 0 => {
                with_body(self, 0, MemberKind::Directory)
            }
            b'0' | 0 | b'7' => self.file(records, size, offset),
            b'1' => with_body(self, 0, MemberKind::HardLink(link)),
            b'2' => with_body(self, 0, MemberKind::Symlink(link)),
            b'3' => with_body(self, 0, MemberKind::CharDevice(device()?)),
            b'4' => with_body(self, 0, MemberKind::BlockDevice(device()?)),
            b'5' => with_body(self, 0, MemberKind::Directory),
            b'D' => with_body(self, size, MemberKind::Directory),
            b'6' => with_body(self, 0, MemberKind::Fifo),
            b'M' => Err(Error::Unsupported {
                what: "the archive continues a file of another volume".to_owned(),
                hint: "join the volumes to one archive first",
            }),
            other => with_body(self, size, MemberKind::Other(other)),
        }
    }

    fn file(&mut self, records: &MemberRecords, size: u64, offset: u64) -> Result<MemberKind> {
        self.begin_body(size);
        if sparse::is_in_data(records) {
            let map = sparse::of_data(records, &mut self.input, size, offset)?;
            self.consumed(map.consumed);
            return self.sparse_file(map, offset);
        }
        match sparse::of_records(records, offset)? {
            Some(map) => self.sparse_file(map, offset),
            None => Ok(MemberKind::File { size, ranges: None }),
        }
    }

    fn sparse_file(&self, map: SparseMap, offset: u64) -> Result<MemberKind> {
        let data = map.ranges.iter().map(|range| u128::from(range.length)).sum::<u128>();
        if data != u128::from(self.left) {
            return Err(damaged(offset, "a sparse file does not have the bytes that its map tells of"));
        }
        Ok(MemberKind::File { size: map.size, ranges: Some(map.ranges) })
    }

    fn map_block(&mut self) -> Result<[u8; BLOCK_BYTES]> {
        let mut block = [0; BLOCK_BYTES];
        if self.block(&mut block)? { Ok(block) } else { Err(self.cut()) }
    }
}

/// Returns the extended attributes of a member, and whether it has an ACL that names users without numbers.
fn xattrs(records: &MemberRecords) -> (Xattrs, bool) {
    let mut xattrs = Vec::new();
    let mut has_named_acl = false;
    for (text, name) in
        [("SCHILY.acl.access", "system.posix_acl_access"), ("SCHILY.acl.default", "system.posix_acl_default")]
    {
        match records.get(text).map(acl::from_text) {
            Some(Some(bytes)) => xattrs.push((name.as_bytes().to_vec(), bytes)),
            // Some programs write both forms.
            Some(None) => has_named_acl |= records.get(&format!("SCHILY.xattr.{name}")).is_none(),
            None => {}
        }
    }
    for (name, value) in records.with_prefix("LIBARCHIVE.xattr.") {
        if let (Some(name), Some(value)) = (percent_decoded(name), base64_decoded(value)) {
            xattrs.push((name, value));
        }
    }
    // The plain form counts where both are there.
    let plain = records.with_prefix("SCHILY.xattr.").into_iter();
    xattrs.extend(plain.map(|(name, value)| (name.to_vec(), value.to_vec())));
    (xattrs, has_named_acl)
}

fn percent_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(byte) = rest.next() {
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
        bytes.push((digit(rest.next())? * 16 + digit(rest.next())?) as u8);
    }
    Some(bytes)
}

fn base64_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text.iter().filter(|byte| **byte != b'=') {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_attributes_are_decoded() {
        assert_eq!(base64_decoded(b"aGVsbG8="), Some(b"hello".to_vec()));
        assert_eq!(base64_decoded(b"aGVsbG8"), Some(b"hello".to_vec()));
        assert_eq!(base64_decoded(b"a?"), None);
        assert_eq!(percent_decoded(b"user.a%2fb"), Some(b"user.a/b".to_vec()));
        assert_eq!(percent_decoded(b"user.a%2"), None);
    }
}
