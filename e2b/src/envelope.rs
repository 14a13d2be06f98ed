//! The messages of a Connect stream: a byte of flags, the length, the bytes.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use tonic::body::Body;

use crate::gzip;
use crate::refusal::Refusal;

const COMPRESSED: u8 = 1;
/// Flag of the last message of a stream.
pub(crate) const END: u8 = 2;
const HEAD_BYTES: usize = 5;
/// Size limit of a message.
pub(crate) const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// Builds a message of a stream: the flags, the length and the bytes.
pub(crate) fn framed(flags: u8, message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + message.len());
    bytes.put_u8(flags);
    bytes.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    bytes.extend_from_slice(message);
    bytes.freeze()
}

/// Reads the messages of a body.
pub(crate) struct Envelopes {
    body: Body,
    buffer: BytesMut,
    is_gzip: bool,
}

impl Envelopes {
    /// Creates a reader of the messages of a body. `is_gzip` says whether messages may be compressed.
    pub(crate) fn new(body: Body, is_gzip: bool) -> Self {
        Self { body, buffer: BytesMut::new(), is_gzip }
    }

    /// Reads the next message; `None` after the last one. Allocates for the bytes that have arrived, not for the length that the
    /// message claims.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        if !self.fill(HEAD_BYTES).await? {
            return match self.buffer.is_empty() {
                true => Ok(None),
                false => Err(cut()),
            };
        }
        let (flags, mut head) = (self.buffer[0], &self.buffer[1..HEAD_BYTES]);
        let length = usize::try_from(head.get_u32()).unwrap_or(usize::MAX);
        if length > MESSAGE_BYTES_MAX {
            return Err(gzip::too_long(MESSAGE_BYTES_MAX));
        }
        if flags & !(COMPRESSED | END) != 0 {
            return Err(Refusal::invalid(format!("flags {flags:#04x} of a message are not known")));
        }
        if !self.fill(HEAD_BYTES + length).await? {
            return Err(cut());
        }
        self.buffer.advance(HEAD_BYTES);
        let data = self.buffer.split_to(length).freeze();
        if flags & END != 0 {
            return Ok(None);
        }
        match (flags & COMPRESSED != 0, self.is_gzip) {
            (false, _) => Ok(Some(data)),
            (true, true) => gzip::decompress(&data, MESSAGE_BYTES_MAX).map(Some),
            (true, false) => Err(Refusal::invalid("a message is compressed, but no encoding is named")),
        }
    }

    /// Reads until the buffer has this many bytes. Returns `false` if the body ends before.
    async fn fill(&mut self, bytes: usize) -> Result<bool, Refusal> {
        while self.buffer.len() < bytes {
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
                Some(Err(error)) => return Err(Refusal::invalid(format!("the request ended early: {error}"))),
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

fn cut() -> Refusal {
    Refusal::invalid("the request ends in the middle of a message")
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    fn envelopes(bytes: &[u8]) -> Envelopes {
        Envelopes::new(Body::new(Full::new(Bytes::copy_from_slice(bytes))), false)
    }

    async fn all(bytes: &[u8]) -> Result<Vec<Bytes>, Refusal> {
        let (mut envelopes, mut found) = (envelopes(bytes), Vec::new());
        while let Some(message) = envelopes.next().await? {
            found.push(message);
        }
        Ok(found)
    }

    #[tokio::test]
    async fn messages_are_read_one_by_one_until_the_end() {
        let bytes = [framed(0, b"one"), framed(0, b""), framed(END, b"{}"), framed(0, b"after")].concat();
        assert_eq!(all(&bytes).await.expect("read"), [Bytes::from("one"), Bytes::new()]);
        assert!(all(b"").await.expect("nothing").is_empty());
    }

    #[tokio::test]
    async fn lengths_that_lie_are_refused() {
        let huge = [0, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(all(&huge).await.expect_err("too long").code, tonic::Code::ResourceExhausted);
        for bad in [&[0, 0, 0, 0, 9, b'x'][..], &[0, 0, 0], &[0x80, 0, 0, 0, 0], &[1, 0, 0, 0, 1, b'x']] {
            assert_eq!(all(bad).await.expect_err("wrong").code, tonic::Code::InvalidArgument, "{bad:?}");
        }
    }

    #[tokio::test]
    async fn a_message_that_comes_byte_by_byte_is_put_together() {
        let whole = framed(0, b"hello");
        let frames = whole
            .into_iter()
            .map(|byte| Ok::<_, std::convert::Infallible>(http_body::Frame::data(Bytes::from(vec![byte]))));
        let body = http_body_util::StreamBody::new(tokio_stream::iter(frames));
        let mut envelopes = Envelopes::new(Body::new(body), false);
        assert_eq!(envelopes.next().await.expect("read").as_deref(), Some(b"hello".as_slice()));
        assert!(envelopes.next().await.expect("the end").is_none());
    }
}
