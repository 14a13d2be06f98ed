//! Imports and received streams: they need room before they begin and while they write, and they hold back a collection.

use std::io::{self, Read};
use std::time::Duration;

use amalgam_engine::Time;
use parking_lot::{Condvar, Mutex};

use crate::disk_quota::DiskQuota;
use crate::error::{Error, Result};

/// The interval at which free space is measured while an import or a receive runs.
const MEASURE_INTERVAL: Duration = Duration::from_millis(250);
/// The bytes of a stream that are read between two measurements of the free space.
const MEASURE_BYTES: usize = 4 << 20;

/// Signals the end of the work when it is dropped, also after a panic.
struct Ended<'a> {
    is_ended: &'a Mutex<bool>,
    signal: &'a Condvar,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        *self.is_ended.lock() = true;
        self.signal.notify_all();
    }
}

/// A stream whose reads fail when the disk is nearly full or the budget of the store is used up.
pub(crate) struct SpaceChecked<'a, R> {
    stream: R,
    quota: &'a DiskQuota,
    /// The bytes that were read since the last measurement.
    unmeasured_bytes: usize,
    full: &'a Mutex<Option<Error>>,
}

impl<R: Read> Read for SpaceChecked<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.unmeasured_bytes >= MEASURE_BYTES {
            self.unmeasured_bytes = 0;
            if let Err(failure) = self.quota.check_space() {
                let words = failure.to_string();
                *self.full.lock() = Some(failure);
                return Err(io::Error::other(words));
            }
        }
        let read = self.stream.read(into)?;
        self.unmeasured_bytes += read;
        Ok(read)
    }
}

/// An import or a receive that is under way, until this is dropped.
struct Incoming<'a> {
    quota: &'a DiskQuota,
    number: u64,
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        self.quota.inner.incoming.lock().remove(&self.number);
    }
}

impl DiskQuota {
    /// Runs an import or a receive. Refuses it if there is no disk space, and calls `stop` when the space runs out while the work
    /// writes: objects without a reference then get none.
    pub(crate) fn checking_space<T>(&self, stop: &(dyn Fn() + Sync), work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check_space()?;
        let _incoming = self.begin_incoming();
        let (is_ended, signal, full) = (Mutex::new(false), Condvar::new(), Mutex::new(None));
        let done = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut is_over = is_ended.lock();
                while !*is_over {
                    signal.wait_for(&mut is_over, MEASURE_INTERVAL);
                    if let (false, Err(failure)) = (*is_over, self.check_space()) {
                        *full.lock() = Some(failure);
                        stop();
                        return;
                    }
                }
            });
            let _ended = Ended { is_ended: &is_ended, signal: &signal };
            work()
        });
        match (done, full.into_inner()) {
            (Err(_), Some(failure)) => Err(failure),
            (done, _) => done,
        }
    }

    /// Runs work that reads a stream like [`checking_space`](Self::checking_space), and also measures the free space as the bytes arrive.
    pub(crate) fn read_checking_space<R, T>(
        &self,
        stream: R,
        stop: &(dyn Fn() + Sync),
        work: impl FnOnce(SpaceChecked<'_, R>) -> Result<T>,
    ) -> Result<T> {
        let full = Mutex::new(None);
        let stream = SpaceChecked { stream, quota: self, unmeasured_bytes: 0, full: &full };
        let done = self.checking_space(stop, || work(stream));
        match full.into_inner() {
            Some(failure) => Err(failure),
            None => done,
        }
    }

    /// Returns when the oldest running import or receive began, or `None` if none runs.
    pub(crate) fn oldest_incoming(&self) -> Option<Time> {
        self.inner.incoming.lock().values().min().copied()
    }

    fn begin_incoming(&self) -> Incoming<'_> {
        let mut incoming = self.inner.incoming.lock();
        let number = incoming.keys().next_back().map_or(0, |last| last + 1);
        incoming.insert(number, self.context.now());
        Incoming { quota: self, number }
    }
}
