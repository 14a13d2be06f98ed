//! Errors in REST answers: a number, a name, and the HTTP status that goes with it.

use tonic::Code;

/// An error of the REST API.
///
/// Numbers are stable. Ranges: 1000-1999 authentication and permission, 2000-2999 sandboxes, 3000-3999 state (projects, workspaces,
/// snapshots, files, merges), 4000-4099 commands, 4100-4199 terminals, 9000-9999 the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode {
    /// The number in `error.code`.
    pub number: u16,
    /// The name in `error.name`.
    pub name: &'static str,
    /// The status of the answer.
    pub http_status: u16,
}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $constant:ident = $number:literal, $status:literal;)*) => {
        impl ErrorCode {
            $($(#[$doc])* pub const $constant: Self =
                Self { number: $number, name: stringify!($constant), http_status: $status };)*

            /// All errors, by number.
            pub const ALL: &[Self] = &[$(Self::$constant),*];
        }
    };
}

error_codes! {
    /// The call has no key, or one that is not valid.
    UNAUTHORIZED = 1000, 401;
    /// The key does not permit the call.
    FORBIDDEN = 1001, 403;
    /// The key has expired.
    KEY_EXPIRED = 1002, 401;
    /// The key was revoked.
    KEY_REVOKED = 1003, 401;
    /// The call exists only on the Unix socket of the server's user.
    LOCAL_ONLY = 1004, 403;
    /// There is no such sandbox.
    SANDBOX_NOT_FOUND = 2001, 404;
    /// There is no such template.
    TEMPLATE_NOT_FOUND = 2002, 404;
    /// The key or the server has as many sandboxes as it may have.
    SANDBOX_LIMIT_EXCEEDED = 2003, 429;
    /// Nothing on the server enforces a limit that was asked for.
    LIMIT_NOT_ENFORCED = 2004, 409;
    /// The server cannot isolate processes, so it starts no sandbox.
    NOT_ISOLATED = 2005, 501;
    /// The sandbox does not run, or its agent is not connected.
    SANDBOX_NOT_READY = 2006, 409;
    /// Nothing listens at a port of the sandbox, or what listens does not answer.
    PORT_UNREACHABLE = 2007, 502;
    /// There is no such project, workspace, snapshot, label, file or key.
    NOT_FOUND = 3000, 404;
    /// The name is taken.
    ALREADY_EXISTS = 3001, 409;
    /// The head, or the version that `If-Match` named, has moved.
    MOVED = 3002, 412;
    /// The workspaces or edits conflict.
    CONFLICT = 3003, 409;
    /// The content was purged, or dropped by retention.
    GONE = 3004, 410;
    /// The state does not permit the call.
    NOT_POSSIBLE = 3005, 409;
    /// A request id was used before with other arguments.
    REQUEST_ID_REUSED = 3006, 409;
    /// The position or page is no longer available; read again from the beginning.
    OUT_OF_RANGE = 3007, 416;
    /// Stored data is damaged.
    DAMAGED = 3008, 500;
    /// The command did not end in time.
    PROCESS_TIMEOUT = 4000, 504;
    /// The command could not be started.
    COMMAND_FAILED = 4001, 400;
    /// There is no such command.
    COMMAND_NOT_FOUND = 4002, 404;
    /// There is no such terminal.
    PTY_NOT_FOUND = 4100, 404;
    /// The sandbox has as many terminals as it may have.
    PTY_LIMIT_EXCEEDED = 4101, 429;
    /// A bug in the server; its log has more under the request id.
    INTERNAL_ERROR = 9000, 500;
    /// The key has used its calls; `Retry-After` says when to try again.
    RATE_LIMITED = 9001, 429;
    /// The request is malformed.
    INVALID_ARGUMENT = 9002, 400;
    /// The request is larger than the server takes.
    TOO_LARGE = 9003, 413;
    /// The server is stopping or overloaded.
    UNAVAILABLE = 9004, 503;
    /// The disk or a quota is full.
    NO_SPACE = 9005, 507;
    /// The deadline of the call has passed.
    DEADLINE_EXCEEDED = 9006, 504;
    /// The caller went away.
    CANCELLED = 9007, 499;
    /// There is no such method or path.
    UNIMPLEMENTED = 9008, 404;
    /// The path exists, but not with this verb.
    METHOD_NOT_ALLOWED = 9009, 405;
    /// The caller has too much open at once.
    TOO_MANY = 9010, 429;
    /// The body is compressed, or in another form that the server does not take.
    UNSUPPORTED_MEDIA = 9011, 415;
}

impl ErrorCode {
    /// Returns the gRPC code that metrics and the audit log show for a request that was refused with this error.
    pub(crate) fn grpc_code(self) -> Code {
        match self.http_status {
            400 => Code::InvalidArgument,
            401 => Code::Unauthenticated,
            403 => Code::PermissionDenied,
            404 | 405 | 415 => Code::Unimplemented,
            413 | 429 => Code::ResourceExhausted,
            504 => Code::DeadlineExceeded,
            _ => Code::Unknown,
        }
    }

    /// Builds the JSON body of a response with this error.
    pub fn body(self, message: &str, details: &serde_json::Value, request_id: &str) -> serde_json::Value {
        serde_json::json!({
            "error": {
                "code": self.number,
                "name": self.name,
                "message": message,
                "details": details,
                "requestId": request_id,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_and_lie_in_a_known_range() {
        let numbers: Vec<_> = ErrorCode::ALL.iter().map(|code| code.number).collect();
        assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
        let is_known = |number: u16| matches!(number, 1000..=4199 | 9000..=9999);
        assert!(numbers.into_iter().all(is_known));
        assert!(ErrorCode::ALL.iter().all(|code| (400..600).contains(&code.http_status)));
    }
}
