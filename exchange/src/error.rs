//! Errors of imports and exports.

use std::io;

use amalgam_engine::{Cancelled, ErrorKind};

/// The result of an import or an export.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an import or an export stopped. An import that stopped made nothing visible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store refused or failed.
    #[error(transparent)]
    Engine(#[from] amalgam_engine::Error),
    /// A file, a pipe or another program failed.
    #[error("could not {action}: {source}")]
    Host {
        /// The action that failed.
        action: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The input breaks the rules of its format.
    #[error("the {format} is damaged at {place}: {why}")]
    Malformed {
        /// The name of the format, for example "tar archive".
        format: &'static str,
        /// A byte offset, a member or an object.
        place: String,
        /// The broken rule.
        why: String,
    },
    /// A member that no tree can hold, or that tries to leave its root.
    #[error("{member}: {why}; nothing was imported")]
    Refused {
        /// The member's name as the input has it.
        member: String,
        /// Why it was refused.
        why: String,
    },
    /// The input exceeds a limit.
    #[error("{what} exceeds the limit of {max}; {hint}")]
    TooLarge {
        /// The quantity that is limited.
        what: String,
        /// The limit.
        max: u64,
        /// Advice for the caller.
        hint: &'static str,
    },
    /// The input is well formed, but uses a feature that is not read here.
    #[error("{what}; {hint}")]
    Unsupported {
        /// The feature.
        what: String,
        /// Advice for the caller.
        hint: &'static str,
    },
    /// A program that was run, `git` for example, failed.
    #[error("{program} failed: {why}")]
    Program {
        /// Its name.
        program: &'static str,
        /// Its error message.
        why: String,
    },
    /// An argument of the caller is wrong.
    #[error("{what}: {why}")]
    Invalid {
        /// The argument.
        what: &'static str,
        /// The problem, and what to do.
        why: String,
    },
    /// A limited resource is in use.
    #[error("{what}; {hint}")]
    Busy {
        /// The resource.
        what: &'static str,
        /// Advice for the caller.
        hint: &'static str,
    },
    /// The caller asked to stop.
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

    /// Converts an I/O error of reading an archive. A cancellation comes as such an error, and becomes `Cancelled`.
    pub(crate) fn reading(source: io::Error) -> Self {
        match source.to_string().as_str() {
            CANCELLED_MESSAGE => Self::Cancelled,
            _ => Self::host("read the archive", source),
        }
    }

    pub(crate) fn refused(member: &[u8], why: impl Into<String>) -> Self {
        Self::Refused { member: printable(member), why: why.into() }
    }

    /// Returns what the caller can do; `None` after a cancellation.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Engine(error) => Some(error.kind()),
            Self::Host { source, .. } => Some(ErrorKind::of_io(source)),
            Self::Malformed { .. } => Some(ErrorKind::Corrupt),
            Self::Busy { .. } => Some(ErrorKind::Busy),
            Self::Program { .. } => Some(ErrorKind::Fault),
            Self::Unsupported { .. } => Some(ErrorKind::Unsupported),
            Self::Refused { .. } | Self::TooLarge { .. } | Self::Invalid { .. } => Some(ErrorKind::Invalid),
            Self::Cancelled => None,
        }
    }
}

/// Message of the I/O error by which a reader reports a cancellation.
pub(crate) const CANCELLED_MESSAGE: &str = "interrupted";

/// Limit on the bytes of a foreign name that an error or a notice shows.
const PRINTABLE_BYTES_MAX: usize = 200;

/// Converts a foreign name to a form that a terminal can show. Shortens long names.
pub(crate) fn printable(name: &[u8]) -> String {
    let cut = &name[..name.len().min(PRINTABLE_BYTES_MAX)];
    let text = match std::str::from_utf8(cut) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => cut.escape_ascii().to_string(),
    };
    if cut.len() < name.len() { text + "..." } else { text }
}
