//! Notices: paths that were skipped or not handled as asked, while the rest continues.

use std::fmt;

use amalgam_engine::TreePath;

/// A path that was not handled as asked, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The path.
    pub path: TreePath,
    /// The reason.
    pub why: Why,
}

/// Why a path was skipped, or handled only in part.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// An ignore rule excludes it. Not a failure.
    Ignored,
    /// Ignore rules of the old or the new tree exclude it, so it stays on disk as it is. Not a failure.
    Uncovered,
    /// It belongs to Amalgam's own store. Not a failure.
    Ours,
    /// Its bytes were purged (text of the tombstone). They are neither written nor stored again.
    Purged(String),
    /// Its bytes are damaged in the store or missing there (text of the error). They are not written.
    Damaged(String),
    /// Another file system is mounted there. The directory is kept without its contents.
    OtherFileSystem,
    /// The host refused or failed.
    Failed {
        /// The action that failed.
        action: &'static str,
        /// Text of the system's error.
        error: String,
    },
    /// It kept changing while it was read; the bytes of the last attempt are kept.
    Changing,
    /// It changed since the index was made, and was skipped.
    ChangedSince,
    /// It was replaced twice during its replacement. The newest version has its name, an earlier one has this name.
    KeptBeside(String),
    /// A tree cannot hold it, with the reason.
    Unsupported(String),
    /// A directory to be removed holds files that are not part of the tree.
    NotEmpty,
    /// Its owner could not be set without privileges; everything else was.
    OwnerNotSet,
    /// A set-user-ID or set-group-ID bit, a capability or a device of a foreign tree was withheld. Not a failure.
    Withheld,
    /// A `.git` file that names a repository outside of the tree, which two directories must not share. Not a failure.
    GitFile,
}

impl Why {
    /// Returns whether the work is incomplete because of it.
    pub fn is_failure(&self) -> bool {
        let notes = [Self::Ignored, Self::Uncovered, Self::Ours, Self::OwnerNotSet, Self::Withheld, Self::GitFile];
        !notes.contains(self)
    }
}

/// Actions that messages need not name: nothing else is done to a path that is only read.
const READING: [&str; 4] = ["open", "list", "look into", "open the directory of"];

/// Turns a system error into a part of a sentence, for example `permission denied`.
fn plain(error: &str) -> String {
    let words = error.split(" (os error").next().unwrap_or(error);
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ignored => write!(f, "excluded by an ignore rule"),
            Self::Uncovered => write!(f, "left as it is on the disk: ignore rules exclude it"),
            Self::Ours => write!(f, "belongs to Amalgam's own store"),
            Self::OtherFileSystem => write!(f, "another file system is mounted here; its contents are left out"),
            Self::Failed { action, error } if READING.contains(action) => f.write_str(&plain(error)),
            Self::Failed { action, error } => write!(f, "could not {action}: {}", plain(error)),
            Self::Purged(words) => write!(f, "purged {words}"),
            Self::Damaged(words) => write!(f, "not written: {words}; `amalgam verify` finds what else is damaged"),
            Self::KeptBeside(name) => {
                write!(f, "changed again while it was put back; an earlier version is kept beside it as {name}")
            }
            Self::Changing => write!(f, "kept changing while it was read; the bytes of the last try are kept"),
            Self::ChangedSince => write!(f, "another program changed it meanwhile; left as it is"),
            Self::Unsupported(why) => write!(f, "cannot be captured: {why}"),
            Self::NotEmpty => write!(f, "not removed: it holds files that no snapshot has"),
            Self::OwnerNotSet => write!(f, "its owner could not be set: that needs root"),
            Self::Withheld => {
                write!(
                    f,
                    "withheld: set-user-ID and set-group-ID bits, capabilities and devices of received trees are not written"
                )
            }
            Self::GitFile => write!(
                f,
                "it names a Git repository outside of this tree (a worktree or submodule), which two directories must not share"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_in_the_words_of_the_system() {
        let failed = |action| Why::Failed { action, error: "Permission denied (os error 13)".to_owned() }.to_string();
        assert_eq!(failed("open"), "permission denied");
        assert_eq!(failed("write"), "could not write: permission denied");
    }
}
