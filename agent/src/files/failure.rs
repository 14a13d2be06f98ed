//! Why an operation on files failed.

use std::io;
use std::path::Path;

/// A code for programs, and a message for people.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new("invalid_argument", message)
    }

    /// Returns a function that turns the error of a system call on a path into a failure.
    pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        move |error| Self::new(code(&error), format!("{}: {error}", path.display()))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(code(&error), error.to_string())
    }
}

fn code(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "not_found",
        io::ErrorKind::AlreadyExists => "already_exists",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => "permission_denied",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => "resource_exhausted",
        io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::DirectoryNotEmpty
        | io::ErrorKind::InvalidInput
        | io::ErrorKind::InvalidFilename => "invalid_argument",
        io::ErrorKind::Unsupported => "unimplemented",
        _ => "internal",
    }
}
