//! Ports of programs in a sandbox, as e2b clients name them: by headers, or by a host such as `3000-ID.DOMAIN`.

use amalgam_proto::{Failure, Reason};
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, Request, Response};
use tonic::Status;
use tonic::body::Body;

use crate::refusal::Refusal;
use crate::signature::key_of;
use crate::target::{PORT, named};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Headers with the key of a request to a sandbox, beside that of the control plane.
const TOKENS: [HeaderName; 2] =
    [HeaderName::from_static("e2b-traffic-access-token"), HeaderName::from_static("x-access-token")];

/// A port of a program in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserPort {
    /// The sandbox.
    pub sandbox: String,
    /// The port.
    pub port: u16,
}

impl UserPort {
    /// Returns the port that a request is for; `None` if it is for the control plane, or for the files and processes of a sandbox.
    pub fn of_request<B>(request: &Request<B>) -> Option<Self> {
        let (sandbox, port) = named(request.headers()).ok().filter(|(_, port)| port != PORT)?;
        Some(Self { sandbox, port: port.parse().ok()? })
    }

    /// Moves the token of a request, which is a key, to the header where keys are.
    pub fn take_key(&self, headers: &mut HeaderMap) {
        let tokens = TOKENS.map(|name| headers.remove(name));
        if let Some(token) = tokens.into_iter().flatten().next() {
            let key = token.to_str().ok().and_then(|token| HeaderValue::from_str(key_of(token)).ok());
            headers.entry(API_KEY).or_insert(key.unwrap_or(token));
        }
    }

    /// Builds the answer to a request that did not reach the program.
    pub fn refused(&self, status: Status) -> Response<Body> {
        let reason = Failure::of_status(&status).map(|failure| failure.reason);
        let refusal = match reason {
            Some(Reason::PortUnreachable) => Refusal::closed_port(&self.sandbox, &self.port.to_string()),
            Some(Reason::SandboxNotFound | Reason::SandboxNotReady) => Refusal::gone(&self.sandbox),
            _ => status.into(),
        };
        refusal.into_rest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(pairs: &[(&'static str, &str)]) -> Request<()> {
        let mut request = Request::new(());
        for (name, value) in pairs {
            request.headers_mut().insert(HeaderName::from_static(name), value.parse().expect("a value"));
        }
        request
    }

    #[test]
    fn a_port_is_named_by_headers_or_by_the_host() {
        let found = Some(UserPort { sandbox: "sbx-1".to_owned(), port: 3000 });
        let by_header = request(&[("e2b-sandbox-id", "sbx-1"), ("e2b-sandbox-port", "3000")]);
        assert_eq!(UserPort::of_request(&by_header), found);
        assert_eq!(UserPort::of_request(&request(&[("host", "3000-sbx-1.example.org:443")])), found);
        for host in ["49983-sbx-1.example.org", "api.example.org", "my-api.example.org", "127.0.0.1:80", "70000-a.b"] {
            assert_eq!(UserPort::of_request(&request(&[("host", host)])), None, "{host}");
        }
    }

    #[test]
    fn a_token_becomes_the_key_and_is_nowhere_else() {
        let port = UserPort { sandbox: "sbx-1".to_owned(), port: 3000 };
        let mut sent = request(&[("e2b-traffic-access-token", "am_1.sbx-1"), ("x-access-token", "am_2")]);
        port.take_key(sent.headers_mut());
        assert_eq!(sent.headers().len(), 1);
        assert_eq!(sent.headers().get(API_KEY).map(http::HeaderValue::as_bytes), Some(b"am_1".as_slice()));
    }
}
