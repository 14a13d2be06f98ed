//! Why a call failed: a stable reason, words for a person, and details for a program; as `google.rpc.ErrorInfo` on the wire.

use std::collections::HashMap;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The domain of every reason.
pub const DOMAIN: &str = "amalgam";

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal, $code:ident;)+) => {
        /// What a program can decide by. The words are stable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Reason {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The word on the wire.
            pub fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)+ }
            }

            /// The code that goes with it.
            pub fn code(self) -> Code {
                match self { $(Self::$name => Code::$code,)+ }
            }
        }
    };
}

reasons! {
    /// A workspace's head is not where the caller's work began. Look at what it has now, then decide anew.
    StaleHead = "STALE_HEAD", Aborted;
    /// Something that an operation touched has moved since, so it cannot be taken back.
    MovedSince = "MOVED_SINCE", FailedPrecondition;
    /// There is nothing to take back or to do again.
    NothingToRevert = "NOTHING_TO_REVERT", FailedPrecondition;
    /// There are changes that are in no snapshot yet.
    UncommittedChanges = "UNCOMMITTED_CHANGES", FailedPrecondition;
    /// What was named is not there.
    NotFound = "NOT_FOUND", NotFound;
    /// What was to be made is there already.
    AlreadyExists = "ALREADY_EXISTS", AlreadyExists;
    /// The request is wrong.
    Invalid = "INVALID", InvalidArgument;
    /// A name stands for several things.
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
    /// Somebody uses what is mounted.
    MountBusy = "MOUNT_BUSY", FailedPrecondition;
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
    /// Somebody else holds the store.
    Busy = "BUSY", Unavailable;
    /// The machine failed.
    Fault = "FAULT", Internal;
    /// A newer version of the program is needed.
    Unsupported = "UNSUPPORTED", Unimplemented;
    /// The caller went away or asked to stop.
    Cancelled = "CANCELLED", Cancelled;
    /// The call exists only for the same user on the same machine.
    LocalOnly = "LOCAL_ONLY", PermissionDenied;
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What a program can decide by.
    pub reason: Reason,
    /// What happened, to what, and what to do next.
    pub message: String,
    /// More for a program: the present head, say.
    pub details: HashMap<String, String>,
}

impl Failure {
    /// A failure without details.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), details: HashMap::new() }
    }

    /// The same with a detail.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    /// For the wire.
    pub fn into_status(self) -> Status {
        let details = ErrorDetails::with_error_info(self.reason.word(), DOMAIN, self.details);
        Status::with_error_details(self.reason.code(), self.message, details)
    }

    /// From the wire; nothing if it is not one of ours.
    pub fn of_status(status: &Status) -> Option<Self> {
        let info = status.get_details_error_info()?;
        let reason = Reason::ALL.iter().copied().find(|reason| reason.word() == info.reason)?;
        let is_ours = info.domain == DOMAIN;
        is_ours.then(|| Self { reason, message: status.message().to_owned(), details: info.metadata })
    }
}
