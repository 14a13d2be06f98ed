//! Output of a command or a terminal, kept for readers that attach later. Old bytes make room for new ones.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Limit on the bytes of small writes that are joined to one chunk.
const TAIL_BYTES_MAX: usize = 4 << 10;
/// Limit on chunks. Writes to alternating streams are not joined, and each chunk takes memory beside its bytes.
const CHUNKS_MAX: usize = 65_536;

/// The stream that a part of the output was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output, or the screen of a terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A part of the output.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The offset of the part in the whole output.
    pub offset: u64,
    /// The stream that it was written to.
    pub stream: Stream,
    /// The bytes.
    pub data: Bytes,
}

/// The result of a read from an offset on.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// The chunks.
    pub chunks: Vec<Chunk>,
    /// Bytes between the reader's offset and the first chunk: they are not kept any more.
    pub skipped: u64,
    /// The offset to go on from.
    pub next: u64,
}

/// The kept output.
#[derive(Debug)]
pub(crate) struct Output {
    chunks: VecDeque<Chunk>,
    /// The last bytes, from small writes to one stream. They become a chunk when the next write does not fit.
    tail: BytesMut,
    tail_stream: Stream,
    kept: usize,
    kept_max: usize,
    end: u64,
}

impl Output {
    /// Keeps the last `kept_max` bytes.
    pub(crate) fn new(kept_max: usize) -> Self {
        let (tail, tail_stream) = (BytesMut::new(), Stream::Stdout);
        Self { chunks: VecDeque::new(), tail, tail_stream, kept: 0, kept_max, end: 0 }
    }

    /// Returns the number of bytes of output so far, with those that are not kept any more.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the offset below which a push of `bytes` more bytes may drop bytes; 0 if it drops none.
    pub(crate) fn first_kept_after(&self, bytes: usize) -> u64 {
        // A push adds at most two chunks: the tail and its own bytes.
        let (mut kept, mut count, mut first) = (self.kept + bytes, self.chunks.len() + 2, 0);
        for old in &self.chunks {
            if kept <= self.kept_max && count <= CHUNKS_MAX {
                break;
            }
            (kept, count) = (kept - old.data.len(), count - 1);
            first = old.offset + old.data.len() as u64;
        }
        first
    }

    /// Moves the end of the output to this offset: the bytes before it went to an earlier server.
    pub(crate) fn skip_to(&mut self, offset: u64) {
        if offset > self.end {
            self.close_tail();
            self.end = offset;
        }
    }

    pub(crate) fn push(&mut self, stream: Stream, data: Bytes) {
        if data.is_empty() {
            return;
        }
        let length = data.len();
        if self.tail_stream != stream || self.tail.len() + length > TAIL_BYTES_MAX {
            self.close_tail();
        }
        if length > TAIL_BYTES_MAX {
            self.chunks.push_back(Chunk { offset: self.end, stream, data });
        } else {
            self.tail.extend_from_slice(&data);
            self.tail_stream = stream;
        }
        self.end += length as u64;
        self.kept += length;
        // The newest bytes are always kept: in the tail, or else in the last chunk.
        let chunks_min = usize::from(self.tail.is_empty());
        while self.chunks.len() > chunks_min && (self.kept > self.kept_max || self.chunks.len() > CHUNKS_MAX) {
            if let Some(old) = self.chunks.pop_front() {
                self.kept -= old.data.len();
            }
        }
    }

    /// Makes a chunk of the tail, which ends at the end of the output.
    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            let (offset, data) = (self.tail_offset(), self.tail.split().freeze());
            self.chunks.push_back(Chunk { offset, stream: self.tail_stream, data });
        }
    }

    fn tail_offset(&self) -> u64 {
        self.end - self.tail.len() as u64
    }

    /// Reads everything from an offset on, at most about `bytes_max`.
    pub(crate) fn read(&self, from: u64, bytes_max: usize) -> Part {
        let from = from.min(self.end);
        let first = self.chunks.front().map_or(self.tail_offset(), |chunk| chunk.offset);
        let mut part = Part { chunks: Vec::new(), skipped: first.saturating_sub(from), next: from.max(first) };
        let begin = self.chunks.partition_point(|chunk| chunk.offset + chunk.data.len() as u64 <= part.next);
        // A copy: more bytes may be joined to the tail.
        let tail = (!self.tail.is_empty() && part.next < self.end).then(|| Chunk {
            offset: self.tail_offset(),
            stream: self.tail_stream,
            data: Bytes::copy_from_slice(&self.tail),
        });
        let mut bytes = 0;
        for chunk in self.chunks.range(begin..).chain(&tail) {
            // Bytes between two chunks went to an earlier server.
            part.skipped += chunk.offset.saturating_sub(part.next);
            part.next = part.next.max(chunk.offset);
            let within = usize::try_from(part.next - chunk.offset).unwrap_or(usize::MAX);
            let data = chunk.data.slice(within.min(chunk.data.len())..);
            bytes += data.len();
            part.chunks.push(Chunk { offset: part.next, stream: chunk.stream, data: data.clone() });
            part.next += data.len() as u64;
            if bytes >= bytes_max {
                break;
            }
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(part: &Part) -> String {
        part.chunks.iter().map(|chunk| String::from_utf8_lossy(&chunk.data).into_owned()).collect()
    }

    #[test]
    fn a_reader_goes_on_in_the_middle_of_a_chunk_and_is_told_of_lost_bytes() {
        let mut output = Output::new(6);
        output.push(Stream::Stdout, Bytes::from_static(b"abc"));
        output.push(Stream::Stderr, Bytes::from_static(b"def"));
        assert_eq!(text(&output.read(0, 100)), "abcdef");
        let part = output.read(2, 1);
        assert_eq!((text(&part).as_str(), part.next), ("c", 3));
        output.push(Stream::Stdout, Bytes::from_static(b"gh"));
        let part = output.read(1, 100);
        assert_eq!((text(&part).as_str(), part.skipped, part.next), ("defgh", 2, 8));
        assert_eq!(output.read(99, 100).next, 8);
        assert!(output.read(8, 100).chunks.is_empty());
    }
    #[test]
    fn small_writes_are_joined_and_read_from_each_offset() {
        const WRITES: usize = 1_000_000;
        let mut output = Output::new(8 << 20);
        let expected: Vec<u8> = (0..WRITES).map(|at| b'a' + (at % 26) as u8).collect();
        let (mut followed, mut offset) = (Vec::new(), 0);
        for (at, byte) in expected.iter().enumerate() {
            output.push(Stream::Stdout, Bytes::copy_from_slice(&[*byte]));
            // A reader that follows has an offset in the bytes that are joined.
            if at % 1_000 == 0 {
                let part = output.read(offset, usize::MAX);
                part.chunks.iter().for_each(|chunk| followed.extend_from_slice(&chunk.data));
                assert_eq!((part.skipped, part.next), (0, output.end()));
                assert!(output.read(part.next, usize::MAX).chunks.is_empty());
                offset = part.next;
            }
        }
        let whole = output.read(0, usize::MAX);
        assert!(whole.chunks.len() <= 300, "{} chunks", whole.chunks.len());
        assert_eq!(text(&whole).as_bytes(), expected);
        assert_eq!(followed, expected[..followed.len()]);
        // Bytes of an earlier server are missing between two writes.
        output.skip_to(output.end() + 10);
        output.push(Stream::Stdout, Bytes::from_static(b"!"));
        let part = output.read(WRITES as u64 - 1, usize::MAX);
        assert_eq!((part.chunks.len(), part.skipped, part.next), (2, 10, WRITES as u64 + 11));
    }

    #[test]
    fn readers_lose_no_bytes_behind_the_first_that_stays() {
        let mut output = Output::new(2 * TAIL_BYTES_MAX);
        for _ in 0..5 * TAIL_BYTES_MAX {
            let first = output.first_kept_after(1).max(output.read(0, 1).skipped);
            output.push(Stream::Stdout, Bytes::from_static(b"x"));
            assert_eq!(output.read(first, 1).skipped, 0);
        }
        assert!(output.read(0, 1).skipped > 0);
    }

    #[test]
    fn old_chunks_make_room_when_there_are_too_many() {
        let mut output = Output::new(8 << 20);
        for at in 0..2 * CHUNKS_MAX {
            let stream = if at % 2 == 0 { Stream::Stdout } else { Stream::Stderr };
            let first = output.first_kept_after(1).max(output.read(0, 1).skipped);
            output.push(stream, Bytes::from_static(b"x"));
            assert_eq!(output.read(first, 1).skipped, 0);
        }
        let part = output.read(0, usize::MAX);
        // The last write is in the tail.
        assert_eq!((part.chunks.len(), part.skipped), (CHUNKS_MAX + 1, CHUNKS_MAX as u64 - 1));
    }
}
