//! The errors of the engine, with a message for the user and a kind for the caller.

use std::path::PathBuf;

use crate::id::{ObjectId, ObjectKind, SnapshotId};
use crate::malformed::Malformed;
use crate::name::{InvalidName, TreePath};
use crate::reference::{RefName, RefValue};
use crate::time::Time;
use crate::tombstone::Tombstone;

/// The result type of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, which tells the caller how to react.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A reference moved since it was read. Read it again and decide again.
    Stale,
    /// The requested item does not exist.
    NotFound,
    /// The item to create already exists.
    Exists,
    /// The request is invalid. The same request will fail again.
    Invalid,
    /// Stored bytes are damaged or missing.
    Corrupt,
    /// No space is left. Reads still work; free some space and try again.
    Full,
    /// Another process holds the store, or a shared store cannot be reached now. Try again later.
    Busy,
    /// The operating system failed (an I/O error).
    Fault,
    /// The caller cancelled the request.
    Interrupted,
    /// A newer version of this software is required.
    Unsupported,
}

impl ErrorKind {
    /// Returns the kind of an I/O error of the host.
    pub fn of_io(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::Full,
            std::io::ErrorKind::NotFound => Self::NotFound,
            _ => Self::Fault,
        }
    }
}

/// All errors of the engine. Cheap to clone, because one failed write may have many waiters.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A referenced object is not in the store.
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
        /// The time, the actor and the reason of the purge.
        tombstone: Box<Tombstone>,
    },
    /// Bytes that were purged were about to be stored again.
    #[error("{id} was purged {tombstone}; leave it out, or remove its tombstone first")]
    Unwanted {
        /// The object.
        id: ObjectId,
        /// The time, the actor and the reason of the purge.
        tombstone: Box<Tombstone>,
    },
    /// Stored bytes do not match the hash that they are stored under.
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
    /// Bytes from outside are not a valid object.
    #[error("not a valid {kind}: {source}")]
    Refused {
        /// The claimed kind.
        kind: ObjectKind,
        /// The broken rule.
        source: Malformed,
    },
    /// A record of the store (not an object) cannot be read.
    #[error("the store's {what} is damaged: {why}")]
    DamagedRecord {
        /// The record.
        what: String,
        /// The reason.
        why: String,
    },
    /// A reference does not have the expected value.
    #[error("{} moved since it was read{}", first_name(.moved), and_others(.moved))]
    Stale {
        /// Each reference that differs, with its current value.
        moved: Vec<(RefName, Option<RefValue>)>,
    },
    /// The head of a workspace is not the snapshot that the caller's work started from.
    #[error("workspace {workspace} has moved on to {}; {}", head_text(.current), "look at what it has now, then restore or merge and commit again")]
    StaleHead {
        /// The workspace.
        workspace: String,
        /// The head that the work started from.
        expected: Option<SnapshotId>,
        /// The current head.
        current: Option<SnapshotId>,
    },
    /// An operation cannot be undone or redone, because a reference that it changed has moved since.
    #[error("cannot {word} operation {operation}: {}", moved_text(.moved))]
    MovedSince {
        /// `undo` or `redo`.
        word: &'static str,
        /// The operation.
        operation: u64,
        /// The references that moved, each with the operation that moved it last; 0 if the reference does not exist any more.
        moved: Vec<(RefName, u64)>,
    },
    /// An operation that is no longer in the log.
    #[error("operation {operation} is no longer in the log, which reaches back to operation {first} of {}", .since.date())]
    Trimmed {
        /// The operation.
        operation: u64,
        /// The oldest operation in the log.
        first: u64,
        /// The time of the oldest operation.
        since: Time,
    },
    /// A named item does not exist.
    #[error("there is no {what}; {hint}")]
    Absent {
        /// The item.
        what: String,
        /// A suggestion.
        hint: String,
    },
    /// There is nothing to undo or redo.
    #[error("nothing to {word} in {name}{hint}")]
    NothingToRevert {
        /// `undo` or `redo`.
        word: &'static str,
        /// The name of the workspace or reference.
        name: String,
        /// An explanation, including its separator; may be empty.
        hint: String,
    },
    /// A request id that the caller used before, for the same method with other arguments.
    #[error(
        "this request id was used before, with other arguments (operation {operation}); use a new id for a new request"
    )]
    RequestReused {
        /// The operation of the first request.
        operation: u64,
    },
    /// A name that matches several items.
    #[error("`{text}` is ambiguous: it could be {}; write more of it", .candidates.join(", "))]
    Ambiguous {
        /// The name as written.
        text: String,
        /// The matching items.
        candidates: Vec<String>,
    },
    /// A name that is already in use.
    #[error("{what} exists already; choose another name")]
    Taken {
        /// The item that has the name.
        what: String,
    },
    /// An invalid name inside a tree.
    #[error("not a path in a tree: {source}")]
    Name {
        /// The reason.
        #[from]
        source: InvalidName,
    },
    /// The path does not exist.
    #[error("{path}: no such file or directory")]
    NotFound {
        /// The path.
        path: TreePath,
    },
    /// The path already exists.
    #[error("{path}: exists already")]
    Exists {
        /// The path.
        path: TreePath,
    },
    /// A directory was required.
    #[error("{path}: not a directory")]
    NotADirectory {
        /// The path.
        path: TreePath,
    },
    /// A file was required.
    #[error("{path}: is a directory")]
    IsADirectory {
        /// The path.
        path: TreePath,
    },
    /// Another kind of entry was required.
    #[error("{path}: expected {wanted}, found {found}")]
    WrongKind {
        /// The path.
        path: TreePath,
        /// The required kind.
        wanted: &'static str,
        /// The actual kind.
        found: &'static str,
    },
    /// The directory is not empty, so that this call cannot replace or remove it.
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
    /// A limit of the format or of a call was exceeded.
    #[error("{what} of {value} exceeds the limit of {max}")]
    TooLarge {
        /// The limited quantity.
        what: &'static str,
        /// The requested value.
        value: u64,
        /// The limit.
        max: u64,
    },
    /// An invalid argument.
    #[error("{what}: {why}")]
    Invalid {
        /// The argument.
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// The store was written by a newer version.
    #[error("{}: store format {found}, this version knows up to {known}; use a newer version", .path.display())]
    NewerFormat {
        /// The path of the store.
        path: PathBuf,
        /// Its format version.
        found: u32,
        /// The newest supported version.
        known: u32,
    },
    /// The directory contains something other than a store.
    #[error("{}: not an Amalgam store ({why}); name an empty or a new directory", .path.display())]
    ForeignDirectory {
        /// The directory.
        path: PathBuf,
        /// The reason for this conclusion.
        why: String,
    },
    /// There is no store at this path.
    #[error("{}: no store here", .path.display())]
    NoStore {
        /// The directory.
        path: PathBuf,
    },
    /// Another process, or another handle in this process, has the store open.
    #[error("{}: another process has the store open; end that process, or use its API", .path.display())]
    Busy {
        /// The store.
        path: PathBuf,
    },
    /// Another process does this now.
    #[error("{what}: {why}")]
    UnderWay {
        /// The task.
        what: &'static str,
        /// The process that does it, and advice for the caller.
        why: String,
    },
    /// The database of a shared store cannot be reached, or this process was expelled from it. A call that writes may have been done:
    /// the same request, with its request id, is answered later.
    #[error("could not {action}: {why}")]
    Unreachable {
        /// The action that failed.
        action: &'static str,
        /// The reason.
        why: String,
    },
    /// The disk is full.
    #[error(
        "no space left on the disk while trying to {action}: {why}; free some space and try again (reading still works)"
    )]
    Full {
        /// The action that failed.
        action: &'static str,
        /// The message of the operating system.
        why: String,
    },
    /// A walk over a tree or a difference exceeded the maximum number of paths.
    #[error(
        "there are more than {most} paths to go through, because directories of the tree lie at very many paths; \
         name a part of it"
    )]
    TooWide {
        /// The limit.
        most: u64,
    },
    /// The caller cancelled the request.
    #[error("interrupted")]
    Interrupted,
    /// The operating system failed.
    #[error("could not {action}: {why}")]
    Fault {
        /// The action that failed.
        action: &'static str,
        /// The message of the operating system.
        why: String,
    },
}

impl Error {
    /// Returns the kind, which tells the caller how to react.
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
            Self::Busy { .. } | Self::UnderWay { .. } | Self::Unreachable { .. } => ErrorKind::Busy,
            Self::Full { .. } => ErrorKind::Full,
            Self::Interrupted => ErrorKind::Interrupted,
            Self::Fault { .. } => ErrorKind::Fault,
        }
    }

    /// Creates an error from an I/O error. A full disk becomes [`Error::Full`].
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
