//! Exit codes.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use amalgam_proto::Reason;

/// An exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit(pub u8);

impl Exit {
    /// Success.
    pub const OK: Self = Self(0);
    /// Failure.
    pub const ERROR: Self = Self(1);
    /// Wrong command line. clap uses the same code.
    pub const USAGE: Self = Self(2);
    /// Done, except for the reported paths.
    pub const PARTLY: Self = Self(3);
    /// There are differences (`--exit-code`).
    pub const DIFFERS: Self = Self(4);
    /// Conflicts are left, or a merge waits for a decision.
    pub const CONFLICTS: Self = Self(5);
    /// The head, or a reference of an operation to undo, has moved.
    pub const STALE: Self = Self(6);
    /// There is no store.
    pub const NO_STORE: Self = Self(10);
    /// Another process holds the store.
    pub const BUSY: Self = Self(11);
    /// The disk is full.
    pub const FULL: Self = Self(13);
    /// Ctrl-C.
    pub const INTERRUPTED: Self = Self(130);

    /// Returns the exit code of a failure with this reason.
    pub fn of_reason(reason: Reason) -> Self {
        match reason {
            Reason::StaleHead | Reason::StaleFile | Reason::MovedSince => Self::STALE,
            Reason::NotUnique | Reason::PatchFailed => Self::ERROR,
            Reason::Busy => Self::BUSY,
            Reason::Full => Self::FULL,
            Reason::Cancelled => Self::INTERRUPTED,
            Reason::Invalid | Reason::Ambiguous => Self::ERROR,
            Reason::NothingToRevert | Reason::UncommittedChanges | Reason::RequestReused | Reason::TooMany => {
                Self::ERROR
            }
            Reason::NotFound | Reason::AlreadyExists | Reason::OutOfRange => Self::ERROR,
            Reason::NoDirectory | Reason::NestedDirectory => Self::ERROR,
            Reason::DirectoryReplaced | Reason::DirectoryGone => Self::ERROR,
            Reason::Mounted | Reason::MountRefused | Reason::MountBusy | Reason::GitLocked => Self::ERROR,
            Reason::DamagedStream | Reason::Purged | Reason::TestNotStarted => Self::ERROR,
            Reason::Unauthenticated | Reason::KeyExpired | Reason::KeyRevoked => Self::ERROR,
            Reason::Forbidden | Reason::RateLimited => Self::ERROR,
            Reason::Corrupt | Reason::Fault | Reason::Unsupported | Reason::LocalOnly => Self::ERROR,
            Reason::SandboxNotFound | Reason::TemplateNotFound | Reason::SandboxLimit => Self::ERROR,
            Reason::LimitNotEnforced | Reason::NotIsolated | Reason::SandboxNotReady => Self::ERROR,
            Reason::ProcessTimeout | Reason::CommandFailed | Reason::CommandNotFound => Self::ERROR,
            Reason::PtyNotFound | Reason::PtyLimit | Reason::PortUnreachable => Self::ERROR,
        }
    }

    /// Returns the exit code that a shell gives a command with this status: 128 plus the signal that ended it.
    pub fn of_status(status: ExitStatus) -> Self {
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
        Self(u8::try_from(code).unwrap_or(1))
    }

    /// Returns the first of two exit codes that is not success.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        if self == Self::OK { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_children_are_those_of_a_shell() {
        for (raw, code) in [(0, 0), (3 << 8, 3), (9, 137)] {
            assert_eq!(Exit::of_status(ExitStatus::from_raw(raw)), Exit(code));
        }
    }

    #[test]
    fn every_reason_ends_in_a_failure() {
        for reason in Reason::ALL {
            assert_ne!(Exit::of_reason(*reason), Exit::OK, "{reason:?}");
        }
        assert_eq!(Exit::of_reason(Reason::StaleHead), Exit(6));
        assert_eq!(Exit::of_reason(Reason::MovedSince), Exit(6));
        assert_eq!(Exit::of_reason(Reason::Full), Exit(13));
        assert_eq!(Exit::of_reason(Reason::Busy), Exit(11));
    }
}
