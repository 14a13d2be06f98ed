//! Logs the calls of the API: each call has a span with its method, caller, workspace and request id, and one event when it ends.
//!
//! The layer sees a request before it is decoded, so the span begins without workspace and request id. The service records both
//! when it reads them ([`workspace_id`], [`record_workspace`], [`record_request_id`]); the first one recorded stays.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use amalgam_engine::workspace::WorkspaceName;
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::codegen::{Bytes, http};
use tonic::{Code, Status};
use tracing::field::Empty;
use tracing::{Instrument as _, Span, debug, info_span, warn};

use crate::caller::Origin;
use crate::error::Error;
use crate::running_requests::RunningRequest;

/// The request header that names the caller.
pub const ACTOR_HEADER: &str = "amalgam-actor";
/// The request header with which a listener says that its caller is an admin of the project (`1`). Without it, the policy of the
/// project applies to a caller from the network.
pub const ADMIN_HEADER: &str = "amalgam-admin";
/// The gRPC header and trailer that holds the result code.
const STATUS: &str = "grpc-status";
/// The start of the path of every method.
const PACKAGE: &str = "/amalgam.v1.";

/// Numbers the calls of this process.
static NEXT_CALL: AtomicU64 = AtomicU64::new(1);

tokio::task_local! {
    static CALL: Arc<CallSpan>;
}

/// The span of a call, and which of its fields are recorded.
struct CallSpan {
    span: Span,
    origin: Origin,
    /// The agent of a caller from the network, unless the caller is an admin.
    agent: Option<String>,
    has_workspace: AtomicBool,
    has_request_id: AtomicBool,
    /// Counts the request of the call as running until the call has ended.
    request: OnceLock<RunningRequest>,
}

/// Returns whether the current call comes from the network, whose callers get no path of the host.
pub(crate) fn is_from_network() -> bool {
    // Background threads belong to no call.
    CALL.try_with(|call| call.origin == Origin::Network).unwrap_or(false)
}

/// Returns whether errors of the current call reach a caller on the network, who gets no path of the host.
pub(crate) fn hides_host_paths() -> bool {
    CALL.try_with(|call| call.origin != Origin::Local).unwrap_or(false)
}

/// Returns the agent of the caller if the project's policy applies to it; `None` for the store's user, for an admin, and in
/// background threads.
pub(crate) fn restricted_agent() -> Option<String> {
    CALL.try_with(|call| call.agent.clone()).ok().flatten()
}

/// Returns the agent of a request from the network if the project's policy applies to it; `None` for an admin.
pub(crate) fn restricted_agent_of(headers: &http::HeaderMap) -> Option<&str> {
    let is_admin = headers.get(ADMIN_HEADER).is_some_and(|value| value.as_bytes() == b"1");
    let named = || headers.get(ACTOR_HEADER).and_then(|value| value.to_str().ok()).unwrap_or("unknown");
    (!is_admin).then(named)
}

/// Records which workspace the current call is about. The first workspace of a call stays.
pub(crate) fn record_workspace(name: &str) {
    let record = |call: &Arc<CallSpan>| {
        if !call.has_workspace.swap(true, Ordering::Relaxed) {
            call.span.record("workspace", name);
        }
    };
    // Background threads belong to no call.
    CALL.try_with(record).ok();
}

/// Records the id that the caller gave the current request.
pub(crate) fn record_request_id(id: &str) {
    let record = |call: &Arc<CallSpan>| {
        if !call.has_request_id.swap(true, Ordering::Relaxed) {
            call.span.record("request_id", id);
        }
    };
    CALL.try_with(record).ok();
}

/// Counts the request of the current call as running until the call has ended: its work and its answer.
pub(crate) fn keep_running(request: RunningRequest) {
    CALL.try_with(|call| drop(call.request.set(request))).ok();
}

/// Parses the resource name of a workspace and records it as the workspace of the current call.
pub(crate) fn workspace_id(name: &str) -> amalgam_engine::Result<WorkspaceName> {
    let id = amalgam_proto::workspace_id(name)?;
    record_workspace(id.as_str());
    Ok(id)
}

/// Logs a failure that no caller receives. Its message can name files, so the message is logged only at debug level.
pub(crate) fn warn_failure(failure: &Error, what: &str) {
    warn!(reason = failure.reason().word(), "{what}");
    debug!("{what}: {failure}");
}

/// Logs a problem that the service has put into words. The words can name files, so they are logged only at debug level.
pub(crate) fn warn_problem(problem: &str, what: &str) {
    warn!("{what}");
    debug!("{what}: {problem}");
}

/// Makes work for another thread part of the current call.
pub(crate) fn in_call<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let call = CALL.try_with(Arc::clone).ok();
    move || match call {
        Some(call) => CALL.sync_scope(Arc::clone(&call), || call.span.in_scope(work)),
        None => work(),
    }
}

/// Makes a future for another task part of the current call.
pub(crate) async fn task_in_call<F: Future>(call: CurrentCall, future: F) -> F::Output {
    match call.0 {
        Some(call) => {
            let span = call.span.clone();
            CALL.scope(call, future.instrument(span)).await
        }
        None => future.await,
    }
}

/// The call that a task serves, for [`task_in_call`].
pub(crate) struct CurrentCall(Option<Arc<CallSpan>>);

impl CurrentCall {
    pub(crate) fn get() -> Self {
        Self(CALL.try_with(Arc::clone).ok())
    }
}

/// Adds [`CallLog`] to a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallLogLayer(pub(crate) Origin);

impl<S> tower::Layer<S> for CallLogLayer {
    type Service = CallLog<S>;

    fn layer(&self, inner: S) -> CallLog<S> {
        CallLog { inner, origin: self.0 }
    }
}

/// Runs each call in its span, and logs its end.
#[derive(Clone, Debug)]
pub(crate) struct CallLog<S> {
    inner: S,
    origin: Origin,
}

impl<S, B> tower::Service<http::Request<B>> for CallLog<S>
where
    S: tower::Service<http::Request<B>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let path = request.uri().path();
        let caller = request.headers().get(ACTOR_HEADER).and_then(|value| value.to_str().ok()).unwrap_or("unknown");
        let span = info_span!(
            "call",
            id = NEXT_CALL.fetch_add(1, Ordering::Relaxed),
            method = path.strip_prefix(PACKAGE).unwrap_or(path),
            caller,
            workspace = Empty,
            request_id = Empty,
        );
        let agent = restricted_agent_of(request.headers()).filter(|_| self.origin == Origin::Network);
        let call = Arc::new(CallSpan {
            agent: agent.map(str::to_owned),
            span,
            origin: self.origin,
            has_workspace: AtomicBool::default(),
            has_request_id: AtomicBool::default(),
            request: OnceLock::new(),
        });
        let mut end = CallEnd { call: Arc::clone(&call), began: Instant::now(), code: None };
        let answered = CALL.scope(Arc::clone(&call), self.inner.call(request)).instrument(call.span.clone());
        Box::pin(async move {
            let response = answered.await?;
            end.read_code(response.headers());
            Ok(response.map(|body| Body::new(LoggedBody { inner: body, end })))
        })
    }
}

/// Logs the end of a call when it is dropped. A call without a result code was cancelled by its client.
struct CallEnd {
    call: Arc<CallSpan>,
    began: Instant,
    code: Option<Code>,
}

impl CallEnd {
    fn read_code(&mut self, headers: &http::HeaderMap) {
        if let Some(code) = headers.get(STATUS) {
            self.code = Some(Code::from_bytes(code.as_bytes()));
        }
    }
}

impl Drop for CallEnd {
    fn drop(&mut self) {
        let code = self.code.unwrap_or(Code::Cancelled);
        let duration_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let _in_span = self.call.span.enter();
        match code {
            Code::Internal | Code::DataLoss => warn!(duration_ms, ?code, "call failed"),
            _ => debug!(duration_ms, ?code, "call ended"),
        }
    }
}

/// The body of a response. It reads the result code from the trailers.
struct LoggedBody {
    inner: Body,
    end: CallEnd,
}

impl http_body::Body for LoggedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.end.read_code(trailers);
                }
            }
            Poll::Ready(Some(Err(status))) => self.end.code = Some(status.code()),
            Poll::Ready(None) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
