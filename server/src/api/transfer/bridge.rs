//! Between streams of messages and plain readers and writers on a thread that may block.

use std::io::{self, Read, Write};

use amalgam_proto::v1;
use bytes::{Buf, Bytes};
use tokio::sync::mpsc;
use tonic::Streaming;

use super::super::Sender;

/// A stream is sent in pieces of at most this size.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces that wait for a slow store.
const QUEUE: usize = 16;

/// A writer whose bytes go out as answers. It fails once nobody listens.
pub(super) struct Pieces<'a, T> {
    sender: &'a Sender<T>,
    wrap: fn(Bytes) -> T,
}

impl<'a, T> Pieces<'a, T> {
    pub(super) fn new(sender: &'a Sender<T>, wrap: fn(Bytes) -> T) -> Self {
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

/// A reader of pieces as they arrive. It ends where they do, also when whoever sends them goes away: the stream itself says
/// whether it is whole.
pub(super) struct Arriving {
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

/// Hands the pieces of a call on until they end, fail, or nobody reads them.
pub(super) fn arriving(mut stream: Streaming<v1::ReceiveSnapshotsRequest>) -> Arriving {
    use v1::receive_snapshots_request::Event;
    let (send, pieces) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        loop {
            let piece = match stream.message().await {
                Ok(Some(v1::ReceiveSnapshotsRequest { event: Some(Event::Data(data)) })) => Ok(data),
                Ok(Some(_)) => {
                    Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is no piece of a stream"))
                }
                Ok(None) => return,
                Err(status) => Err(io::Error::other(status.message().to_owned())),
            };
            let is_last = piece.is_err();
            if send.send(piece).await.is_err() || is_last {
                return;
            }
        }
    });
    Arriving { pieces, now: Bytes::new() }
}
