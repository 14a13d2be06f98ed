//! Errors as the API tells them: the one table of reasons.

use amalgam_engine::{Error, ErrorKind};
use amalgam_proto::{Failure, Reason};

/// The service's result.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// An error of the engine, for the API.
pub fn of_engine(error: Error) -> Failure {
    let reason = match error.kind() {
        ErrorKind::Stale if matches!(error, Error::MovedSince { .. }) => Reason::MovedSince,
        ErrorKind::Stale => Reason::StaleHead,
        _ if matches!(error, Error::Purged { .. }) => Reason::Purged,
        _ if matches!(error, Error::NothingToRevert { .. }) => Reason::NothingToRevert,
        _ if matches!(error, Error::RequestReused { .. }) => Reason::RequestReused,
        ErrorKind::NotFound => Reason::NotFound,
        ErrorKind::Exists => Reason::AlreadyExists,
        ErrorKind::Invalid if matches!(error, Error::Ambiguous { .. }) => Reason::Ambiguous,
        ErrorKind::Invalid => Reason::Invalid,
        ErrorKind::Corrupt => Reason::Corrupt,
        ErrorKind::Full => Reason::Full,
        ErrorKind::Busy => Reason::Busy,
        ErrorKind::Unsupported => Reason::Unsupported,
        ErrorKind::Interrupted => Reason::Cancelled,
        _ => Reason::Fault,
    };
    let failure = Failure::new(reason, error.to_string());
    match error {
        Error::StaleHead { current: Some(head), .. } => failure.with("head", amalgam_proto::snapshot_name(head)),
        Error::Ambiguous { candidates, .. } => failure.with("candidates", candidates.join("\n")),
        _ => failure,
    }
}

/// The detail of a failure that says how many paths were changed before it.
pub const PARTLY: &str = "changed_paths";

/// An error of the materializer, for the API.
pub fn of_materializer(error: amalgam_materializer::Error) -> Failure {
    use amalgam_materializer::Error as Host;
    if let Host::Partial { written, removed, source } = error {
        let failure = of_materializer(*source);
        let before = match (written, removed) {
            (1, 0) => "1 path was written before that".to_owned(),
            (0, 1) => "1 path was removed before that".to_owned(),
            _ => format!("{written} paths were written and {removed} removed before that"),
        };
        let message = format!("{}; {before}", failure.message);
        return Failure { message, ..failure }.with(PARTLY, (written + removed).to_string());
    }
    let reason = match (&error, error.kind()) {
        (Host::Engine(_), _) => {
            let Host::Engine(error) = error else { unreachable!("it was just looked at") };
            return of_engine(error);
        }
        (Host::Cancelled, _) => Reason::Cancelled,
        (_, Some(ErrorKind::Full)) => {
            return Failure::new(
                Reason::Full,
                format!("{error}; free some space and run the command again: nothing is lost"),
            );
        }
        (_, Some(ErrorKind::NotFound)) => Reason::NotFound,
        (_, Some(ErrorKind::Invalid)) => Reason::Invalid,
        _ => Reason::Fault,
    };
    Failure::new(reason, error.to_string())
}

/// An error of a live view, for the API.
pub fn of_view(error: amalgam_view::Error) -> Failure {
    use amalgam_view::Error as Live;
    match error {
        Live::Engine(error) => of_engine(error),
        Live::Quota { .. } => Failure::new(Reason::Full, error.to_string()),
        Live::Unplaceable { .. } => Failure::new(Reason::Invalid, error.to_string()),
        Live::ReadOnly => Failure::new(Reason::Invalid, "the mount is read-only"),
        other => Failure::new(Reason::Fault, other.to_string()),
    }
}

/// An error of a transfer, for the API.
pub fn of_transfer(error: amalgam_transfer::Error) -> Failure {
    use amalgam_transfer::Error as Transfer;
    let reason = match (&error, error.kind()) {
        (Transfer::Engine(_), _) => {
            let Transfer::Engine(error) = error else { unreachable!("it was just looked at") };
            return of_engine(error);
        }
        (Transfer::Cancelled, _) => Reason::Cancelled,
        // The name is taken: nothing moved meanwhile, and trying again would not help.
        (Transfer::Diverged { .. }, _) => Reason::AlreadyExists,
        (_, Some(ErrorKind::Corrupt)) => Reason::DamagedStream,
        (_, Some(ErrorKind::Full)) => Reason::Full,
        (_, Some(ErrorKind::NotFound)) => Reason::NotFound,
        (_, Some(ErrorKind::Invalid)) => Reason::Invalid,
        (_, Some(ErrorKind::Unsupported)) => Reason::Unsupported,
        _ => Reason::Fault,
    };
    Failure::new(reason, error.to_string())
}

/// An error of an import or an export, for the API.
pub fn of_exchange(error: amalgam_exchange::Error) -> Failure {
    use amalgam_exchange::Error as Exchange;
    let reason = match (&error, error.kind()) {
        (Exchange::Engine(_), _) => {
            let Exchange::Engine(error) = error else { unreachable!("it was just looked at") };
            return of_engine(error);
        }
        (Exchange::Cancelled, _) => Reason::Cancelled,
        (_, Some(ErrorKind::Corrupt)) => Reason::DamagedStream,
        (_, Some(ErrorKind::Full)) => Reason::Full,
        (_, Some(ErrorKind::NotFound)) => Reason::NotFound,
        (_, Some(ErrorKind::Invalid)) => Reason::Invalid,
        (_, Some(ErrorKind::Unsupported)) => Reason::Unsupported,
        _ => Reason::Fault,
    };
    Failure::new(reason, error.to_string())
}

/// An error of the machine, with what was being done.
pub fn of_io(action: &str, source: &std::io::Error) -> Failure {
    match source.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            Failure::new(Reason::Full, format!("could not {action}: {source}; free some space and try again"))
        }
        _ => Failure::new(Reason::Fault, format!("could not {action}: {source}")),
    }
}
