//! gRPC calls of this process, with the headers of the request that they are made for.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use amalgam_proto::v1::sandbox_service_client::SandboxServiceClient;
use amalgam_proto::v1::snapshot_service_client::SnapshotServiceClient;
use amalgam_proto::v1::state_service_client::StateServiceClient;
use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;
use http::header::{HOST, HeaderName};
use http::{HeaderMap, HeaderValue, Request, Response};
use tonic::body::Body;

use crate::signature::key_of;

/// Size limit of the answer to a call.
const ANSWER_BYTES_MAX: usize = 64 << 20;
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const ACCESS_TOKEN: HeaderName = HeaderName::from_static("x-access-token");
/// Headers of a request that its gRPC calls get unchanged.
const PASSED_ON: [HeaderName; 4] = [
    HOST,
    HeaderName::from_static("amalgam-project"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("traceparent"),
];

type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Makes gRPC calls without a connection.
#[derive(Clone)]
pub struct Calls {
    send: Arc<dyn Fn(Request<Body>) -> Answer + Send + Sync>,
}

impl Calls {
    /// Calls that are answered by a function.
    pub fn new<F: Future<Output = Response<Body>> + Send + 'static>(
        send: impl Fn(Request<Body>) -> F + Send + Sync + 'static,
    ) -> Self {
        Self { send: Arc::new(move |request| Box::pin(send(request))) }
    }

    /// Calls with the key of a request: its own, or the access token of a sandbox, which is the key that asked for it.
    pub(crate) fn of(&self, headers: &HeaderMap) -> Caller {
        let mut passed = HeaderMap::new();
        for name in PASSED_ON {
            if let Some(value) = headers.get(&name) {
                passed.insert(name, value.clone());
            }
        }
        if let Some(key) = key_in(headers) {
            passed.insert(API_KEY, key);
        }
        Caller { calls: self.clone(), headers: passed }
    }

    /// Calls with this key in place of one that the request has.
    pub(crate) fn with_key(&self, headers: &HeaderMap, key: &str) -> Caller {
        let mut caller = self.of(headers);
        caller.headers.remove(API_KEY);
        if let Ok(key) = HeaderValue::from_str(key) {
            caller.headers.insert(API_KEY, key);
        }
        caller
    }
}

/// Returns the API key of a request: its own, or the one in the access token of a sandbox. Returns `None` if it has neither.
pub(crate) fn key_in(headers: &HeaderMap) -> Option<HeaderValue> {
    let of_token = |token: &HeaderValue| HeaderValue::from_str(key_of(token.to_str().ok()?)).ok();
    headers
        .get(API_KEY)
        .cloned()
        .or_else(|| headers.get(ACCESS_TOKEN).map(|token| of_token(token).unwrap_or(token.clone())))
}

/// The caller of a request: its headers, and the way to make calls in its name.
#[derive(Clone)]
pub(crate) struct Caller {
    calls: Calls,
    headers: HeaderMap,
}

impl Caller {
    /// Returns the API key of the caller; `None` if it has sent none.
    pub(crate) fn key(&self) -> Option<&str> {
        self.headers.get(API_KEY).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn sandboxes(&self) -> SandboxServiceClient<Self> {
        SandboxServiceClient::new(self.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub(crate) fn snapshots(&self) -> SnapshotServiceClient<Self> {
        SnapshotServiceClient::new(self.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub(crate) fn states(&self) -> StateServiceClient<Self> {
        StateServiceClient::new(self.clone())
    }

    pub(crate) fn workspaces(&self) -> WorkspaceServiceClient<Self> {
        WorkspaceServiceClient::new(self.clone())
    }

    /// Makes a call of an unknown method, so that the gate records and limits the request. Drops the answer.
    pub(crate) async fn record_unknown(&self) {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = http::Uri::from_static("/e2b/Unknown");
        drop((self.calls.send)(self.with_headers(request)).await);
    }

    fn with_headers(&self, mut request: Request<Body>) -> Request<Body> {
        for (name, value) in &self.headers {
            request.headers_mut().insert(name.clone(), value.clone());
        }
        let grpc = HeaderValue::from_static("application/grpc");
        request.headers_mut().entry(http::header::CONTENT_TYPE).or_insert(grpc);
        request
    }
}

impl tower::Service<Request<Body>> for Caller {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = (self.calls.send)(self.with_headers(request));
        Box::pin(async move { Ok(answer.await) })
    }
}
