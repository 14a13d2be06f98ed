//! Reads a stream on a thread of its own, so that decompressing and hashing overlap with storing.

use std::io::{self, Read};
use std::sync::mpsc::{self, Receiver};

use crate::error::{Error, Result};

const BLOCK_BYTES: u64 = 1 << 20;
/// Limit on blocks that wait for their reader.
const BLOCKS_AHEAD: usize = 8;

/// The reading end.
pub(crate) struct ReadAhead {
    blocks: Receiver<io::Result<Vec<u8>>>,
    block: io::Cursor<Vec<u8>>,
}

impl Read for ReadAhead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let bytes = self.block.read(buffer)?;
            if bytes > 0 || buffer.is_empty() {
                return Ok(bytes);
            }
            match self.blocks.recv() {
                Ok(block) => self.block = io::Cursor::new(block?),
                // The thread has read everything.
                Err(mpsc::RecvError) => return Ok(0),
            }
        }
    }
}

/// Calls `work` with the bytes of an input that another thread reads. That thread has ended when this returns; an input whose reads
/// may wait for long delays an early end.
pub(crate) fn read_ahead<T>(input: impl Read + Send, work: impl FnOnce(ReadAhead) -> Result<T>) -> Result<T> {
    std::thread::scope(|scope| {
        let (sender, blocks) = mpsc::sync_channel(BLOCKS_AHEAD);
        let mut input = input;
        let read = move || loop {
            let mut block = Vec::new();
            let done = (&mut input).take(BLOCK_BYTES).read_to_end(&mut block);
            let is_end = !matches!(done, Ok(bytes) if bytes > 0);
            if matches!(done, Ok(0)) || sender.send(done.map(|_| block)).is_err() || is_end {
                return;
            }
        };
        let reading = std::thread::Builder::new().name("read-ahead".to_owned()).spawn_scoped(scope, read);
        reading.map_err(|source| Error::host("start a thread", source))?;
        work(ReadAhead { blocks, block: io::Cursor::default() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_errors_arrive_in_order() {
        let plain: Vec<u8> = (0..5_000_000_u32).map(|number| (number % 251) as u8).collect();
        let copy = read_ahead(&plain[..], |mut input| {
            let mut copy = Vec::new();
            input.read_to_end(&mut copy).expect("read");
            Ok(copy)
        });
        assert!(copy.expect("no error") == plain);
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("broken"))
            }
        }
        let read = read_ahead((&plain[..]).chain(Broken), |mut input| Ok(input.read_to_end(&mut Vec::new())));
        assert!(read.expect("no error").expect_err("it broke").to_string().contains("broken"));
    }

    #[test]
    fn an_early_end_stops_the_thread() {
        let first = read_ahead(io::repeat(7), |mut input| {
            let mut byte = [0];
            input.read_exact(&mut byte).expect("read");
            Ok(byte[0])
        });
        assert_eq!(first.expect("no error"), 7);
    }
}
