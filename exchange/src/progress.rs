//! How far an import or an export has come, for a caller that watches it, and the caller's request to stop.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, INTERRUPTED, Result};

/// Counters that the worker advances while the caller reads them.
#[derive(Debug, Default)]
pub struct Progress {
    /// Members, objects or paths handled so far.
    pub items: AtomicU64,
    /// Bytes read from the input or written to the output so far.
    pub bytes: AtomicU64,
    /// Snapshots made or written so far.
    pub snapshots: AtomicU64,
    /// How many snapshots there will be; 0 while that is not known.
    pub snapshots_total: AtomicU64,
    cancelled: AtomicBool,
}

impl Progress {
    /// Asks the work to stop; it does at the next member or block.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Fails once the caller asked to stop.
    pub fn check(&self) -> Result<()> {
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    pub(crate) fn add_item(&self) -> Result<()> {
        self.items.fetch_add(1, Ordering::Relaxed);
        self.check()
    }
}

/// Counts what passes through a reader or a writer, and fails once the caller asked to stop.
pub(crate) struct Counted<'a, T> {
    pub(crate) inner: T,
    pub(crate) progress: &'a Progress,
}

impl<T> Counted<'_, T> {
    fn count(&self, bytes: usize) -> io::Result<()> {
        self.progress.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        match self.progress.cancelled.load(Ordering::Relaxed) {
            true => Err(io::Error::other(INTERRUPTED)),
            false => Ok(()),
        }
    }
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(buffer)?;
        self.count(bytes)?;
        Ok(bytes)
    }
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let bytes = self.inner.write(buffer)?;
        self.count(bytes)?;
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
