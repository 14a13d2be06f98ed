//! Errors of transfers.

use std::fmt;
use std::io;

use amalgam_engine::{Cancelled, ErrorKind, ObjectId, SnapshotId};

/// Result of a transfer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Position in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FramePosition {
    /// Number of the frame, from 1.
    pub frame: u64,
    /// Offset of its first byte.
    pub byte: u64,
}

impl fmt::Display for FramePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {} at byte {}", self.frame, self.byte)
    }
}

/// Why a transfer stopped. Objects that arrived completely stay in the store, invisible; the stream can be received again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A store refused or failed.
    #[error(transparent)]
    Engine(#[from] amalgam_engine::Error),
    /// The other end of the stream, or a file, failed.
    #[error("could not {action}: {source}")]
    Host {
        /// The action that failed.
        action: String,
        /// The system's error.
        source: io::Error,
    },
    /// The bytes do not begin with the header of a stream.
    #[error("this is not a stream of snapshots: {why}")]
    NotAStream {
        /// The bytes found instead.
        why: String,
    },
    /// The stream has a newer version.
    #[error(
        "the stream has version {found}, and this version of Amalgam reads up to {known}; update Amalgam to receive it"
    )]
    Version {
        /// The version of the stream.
        found: u8,
        /// The newest supported version.
        known: u8,
    },
    /// The stream ends too early.
    #[error("the stream was cut in {place}; send it again, what has arrived is kept and skipped")]
    Cut {
        /// The frame that is incomplete or missing.
        place: FramePosition,
    },
    /// The stream breaks a rule.
    #[error("the stream is damaged in {place}: {why}")]
    Damaged {
        /// The position.
        place: FramePosition,
        /// The rule.
        why: String,
    },
    /// An object of the stream was refused.
    #[error("the stream is damaged in {place}: {id}: {source}")]
    Refused {
        /// The position.
        place: FramePosition,
        /// The id that the stream claims.
        id: ObjectId,
        /// Why it was refused.
        source: Box<amalgam_engine::Error>,
    },
    /// The stream builds on a snapshot that the store does not have.
    #[error("the stream builds on snapshot {}, which this store does not have; send it without --since, or since what this store has", .snapshot.short())]
    NoBase {
        /// The snapshot.
        snapshot: SnapshotId,
    },
    /// A name is in use for another history.
    #[error(
        "{name} is here already and is not an older state of what was sent; receive it under another name, or replace it"
    )]
    Diverged {
        /// The name.
        name: String,
    },
    /// A part of a backup is damaged.
    #[error("the backup is damaged: {part}: {why}")]
    Backup {
        /// The file.
        part: String,
        /// The damage.
        why: String,
    },
    /// The caller cancelled the transfer.
    #[error("interrupted")]
    Cancelled,
}

impl From<Cancelled> for Error {
    fn from(_: Cancelled) -> Self {
        Self::Cancelled
    }
}

impl Error {
    pub(crate) fn host(action: impl Into<String>, source: io::Error) -> Self {
        Self::Host { action: action.into(), source }
    }

    /// Returns what the caller can do; `None` after a cancellation.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Engine(error) => Some(error.kind()),
            Self::Host { source, .. } => Some(ErrorKind::of_io(source)),
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
