//! Why a request is refused, in the forms that e2b clients read.

use amalgam_proto::{Failure, Reason};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};
use tonic::body::Body;
use tonic::{Code, Status};

/// Header that says whether a client may send a refused request again.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// A refusal: its code in Connect, its status in REST, and a message for people.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// Seconds.
    retry_after: Option<HeaderValue>,
    is_final: bool,
    /// The sandbox does not run, so that a proxy would answer in its place.
    is_gone: bool,
}

impl Refusal {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        let (status, message) = (status_of(code), message.into());
        Self { code, status, message, retry_after: None, is_final: false, is_gone: false }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    /// Refuses a part of the protocol that is not served, by its name.
    pub(crate) fn not_served(what: &str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, ..Self::new(Code::Unimplemented, format!("{what} is not served here")) }
    }

    /// Refuses a request for a sandbox that does not run. Clients recognise it by the status and by the words "was not found".
    pub(crate) fn gone(sandbox: &str) -> Self {
        let message = format!("The sandbox {} was not found", sandbox.escape_debug());
        Self { status: StatusCode::BAD_GATEWAY, is_gone: true, ..Self::new(Code::Unavailable, message) }
    }

    /// Refuses a request for a port of a sandbox that cannot be reached.
    pub(crate) fn closed_port(sandbox: &str, port: &str) -> Self {
        let message = format!(
            "The sandbox {} is running but port {} is not served: the port is not open",
            sandbox.escape_debug(),
            port.escape_debug()
        );
        Self { status: StatusCode::BAD_GATEWAY, is_gone: true, ..Self::new(Code::Unavailable, message) }
    }

    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Returns the body of the answer in REST.
    fn rest_body(&self) -> Value {
        json!({"code": self.status.as_u16(), "message": self.message})
    }

    /// Returns the error in Connect, for a body or for the last message of a stream.
    pub(crate) fn connect_error(&self) -> Value {
        json!({"code": word(self.code), "message": self.message})
    }

    /// Converts the refusal to an answer in REST.
    pub(crate) fn into_rest(self) -> Response<Body> {
        let body = self.rest_body();
        self.answer(self.status, &body)
    }

    /// Converts the refusal to the answer to a unary call of Connect.
    pub(crate) fn into_connect(self) -> Response<Body> {
        match self.is_gone {
            true => self.into_rest(),
            false => self.answer(connect_status(self.code), &self.connect_error()),
        }
    }

    /// Returns whether a proxy would answer in place of the sandbox, also to a stream.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone
    }

    fn answer(&self, status: StatusCode, body: &Value) -> Response<Body> {
        let mut response = json_answer(status, body);
        let headers = response.headers_mut();
        if let Some(seconds) = &self.retry_after {
            headers.insert(RETRY_AFTER, seconds.clone());
        }
        if self.is_final {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        response
    }
}

/// Refuses a snapshot of memory, which this server cannot make.
pub(crate) fn refuse_memory(field: &str, memory: Option<bool>) -> Result<(), Refusal> {
    match memory {
        Some(true) => Err(Refusal::not_served(&format!("`{field}`: a snapshot of memory"))),
        _ => Ok(()),
    }
}

/// Builds an answer with a JSON body.
pub(crate) fn json_answer(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(Bytes::from(body.to_string()))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        let reason = Failure::of_status(&status).map(|failure| failure.reason);
        let retry_after = status.metadata().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
        let mut refusal = Self { retry_after, ..Self::new(status.code(), status.message()) };
        match reason {
            Some(Reason::Full) => refusal.status = StatusCode::INSUFFICIENT_STORAGE,
            Some(Reason::NotIsolated) => refusal.status = StatusCode::NOT_IMPLEMENTED,
            // Waiting does not help: sandboxes have to be deleted.
            Some(Reason::SandboxLimit | Reason::PtyLimit | Reason::TooMany) => refusal.is_final = true,
            _ => {}
        }
        refusal
    }
}

fn status_of(code: Code) -> StatusCode {
    match code {
        Code::AlreadyExists | Code::FailedPrecondition | Code::Aborted => StatusCode::CONFLICT,
        _ => connect_status(code),
    }
}

/// Returns the HTTP status of a Connect error.
fn connect_status(code: Code) -> StatusCode {
    let number = match code {
        Code::Ok => 200,
        Code::Cancelled => 499,
        Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition => 400,
        Code::DeadlineExceeded => 504,
        Code::NotFound => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::PermissionDenied => 403,
        Code::ResourceExhausted => 429,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::Unauthenticated => 401,
        Code::Unknown | Code::Internal | Code::DataLoss => 500,
    };
    StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Names of codes, in Connect and in the failures of the agent's program for files.
const WORDS: [(Code, &str); 16] = [
    (Code::Cancelled, "canceled"),
    (Code::Unknown, "unknown"),
    (Code::InvalidArgument, "invalid_argument"),
    (Code::DeadlineExceeded, "deadline_exceeded"),
    (Code::NotFound, "not_found"),
    (Code::AlreadyExists, "already_exists"),
    (Code::PermissionDenied, "permission_denied"),
    (Code::ResourceExhausted, "resource_exhausted"),
    (Code::FailedPrecondition, "failed_precondition"),
    (Code::Aborted, "aborted"),
    (Code::OutOfRange, "out_of_range"),
    (Code::Unimplemented, "unimplemented"),
    (Code::Internal, "internal"),
    (Code::Unavailable, "unavailable"),
    (Code::DataLoss, "data_loss"),
    (Code::Unauthenticated, "unauthenticated"),
];

fn word(code: Code) -> &'static str {
    WORDS.iter().find(|(known, _)| *known == code).map_or("unknown", |(_, word)| word)
}

/// Returns the code with this name; `Unknown` for an unknown name.
pub(crate) fn code_of(word: &str) -> Code {
    WORDS.iter().find(|(_, known)| *known == word).map_or(Code::Unknown, |(code, _)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_word_of_its_own() {
        for number in 1..=16 {
            let code = Code::from(number);
            assert_eq!(code_of(word(code)), code, "{code:?}");
        }
        assert_eq!(code_of("nonsense"), Code::Unknown);
    }

    #[test]
    fn a_full_server_is_not_asked_again_and_a_busy_one_is() {
        let limit = Failure::new(Reason::SandboxLimit, "10 run").into_status();
        let response = Refusal::from(limit).into_rest();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers().get(SHOULD_RETRY).map(HeaderValue::as_bytes), Some(b"false".as_slice()));
        let mut limited = Failure::new(Reason::RateLimited, "slow down").into_status();
        limited.metadata_mut().insert("retry-after", "7".parse().expect("a value"));
        let response = Refusal::from(limited).into_rest();
        assert_eq!(response.headers().get(RETRY_AFTER).map(HeaderValue::as_bytes), Some(b"7".as_slice()));
        assert!(response.headers().get(SHOULD_RETRY).is_none());
    }

    #[test]
    fn memory_is_refused_by_name() {
        assert!(refuse_memory("memory", None).is_ok() && refuse_memory("memory", Some(false)).is_ok());
        let refused = refuse_memory("memory", Some(true)).expect_err("refused");
        assert!(refused.message.contains("`memory`") && refused.status == StatusCode::BAD_REQUEST);
    }

    #[test]
    fn a_sandbox_that_is_gone_is_told_like_a_proxy_tells_it() {
        let response = Refusal::gone("sbx-1").into_connect();
        assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
        assert!(Refusal::gone("sbx-1").message.contains("was not found"));
        assert!(Refusal::closed_port("sbx-1", "80").message.contains("port is not open"));
    }
}
