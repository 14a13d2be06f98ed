//! Refusals of the gateway as gRPC statuses, with the same details as those of a store.

use std::time::Duration;

use amalgam_proto::{Failure, Reason};
use tonic::{Code, Status};

use crate::catalog::CatalogError;
use crate::identity::AuthError;
use crate::projects::ProjectError;

/// The header with the seconds after which a refused call may be retried.
pub(crate) const RETRY_AFTER: &str = "retry-after";

impl From<AuthError> for Status {
    fn from(error: AuthError) -> Self {
        let reason = match error {
            AuthError::Catalog(ref error) => return unreachable_or_fault(error),
            AuthError::Expired(_) => Reason::KeyExpired,
            AuthError::Revoked(_) => Reason::KeyRevoked,
            AuthError::Missing | AuthError::Invalid => Reason::Unauthenticated,
        };
        Failure::new(reason, error.to_string()).into_status()
    }
}

impl From<CatalogError> for Status {
    fn from(error: CatalogError) -> Self {
        let reason = match error {
            CatalogError::ProjectExists(_) => Reason::AlreadyExists,
            CatalogError::NoProject(_)
            | CatalogError::NoKey(_)
            | CatalogError::NoWebhook(_)
            | CatalogError::NoDelivery(..) => Reason::NotFound,
            CatalogError::Database(_)
            | CatalogError::Migration(_)
            | CatalogError::Malformed { .. }
            | CatalogError::Random(_) => return unreachable_or_fault(&error),
        };
        Failure::new(reason, error.to_string()).into_status()
    }
}

impl From<ProjectError> for Status {
    fn from(error: ProjectError) -> Self {
        let reason = match error {
            ProjectError::Catalog(error) => return error.into(),
            ProjectError::Store { ref project, ref source } => {
                // The message of the error names paths of the host.
                tracing::warn!(%project, %error, "a project cannot be opened");
                let message = match source.reason() {
                    Reason::Unsupported => {
                        format!("a newer version of Amalgam wrote the store of project {project}; upgrade the server")
                    }
                    _ => format!("the store of project {project} cannot be opened now; the server's log says why"),
                };
                return Failure::new(source.reason(), message).into_status();
            }
            ProjectError::Deleted(_) => Reason::NotFound,
            ProjectError::Stopping => Reason::Busy,
            ProjectError::OnlyDefault => Reason::Unsupported,
        };
        Failure::new(reason, error.to_string()).into_status()
    }
}

/// Converts a failure of the catalog to a status. The caller may retry if the database cannot be reached now.
fn unreachable_or_fault(error: &CatalogError) -> Status {
    let reason = if error.is_unreachable() { Reason::Busy } else { Reason::Fault };
    Failure::new(reason, error.to_string()).into_status()
}

/// Returns the status for a call that the key does not permit.
pub(crate) fn forbidden(message: impl Into<String>) -> Status {
    Failure::new(Reason::Forbidden, message).into_status()
}

/// Returns the status for a call while the server stops.
pub(crate) fn stopping() -> Status {
    Failure::new(Reason::Busy, "the server is stopping; try again").into_status()
}

/// Returns the status for a call of a key that has used its calls, with the time after which it may be retried.
pub(crate) fn rate_limited(wait: Duration) -> Status {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    let message = format!("this key has used its calls; try again in {seconds} s");
    let mut status = Failure::new(Reason::RateLimited, message).into_status();
    status.metadata_mut().insert(RETRY_AFTER, seconds.into());
    status
}

/// Returns the status for a call whose deadline has passed.
pub(crate) fn deadline_exceeded() -> Status {
    Status::new(Code::DeadlineExceeded, "the deadline of the call has passed")
}
