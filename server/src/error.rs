//! The errors of the server, and the one table that translates them for the API.
//!
//! Functions of the server return [`Error`]. A client sees [`Error::reason`], its `Display` text and [`Error::details`]; one place,
//! `api/status.rs`, makes the wire type of them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use amalgam_engine::{Error as EngineError, ErrorKind};
use amalgam_exchange::Error as ExchangeError;
use amalgam_materializer::Error as MaterializerError;
use amalgam_merge::rules::BadRules;
use amalgam_policy::{BadPolicy, Level, Refusal};
use amalgam_proto::Reason;
use amalgam_transfer::Error as TransferError;
use amalgam_view::Error as ViewError;

/// The result type of the server.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The detail of a failure that holds the number of paths changed before it.
pub const PARTLY: &str = "changed_paths";

/// All errors of the server. `Display` is the message that a client gets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed or refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A capture or a checkout stopped.
    #[error("{}", materializer_message(.0))]
    Materializer(#[from] MaterializerError),
    /// A live view failed or refused.
    #[error("{}", view_message(.0))]
    View(#[from] ViewError),
    /// A transfer between stores failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// An import or an export failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The merge rules of a project or a call are invalid.
    #[error("the rules of merging cannot be used:\n{0}")]
    Rules(BadRules),
    /// The text of a policy is invalid.
    #[error("the policy cannot be used:\n{0}")]
    Policy(#[from] BadPolicy),
    /// The operating system failed.
    #[error("could not {action}: {source}{}", if is_full(.source) { "; free some space and try again" } else { "" })]
    Io {
        /// The action that failed, for example `read the registry of directories`.
        action: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another error, with a hint at the end of its message.
    #[error("{source}; {hint}")]
    Hinted {
        /// An action that the user can take.
        hint: String,
        /// The error.
        source: Box<Error>,
    },
    /// An error that several threads wait for.
    #[error(transparent)]
    Shared(#[from] Arc<Error>),
    /// A request that the server itself refuses, with the reason that the API documents for it.
    #[error("{message}")]
    Refused {
        /// The reason for programs.
        reason: Reason,
        /// The message for people: what happened, to what, and what to do next.
        message: String,
        /// Values for programs, for example the present head.
        details: HashMap<String, String>,
    },
}

impl Error {
    /// Creates a refusal without details.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self::Refused { reason, message: message.into(), details: HashMap::new() }
    }

    /// Adds a detail to a refusal. Panics for other errors, whose details are derived from them.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        let Self::Refused { details, .. } = &mut self else { unreachable!("only a refusal is given details") };
        details.insert(key.to_owned(), value.into());
        self
    }

    /// Returns a function that adds the failed action to an I/O error, for `map_err`.
    pub fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }

    /// Adds a hint to an error of a checkout that stopped after it had changed some paths.
    #[must_use]
    pub fn with_hint_if_partly(self, hint: &str) -> Self {
        match self.details().contains_key(PARTLY) {
            true => Self::Hinted { hint: hint.to_owned(), source: Box::new(self) },
            false => self,
        }
    }

    /// Returns the reason that the API documents, by which a program decides how to react.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Engine(error) => engine_reason(error),
            Self::Materializer(error) => materializer_reason(error),
            Self::View(error) => view_reason(error),
            Self::Transfer(error) => transfer_reason(error),
            Self::Exchange(error) => exchange_reason(error),
            Self::Rules(_) | Self::Policy(_) => Reason::Invalid,
            Self::Io { source, .. } if is_full(source) => Reason::Full,
            Self::Io { .. } => Reason::Fault,
            Self::Hinted { source, .. } => source.reason(),
            Self::Shared(source) => source.reason(),
            Self::Refused { reason, .. } => *reason,
        }
    }

    /// Returns values for programs, for example the present head.
    pub fn details(&self) -> HashMap<String, String> {
        match self {
            Self::Engine(error)
            | Self::View(ViewError::Engine(error))
            | Self::Transfer(TransferError::Engine(error))
            | Self::Exchange(ExchangeError::Engine(error)) => engine_details(error),
            Self::Materializer(error) => materializer_details(error),
            Self::Hinted { source, .. } => source.details(),
            Self::Shared(source) => source.details(),
            Self::Refused { details, .. } => details.clone(),
            Self::View(ViewError::Refused { refusal, .. }) => refusal_details(refusal),
            Self::View(_)
            | Self::Transfer(_)
            | Self::Exchange(_)
            | Self::Rules(_)
            | Self::Policy(_)
            | Self::Io { .. } => HashMap::new(),
        }
    }
}

impl From<amalgam_engine::InvalidName> for Error {
    fn from(source: amalgam_engine::InvalidName) -> Self {
        Self::Engine(source.into())
    }
}

impl From<BadRules> for Error {
    fn from(bad: BadRules) -> Self {
        Self::Rules(bad)
    }
}

fn is_full(source: &io::Error) -> bool {
    matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn engine_reason(error: &EngineError) -> Reason {
    match (error, error.kind()) {
        (EngineError::MovedSince { .. }, ErrorKind::Stale) => Reason::MovedSince,
        (_, ErrorKind::Stale) => Reason::StaleHead,
        (EngineError::Purged { .. }, _) => Reason::Purged,
        (EngineError::NothingToRevert { .. }, _) => Reason::NothingToRevert,
        (EngineError::RequestReused { .. }, _) => Reason::RequestReused,
        (_, ErrorKind::NotFound) => Reason::NotFound,
        (_, ErrorKind::Exists) => Reason::AlreadyExists,
        (EngineError::Ambiguous { .. }, ErrorKind::Invalid) => Reason::Ambiguous,
        (_, ErrorKind::Invalid) => Reason::Invalid,
        (_, ErrorKind::Corrupt) => Reason::Corrupt,
        (_, ErrorKind::Full) => Reason::Full,
        (_, ErrorKind::Busy) => Reason::Busy,
        (_, ErrorKind::Unsupported) => Reason::Unsupported,
        (_, ErrorKind::Interrupted) => Reason::Cancelled,
        _ => Reason::Fault,
    }
}

fn engine_details(error: &EngineError) -> HashMap<String, String> {
    match error {
        EngineError::StaleHead { current: Some(head), .. } => detail("head", amalgam_proto::snapshot_name(*head)),
        EngineError::Ambiguous { candidates, .. } => detail("candidates", candidates.join("\n")),
        _ => HashMap::new(),
    }
}

fn detail(key: &str, value: String) -> HashMap<String, String> {
    HashMap::from([(key.to_owned(), value)])
}

fn materializer_reason(error: &MaterializerError) -> Reason {
    match (error, error.kind()) {
        (MaterializerError::Partial { source, .. }, _) => materializer_reason(source),
        (MaterializerError::Engine(error), _) => engine_reason(error),
        (MaterializerError::Cancelled, _) => Reason::Cancelled,
        (_, Some(ErrorKind::Full)) => Reason::Full,
        (_, Some(ErrorKind::NotFound)) => Reason::NotFound,
        (_, Some(ErrorKind::Invalid)) => Reason::Invalid,
        _ => Reason::Fault,
    }
}

fn materializer_message(error: &MaterializerError) -> String {
    match (error, error.kind()) {
        (MaterializerError::Partial { written, removed, source }, _) => {
            let before = match (written, removed) {
                (1, 0) => "1 path was written before that".to_owned(),
                (0, 1) => "1 path was removed before that".to_owned(),
                _ => format!("{written} paths were written and {removed} removed before that"),
            };
            format!("{}; {before}", materializer_message(source))
        }
        (MaterializerError::Engine(_), _) => error.to_string(),
        (_, Some(ErrorKind::Full)) => {
            // The disk of the directory is full, not that of the store, for which the command has a hint of its own.
            format!(
                "{error}; free some space on the directory's disk and run the amalgam command again: nothing is lost"
            )
        }
        _ => error.to_string(),
    }
}

fn materializer_details(error: &MaterializerError) -> HashMap<String, String> {
    match error {
        MaterializerError::Partial { written, removed, source } => {
            let mut details = materializer_details(source);
            details.insert(PARTLY.to_owned(), (written + removed).to_string());
            details
        }
        MaterializerError::Engine(error) => engine_details(error),
        _ => HashMap::new(),
    }
}

fn view_reason(error: &ViewError) -> Reason {
    match error {
        ViewError::Engine(error) => engine_reason(error),
        ViewError::Quota { .. } => Reason::Full,
        ViewError::Unplaceable { .. } | ViewError::ReadOnly | ViewError::Local { .. } => Reason::Invalid,
        ViewError::NoAttribute => Reason::NotFound,
        ViewError::Refused { .. } | ViewError::Access => Reason::Forbidden,
        _ => Reason::Fault,
    }
}

/// Returns the details of an act that the policy refuses. The rule that hides a path is hidden, too.
fn refusal_details(refusal: &Refusal) -> HashMap<String, String> {
    let mut details = HashMap::from([
        ("agent".to_owned(), refusal.agent.clone()),
        ("act".to_owned(), refusal.act.word().to_owned()),
        ("path".to_owned(), String::from_utf8_lossy(&refusal.path).into_owned()),
    ]);
    if refusal.level > Level::Hidden {
        details.insert("level".to_owned(), refusal.level.word().to_owned());
        details.insert("rule".to_owned(), refusal.rule());
    }
    details
}

fn view_message(error: &ViewError) -> String {
    match error {
        ViewError::ReadOnly => "the mount is read-only".to_owned(),
        error => error.to_string(),
    }
}

fn transfer_reason(error: &TransferError) -> Reason {
    match error {
        TransferError::Engine(error) => engine_reason(error),
        TransferError::Cancelled => Reason::Cancelled,
        // The name is taken: nothing moved meanwhile, and a retry would not help.
        TransferError::Diverged { .. } => Reason::AlreadyExists,
        error => stream_reason(error.kind()),
    }
}

fn exchange_reason(error: &ExchangeError) -> Reason {
    match error {
        ExchangeError::Engine(error) => engine_reason(error),
        ExchangeError::Cancelled => Reason::Cancelled,
        error => stream_reason(error.kind()),
    }
}

/// Returns the reason for an error of a stream or an archive. Damaged input does not count as a damaged store.
fn stream_reason(kind: Option<ErrorKind>) -> Reason {
    match kind {
        Some(ErrorKind::Corrupt) => Reason::DamagedStream,
        Some(ErrorKind::Full) => Reason::Full,
        Some(ErrorKind::NotFound) => Reason::NotFound,
        Some(ErrorKind::Invalid) => Reason::Invalid,
        Some(ErrorKind::Unsupported) => Reason::Unsupported,
        _ => Reason::Fault,
    }
}
