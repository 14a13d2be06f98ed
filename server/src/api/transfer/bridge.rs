//! Connects streams of messages with plain readers and writers on a blocking thread.

use std::io::{self, Read, Write};
use std::time::Duration;

use amalgam_proto::v1;
use bytes::{Buf, Bytes};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;

use super::super::Sender;

/// The most bytes in one piece of a stream.
const PIECE_BYTES: usize = 256 << 10;
/// The most pieces that wait for a slow store.
const QUEUE: usize = 16;
/// How long a sender may take for [`STALL_BYTES_MIN`] bytes before its stream is refused.
pub(in crate::api) const STALL_MAX: Duration = Duration::from_secs(300);
const STALL_BYTES_MIN: usize = 4 << 20;

/// A writer that sends its bytes as answers. It fails once the client disconnected.
pub(in crate::api) struct Pieces<'a, T> {
    sender: &'a Sender<T>,
    wrap: fn(Bytes) -> T,
}

impl<'a, T> Pieces<'a, T> {
    pub(in crate::api) fn new(sender: &'a Sender<T>, wrap: fn(Bytes) -> T) -> Self {
        Self { sender, wrap }
    }
}

impl<T> Write for Pieces<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE_BYTES)];
        let sent = self.sender.send((self.wrap)(Bytes::copy_from_slice(piece)));
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A reader of pieces as they arrive. It ends when they end, also because the sender disconnected: the stream itself shows whether
/// it is complete.
pub(in crate::api) struct Arriving {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    now: Bytes,
}

impl Read for Arriving {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.now.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.now = piece?,
                None => return Ok(0),
            }
        }
        let length = into.len().min(self.now.len());
        self.now.copy_to_slice(&mut into[..length]);
        Ok(length)
    }
}

/// Forwards the pieces of a call until they end, fail, lose their reader, or arrive too slowly: while a stream is received, nothing
/// that was written since it began is freed.
pub(in crate::api) fn arriving<S>(mut stream: S, stall_max: Duration) -> Arriving
where
    S: Stream<Item = Result<v1::ReceiveSnapshotsRequest, Status>> + Unpin + Send + 'static,
{
    use v1::receive_snapshots_request::Event;
    let (send, pieces) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        let (mut deadline, mut arrived) = (Instant::now() + stall_max, 0);
        loop {
            let piece = match timeout_at(deadline, stream.next()).await {
                Ok(Some(Ok(v1::ReceiveSnapshotsRequest { event: Some(Event::Data(data)) }))) => Ok(data),
                Ok(Some(Ok(_))) => {
                    Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is no piece of a stream"))
                }
                Ok(None) => return,
                Ok(Some(Err(status))) => Err(io::Error::other(status.message().to_owned())),
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, stalled(stall_max))),
            };
            arrived += piece.as_ref().map_or(0, Bytes::len);
            let (is_last, handed_on) = (piece.is_err(), Instant::now());
            if send.send(piece).await.is_err() || is_last {
                return;
            }
            if arrived >= STALL_BYTES_MIN {
                (deadline, arrived) = (Instant::now() + stall_max, 0);
            } else {
                // Time that a slow store takes does not count as a stall of the sender.
                deadline += handed_on.elapsed();
            }
        }
    });
    Arriving { pieces, now: Bytes::new() }
}

fn stalled(stall_max: Duration) -> String {
    format!(
        "the stream stalled: less than {STALL_BYTES_MIN} bytes came in {} seconds; send it again, what has arrived is kept",
        stall_max.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_stalls_fails_and_one_that_trickles_does_too() {
        tokio::runtime::Runtime::new().expect("a runtime").block_on(stall_and_trickle());
    }

    async fn stall_and_trickle() {
        let piece = |bytes: usize| {
            let data = Bytes::from(vec![7; bytes]);
            Ok(v1::ReceiveSnapshotsRequest { event: Some(v1::receive_snapshots_request::Event::Data(data)) })
        };
        let stall_max = Duration::from_millis(200);
        let silent = tokio_stream::once(piece(1)).chain(tokio_stream::pending());
        // One byte at a time, for longer than a stall may last.
        let ticks = tokio_stream::wrappers::IntervalStream::new(tokio::time::interval(stall_max / 10));
        let trickling = ticks.map(move |_| piece(1)).take(100);
        let read = |mut arriving: Arriving| {
            tokio::task::spawn_blocking(move || {
                let mut bytes = Vec::new();
                arriving.read_to_end(&mut bytes).map_err(|error| error.kind()).map(|_| bytes.len())
            })
        };
        assert_eq!(read(arriving(silent, stall_max)).await.expect("read"), Err(io::ErrorKind::TimedOut));
        assert_eq!(read(arriving(trickling, stall_max)).await.expect("read"), Err(io::ErrorKind::TimedOut));
        let ticks = tokio_stream::wrappers::IntervalStream::new(tokio::time::interval(stall_max / 10));
        let steady = ticks.map(move |_| piece(STALL_BYTES_MIN)).take(30);
        assert_eq!(read(arriving(steady, stall_max)).await.expect("read"), Ok(30 * STALL_BYTES_MIN));
    }
}
