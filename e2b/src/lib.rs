//! The protocol of e2b clients, translated into calls of Amalgam's own API.
//!
//! [`E2b::answer`] answers one HTTP request: of the control plane (REST) or of the data plane (files and processes of a sandbox, over the
//! Connect protocol and plain HTTP). Every request becomes gRPC calls that pass the gate of the server, so keys, scopes, limits and audit
//! are written once, there.
//!
//! Absent are: a listener, keys, sandboxes. The crate remembers only the numbers of processes, watchers that are polled, keys of
//! requests that clients repeat, and access tokens that clients may sign URLs with: the API has no place for them.

mod calls;
mod codec;
mod connect;
mod control;
mod entry;
mod envelope;
mod files;
mod filesystem;
mod gzip;
mod idempotency;
mod notes;
mod process_table;
mod processes;
mod program;
mod refusal;
mod signature;
mod state;
mod target;
mod user_port;
mod watchers;
mod wire;

use std::sync::Arc;

use amalgam_engine::Time;
use http::{Method as Verb, Request, Response};
use tonic::body::Body;

pub use calls::Calls;
pub use notes::is_paused;
use refusal::Refusal;
use state::State;
pub use user_port::UserPort;

/// Answers e2b clients. Cheap to clone.
#[derive(Clone)]
pub struct E2b {
    state: Arc<State>,
}

impl E2b {
    /// Creates the translator with a clock.
    pub fn new(now: fn() -> Time) -> Self {
        Self { state: Arc::new(State::new(now)) }
    }

    /// Answers one request. It makes gRPC calls for it.
    pub async fn answer(&self, calls: &Calls, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let state = &self.state;
        if let Some(method) = path.strip_prefix("/process.Process/") {
            return processes::answer(state, calls, method, &head, body).await;
        }
        if let Some(method) = path.strip_prefix("/filesystem.Filesystem/") {
            return filesystem::answer(state, calls, method, &head, body).await;
        }
        let answered = match (&head.method, path.as_str()) {
            (&Verb::GET | &Verb::HEAD, "/files") => files::download(state, calls, &head).await,
            (&Verb::POST, "/files") => files::upload(state, calls, &head, body).await,
            (&Verb::GET, "/health") => target::health(calls, &head).await,
            (&Verb::GET, "/metrics") => control::guest_metrics(calls, &head).await,
            _ => control::answer(state, calls, &head, body).await,
        };
        answered.unwrap_or_else(Refusal::into_rest)
    }
}
