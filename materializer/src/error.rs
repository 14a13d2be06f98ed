//! What can go wrong between a tree and real files.

use std::io;

use amalgam_engine::{ErrorKind, TreePath};

/// The materializer's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a capture or a checkout stopped. What concerns single paths is reported instead, and the rest goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store refused or failed.
    #[error(transparent)]
    Engine(#[from] amalgam_engine::Error),
    /// The machine refused or failed.
    #[error("could not {action} {path}: {source}")]
    Host {
        /// What was being done.
        action: &'static str,
        /// To what, as a person would name it.
        path: String,
        /// The system's words.
        source: io::Error,
    },
    /// The caller asked to stop. Nothing has to be cleaned up.
    #[error("interrupted")]
    Cancelled,
    /// A checkout stopped in the middle, after it had changed some paths.
    #[error("{source}; {written} written and {removed} removed before that")]
    Partly {
        /// How many paths were written.
        written: u64,
        /// How many paths were removed.
        removed: u64,
        /// Why it stopped.
        source: Box<Error>,
    },
    /// The directory is not the one that was meant.
    #[error("{path}: {why}")]
    NotThis {
        /// The directory.
        path: String,
        /// What differs, and what to do.
        why: String,
    },
}

impl Error {
    /// An I/O error at a path of a tree.
    pub fn host(action: &'static str, path: &TreePath, source: impl Into<io::Error>) -> Self {
        let path = if path.is_root() { ".".to_owned() } else { path.to_string() };
        Self::Host { action, path, source: source.into() }
    }

    /// Whether the caller asked to stop.
    pub fn is_cancelled(&self) -> bool {
        match self {
            Self::Cancelled => true,
            Self::Partly { source, .. } => source.is_cancelled(),
            _ => false,
        }
    }

    /// What the caller can do; nothing for an interruption.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Engine(error) => Some(error.kind()),
            Self::Host { source, .. } => Some(kind_of(source)),
            Self::Cancelled => None,
            Self::Partly { source, .. } => source.kind(),
            Self::NotThis { .. } => Some(ErrorKind::Invalid),
        }
    }
}

fn kind_of(source: &io::Error) -> ErrorKind {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Full,
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Fault,
    }
}
