//! Options and counts of a capture.

use std::collections::BTreeSet;

use amalgam_engine::{Time, TreePath};

use crate::known_contents::KnownContents;
use crate::progress::Progress;
use crate::rules::Rules;

/// The directories that a capture scans.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// All.
    All,
    /// The names in these directories, and new directories in them with everything below. If one of them is gone, its nearest
    /// existing ancestor is scanned instead. Everything else is taken from the index.
    Directories(&'a BTreeSet<TreePath>),
}

/// Options of a capture.
#[derive(Clone, Copy, Debug)]
pub struct CaptureOptions<'a> {
    /// The ignore rules.
    pub rules: &'a Rules,
    /// The directories to scan.
    pub scope: Scope<'a>,
    /// Contents that need not be read.
    pub known: &'a KnownContents,
    /// The current time, by the clock from which files get their times.
    pub now: Time,
    /// Progress counters and cancellation.
    pub progress: &'a Progress,
}

/// Contents of a tree (the root is not counted), and the cost of capturing it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Files in the whole tree.
    pub files: u64,
    /// Directories in the whole tree.
    pub directories: u64,
    /// Symlinks in the whole tree.
    pub symlinks: u64,
    /// FIFOs, sockets and devices in the whole tree.
    pub others: u64,
    /// Bytes of all files in the whole tree.
    pub bytes: u64,
    /// Files that were read.
    pub files_read: u64,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Names in scanned directories that an ignore rule excluded; a directory counts once.
    pub ignored: u64,
    /// Bytes that the store took in, in stored form.
    pub bytes_stored: u64,
}
