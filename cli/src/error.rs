//! The error of a command: a message for people, a reason for programs, an exit code for the shell.

use std::ffi::OsStr;
use std::{fmt, io};

use amalgam_proto::{Failure, Reason};
use tonic::{Code, Status};

use crate::exit::Exit;

/// Why a command failed.
#[derive(Clone, Debug)]
pub struct CliError {
    /// The exit code.
    pub exit: Exit,
    /// A stable word for programs: one of the API's reasons, or one of this program.
    pub reason: String,
    /// The message: what happened, and to which object.
    pub message: String,
    /// The next step for the user.
    pub hint: Option<String>,
}

/// The result of a command.
pub type Outcome = Result<Exit, CliError>;

impl CliError {
    /// Creates an error without a hint.
    pub fn new(exit: Exit, reason: &str, message: impl Into<String>) -> Self {
        Self { exit, reason: reason.to_owned(), message: message.into(), hint: None }
    }

    /// Creates the error for a wrong command line.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::USAGE, "USAGE", message)
    }

    /// Creates the error for a request that cannot be fulfilled.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(Exit::ERROR, "REFUSED", message)
    }

    /// Creates the error for a part of the command line that needs the feature `network`, in a program that was built without it.
    pub fn without_network(what: &str) -> Self {
        let message = format!("`{what}` is not in this program, which was built without network");
        Self::new(Exit::ERROR, "UNSUPPORTED", message)
            .hint("`make install` installs the whole program; `cargo build -p amalgam-cli` builds it for a trial")
    }

    /// Creates the error for a failure of the operating system; `what` is the path or the action.
    pub fn machine(what: impl fmt::Display, error: &io::Error) -> Self {
        let exit = if error.kind() == io::ErrorKind::StorageFull { Exit::FULL } else { Exit::ERROR };
        Self::new(exit, "FAULT", format!("{what}: {error}"))
    }

    /// Creates the error for a command that could not be started, with the exit code of a shell: 127 if not found, else 126.
    pub fn not_started(command: &OsStr, error: &io::Error) -> Self {
        let exit = if error.kind() == io::ErrorKind::NotFound { Exit(127) } else { Exit(126) };
        Self::new(exit, "NOT_STARTED", format!("{}: {error}", command.to_string_lossy()))
    }

    /// Adds a hint about the next step.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Returns whether the reader of the output closed it, which is not a failure.
    pub fn is_closed_output(&self) -> bool {
        self.reason == CLOSED
    }

    /// Returns whether Ctrl-C ended the command, which is not a failure.
    pub fn is_interrupt(&self) -> bool {
        self.exit == Exit::INTERRUPTED
    }

    /// Converts an error of a call to one of a server: a dead background process becomes a broken connection.
    #[must_use]
    pub fn of_server(self, url: &dyn fmt::Display) -> Self {
        match self.message == DIED {
            true => Self { message: format!("the connection to {url} broke"), ..self },
            false => self,
        }
    }

    /// Returns whether the API gave this reason.
    pub fn is(&self, reason: Reason) -> bool {
        self.reason == reason.word()
    }
}

const CLOSED: &str = "OUTPUT_CLOSED";
/// The message for a broken connection to the background process.
const DIED: &str = "the background process died";
/// Start of the server's message about a call without a key. The rest names headers, which users of
/// the command do not set.
const KEY_MISSING: &str = "this server needs an API key";
/// Start of the server's message about a panic.
const BUG: &str = "a bug in the server";

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hint {
            Some(hint) => write!(f, "{}; {hint}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for CliError {}

/// An error of writing our own output.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Exit::OK, CLOSED, "the output was closed"),
            _ => Self::machine("could not write the output", &error),
        }
    }
}

impl From<Status> for CliError {
    fn from(status: Status) -> Self {
        let Some(failure) = Failure::of_status(&status) else {
            let is_bug = status.code() == Code::Internal && status.message().starts_with(BUG);
            return match is_bug {
                true => Self::new(Exit::ERROR, "UNAVAILABLE", status.message()),
                // A status without one of our reasons comes from a broken connection.
                false => Self::new(Exit::ERROR, "UNAVAILABLE", DIED).hint("run the command again"),
            };
        };
        Self::from(failure)
    }
}

impl From<Failure> for CliError {
    fn from(failure: Failure) -> Self {
        let message = match failure.message.starts_with(KEY_MISSING) {
            true => KEY_MISSING.to_owned(),
            false => failure.message,
        };
        let error = Self::new(Exit::of_reason(failure.reason), failure.reason.word(), message);
        match hint_of(failure.reason) {
            Some(hint) if !error.message.contains("amalgam ") => error.hint(hint),
            _ => error,
        }
    }
}

/// Returns a hint for a reason whose message does not name a command.
fn hint_of(reason: Reason) -> Option<&'static str> {
    match reason {
        Reason::NoDirectory => Some("`amalgam init` protects a directory, -C DIR names another one"),
        Reason::Unauthenticated | Reason::KeyExpired | Reason::KeyRevoked => Some("`amalgam login URL` stores a key"),
        Reason::LocalOnly => {
            Some("run it on the machine of the server, or with --server local on the store of this machine")
        }
        Reason::StaleHead => Some("look at `amalgam log`, then try again"),
        Reason::NothingToRevert => Some("`amalgam op log` shows what happened"),
        Reason::MovedSince => Some("`amalgam op log` shows what happened since"),
        Reason::UncommittedChanges => Some("`amalgam commit` first keeps them"),
        Reason::DirectoryReplaced | Reason::DirectoryGone => Some("`amalgam ws attach` in it accepts it as it is now"),
        Reason::Corrupt => Some("`amalgam verify --repair` checks and repairs the store"),
        Reason::Full => Some(
            "make room on the store's disk, then try again: `amalgam gc --grace none` gives back what nothing needs, and deleting files \
             in a mount, `amalgam umount` and `amalgam ws rm` work without room",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_the_api_keeps_its_reason_and_gets_a_code_and_a_hint() {
        let error = CliError::from(Failure::new(Reason::StaleHead, "main moved").into_status());
        assert_eq!((error.exit, error.reason.as_str()), (Exit::STALE, "STALE_HEAD"));
        assert_eq!(error.to_string(), "main moved; look at `amalgam log`, then try again");
    }

    #[test]
    fn what_the_message_says_already_is_not_said_twice() {
        let error = CliError::from(Failure::new(Reason::NoDirectory, "none here; try amalgam init").into_status());
        assert_eq!(error.to_string(), "none here; try amalgam init");
    }

    #[test]
    fn a_missing_key_gets_the_hint_of_an_invalid_one() {
        let message = "this server needs an API key: send `X-API-Key: KEY`; `amalgam key create` makes one";
        let error = CliError::from(Failure::new(Reason::Unauthenticated, message).into_status());
        assert_eq!(error.to_string(), "this server needs an API key; `amalgam login URL` stores a key");
    }

    #[test]
    fn a_connection_that_breaks_means_that_the_process_died() {
        let broken = Status::new(Code::Unknown, "h2 protocol error: error reading a body from connection");
        assert_eq!(CliError::from(broken).to_string(), "the background process died; run the command again");
        let bug = Status::internal("a bug in the server: it panicked; its log says more");
        assert_eq!(CliError::from(bug).to_string(), "a bug in the server: it panicked; its log says more");
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let error = CliError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(error.is_closed_output());
        assert_eq!(error.exit, Exit::OK);
    }
}
