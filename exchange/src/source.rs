//! A member of an archive as a byte source of the engine: read once, front to back, with a short buffer of past bytes.

use std::io::{self, Read};

use amalgam_engine::content::ByteSource;
use parking_lot::Mutex;

/// Bytes before the newest one that can be read again. The engine looks back by its window, at most 1 MiB.
const KEPT_BYTES: usize = 2 << 20;
/// Size limit of one read.
const READ_BYTES: u64 = 1 << 20;

/// One range of a sparse file that holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataRange {
    pub(crate) start: u64,
    pub(crate) length: u64,
}

/// The bytes of a member that is being read.
pub(crate) struct MemberSource<'a, R> {
    size: u64,
    /// The ranges with data, ascending and apart; one range of everything for a plain file.
    ranges: Vec<DataRange>,
    /// Offset of each range in the stream.
    stream_starts: Vec<u64>,
    stream: Mutex<Stream<'a, R>>,
}

struct Stream<'a, R> {
    input: &'a mut R,
    /// The newest bytes that were read.
    kept: Vec<u8>,
    /// The place in the stream behind them.
    position: u64,
    failed: Option<io::Error>,
}

impl<'a, R: Read> MemberSource<'a, R> {
    /// Creates the source of a plain file of this size, whose bytes come next in the input.
    pub(crate) fn plain(input: &'a mut R, size: u64) -> Self {
        let ranges = if size == 0 { Vec::new() } else { vec![DataRange { start: 0, length: size }] };
        Self::sparse(input, size, ranges)
    }

    /// Creates the source of a sparse file. The bytes of its ranges come next in the input, one range after another. The ranges are
    /// ascending, apart and within the size.
    pub(crate) fn sparse(input: &'a mut R, size: u64, ranges: Vec<DataRange>) -> Self {
        let mut at = 0;
        let start = |range: &DataRange| {
            let start = at;
            at += range.length;
            start
        };
        let stream_starts = ranges.iter().map(start).collect();
        let stream = Stream { input, kept: Vec::new(), position: 0, failed: None };
        Self { size, ranges, stream_starts, stream: Mutex::new(stream) }
    }

    /// Returns the number of bytes read, and the error that ended the stream, if any.
    pub(crate) fn finish(self) -> (u64, Option<io::Error>) {
        let stream = self.stream.into_inner();
        (stream.position, stream.failed)
    }

    /// Returns the index of the last range that begins at or before an offset; `None` if all begin behind it.
    fn range_at(&self, offset: u64) -> Option<usize> {
        self.ranges.partition_point(|range| range.start <= offset).checked_sub(1)
    }
}

impl<R: Read + Send> ByteSource for MemberSource<'_, R> {
    fn length(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> amalgam_engine::Result<()> {
        let mut stream = self.stream.lock();
        let (mut offset, mut rest) = (offset, buffer);
        while !rest.is_empty() {
            let zeros = self.known_zeros(offset)?.min(rest.len() as u64) as usize;
            let (now, later) = match zeros {
                0 => {
                    let at = self.range_at(offset).expect("what is not a hole lies in a range");
                    let range = self.ranges[at];
                    let inside = offset - range.start;
                    let length = (range.length - inside).min(rest.len() as u64) as usize;
                    let (now, later) = rest.split_at_mut(length);
                    stream.read_at(self.stream_starts[at] + inside, now)?;
                    (length, later)
                }
                zeros => {
                    let (now, later) = rest.split_at_mut(zeros);
                    now.fill(0);
                    (zeros, later)
                }
            };
            offset += now as u64;
            rest = later;
        }
        Ok(())
    }

    fn known_zeros(&self, offset: u64) -> amalgam_engine::Result<u64> {
        let at = self.range_at(offset);
        if at.is_some_and(|at| offset - self.ranges[at].start < self.ranges[at].length) {
            return Ok(0);
        }
        let next = at.map_or(0, |at| at + 1);
        let end = self.ranges.get(next).map_or(self.size, |range| range.start);
        Ok(end - offset)
    }
}

impl<R: Read> Stream<'_, R> {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> amalgam_engine::Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            if at < self.position {
                let there = (self.position - at).min((buffer.len() - done) as u64) as usize;
                self.copy(at, &mut buffer[done..done + there]);
                done += there;
            } else {
                let wanted = offset + buffer.len() as u64 - self.position;
                self.read_on(wanted.min(READ_BYTES) as usize)?;
            }
        }
        Ok(())
    }

    fn copy(&self, offset: u64, buffer: &mut [u8]) {
        let first = self.position - self.kept.len() as u64;
        let from = usize::try_from(offset.checked_sub(first).expect("it is still kept")).expect("in memory");
        buffer.copy_from_slice(&self.kept[from..from + buffer.len()]);
    }

    fn read_on(&mut self, bytes: usize) -> amalgam_engine::Result<()> {
        if self.kept.len() + bytes > 2 * KEPT_BYTES {
            let drop = self.kept.len() - KEPT_BYTES;
            self.kept.drain(..drop);
        }
        let have = self.kept.len();
        self.kept.resize(have + bytes, 0);
        let read = self.input.read_exact(&mut self.kept[have..]);
        if let Err(error) = read {
            self.kept.truncate(have);
            let failed = amalgam_engine::Error::from_io("read a member of the archive", &error);
            self.failed.get_or_insert(error);
            return Err(failed);
        }
        self.position += bytes as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_member_reads_as_zeros_and_ranges() {
        let mut input: &[u8] = b"abcdef";
        let ranges = vec![DataRange { start: 3, length: 2 }, DataRange { start: 7, length: 4 }];
        let source = MemberSource::sparse(&mut input, 20, ranges);
        let mut bytes = [9; 20];
        source.read_at(0, &mut bytes).expect("read");
        assert_eq!(&bytes, b"\0\0\0ab\0\0cdef\0\0\0\0\0\0\0\0\0");
        assert_eq!(source.known_zeros(0).expect("zeros"), 3);
        assert_eq!(source.known_zeros(3).expect("zeros"), 0);
        assert_eq!(source.known_zeros(11).expect("zeros"), 9);
        source.read_at(7, &mut bytes[..4]).expect("read again");
        assert_eq!(&bytes[..4], b"cdef");
    }

    #[test]
    fn a_long_read_and_a_short_look_back_agree() {
        let plain: Vec<u8> = (0..9_000_000_u32).map(|n| (n % 251) as u8).collect();
        let mut input = &plain[..];
        let source = MemberSource::plain(&mut input, plain.len() as u64);
        let mut bytes = vec![0; 5_000_000];
        source.read_at(0, &mut bytes).expect("read");
        assert!(bytes == plain[..5_000_000]);
        source.read_at(4_500_000, &mut bytes[..1_000_000]).expect("look back");
        assert!(bytes[..1_000_000] == plain[4_500_000..5_500_000]);
    }
}
