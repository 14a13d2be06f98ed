//! Output of a command or a terminal, kept for readers that attach later. Old bytes make room for new ones.

use std::collections::VecDeque;

use bytes::Bytes;

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
    kept: usize,
    kept_max: usize,
    end: u64,
}

impl Output {
    /// Keeps the last `kept_max` bytes.
    pub(crate) fn new(kept_max: usize) -> Self {
        Self { chunks: VecDeque::new(), kept: 0, kept_max, end: 0 }
    }

    /// Returns the number of bytes of output so far, with those that are not kept any more.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Moves the end of the output to this offset: the bytes before it went to an earlier server.
    pub(crate) fn skip_to(&mut self, offset: u64) {
        self.end = self.end.max(offset);
    }

    pub(crate) fn push(&mut self, stream: Stream, data: Bytes) {
        if data.is_empty() {
            return;
        }
        let length = data.len();
        self.chunks.push_back(Chunk { offset: self.end, stream, data });
        self.end += length as u64;
        self.kept += length;
        while self.kept > self.kept_max && self.chunks.len() > 1 {
            if let Some(old) = self.chunks.pop_front() {
                self.kept -= old.data.len();
            }
        }
    }

    /// Reads everything from an offset on, at most about `bytes_max`.
    pub(crate) fn read(&self, from: u64, bytes_max: usize) -> Part {
        let from = from.min(self.end);
        let first = self.chunks.front().map_or(self.end, |chunk| chunk.offset);
        let mut part = Part { chunks: Vec::new(), skipped: first.saturating_sub(from), next: from.max(first) };
        let begin = self.chunks.partition_point(|chunk| chunk.offset + chunk.data.len() as u64 <= part.next);
        let mut bytes = 0;
        for chunk in self.chunks.iter().skip(begin) {
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
}
