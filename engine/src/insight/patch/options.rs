//! The options of a patch, and its report.

use crate::insight::similar::{RenameOptions, RenameSearch};
use crate::name::TreePath;
use crate::object::EntryKind;
use crate::time::Time;

/// Options and limits of a patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchOptions {
    /// Number of unchanged context lines around a difference. With 0, `git apply` needs `--unidiff-zero`.
    pub context_lines: usize,
    /// Only include entries at or below one of these paths; all if empty. A file that was renamed out of them appears as deleted,
    /// one that was renamed into them as added.
    pub paths: Vec<TreePath>,
    /// How to search for renames; `None` writes them as deletions and additions.
    pub renames: Option<RenameOptions>,
    /// List entries that differ in their time in the report.
    pub times: bool,
    /// Omit every entry called `.git`, with everything below it, without listing it in the report.
    pub without_git: bool,
    /// Larger files are written as binary files.
    pub text_bytes_max: u64,
    /// Larger files are omitted.
    pub file_bytes_max: u64,
}

impl Default for PatchOptions {
    fn default() -> Self {
        Self {
            context_lines: 3,
            paths: Vec::new(),
            renames: Some(RenameOptions::default()),
            times: false,
            without_git: false,
            text_bytes_max: 16 << 20,
            file_bytes_max: 256 << 20,
        }
    }
}

/// The result of writing a patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatchReport {
    /// Number of files in the patch. A file whose kind changed counts twice.
    pub files: u64,
    /// Length of the patch in bytes. Git rejects patches of one gibibyte or more.
    pub bytes: u64,
    /// Whether the search for renames was complete.
    pub renames: RenameSearch,
    /// Differences that are not in the patch, and attributes that are lost where Git creates a file anew.
    pub left_out: Vec<LeftOut>,
}

/// A difference that is not in the patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The path.
    pub path: TreePath,
    /// The reason.
    pub why: Omission,
}

/// The reason why a difference is not in a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Omission {
    /// Git does not store empty directories: an added or removed one is not in the patch, and Git removes a directory that a
    /// deletion leaves empty.
    EmptyDirectory,
    /// Git does not support this kind of entry: FIFOs, sockets, devices, conflicts.
    Kind(EntryKind),
    /// Permission bits other than the executable one.
    Mode,
    /// The modification time.
    Time,
    /// The owner.
    Owner,
    /// Extended attributes.
    Xattrs,
    /// The fact that several names share one file.
    HardLink,
    /// The file is above the limit.
    TooLarge {
        /// Its size on the larger side, in bytes.
        bytes: u64,
    },
    /// Git rejects a patch that changes a `.git` directory.
    GitDirectory,
    /// The bytes of one side were purged.
    Purged {
        /// The time of the purge.
        time: Time,
    },
}
