//! Collects the results of a checkout from its threads.

use std::sync::atomic::{AtomicBool, Ordering};

use amalgam_engine::{Entry, TreePath};
use parking_lot::Mutex;

use crate::checkout_options::CheckoutReport;
use crate::error::Error;
use crate::report::Notice;
use crate::stamp::Stamp;

/// Where the bytes of a file came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Store,
    /// Cloned (reflinked) from another directory.
    Cloned,
    /// Copied from another directory.
    Copied,
    /// A hard link into the pool.
    Linked,
}

/// The report so far, the first failure, and whether the threads have to stop.
#[derive(Default)]
pub(super) struct Recorder {
    report: Mutex<CheckoutReport>,
    failure: Mutex<Option<Error>>,
    is_stopped: AtomicBool,
}

impl Recorder {
    /// Keeps the first error and stops all threads.
    pub(super) fn fail(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    pub(super) fn take_failure(&self) -> Option<Error> {
        self.failure.lock().take()
    }

    pub(super) fn notice(&self, notice: Notice) {
        self.report.lock().notices.push(notice);
    }

    /// Records that names in a directory, or its attributes, changed.
    pub(super) fn touch(&self, directory: &TreePath) {
        self.report.lock().touched.insert(directory.clone());
    }

    pub(super) fn removed(&self) {
        self.report.lock().removed += 1;
    }

    /// Records a hard link to a file that was there already.
    pub(super) fn linked(&self) {
        self.report.lock().written += 1;
    }

    pub(super) fn written(&self, stamp: Stamp, entry: Entry, bytes: u64, origin: Origin) {
        let mut report = self.report.lock();
        report.written += 1;
        report.bytes += bytes;
        report.reflinked += u64::from(origin == Origin::Cloned);
        report.copied += u64::from(origin == Origin::Copied);
        report.linked += u64::from(origin == Origin::Linked);
        report.known.insert(stamp, entry);
    }

    /// Records the contents of a file, so that the next capture need not read it.
    pub(super) fn known(&self, stamp: Stamp, entry: Entry) {
        self.report.lock().known.insert(stamp, entry);
    }

    /// Returns how many names were written and removed so far.
    pub(super) fn counts(&self) -> (u64, u64) {
        let report = self.report.lock();
        (report.written, report.removed)
    }

    /// Returns whether names in a directory, or its attributes, changed so far.
    pub(super) fn has_touched(&self) -> bool {
        !self.report.lock().touched.is_empty()
    }

    pub(super) fn into_report(self) -> CheckoutReport {
        let mut report = self.report.into_inner();
        report.notices.sort_by(|a, b| a.path.cmp(&b.path));
        report.notices.dedup();
        report
    }
}
