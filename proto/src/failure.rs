//! Why a call failed: a stable reason, words for a person, and details for a program; as `google.rpc.ErrorInfo` on the wire.

use std::collections::HashMap;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The domain of every reason.
pub const DOMAIN: &str = "amalgam";

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal, $code:ident;)+) => {
        /// A stable code by which a program can decide.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// Returns the stable name of the reason in the protocol, for example `PTY_NOT_FOUND`.
            pub fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)+ }
            }

            /// Returns the gRPC status code of the reason.
            pub fn code(self) -> Code {
                match self { $(Self::$name => Code::$code,)+ }
            }
        }
    };
}

reasons! {
    /// A workspace's head is not where the caller's work began. Read the new head, then decide again.
    StaleHead = "STALE_HEAD", Aborted;
    /// A file or a state value is not the one that the caller read: its etag differs. Read it again, then decide again.
    StaleFile = "STALE_FILE", Aborted;
    /// A text to replace is not exactly once in the file.
    NotUnique = "NOT_UNIQUE", FailedPrecondition;
    /// A hunk of a patch fits nowhere in the file.
    PatchFailed = "PATCH_FAILED", FailedPrecondition;
    /// The state that an operation changed has changed again since, so the operation cannot be reverted.
    MovedSince = "MOVED_SINCE", FailedPrecondition;
    /// There is nothing to undo or redo.
    NothingToRevert = "NOTHING_TO_REVERT", FailedPrecondition;
    /// There are changes that are in no snapshot yet.
    UncommittedChanges = "UNCOMMITTED_CHANGES", FailedPrecondition;
    /// The caller used this request id before, for the same call with other arguments.
    RequestReused = "REQUEST_REUSED", FailedPrecondition;
    /// The caller has too many resources open at once.
    TooMany = "TOO_MANY", ResourceExhausted;
    /// The named object does not exist.
    NotFound = "NOT_FOUND", NotFound;
    /// The object to be created already exists.
    AlreadyExists = "ALREADY_EXISTS", AlreadyExists;
    /// The log or the list no longer has this position.
    OutOfRange = "OUT_OF_RANGE", OutOfRange;
    /// The request is malformed.
    Invalid = "INVALID", InvalidArgument;
    /// A name stands for several objects.
    Ambiguous = "AMBIGUOUS", InvalidArgument;
    /// No known directory holds this path.
    NoDirectory = "NO_DIRECTORY", NotFound;
    /// A directory that belongs to a workspace lies above or below this one.
    NestedDirectory = "NESTED_DIRECTORY", FailedPrecondition;
    /// Another directory is at the path now.
    DirectoryReplaced = "DIRECTORY_REPLACED", FailedPrecondition;
    /// The directory is not there any more.
    DirectoryGone = "DIRECTORY_GONE", FailedPrecondition;
    /// The workspace is mounted, or a mount left work in it, and this cannot be done then.
    Mounted = "MOUNTED", FailedPrecondition;
    /// Nothing can be mounted there, or not on this machine.
    MountRefused = "MOUNT_REFUSED", FailedPrecondition;
    /// A process uses the mount.
    MountBusy = "MOUNT_BUSY", FailedPrecondition;
    /// A Git command works in a repository that this would write.
    GitLocked = "GIT_LOCKED", FailedPrecondition;
    /// The test of a merge could not be started, so it says nothing about the merged files.
    TestNotStarted = "TEST_NOT_STARTED", FailedPrecondition;
    /// Stored bytes are damaged or gone.
    Corrupt = "CORRUPT", DataLoss;
    /// A stream or a backup is cut or damaged.
    DamagedStream = "DAMAGED_STREAM", DataLoss;
    /// The bytes were purged.
    Purged = "PURGED", NotFound;
    /// The disk is full, or below its floor.
    Full = "FULL", ResourceExhausted;
    /// Another process holds the store.
    Busy = "BUSY", Unavailable;
    /// The machine failed.
    Fault = "FAULT", Internal;
    /// A newer version of the program is needed, or one that was built with more features.
    Unsupported = "UNSUPPORTED", Unimplemented;
    /// The caller went away or asked to stop.
    Cancelled = "CANCELLED", Cancelled;
    /// The call has no valid API key.
    Unauthenticated = "UNAUTHENTICATED", Unauthenticated;
    /// The API key has expired.
    KeyExpired = "KEY_EXPIRED", Unauthenticated;
    /// The API key was revoked.
    KeyRevoked = "KEY_REVOKED", Unauthenticated;
    /// The API key does not permit the call.
    Forbidden = "FORBIDDEN", PermissionDenied;
    /// The API key has made as many calls as it may for now.
    RateLimited = "RATE_LIMITED", ResourceExhausted;
    /// The call exists only for the same user on the same machine.
    LocalOnly = "LOCAL_ONLY", PermissionDenied;
    /// There is no such sandbox.
    SandboxNotFound = "SANDBOX_NOT_FOUND", NotFound;
    /// There is no such template.
    TemplateNotFound = "TEMPLATE_NOT_FOUND", NotFound;
    /// The key or the server has as many sandboxes as it may have.
    SandboxLimit = "SANDBOX_LIMIT_EXCEEDED", ResourceExhausted;
    /// Nothing on the server enforces a limit that was asked for.
    LimitNotEnforced = "LIMIT_NOT_ENFORCED", FailedPrecondition;
    /// The server cannot isolate processes, so it starts no sandbox.
    NotIsolated = "NOT_ISOLATED", FailedPrecondition;
    /// The sandbox does not run, or its agent is not connected.
    SandboxNotReady = "SANDBOX_NOT_READY", FailedPrecondition;
    /// The command did not end in time.
    ProcessTimeout = "PROCESS_TIMEOUT", DeadlineExceeded;
    /// The command could not be started.
    CommandFailed = "COMMAND_FAILED", FailedPrecondition;
    /// There is no such command.
    CommandNotFound = "COMMAND_NOT_FOUND", NotFound;
    /// Nothing listens at a port of the sandbox, or the listener does not answer.
    PtyNotFound = "PTY_NOT_FOUND", NotFound;
    /// Nothing listens at a port of the sandbox, or what listens does not answer.
    PortUnreachable = "PORT_UNREACHABLE", Unavailable;
    /// The sandbox has as many terminals as it may have.
    PtyLimit = "PTY_LIMIT_EXCEEDED", ResourceExhausted;
}

/// The longest message. It goes into the trailers twice, once with up to three bytes for each, and clients take 16 KiB of those.
const MESSAGE_BYTES_MAX: usize = 2 << 10;
/// The most bytes of all details together.
const DETAILS_BYTES_MAX: usize = 3 << 10;

/// Shortens a text to at most `most` bytes: of a longer one it keeps the beginning and the end.
fn without_middle(text: String, most: usize) -> String {
    const GAP: &str = " [...] ";
    if text.len() <= most {
        return text;
    }
    let half = most.saturating_sub(GAP.len()) / 2;
    let (begin, end) = (text.floor_char_boundary(half), text.ceil_char_boundary(text.len() - half));
    format!("{}{GAP}{}", &text[..begin], &text[end..])
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason, by which a program can decide.
    pub reason: Reason,
    /// What happened, to what, and what to do next.
    pub message: String,
    /// More for a program, for example the present head.
    pub details: HashMap<String, String>,
}

impl Failure {
    /// Creates a failure without details.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), details: HashMap::new() }
    }

    /// Adds a detail.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    /// Converts the failure to a gRPC status. Texts that are longer than a trailer can carry lose their middle.
    pub fn into_status(self) -> Status {
        let share = DETAILS_BYTES_MAX / self.details.len().max(1);
        let details: HashMap<_, _> =
            self.details.into_iter().map(|(key, value)| (key, without_middle(value, share))).collect();
        let details = ErrorDetails::with_error_info(self.reason.word(), DOMAIN, details);
        Status::with_error_details(self.reason.code(), without_middle(self.message, MESSAGE_BYTES_MAX), details)
    }

    /// Reads the failure from a gRPC status. Returns `None` if the status does not carry one.
    pub fn of_status(status: &Status) -> Option<Self> {
        let info = status.get_details_error_info()?;
        let reason = Reason::ALL.iter().copied().find(|reason| reason.word() == info.reason)?;
        let is_ours = info.domain == DOMAIN;
        is_ours.then(|| Self { reason, message: status.message().to_owned(), details: info.metadata })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_failures_fit_into_trailers() {
        // Each such character has three bytes in UTF-8, and the trailer encodes each byte in three.
        let name = "\u{202e}".repeat(100_000);
        let message = format!("cannot find {name}; look at the log");
        let failure = Failure::new(Reason::NotFound, message).with("candidates", name.clone()).with("head", name);
        let status = failure.into_status();
        assert!(status.message().starts_with("cannot find ") && status.message().ends_with("; look at the log"));
        let trailers = status.clone().into_http::<()>();
        let bytes: usize = trailers.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
        assert!(bytes < 16 << 10, "{bytes}");
        let read = Failure::of_status(&status).expect("one of ours");
        assert_eq!((read.reason, read.details.len()), (Reason::NotFound, 2));
    }

    #[test]
    fn short_failures_are_told_whole() {
        let failure = Failure::new(Reason::Busy, "later").with("head", "snapshots/1");
        assert_eq!(Failure::of_status(&failure.clone().into_status()), Some(failure));
    }
}
