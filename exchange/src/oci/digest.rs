//! SHA-256 digests of the bytes of a reader or a writer.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

/// A digest, as `sha256:` and hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digest([u8; 32]);

impl Digest {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix("sha256:").filter(|hex| hex.len() == 64 && hex.is_ascii())?;
        let mut digest = [0; 32];
        for (at, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self(digest))
    }

    /// Returns the path in an image layout of the blob with this digest.
    pub(super) fn path(&self) -> String {
        format!("blobs/sha256/{}", self.hex())
    }

    pub(super) fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

/// Digest and length of the bytes so far.
#[derive(Clone, Default)]
pub(super) struct StreamDigest(Arc<Mutex<(Sha256, u64)>>);

impl StreamDigest {
    fn add(&self, bytes: &[u8]) {
        let mut state = self.0.lock();
        state.0.update(bytes);
        state.1 += bytes.len() as u64;
    }

    pub(super) fn result(&self) -> (Digest, u64) {
        let state = self.0.lock();
        (Digest(state.0.clone().finalize().into()), state.1)
    }
}

/// A reader or a writer whose bytes are hashed.
pub(super) struct HashingStream<T> {
    pub(super) inner: T,
    pub(super) meter: StreamDigest,
}

impl<R: Read> Read for HashingStream<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(buffer)?;
        self.meter.add(&buffer[..bytes]);
        Ok(bytes)
    }
}

impl<W: Write> Write for HashingStream<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let bytes = self.inner.write(buffer)?;
        self.meter.add(&buffer[..bytes]);
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
