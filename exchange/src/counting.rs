//! Counts the bytes of a stream as progress, and stops it after a cancellation.

use std::io::{self, Read, Write};
use std::sync::atomic::Ordering;

use amalgam_engine::Progress;

use crate::error::CANCELLED_MESSAGE;

/// Counts the bytes that pass through a reader or a writer, and fails after a cancellation.
pub(crate) struct CountingStream<'a, T> {
    pub(crate) inner: T,
    pub(crate) progress: &'a Progress,
}

impl<T> CountingStream<'_, T> {
    fn count(&self, bytes: usize) -> io::Result<()> {
        self.progress.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        match self.progress.is_cancelled() {
            true => Err(io::Error::other(CANCELLED_MESSAGE)),
            false => Ok(()),
        }
    }
}

impl<R: Read> Read for CountingStream<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(buffer)?;
        self.count(bytes)?;
        Ok(bytes)
    }
}

impl<W: Write> Write for CountingStream<'_, W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let bytes = self.inner.write(buffer)?;
        self.count(bytes)?;
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
