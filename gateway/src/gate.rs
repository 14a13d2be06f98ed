//! The gate: every call over the network passes it. It authenticates the caller, checks scope, project and rate, and passes the call
//! on to the store of the project. A REST request becomes a gRPC call before it reaches the gate, so no rule exists twice.
//!
//! The gate knows keys and scopes, and no paths. The policy of the project, which restricts agents to paths, is checked by the store
//! ([`amalgam_server::OpenStore::call`] and the guards behind it). The gate tells the store who calls by two headers: the agent of the
//! key, and whether the key has the scope `admin`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amalgam_engine::Time;
use amalgam_proto::{Failure, Reason};
use amalgam_server::api::{ACTOR_HEADER, ADMIN_HEADER};
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use http::{HeaderMap, Request, Response};
use tokio::sync::{Semaphore, watch};
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};
use tower::Service as _;
use tracing::{Instrument as _, Span};

use crate::audit::{Audit, Record};
use crate::guarded_body::{CallEnded, Cut, CutForm, GuardedBody};
use crate::identity::{Identity, Keys};
use crate::key::Scope;
use crate::method::{Access, Method};
use crate::metrics::Metrics;
use crate::project::ProjectName;
use crate::projects::{DEFAULT_PROJECT, Projects};
use crate::rate::{CallClass, RateLimits};
use crate::status::{deadline_exceeded, forbidden, rate_limited, stopping};
use crate::trace;

/// The header that names the project of a call.
pub const PROJECT_HEADER: &str = "amalgam-project";
/// The header with the id of a request, which the answer has too.
pub const REQUEST_ID_HEADER: &str = "x-request-id";
const API_KEY_HEADER: &str = "x-api-key";
const GRPC_TIMEOUT: &str = "grpc-timeout";
const GRPC_STATUS: &str = "grpc-status";
const REQUEST_ID_BYTES_MAX: usize = 64;
/// The method whose answer is a path of the host for the user of the store.
const WORKSPACE_PATH: &str = "amalgam.v1.ExportService/GetWorkspacePath";
/// The name of a method that does not exist, in metrics and in the audit log.
pub(crate) const UNKNOWN_METHOD: &str = "unknown";

/// The address of the client that sent a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// The gate. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Gate {
    inner: Arc<Inner>,
}

/// The parts of a gate.
pub(crate) struct Inner {
    pub(crate) keys: Keys,
    pub(crate) projects: Projects,
    pub(crate) limits: RateLimits,
    pub(crate) audit: Audit,
    pub(crate) metrics: Metrics,
    /// The services of the server itself: projects, keys, health, reflection.
    pub(crate) server_services: Routes,
    /// Permits for git clients that are served at a time.
    pub(crate) git_permits: Arc<Semaphore>,
    pub(crate) now: fn() -> Time,
    /// True when the server stops.
    pub(crate) stopping: watch::Receiver<bool>,
    /// Whether each call has a span.
    pub(crate) has_traces: bool,
}

impl Gate {
    pub(crate) fn new(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Returns the permits for git clients that are served at a time.
    pub(crate) fn git_permits(&self) -> &Arc<Semaphore> {
        &self.inner.git_permits
    }

    pub(crate) fn projects(&self) -> &Projects {
        &self.inner.projects
    }

    /// Authenticates the caller of a request, for the few paths that are no calls of the API.
    pub(crate) async fn authenticate(&self, headers: &HeaderMap) -> Result<Identity, Status> {
        Ok(self.inner.keys.authenticate(headers).await?)
    }

    /// Answers one gRPC call.
    pub(crate) async fn call(&self, mut request: Request<Body>, peer: Peer) -> Response<Body> {
        self.inner.metrics.call_began();
        let method = Method::find(request.uri().path());
        let name = method.map_or(UNKNOWN_METHOD, |method| method.name);
        let mut end = CallEnd::new(self, name, peer, request.headers());
        let deadline = deadline(request.headers(), end.began);
        let span = end.span.clone();
        let answered = async {
            match self.pass(method, &mut request, &mut end).await {
                Ok(_) if deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                    (Err(deadline_exceeded()), never())
                }
                Ok(passed) => {
                    let mut cut = self.cut(&passed, deadline);
                    (self.forward(passed.target, request, &mut cut).await, cut)
                }
                Err(status) => (Err(status), never()),
            }
        };
        let (answered, cut) = match span.is_disabled() {
            true => answered.await,
            false => answered.instrument(span).await,
        };
        let mut response = answered.unwrap_or_else(Status::into_http);
        end.read_code(response.headers());
        if let Ok(value) = HeaderValue::from_str(&end.request_id) {
            response.headers_mut().insert(HeaderName::from_static(REQUEST_ID_HEADER), value);
        }
        response.map(|inner| Body::new(GuardedBody::new(inner, cut, CutForm::Trailers, end)))
    }

    /// Counts and records a request that is refused before it becomes a call.
    ///
    /// # Errors
    /// The caller has no valid key or has used its calls; then that is the answer.
    pub(crate) async fn refuse(
        &self,
        method: &'static str,
        code: Code,
        headers: &HeaderMap,
        peer: Peer,
    ) -> Result<(), Status> {
        self.inner.metrics.call_began();
        let mut end = CallEnd::new(self, method, peer, headers);
        let known = self.identify(headers, &mut end).await;
        end.code = Some(known.as_ref().err().map_or(code, Status::code));
        known.map(drop)
    }

    /// Authenticates the caller, and counts the call against the rate limit of its key.
    async fn identify(&self, headers: &HeaderMap, end: &mut CallEnd) -> Result<Identity, Status> {
        let identity = self.inner.keys.authenticate(headers).await?;
        identity.agent().clone_into(&mut end.agent);
        identity.key_id().clone_into(&mut end.key_id);
        if let Some(key) = &identity.key {
            self.inner.limits.count(&key.id, CallClass::of(end.method)).map_err(|wait| {
                self.inner.metrics.limited();
                rate_limited(wait)
            })?;
        }
        Ok(identity)
    }

    /// Checks a request that is no gRPC call, and answers it with the store of its project.
    pub(crate) async fn call_other(
        &self,
        method: &'static Method,
        mut request: Request<Body>,
        peer: Peer,
        work: impl AsyncFnOnce(Arc<amalgam_server::OpenStore>, Request<Body>) -> Result<Response<Body>, Status>,
    ) -> Result<Response<Body>, Status> {
        self.inner.metrics.call_began();
        let mut end = CallEnd::new(self, method.name, peer, request.headers());
        let deadline = deadline(request.headers(), end.began);
        let (answered, cut) = match self.pass(Some(method), &mut request, &mut end).await {
            Ok(passed) => {
                let mut cut = self.cut(&passed, deadline);
                let Target::Store(store) = passed.target else {
                    return Err(Status::internal("the call names no project"));
                };
                let answered = tokio::select! {
                    status = &mut cut => Err(status),
                    answered = work(store, request) => answered,
                };
                (answered, cut)
            }
            Err(status) => (Err(status), never()),
        };
        end.code = Some(answered.as_ref().map_or_else(Status::code, |_| Code::Ok));
        answered.map(|response| response.map(|inner| Body::new(GuardedBody::new(inner, cut, CutForm::Error, end))))
    }

    /// Checks a request that becomes a connection of its own, like a call of `method`. A caller with a ticket was checked when the
    /// ticket was issued.
    pub(crate) async fn admit(
        &self,
        method: &'static Method,
        request: &mut Request<Body>,
        peer: Peer,
        ticket: Option<(Identity, ProjectName)>,
    ) -> Result<Admitted, Status> {
        self.inner.metrics.call_began();
        let mut end = CallEnd::new(self, method.name, peer, request.headers());
        let passed = match &ticket {
            Some((identity, project)) => {
                identity.agent().clone_into(&mut end.agent);
                identity.key_id().clone_into(&mut end.key_id);
                project.as_str().clone_into(&mut end.project);
                // The project may have been deleted since.
                let opened = self.inner.projects.open(project).await.map_err(Status::from);
                opened.map(|_| Passed { identity: Some(identity.clone()), target: Target::Server })
            }
            None => self.pass(Some(method), request, &mut end).await,
        };
        end.code = Some(passed.as_ref().err().map_or(Code::Ok, Status::code));
        let cut = self.cut(&passed?, None);
        let project = ticket.map(|(_, project)| project).or_else(|| request.extensions().get::<ProjectName>().cloned());
        let project = project.ok_or_else(|| Status::internal("the call names no project"))?;
        Ok(Admitted { project, cut, _end: end })
    }

    /// Checks a call: key, rate, scope and project. Replaces the headers with the key by those that name the caller to the store.
    async fn pass(
        &self,
        method: Option<&'static Method>,
        request: &mut Request<Body>,
        end: &mut CallEnd,
    ) -> Result<Passed, Status> {
        let Some(method) = method else {
            return Err(Status::unimplemented(format!("there is no method {}", request.uri().path().escape_debug())));
        };
        if method.access == Access::Open {
            return Ok(Passed { identity: None, target: Target::Server });
        }
        if *self.inner.stopping.borrow() {
            return Err(stopping());
        }
        let identity = self.identify(request.headers(), end).await?;
        if method.access == Access::LocalOnly {
            let message = "this call names paths of the server's host or acts on it; it exists only on the Unix socket of the server's user";
            return Err(Failure::new(Reason::LocalOnly, message).into_status());
        }
        if method.access.is_for_server_admins() && !identity.reaches_all() {
            return Err(forbidden("this call is about the whole server, and the key is limited to some projects"));
        }
        if let Some(scope) = method.access.lacking(identity.scopes()) {
            return Err(forbidden(format!(
                "this call needs the scope `{}`, which the key does not have",
                scope.word()
            )));
        }
        let target = match method.access {
            Access::Project(_) => {
                let project = project_of(request.headers(), &identity)?;
                project.as_str().clone_into(&mut end.project);
                let store = self.inner.projects.open(&project).await?;
                match method.name == WORKSPACE_PATH && identity.is_same_user() {
                    true => Target::LocalStore(store),
                    false => Target::Store(store),
                }
            }
            Access::InProject(_) => {
                let project = project_of(request.headers(), &identity)?;
                project.as_str().clone_into(&mut end.project);
                // Fails for a deleted project.
                let store = self.inner.projects.open(&project).await?;
                if !identity.scopes().has(Scope::Admin) {
                    store.check_policy(&format!("/{}", method.name), identity.agent())?;
                }
                request.extensions_mut().insert(project);
                Target::Server
            }
            _ => Target::Server,
        };
        let headers = request.headers_mut();
        headers.remove(AUTHORIZATION);
        headers.remove(API_KEY_HEADER);
        let actor = HeaderValue::from_str(identity.agent()).unwrap_or(HeaderValue::from_static("unknown"));
        headers.insert(HeaderName::from_static(ACTOR_HEADER), actor);
        // Always set, so that a caller cannot forge it.
        let is_admin = if identity.scopes().has(Scope::Admin) { "1" } else { "0" };
        headers.insert(HeaderName::from_static(ADMIN_HEADER), HeaderValue::from_static(is_admin));
        request.extensions_mut().insert(identity.clone());
        Ok(Passed { identity: Some(identity), target })
    }

    /// Forwards a call to its target. A call that must end early is dropped, so that nothing starts after that.
    async fn forward(&self, target: Target, request: Request<Body>, cut: &mut Cut) -> Result<Response<Body>, Status> {
        let answered = async move {
            match target {
                Target::Store(store) => store.call(request).await,
                Target::LocalStore(store) => store.call_local(request).await,
                Target::Server => match self.inner.server_services.clone().call(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                },
            }
        };
        tokio::select! {
            // Most calls are answered at once; then the cut is not polled, and registers no timer.
            biased;
            response = answered => Ok(response),
            status = cut => Err(status),
        }
    }

    /// Returns a future that completes when a call must end early: its key is not valid any more, its deadline has passed, its
    /// project is closed, or the server stops.
    fn cut(&self, passed: &Passed, deadline: Option<Instant>) -> Cut {
        let (identity, now, mut server) = (passed.identity.clone(), self.inner.now, self.inner.stopping.clone());
        let store = match &passed.target {
            Target::Store(store) | Target::LocalStore(store) => Some(store.cancelled()),
            Target::Server => None,
        };
        Box::pin(async move {
            let ended = async {
                match identity {
                    Some(identity) => Status::from(identity.ended(now).await),
                    None => std::future::pending().await,
                }
            };
            let late = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            let closed = async {
                match store {
                    Some(cancelled) => cancelled.await,
                    None => drop(server.wait_for(|stopping| *stopping).await),
                }
            };
            tokio::select! {
                status = ended => status,
                () = late => deadline_exceeded(),
                () = closed => stopping(),
            }
        })
    }
}

/// Returns a [`Cut`] that never ends a call.
fn never() -> Cut {
    Box::pin(std::future::pending())
}

/// A call that passed all checks.
struct Passed {
    /// `None` for a call that needs no key.
    identity: Option<Identity>,
    target: Target,
}

/// A connection that passed all checks. It is recorded when this is dropped.
pub(crate) struct Admitted {
    pub(crate) project: ProjectName,
    /// Completes when the connection must end.
    pub(crate) cut: Cut,
    _end: CallEnd,
}

/// The service that answers a call.
enum Target {
    /// The store of the call's project.
    Store(Arc<amalgam_server::OpenStore>),
    /// The store, for its own user: the answer may name paths of the host.
    LocalStore(Arc<amalgam_server::OpenStore>),
    /// The services of the server itself, which answer calls about projects, keys and sandboxes.
    Server,
}

/// Returns the project of a call: the one that its header names, else the only one of its key, else `default`. Refuses a project
/// that the caller may not use.
pub(crate) fn project_of(headers: &HeaderMap, identity: &Identity) -> Result<ProjectName, Status> {
    let invalid = |why: String| Failure::new(Reason::Invalid, why).into_status();
    let name = match headers.get(PROJECT_HEADER) {
        Some(named) => named.to_str().map_err(|_| invalid(format!("{PROJECT_HEADER}: not ASCII")))?.to_owned(),
        None => match identity.key.as_ref().map(|key| key.projects.as_slice()) {
            Some([only]) => only.as_str().to_owned(),
            _ => DEFAULT_PROJECT.to_owned(),
        },
    };
    let project = ProjectName::new(name).map_err(invalid)?;
    if !identity.reaches(&project) {
        // The answer does not depend on whether the project exists.
        return Err(forbidden(format!("the key may not use project {project}")));
    }
    Ok(project)
}

/// Gives a request an id if it has none or an invalid one, and returns the id. The response, the audit log and traces have the same
/// id.
pub(crate) fn name_request(headers: &mut HeaderMap) -> HeaderValue {
    let value = HeaderValue::from_str(&request_id(headers)).unwrap_or(HeaderValue::from_static("req-unknown"));
    headers.insert(HeaderName::from_static(REQUEST_ID_HEADER), value.clone());
    value
}

/// Returns the id in the header of a request, or a new one if there is none or it is invalid.
fn request_id(headers: &HeaderMap) -> String {
    let is_plain = |text: &&str| {
        !text.is_empty()
            && text.len() <= REQUEST_ID_BYTES_MAX
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
    };
    let given = headers.get(REQUEST_ID_HEADER).and_then(|value| value.to_str().ok()).filter(is_plain);
    given.map_or_else(new_request_id, str::to_owned)
}

fn new_request_id() -> String {
    let mut random = [0; 10];
    // An id without randomness still names its call in this process.
    if getrandom::fill(&mut random).is_err() {
        static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        random[..8].copy_from_slice(&COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_le_bytes());
    }
    format!("req-{}", data_encoding::BASE32_NOPAD.encode(&random).to_ascii_lowercase())
}

/// Returns the deadline that the client set by `grpc-timeout`, or `None` if it set none or one beyond the clock's range.
fn deadline(headers: &HeaderMap, began: Instant) -> Option<Instant> {
    let timeout = headers.get(GRPC_TIMEOUT).and_then(|value| parse_timeout(value.to_str().ok()?));
    timeout.and_then(|timeout| began.checked_add(timeout))
}

/// Parses a gRPC timeout: up to eight digits and a unit, for example `250m` for 250 milliseconds.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// Counts and logs the end of a call when it is dropped. A call without a result code was cancelled by its client.
struct CallEnd {
    gate: Gate,
    method: &'static str,
    began: Instant,
    peer: Peer,
    request_id: String,
    agent: String,
    key_id: String,
    project: String,
    code: Option<Code>,
    /// Disabled on a server without traces.
    span: Span,
}

impl CallEnded for CallEnd {
    fn set_code(&mut self, code: Code) {
        self.code = Some(code);
    }

    fn read_code(&mut self, headers: &HeaderMap) {
        if let Some(code) = headers.get(GRPC_STATUS) {
            self.code = Some(Code::from_bytes(code.as_bytes()));
        }
    }
}

impl CallEnd {
    fn new(gate: &Gate, method: &'static str, peer: Peer, headers: &HeaderMap) -> Self {
        Self {
            gate: gate.clone(),
            method,
            began: Instant::now(),
            peer,
            request_id: request_id(headers),
            agent: String::new(),
            key_id: "-".to_owned(),
            project: String::new(),
            code: None,
            span: if gate.inner.has_traces { trace::span(method, headers) } else { Span::none() },
        }
    }
}

impl Drop for CallEnd {
    fn drop(&mut self) {
        let (code, duration) = (self.code.unwrap_or(Code::Cancelled), self.began.elapsed());
        let inner = &self.gate.inner;
        trace::record_end(&self.span, code, &self.request_id, &self.agent, &self.project);
        inner.metrics.call_ended(self.method, code, duration);
        inner.audit.write(&Record {
            time: (inner.now)(),
            agent: &self.agent,
            key_id: &self.key_id,
            project: &self.project,
            method: self.method,
            code,
            request_id: &self.request_id,
            peer: &self.peer.0.to_string(),
            duration,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_of_all_units_are_read_and_others_are_not() {
        assert_eq!(parse_timeout("5S"), Some(Duration::from_secs(5)));
        assert_eq!(parse_timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3_600)));
        assert_eq!(parse_timeout("250m"), Some(Duration::from_millis(250)));
        for bad in ["", "S", "5", "5x", "-5S", "123456789S", "5\u{e4}", "1 S"] {
            assert_eq!(parse_timeout(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_request_id_that_could_break_a_log_line_is_replaced() {
        let of = |value: &str| {
            request_id(&HeaderMap::from_iter([(
                HeaderName::from_static(REQUEST_ID_HEADER),
                value.parse().expect("a value"),
            )]))
        };
        assert_eq!(of("req-1:a_b.c"), "req-1:a_b.c");
        for bad in ["", "a b", "\"", &"a".repeat(65)] {
            assert!(of(bad).starts_with("req-"), "{bad}");
        }
    }
}
