//! What can go wrong, in words for the person and in kinds for the caller.

use std::path::PathBuf;

use crate::id::{ObjectId, ObjectKind, SnapshotId};
use crate::malformed::Malformed;
use crate::name::{InvalidName, TreePath};
use crate::reference::{RefName, RefValue};
use crate::time::Time;
use crate::tombstone::Tombstone;

/// The engine's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name moved since it was read: read again and decide anew.
    Stale,
    /// What was asked for is not there.
    NotFound,
    /// What was to be made is there already.
    Exists,
    /// The request itself is wrong; the same request will fail again.
    Invalid,
    /// Stored bytes are damaged or gone.
    Corrupt,
    /// No room left. Reads go on; make room and try again.
    Full,
    /// Somebody else holds the store.
    Busy,
    /// The machine below failed (an I/O error).
    Fault,
    /// The caller went away.
    Interrupted,
    /// A newer version of this software is needed.
    Unsupported,
}

/// Every error of the engine. Cheap to clone, because one failed write may have many waiters.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An object that something refers to is not in the store.
    #[error("{id} is missing from the store; a verification shows what that affects")]
    Missing {
        /// The object.
        id: ObjectId,
    },
    /// An object was purged.
    #[error("{id} was purged {tombstone}")]
    Purged {
        /// The object.
        id: ObjectId,
        /// When, by whom and why.
        tombstone: Box<Tombstone>,
    },
    /// Bytes that were purged are to be stored again.
    #[error("{id} was purged {tombstone}; leave it out, or remove its tombstone first")]
    Unwanted {
        /// The object.
        id: ObjectId,
        /// When, by whom and why.
        tombstone: Box<Tombstone>,
    },
    /// Stored bytes do not have the hash they are filed under.
    #[error("{id} is damaged: its bytes do not have its hash")]
    HashMismatch {
        /// The object.
        id: ObjectId,
    },
    /// An object breaks a rule of the format.
    #[error("{id} breaks the format: {source}")]
    Malformed {
        /// The object.
        id: ObjectId,
        /// The rule.
        source: Malformed,
    },
    /// Bytes offered from outside are not a valid object.
    #[error("not a valid {kind}: {source}")]
    Refused {
        /// What they claimed to be.
        kind: ObjectKind,
        /// The rule they break.
        source: Malformed,
    },
    /// A record of the store (not an object) cannot be read.
    #[error("the store's {what} is damaged: {why}")]
    DamagedRecord {
        /// Which record.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// A reference is not what the caller expected.
    #[error("{} moved since it was read{}", first_name(.moved), and_others(.moved))]
    Stale {
        /// Each reference that differs, with its present value.
        moved: Vec<(RefName, Option<RefValue>)>,
    },
    /// A workspace's head is not where the caller's work began.
    #[error("workspace {workspace} has moved on to {}; {}", head_text(.current), "look at what it has now, then restore or merge and commit again")]
    StaleHead {
        /// The workspace.
        workspace: String,
        /// Where the work began.
        expected: Option<SnapshotId>,
        /// Where it stands now.
        current: Option<SnapshotId>,
    },
    /// An operation cannot be taken back or done again, because something that it touched moved since.
    #[error("cannot {word} operation {operation}: {}", moved_text(.moved))]
    MovedSince {
        /// `undo` or `redo`.
        word: &'static str,
        /// The operation.
        operation: u64,
        /// What moved, and the operation that moved it last; 0 when it is not there any more.
        moved: Vec<(RefName, u64)>,
    },
    /// An operation that the log has no longer.
    #[error("operation {operation} is no longer in the log, which reaches back to operation {first} of {}", .since.date())]
    Trimmed {
        /// The operation.
        operation: u64,
        /// The oldest one that the log has.
        first: u64,
        /// When that one was.
        since: Time,
    },
    /// Something that was named is not there.
    #[error("there is no {what}; {hint}")]
    Absent {
        /// What was asked for.
        what: String,
        /// What could be meant, or done.
        hint: String,
    },
    /// There is nothing to undo or to redo.
    #[error("nothing to {word} in {name}{hint}")]
    NothingToRevert {
        /// `undo` or `redo`.
        word: &'static str,
        /// In what.
        name: String,
        /// Why there may have been something, after a separator; or nothing.
        hint: String,
    },
    /// A request id that its caller used before, for the same method with other arguments.
    #[error(
        "this request id was used before, with other arguments (operation {operation}); use a new id for a new request"
    )]
    RequestReused {
        /// What the first request came to.
        operation: u64,
    },
    /// A name that stands for several things.
    #[error("`{text}` is ambiguous: it could be {}; write more of it", .candidates.join(", "))]
    Ambiguous {
        /// What was written.
        text: String,
        /// What it could be.
        candidates: Vec<String>,
    },
    /// A name that is taken.
    #[error("{what} exists already; choose another name")]
    Taken {
        /// What has the name.
        what: String,
    },
    /// A name inside a tree is not allowed.
    #[error("not a path in a tree: {source}")]
    Name {
        /// Why.
        #[from]
        source: InvalidName,
    },
    /// No such path.
    #[error("{path}: no such file or directory")]
    NotFound {
        /// The path.
        path: TreePath,
    },
    /// The path exists.
    #[error("{path}: exists already")]
    Exists {
        /// The path.
        path: TreePath,
    },
    /// A directory was needed.
    #[error("{path}: not a directory")]
    NotADirectory {
        /// The path.
        path: TreePath,
    },
    /// A file was needed.
    #[error("{path}: is a directory")]
    IsADirectory {
        /// The path.
        path: TreePath,
    },
    /// Another kind of entry was needed.
    #[error("{path}: expected {wanted}, found {found}")]
    WrongKind {
        /// The path.
        path: TreePath,
        /// What the operation works on.
        wanted: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// A directory that is not empty cannot be replaced or removed by this call.
    #[error("{path}: the directory is not empty")]
    NotEmpty {
        /// The path.
        path: TreePath,
    },
    /// A directory cannot be moved into itself.
    #[error("{path}: a directory cannot move into itself")]
    IntoItself {
        /// The path.
        path: TreePath,
    },
    /// A limit of the format or of a call.
    #[error("{what} of {value} exceeds the limit of {max}")]
    TooLarge {
        /// Whose limit.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// The limit.
        max: u64,
    },
    /// An argument that makes no sense.
    #[error("{what}: {why}")]
    Invalid {
        /// The argument.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The store was written by a newer version.
    #[error("{}: store format {found}, this version knows up to {known}; use a newer version", .path.display())]
    NewerFormat {
        /// Where the store is.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest known here.
        known: u32,
    },
    /// A directory with something else in it.
    #[error("{}: not an Amalgam store ({why}); name an empty or a new directory", .path.display())]
    ForeignDirectory {
        /// The directory.
        path: PathBuf,
        /// How it was told.
        why: String,
    },
    /// Nothing there to open.
    #[error("{}: no store here", .path.display())]
    NoStore {
        /// The directory.
        path: PathBuf,
    },
    /// Another process, or another handle in this one, has the store open.
    #[error("{}: another process has the store open; end that process, or use its API", .path.display())]
    Busy {
        /// The store.
        path: PathBuf,
    },
    /// The disk is full.
    #[error(
        "no space left on the disk while trying to {action}: {why}; free some space and try again (reading still works)"
    )]
    Full {
        /// What was being done.
        action: &'static str,
        /// The system's words.
        why: String,
    },
    /// A walk over a tree, or over a difference, came to more paths than are walked over.
    #[error(
        "there are more than {most} paths to go through, because directories of the tree lie at very many paths; \
         name a part of it"
    )]
    TooWide {
        /// The limit.
        most: u64,
    },
    /// Whoever asked for it went away.
    #[error("interrupted")]
    Interrupted,
    /// The machine below failed.
    #[error("could not {action}: {why}")]
    Fault {
        /// What was being done.
        action: &'static str,
        /// The system's words.
        why: String,
    },
}

impl Error {
    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. } | Self::HashMismatch { .. } | Self::DamagedRecord { .. } => ErrorKind::Corrupt,
            Self::Malformed { source: Malformed::Version { .. }, .. } => ErrorKind::Unsupported,
            Self::Malformed { .. } => ErrorKind::Corrupt,
            Self::Stale { .. } | Self::StaleHead { .. } | Self::MovedSince { .. } => ErrorKind::Stale,
            Self::Purged { .. }
            | Self::NotFound { .. }
            | Self::NoStore { .. }
            | Self::Trimmed { .. }
            | Self::NothingToRevert { .. }
            | Self::Absent { .. } => ErrorKind::NotFound,
            Self::Exists { .. } | Self::NotEmpty { .. } | Self::Taken { .. } => ErrorKind::Exists,
            Self::Unwanted { .. }
            | Self::Refused { .. }
            | Self::Name { .. }
            | Self::NotADirectory { .. }
            | Self::IsADirectory { .. }
            | Self::WrongKind { .. }
            | Self::IntoItself { .. }
            | Self::TooLarge { .. }
            | Self::TooWide { .. }
            | Self::Invalid { .. }
            | Self::Ambiguous { .. }
            | Self::RequestReused { .. }
            | Self::ForeignDirectory { .. } => ErrorKind::Invalid,
            Self::NewerFormat { .. } => ErrorKind::Unsupported,
            Self::Busy { .. } => ErrorKind::Busy,
            Self::Full { .. } => ErrorKind::Full,
            Self::Interrupted => ErrorKind::Interrupted,
            Self::Fault { .. } => ErrorKind::Fault,
        }
    }

    /// An I/O error with what was being done; a full disk is told apart.
    pub fn from_io(action: &'static str, source: &std::io::Error) -> Self {
        let why = source.to_string();
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::Full { action, why },
            _ => Self::Fault { action, why },
        }
    }
}

fn first_name(moved: &[(RefName, Option<RefValue>)]) -> String {
    moved.first().map_or_else(|| "a reference".to_owned(), |(name, _)| name.to_string())
}

fn head_text(head: &Option<SnapshotId>) -> String {
    head.map_or_else(|| "nothing".to_owned(), |head| head.short())
}

fn moved_text(moved: &[(RefName, u64)]) -> String {
    const SHOWN: usize = 3;
    let one = |(name, by): &(RefName, u64)| match by {
        0 => format!("{name} is gone since"),
        by => format!("{name} was moved since by operation {by}"),
    };
    let mut text = moved.iter().take(SHOWN).map(one).collect::<Vec<_>>().join(", ");
    if moved.len() > SHOWN {
        text.push_str(&format!(" and {} more", moved.len() - SHOWN));
    }
    text
}

fn and_others(moved: &[(RefName, Option<RefValue>)]) -> String {
    match moved.len() {
        0 | 1 => String::new(),
        n => format!(" (and {} more)", n - 1),
    }
}
