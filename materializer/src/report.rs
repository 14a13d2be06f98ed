//! What concerns single paths: reported, while the rest goes on.

use std::fmt;

use amalgam_engine::TreePath;

/// A path that was not dealt with as asked, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Where.
    pub path: TreePath,
    /// Why.
    pub why: Why,
}

/// Why a path was left as it is, or out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// A rule of the user's keeps it out. Not a failure.
    Ignored,
    /// Rules leave it out, before or after, so it stays on the disk as it is. Not a failure.
    Uncovered,
    /// It belongs to Amalgam itself. Not a failure.
    Ours,
    /// Its bytes were purged: when, by whom and why. They are neither written nor stored again.
    Purged(String),
    /// Its bytes are damaged in the store or missing there: the store's words. They are not written.
    Damaged(String),
    /// Another file system is mounted there. Its directory is kept, its contents are not.
    OtherFileSystem,
    /// Not allowed, or the machine failed: the system's words.
    Failed {
        /// What was being done.
        action: &'static str,
        /// The system's words.
        error: String,
    },
    /// It changed while it was read, again and again; what was read last is kept.
    Changing,
    /// It changed since the plan was made, and was left alone.
    ChangedSince,
    /// It was replaced twice while it was being replaced. The newest version has the name, an earlier one this other name.
    KeptBeside(String),
    /// The tree cannot hold such a thing: what is wrong with it.
    Unsupported(String),
    /// A directory that should go still holds things that are not part of the tree.
    NotEmpty,
    /// Its owner could not be set without privilege; everything else was.
    OwnerNotSet,
    /// A set-user-ID or set-group-ID bit, a capability or a device of a tree that came from elsewhere. Not a failure.
    Withheld,
    /// A `.git` that is a file names a repository elsewhere, which a second directory must not share. Not a failure.
    GitFile,
}

impl Why {
    /// Whether the work is only partly done because of it.
    pub fn is_failure(&self) -> bool {
        let notes = [Self::Ignored, Self::Uncovered, Self::Ours, Self::OwnerNotSet, Self::Withheld, Self::GitFile];
        !notes.contains(self)
    }
}

/// Actions that need not be named: nothing else is done to a path that is only read.
const READING: [&str; 4] = ["open", "list", "look into", "open the directory of"];

/// The system's words as a part of a sentence: `permission denied`.
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
            Self::GitFile => write!(f, "left out: it names a repository elsewhere (a worktree or submodule)"),
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
