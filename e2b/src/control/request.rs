//! A request of the control plane: its body, its sandbox, and the forms of its answers.

use std::time::Duration;

use amalgam_proto::v1;
use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tonic::Code;
use tonic::body::Body;

use crate::calls::Caller;
use crate::notes::Notes;
use crate::refusal::Refusal;
use crate::signature::access_token;
use crate::state::State;
use crate::target::is_id;

/// Size limit of a body.
const BODY_BYTES_MAX: usize = 1 << 20;
const BODY_WITHIN: Duration = Duration::from_secs(60);
/// The version of e2b's own program in a sandbox whose protocol is served: clients decide by it which messages they send.
pub(super) const ENVD_VERSION: &str = "0.6.13";
pub(super) const CLIENT_ID: &str = "amalgam";

pub(super) type Answer = Result<Response<Body>, Refusal>;

/// A request of the control plane.
pub(super) struct Control<'a> {
    pub(super) state: &'a State,
    pub(super) caller: Caller,
    pub(super) head: &'a Parts,
    /// The path begins with `/v2`, which older clients do not use.
    pub(super) is_current: bool,
}

pub(super) fn no_content() -> Answer {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

pub(super) fn no_sandbox(id: &str) -> Refusal {
    Refusal::not_found(format!("sandbox {} was not found", id.escape_debug()))
}

/// Reads a JSON body; an empty one is an empty object.
pub(super) async fn read<T: DeserializeOwned>(body: Body) -> Result<T, Refusal> {
    let collected = tokio::time::timeout(BODY_WITHIN, Limited::new(body, BODY_BYTES_MAX).collect()).await;
    let late = || Refusal::new(Code::DeadlineExceeded, "the body did not arrive in time");
    let bytes = match collected.map_err(|_| late())? {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            let refusal = Refusal::invalid("the body has more than 1 MiB");
            return Err(refusal.with_status(StatusCode::PAYLOAD_TOO_LARGE));
        }
        Err(error) => return Err(Refusal::invalid(format!("the body ended early: {error}"))),
    };
    let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
    let wrong = |error: serde_json::Error| Refusal::invalid(format!("the body: {error}"));
    match serde_json::from_slice(&bytes).map_err(wrong)? {
        // A list would be taken for the fields of an object, in their order.
        object @ Value::Object(_) => serde_json::from_value(object).map_err(wrong),
        _ => Err(Refusal::invalid("the body is not a JSON object")),
    }
}

/// Finds a sandbox, and its state by e2b's names.
pub(super) async fn find(caller: &Caller, id: &str) -> Result<(v1::Sandbox, &'static str), Refusal> {
    if !is_id(id) {
        return Err(no_sandbox(id));
    }
    let found = caller.sandboxes().get_sandbox(v1::GetSandboxRequest { id: id.to_owned() }).await;
    let sandbox = match found {
        Ok(found) => found.into_inner().sandbox.unwrap_or_default(),
        Err(status) if status.code() == Code::NotFound => return Err(no_sandbox(id)),
        Err(status) => return Err(status.into()),
    };
    match Notes::of(&sandbox).state(&sandbox) {
        Some(state) => Ok((sandbox, state)),
        None => Err(no_sandbox(id)),
    }
}

impl Control<'_> {
    /// Converts a sandbox to its JSON form, with the tokens for its ports, files and processes.
    pub(super) fn sandbox(&self, sandbox: &v1::Sandbox) -> Value {
        let mut shown = json!({
            "templateID": Notes::of(sandbox).template,
            "sandboxID": sandbox.id,
            "clientID": CLIENT_ID,
            "envdVersion": ENVD_VERSION,
        });
        self.add_token(&mut shown, &sandbox.id);
        if let Some(key) = self.caller.key() {
            // For ports of programs in the sandbox.
            shown["trafficAccessToken"] = key.into();
        }
        shown
    }

    /// Adds the access token of a sandbox, with which clients also sign URLs. It holds the key of the caller, so that requests with
    /// it pass the gate like all others.
    pub(super) fn add_token(&self, shown: &mut Value, sandbox: &str) {
        if let Some(key) = self.caller.key() {
            shown["envdAccessToken"] = access_token(key, sandbox).into();
            self.state.signers.remember(key, sandbox);
        }
    }

    /// Finds a sandbox, and its state by e2b's names.
    pub(super) async fn find(&self, id: &str) -> Result<(v1::Sandbox, &'static str), Refusal> {
        find(&self.caller, id).await
    }

    /// Finds a sandbox that runs.
    pub(super) async fn running(&self, id: &str) -> Result<v1::Sandbox, Refusal> {
        match self.find(id).await? {
            (sandbox, "running") => Ok(sandbox),
            _ => Err(no_sandbox(id)),
        }
    }

    /// Sets when a sandbox ends.
    pub(super) async fn set_timeout(&self, id: &str, seconds: i32) -> Result<v1::Sandbox, Refusal> {
        let message = v1::SetSandboxTimeoutRequest { id: id.to_owned(), seconds };
        match self.caller.sandboxes().set_sandbox_timeout(message).await {
            Ok(set) => Ok(set.into_inner().sandbox.unwrap_or_default()),
            Err(status) if status.code() == Code::FailedPrecondition => Err(no_sandbox(id)),
            Err(status) => Err(status.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct TimeoutBody {
        timeout: f64,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct PauseBody {
        memory: Option<bool>,
    }

    #[tokio::test]
    async fn bodies_that_are_malformed_or_too_long_are_refused() {
        let body = |text: String| Body::new(http_body_util::Full::new(Bytes::from(text)));
        let read_one = read::<TimeoutBody>(body("{\"timeout\": 5}".to_owned())).await.expect("a body");
        assert!((read_one.timeout - 5.0).abs() < f64::EPSILON);
        assert_eq!(read::<PauseBody>(body(String::new())).await.expect("an empty body").memory, None);
        let long = " ".repeat(BODY_BYTES_MAX + 1);
        for wrong in ["[]", "{\"timeout\": \"x\"}", "nonsense", &long] {
            assert!(read::<TimeoutBody>(body(wrong.to_owned())).await.is_err());
        }
    }
}
