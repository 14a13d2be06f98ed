//! What can go wrong between two stores.

use std::fmt;
use std::io;

use amalgam_engine::{ErrorKind, ObjectId, SnapshotId};

/// The result of a transfer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A place in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Where {
    /// The frame, from 1.
    pub frame: u64,
    /// The byte at which it begins.
    pub byte: u64,
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {} at byte {}", self.frame, self.byte)
    }
}

/// Why a transfer stopped. What had arrived whole stays in the store, out of sight; the same stream can be received again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A store refused or failed.
    #[error(transparent)]
    Engine(#[from] amalgam_engine::Error),
    /// The other end of the stream, or a file, failed.
    #[error("could not {action}: {source}")]
    Host {
        /// What was being done.
        action: String,
        /// The system's words.
        source: io::Error,
    },
    /// The bytes do not begin as a stream does.
    #[error("this is not a stream of snapshots: {why}")]
    NotAStream {
        /// What is there instead.
        why: String,
    },
    /// A stream of a later version.
    #[error(
        "the stream has version {found}, and this version of Amalgam reads up to {known}; update Amalgam to receive it"
    )]
    Version {
        /// The stream's.
        found: u8,
        /// The newest that is known.
        known: u8,
    },
    /// The stream ends too early.
    #[error("the stream was cut in {place}; send it again, what has arrived is kept and skipped")]
    Cut {
        /// The frame that is not whole, or not there.
        place: Where,
    },
    /// The stream breaks a rule.
    #[error("the stream is damaged in {place}: {why}")]
    Damaged {
        /// Where.
        place: Where,
        /// What is wrong.
        why: String,
    },
    /// An object of the stream was refused.
    #[error("the stream is damaged in {place}: {id}: {source}")]
    Refused {
        /// Where.
        place: Where,
        /// What it says it is.
        id: ObjectId,
        /// Why.
        source: Box<amalgam_engine::Error>,
    },
    /// The stream builds on a snapshot that is not here.
    #[error("the stream builds on snapshot {}, which this store does not have; send it without --since, or since what this store has", .snapshot.short())]
    NoBase {
        /// The snapshot.
        snapshot: SnapshotId,
    },
    /// A name is in use for something else.
    #[error(
        "{name} is here already and is not an older state of what was sent; receive it under another name, or replace it"
    )]
    Diverged {
        /// The name.
        name: String,
    },
    /// A part of a backup is not as it was written.
    #[error("the backup is damaged: {part}: {why}")]
    Backup {
        /// Which file.
        part: String,
        /// What is wrong with it.
        why: String,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Cancelled,
}

impl Error {
    pub(crate) fn host(action: impl Into<String>, source: io::Error) -> Self {
        Self::Host { action: action.into(), source }
    }

    /// What the caller can do; nothing for an interruption.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Engine(error) => Some(error.kind()),
            Self::Host { source, .. } => Some(match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Full,
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::Fault,
            }),
            Self::NotAStream { .. } => Some(ErrorKind::Invalid),
            Self::Version { .. } => Some(ErrorKind::Unsupported),
            Self::Refused { source, .. } if source.kind() != ErrorKind::Invalid => Some(source.kind()),
            Self::Cut { .. } | Self::Damaged { .. } | Self::Refused { .. } | Self::Backup { .. } => {
                Some(ErrorKind::Corrupt)
            }
            Self::NoBase { .. } => Some(ErrorKind::NotFound),
            Self::Diverged { .. } => Some(ErrorKind::Stale),
            Self::Cancelled => None,
        }
    }
}
