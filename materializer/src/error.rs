//! Errors of captures and checkouts.

use std::io;

use amalgam_engine::{Cancelled, ErrorKind, TreePath};

/// Result of the materializer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a capture or a checkout stopped. Problems of single paths are notices instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store refused or failed.
    #[error(transparent)]
    Engine(#[from] amalgam_engine::Error),
    /// The host refused or failed.
    #[error("could not {action} {path}: {source}")]
    Host {
        /// The action that failed.
        action: &'static str,
        /// The path, as a message shows it.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The caller cancelled the work. No cleanup is needed.
    #[error("interrupted")]
    Cancelled,
    /// A checkout stopped after it had changed some paths.
    #[error("{source}; {written} written and {removed} removed before that")]
    Partial {
        /// Number of paths written.
        written: u64,
        /// Number of paths removed.
        removed: u64,
        /// Why it stopped.
        source: Box<Error>,
    },
    /// The directory is not the expected one.
    #[error("{path}: {why}")]
    WrongDirectory {
        /// The directory.
        path: String,
        /// The difference, and what to do.
        why: String,
    },
}

impl From<Cancelled> for Error {
    fn from(_: Cancelled) -> Self {
        Self::Cancelled
    }
}

impl Error {
    /// Makes an I/O error for a path of a tree.
    pub fn host(action: &'static str, path: &TreePath, source: impl Into<io::Error>) -> Self {
        let path = if path.is_root() { ".".to_owned() } else { path.to_string() };
        Self::Host { action, path, source: source.into() }
    }

    /// Returns whether the caller cancelled the work.
    pub fn is_cancelled(&self) -> bool {
        match self {
            Self::Cancelled => true,
            Self::Partial { source, .. } => source.is_cancelled(),
            _ => false,
        }
    }

    /// Returns what the caller can do; `None` after a cancellation.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Engine(error) => Some(error.kind()),
            Self::Host { source, .. } => Some(ErrorKind::of_io(source)),
            Self::Cancelled => None,
            Self::Partial { source, .. } => source.kind(),
            Self::WrongDirectory { .. } => Some(ErrorKind::Invalid),
        }
    }
}
