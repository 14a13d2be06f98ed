//! The wire form of errors: the one place that turns an [`Error`] into a [`Failure`] and a gRPC status.

use amalgam_proto::{Failure, Reason};
use tonic::Status;

use crate::call_log::is_from_network;
use crate::error::Error;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { reason: error.reason(), message: error.to_string(), details: error.details() }
    }
}

impl Error {
    /// Returns the error as a gRPC status.
    ///
    /// A caller on the network gets no path of the host: errors of the machine are only logged, and the message refers to the log.
    pub(crate) fn into_status(self) -> Status {
        let mut failure = Failure::from(self);
        let is_of_machine = matches!(failure.reason, Reason::Full | Reason::Fault | Reason::Busy);
        if is_of_machine && failure.message.contains('/') && is_from_network() {
            tracing::warn!(message = failure.message, "a call failed");
            failure.message = match failure.reason {
                Reason::Full => "the server's disk is full; its log says more".to_owned(),
                _ => "the server could not do this; its log says more".to_owned(),
            };
        }
        failure.into_status()
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use amalgam_materializer::Error as MaterializerError;

    use super::*;
    use crate::error::PARTLY;

    #[test]
    fn partial_checkout_names_the_changed_paths_and_the_hint() {
        let full = MaterializerError::Host {
            action: "write",
            path: "a".to_owned(),
            source: io::Error::from(io::ErrorKind::StorageFull),
        };
        let partly = MaterializerError::Partial { written: 1, removed: 0, source: Box::new(full) };
        let failure = Failure::from(Error::from(partly).with_hint_if_partly("undo brings them back"));
        assert_eq!(failure.reason, Reason::Full);
        assert_eq!(failure.details.get(PARTLY).map(String::as_str), Some("1"));
        let end = "nothing is lost; 1 path was written before that; undo brings them back";
        assert!(failure.message.ends_with(end), "{}", failure.message);
    }

    #[test]
    fn refusals_keep_reason_message_and_details() {
        let failure = Failure::new(Reason::Busy, "later").with("head", "snapshots/1");
        let error = Error::new(Reason::Busy, "later").with("head", "snapshots/1");
        assert_eq!(Failure::from(error), failure);
        let io = Failure::from(Error::io("read it")(io::ErrorKind::StorageFull.into()));
        assert_eq!(io.reason, Reason::Full);
        assert!(io.message.ends_with("; free some space and try again"), "{}", io.message);
    }
}
