//! Options and report of a checkout.

use std::collections::BTreeSet;

use amalgam_engine::{Time, TreePath};

use crate::file_pool::FilePool;
use crate::host::HostDir;
use crate::index::Index;
use crate::known_contents::KnownContents;
use crate::progress::Progress;
use crate::report::Notice;
use crate::rules::Rules;

/// Options of a checkout.
#[derive(Clone, Copy)]
pub struct CheckoutOptions<'a> {
    /// Skip everything at or below a name `.git`, as a restore into a live directory does, unless `paths` names it.
    pub keep_git: bool,
    /// The ignore rules of a live directory. With them, a path that the target's own rules exclude is not removed: the target
    /// lacks it because it was excluded, not because it did not exist.
    pub rules: Option<&'a Rules>,
    /// Do not write a `.git` that is a file and points out of the tree: two directories must not share a repository.
    pub leave_git_file: bool,
    /// Withhold rights: set-user-ID and set-group-ID bits of files, file capabilities, devices. For trees from elsewhere,
    /// where they would grant the rights of this directory's owner.
    pub withholds: bool,
    /// Only these paths and everything below them.
    pub paths: Option<&'a [TreePath]>,
    /// The modification times that files get.
    pub times: Times,
    /// A directory whose index proves the contents of its files. They are cloned where the file system supports it, or copied
    /// while they are in the page cache.
    pub source: Option<(&'a HostDir, &'a Index)>,
    /// Makes the directory read-only: its files lose their write permission and are hard links into this pool.
    pub pool: Option<&'a FilePool>,
    /// Progress counters and cancellation.
    pub progress: &'a Progress,
}

/// The modification times that files get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// Those of the tree.
    Exact,
    /// This time, for every file whose bytes change; a difference in times alone is ignored. An old time on a source file
    /// that is older than its build output would make a build skip it.
    OfBytes(Time),
}

/// The result of a checkout.
#[derive(Debug, Default)]
pub struct CheckoutReport {
    /// Directories in which names changed or whose attributes were set.
    pub touched: BTreeSet<TreePath>,
    /// Contents of the files that were written.
    pub known: KnownContents,
    /// Paths that were skipped, or not handled as asked.
    pub notices: Vec<Notice>,
    /// Number of files and other entries, except directories, that were written.
    pub written: u64,
    /// Number of names that were removed.
    pub removed: u64,
    /// Number of bytes that were written or cloned.
    pub bytes: u64,
    /// Number of files that were cloned.
    pub reflinked: u64,
    /// Number of files that were copied from another directory.
    pub copied: u64,
    /// Number of files that are hard links into the pool.
    pub linked: u64,
}
