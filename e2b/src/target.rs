//! The sandbox that a request of the data plane is for.

use amalgam_proto::v1;
use data_encoding::BASE64;
use http::header::{AUTHORIZATION, HOST, HeaderName};
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use tonic::Code;
use tonic::body::Body;

use crate::calls::{Caller, Calls};
use crate::notes::Notes;
use crate::refusal::Refusal;
use crate::signature::Signer;

const SANDBOX_ID: HeaderName = HeaderName::from_static("e2b-sandbox-id");
const SANDBOX_PORT: HeaderName = HeaderName::from_static("e2b-sandbox-port");
/// The port that files and processes are served at, by the protocol.
pub(crate) const PORT: &str = "49983";
const ID_BYTES_MAX: usize = 64;
/// Names of the only user of a sandbox.
const USERS: [&str; 3] = ["", "user", "sandbox"];

/// A sandbox, and the caller that uses it.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) id: String,
    pub(crate) caller: Caller,
}

impl Target {
    /// Finds the sandbox of a request, and checks that it runs and that the caller may use it.
    pub(crate) async fn find(calls: &Calls, head: &Parts) -> Result<(Self, v1::Sandbox), Refusal> {
        Self::find_with(calls, head, true).await
    }

    /// Finds a sandbox for the owner of a key that the request does not have.
    pub(crate) async fn find_for(calls: &Calls, head: &Parts, signer: &Signer) -> Result<Self, Refusal> {
        let caller = calls.with_key(&head.headers, &signer.key);
        running(&caller, &signer.sandbox, true).await?;
        Ok(Self { id: signer.sandbox.clone(), caller })
    }

    async fn find_with(calls: &Calls, head: &Parts, may_resume: bool) -> Result<(Self, v1::Sandbox), Refusal> {
        let (id, port) = named(&head.headers)?;
        if port != PORT {
            return Err(Refusal::closed_port(&id, &port));
        }
        let caller = calls.of(&head.headers);
        let sandbox = running(&caller, &id, may_resume).await?;
        Ok((Self { id, caller }, sandbox))
    }
}

/// Reads the id of the sandbox and the port from the headers of e2b, or from a host such as `49983-ID.DOMAIN`.
pub(crate) fn named(headers: &HeaderMap) -> Result<(String, String), Refusal> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let of_host = || {
        let (port, id) = text(&HOST)?.split_once('.')?.0.split_once('-')?;
        // Other hosts have a dash in their first part, too, such as `amalgam-1.internal`.
        port.parse::<u16>().is_ok().then_some((port, id))
    };
    let (port, id) = match text(&SANDBOX_ID) {
        Some(id) => (text(&SANDBOX_PORT).unwrap_or(PORT), id),
        None => of_host().ok_or_else(|| Refusal::invalid("e2b-sandbox-id: the request names no sandbox"))?,
    };
    match is_id(id) {
        true => Ok((id.to_owned(), port.to_owned())),
        false => Err(Refusal::gone("of this name")),
    }
}

/// Returns whether the headers or the host name a sandbox.
pub(crate) fn is_named(headers: &HeaderMap) -> bool {
    headers.contains_key(SANDBOX_ID) || named(headers).is_ok()
}

/// Returns whether a text can be the id of a sandbox.
pub(crate) fn is_id(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.len() <= ID_BYTES_MAX && text.bytes().all(is_plain)
}

/// Finds a running sandbox. Starts a paused one if its creator asked for that and `may_resume` is set.
async fn running(caller: &Caller, id: &str, may_resume: bool) -> Result<v1::Sandbox, Refusal> {
    let found = caller.sandboxes().get_sandbox(v1::GetSandboxRequest { id: id.to_owned() }).await;
    let sandbox = match found {
        Ok(found) => found.into_inner().sandbox.unwrap_or_default(),
        Err(status) if status.code() == Code::NotFound => return Err(Refusal::gone(id)),
        Err(status) => return Err(status.into()),
    };
    match sandbox.state.as_str() {
        "running" => Ok(sandbox),
        _ if may_resume && Notes::of(&sandbox).is_resumed_by_traffic(&sandbox) => {
            let request = v1::ResumeSandboxRequest { id: id.to_owned(), ..v1::ResumeSandboxRequest::default() };
            match caller.sandboxes().resume_sandbox(request).await {
                Ok(resumed) => Ok(resumed.into_inner().sandbox.unwrap_or_default()),
                // Another request starts it.
                Err(status) if status.code() == Code::FailedPrecondition => Err(Refusal::gone(id)),
                Err(status) => Err(status.into()),
            }
        }
        _ => Err(Refusal::gone(id)),
    }
}

/// Refuses users that a sandbox does not have.
pub(crate) fn check_user(headers: &HeaderMap, named: Option<&str>) -> Result<(), Refusal> {
    let basic = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Basic "));
    let decoded = basic.map(|text| BASE64.decode(text.trim().as_bytes()).unwrap_or_else(|_| b"?".to_vec()));
    let of_header = decoded.map(|bytes| {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        text.split_once(':').map_or(text.clone(), |(user, _)| user.to_owned())
    });
    for user in [of_header.as_deref(), named].into_iter().flatten() {
        if !USERS.contains(&user) {
            let message = format!("user `{}`: a sandbox has one user, `user`", user.escape_debug());
            return Err(Refusal::invalid(message));
        }
    }
    Ok(())
}

/// Answers whether a sandbox runs: 204, or 502. Starts no sandbox. A request that names no sandbox checks the listener and gets
/// 204.
pub(crate) async fn health(calls: &Calls, head: &Parts) -> Result<Response<Body>, Refusal> {
    // A load balancer checks the listener.
    if is_named(&head.headers) {
        Target::find_with(calls, head, false).await?;
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("a value"))).collect()
    }

    #[test]
    fn a_sandbox_is_named_by_headers_or_by_the_host() {
        let of = |pairs: &[(&'static str, &str)]| named(&headers(pairs)).ok();
        let found = |id: &str, port: &str| Some((id.to_owned(), port.to_owned()));
        assert_eq!(of(&[("e2b-sandbox-id", "sbx-1")]), found("sbx-1", "49983"));
        assert_eq!(of(&[("e2b-sandbox-id", "sbx-1"), ("e2b-sandbox-port", "80")]), found("sbx-1", "80"));
        assert_eq!(of(&[("host", "49983-sbx-1.example.org:443")]), found("sbx-1", "49983"));
        for host in ["localhost", "127.0.0.1:80", "", "a.b", "amalgam-1.internal", "my-api.example.org", "70000-a.b"] {
            assert_eq!(of(&[("host", host)]), None, "{host}");
            assert!(!is_named(&headers(&[("host", host)])), "{host}");
        }
        assert!(is_named(&headers(&[("host", "49983-sbx-1.example.org")])));
    }

    #[test]
    fn ids_of_abuse_name_no_sandbox() {
        let long = "a".repeat(65);
        for id in ["", "../x", "sbx 1", "SBX", "a/b", "%2e", "a'b", &long] {
            assert!(!is_id(id), "{id}");
            assert!(named(&headers(&[("e2b-sandbox-id", id)])).is_err(), "{id}");
        }
        assert!(is_id("sbx-abc234"));
    }

    #[test]
    fn only_the_user_of_a_sandbox_is_known() {
        let basic = |user: &str| headers(&[("authorization", &format!("Basic {}", BASE64.encode(user.as_bytes())))]);
        assert!(check_user(&basic("user:"), None).is_ok());
        assert!(check_user(&HeaderMap::new(), Some("user")).is_ok());
        for user in ["root:", "root", "\u{0}:"] {
            assert!(check_user(&basic(user), None).is_err(), "{user}");
        }
        assert!(check_user(&headers(&[("authorization", "Basic !!")]), None).is_err());
        assert!(check_user(&HeaderMap::new(), Some("root")).is_err());
    }
}
