//! Listening on a TCP address: HTTP/1 and HTTP/2, with TLS or without, gRPC and REST on one port.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use amalgam_e2b::{Calls, E2b, UserPort};
use http::header::{CONTENT_TYPE, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method as Verb, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tonic::body::Body;
use tonic_web::GrpcWebLayer;
use tower::{Layer as _, Service as _};
use tracing::{debug, warn};

use crate::docs_page;
use crate::gate::{Gate, Peer, REQUEST_ID_HEADER, name_request};
use crate::git;
use crate::identity::Authentication;
use crate::rest;
use crate::sandboxes::{Sandboxes, ports, websocket};
use crate::tls::Tls;

/// Maximum number of open connections. Further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 10_000;
/// Maximum number of concurrent calls on one HTTP/2 connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 1_024;
/// Maximum time that a client may take for a TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Maximum time that a client may take to send the head of a request.
pub(crate) const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// Interval of HTTP/2 pings to clients.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum time that a client may take to answer a ping.
const PING_WITHIN: Duration = Duration::from_secs(20);
/// Delay before a connection is accepted again after the kernel refused.
pub(crate) const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// The first bytes of every HTTP/2 connection.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Interval of the checks for further bytes of an incomplete HTTP/2 preface.
const PEEK_INTERVAL: Duration = Duration::from_millis(20);
/// The flow-control window of one HTTP/2 stream, in bytes.
const WINDOW_BYTES: u32 = 1 << 20;

/// Everything that answers requests.
#[derive(Clone)]
pub(crate) struct Front {
    pub(crate) gate: Gate,
    /// True when the server stops.
    pub(crate) stopping: watch::Receiver<bool>,
    /// Whether `/metrics` is answered without a key.
    pub(crate) metrics_open: bool,
    /// Whether calls need a key.
    pub(crate) authentication: Authentication,
    /// For WebSockets of terminals.
    pub(crate) sandboxes: Sandboxes,
    /// Answers e2b clients, at a listener that is for them.
    pub(crate) e2b: Option<E2b>,
}

/// The versions of HTTP that a connection may speak.
pub(crate) enum Protocol {
    /// The only version with WebSockets.
    Http1(http1::Builder),
    Http2(auto::Builder<TokioExecutor>),
    /// Detected from the first bytes, for which a connection may wait without limit.
    Either(auto::Builder<TokioExecutor>),
}

/// Accepts connections until `stopping` is true, then waits at most `finish_within` for running requests.
pub(crate) async fn listen(front: Front, listener: TcpListener, tls: Option<Tls>, finish_within: Duration) {
    let mut http1 = http1::Builder::new();
    http1.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    let mut http2 = auto::Builder::new(TokioExecutor::new()).http2_only();
    http2
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(4 * WINDOW_BYTES)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_WITHIN);
    let (graceful, places) = (GracefulShutdown::new(), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
    // The version is known before: hyper's own detection would let a silent client hold a connection for ever.
    let builders = Arc::new([Protocol::Http1(http1), Protocol::Http2(http2)]);
    let mut stopping = front.stopping.clone();
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors or memory: connections that end release some.
                warn!(%error, "no connection can be accepted at the moment");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        // Without Nagle's algorithm, small responses are sent at once.
        let _ = stream.set_nodelay(true);
        let (front, builders, watcher) = (front.clone(), Arc::clone(&builders), graceful.watcher());
        let tls = tls.clone();
        tokio::spawn(async move {
            let _held = (place, front.gate.metrics().connection());
            let stopping = front.stopping.clone();
            match tls {
                None => match in_time(HEAD_WITHIN, stopping, is_http2(&stream)).await {
                    Ok(is_http2) => serve(front, &builders[usize::from(is_http2)], watcher, stream, peer).await,
                    Err(error) => debug!(%peer, %error, "a connection ended before its first request"),
                },
                Some(tls) => match in_time(HANDSHAKE_WITHIN, stopping, tls.accept(stream)).await {
                    Ok(stream) => {
                        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                        serve(front, &builders[usize::from(is_http2)], watcher, stream, peer).await;
                    }
                    Err(error) => debug!(%peer, %error, "a TLS handshake failed"),
                },
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(finish_within, graceful.shutdown()).await.is_err() {
        debug!("connections are closed that did not end in time");
    }
}

/// Waits at most `within` for a client, and no longer than until the server stops: a silent client does not delay the stop.
async fn in_time<T>(
    within: Duration,
    mut stopping: watch::Receiver<bool>,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    tokio::select! {
        done = tokio::time::timeout(within, work) => done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        _ = stopping.wait_for(|stopping| *stopping) => Err(io::ErrorKind::ConnectionAborted.into()),
    }
}

/// Returns whether a client speaks HTTP/2, by comparing its first bytes with the preface. The bytes stay in the socket buffer.
async fn is_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut bytes = [0; PREFACE.len()];
    loop {
        let count = stream.peek(&mut bytes).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if bytes[..count] != PREFACE[..count] {
            return Ok(false);
        }
        if count == PREFACE.len() {
            return Ok(true);
        }
        // A peek returns at once while the buffer holds fewer bytes than requested.
        tokio::time::sleep(PEEK_INTERVAL).await;
    }
}

pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    front: Front,
    protocol: &Protocol,
    watcher: hyper_util::server::graceful::Watcher,
    stream: S,
    peer: SocketAddr,
) {
    let mut stopping = front.stopping.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let front = front.clone();
        async move { Ok::<_, Infallible>(front.answer(request.map(Body::new), Peer(peer)).await) }
    });
    let stream = TokioIo::new(stream);
    let ended = match protocol {
        Protocol::Http1(builder) => {
            // Hyper's watcher does not support connections with upgrades. A graceful shutdown waits until the watcher is dropped.
            let mut connection = std::pin::pin!(builder.serve_connection(stream, service).with_upgrades());
            let ended = tokio::select! {
                ended = connection.as_mut() => Some(ended),
                _ = stopping.wait_for(|stopping| *stopping) => None,
            };
            let ended = match ended {
                Some(ended) => ended,
                None => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            drop(watcher);
            ended.map_err(Into::into)
        }
        Protocol::Http2(builder) => watcher.watch(builder.serve_connection(stream, service).into_owned()).await,
        Protocol::Either(builder) => {
            watcher.watch(builder.serve_connection_with_upgrades(stream, service).into_owned()).await
        }
    };
    if let Err(error) = ended {
        debug!(%peer, %error, "a connection ended with an error");
    }
}

impl Front {
    /// Answers one request. The response has the id of the request.
    pub(crate) async fn answer(&self, mut request: Request<Body>, peer: Peer) -> Response<Body> {
        let request_id = name_request(request.headers_mut());
        if let Some(authority) = request.uri().authority().map(Authority::as_str)
            && let Ok(host) = HeaderValue::from_str(authority)
        {
            // HTTP/2 clients send the host in the URI only.
            request.headers_mut().entry(HOST).or_insert(host);
        }
        let mut response = self.answer_named(request, peer).await;
        response.headers_mut().entry(REQUEST_ID_HEADER).or_insert(request_id);
        response
    }

    async fn answer_named(&self, request: Request<Body>, peer: Peer) -> Response<Body> {
        let port = ports::place(&request, self.sandboxes.port_domain()).filter(|_| self.e2b.is_none());
        // A web page cannot guess the URL of a port.
        let has_token = port.as_ref().is_some_and(ports::PortPlace::has_token);
        if self.authentication == Authentication::Off && !has_token && is_from_page(&request) {
            let message = "without keys this server answers no web page; start it without --insecure-no-auth";
            return rest::forbidden(request.headers(), message);
        }
        if let Some(e2b) = &self.e2b {
            if let Some(port) = UserPort::of_request(&request) {
                return self.user_port(port, request, peer).await;
            }
            let gate = self.gate.clone();
            let calls = Calls::new(move |call| {
                let gate = gate.clone();
                async move { gate.call(call, peer).await }
            });
            return e2b.answer(&calls, request).await;
        }
        if let Some(place) = port {
            let headers = request.headers().clone();
            let answered = ports::answer(&self.gate, &self.sandboxes, place, request, peer).await;
            return answered.unwrap_or_else(|status| rest::failed(&status, &headers));
        }
        if is_grpc_web(request.headers()) {
            return self.grpc_web(request, peer).await;
        }
        if is_grpc(request.headers()) {
            return self.gate.call(request, peer).await;
        }
        // A file of a workspace may lie in a directory that is called like a repository.
        let is_of_api = request.uri().path().starts_with("/api/");
        if let Some(place) = git::place(&request).filter(|_| !is_of_api) {
            return git::answer(&self.gate, place, request, peer).await;
        }
        if let Some(place) = websocket::place(&request) {
            let headers = request.headers().clone();
            let answered = websocket::answer(&self.gate, &self.sandboxes, place, request, peer).await;
            return answered.unwrap_or_else(|status| rest::failed(&status, &headers));
        }
        let path = request.uri().path();
        if let Some(page) = docs_page::file(path).filter(|_| request.method() == Verb::GET) {
            return page;
        }
        match (request.method(), path) {
            (&Verb::GET | &Verb::HEAD, "/health") => plain(StatusCode::OK, "text/plain", "ok\n"),
            (&Verb::GET | &Verb::HEAD, "/ready") => match *self.stopping.borrow() {
                false => plain(StatusCode::OK, "text/plain", "ready\n"),
                true => plain(StatusCode::SERVICE_UNAVAILABLE, "text/plain", "stopping\n"),
            },
            (&Verb::GET, "/metrics") => self.metrics(request.headers()).await,
            (&Verb::GET, "/version") => self.version(request.headers()).await,
            (&Verb::GET, "/api/v1/openapi.json") => rest::openapi_answer(),
            _ if path == rest::ROOT || path.starts_with("/api/v1/") => rest::answer(&self.gate, request, peer).await,
            _ => {
                let message = "there is nothing here; the REST API is below /api/v1";
                rest::not_found(&self.gate, request.headers(), peer, message).await
            }
        }
    }

    /// Forwards a request of an e2b client to a program in a sandbox.
    async fn user_port(&self, port: UserPort, mut request: Request<Body>, peer: Peer) -> Response<Body> {
        port.take_key(request.headers_mut());
        let place = ports::PortPlace::of_key(port.sandbox.clone(), port.port.to_string(), request.uri());
        let answered = ports::answer(&self.gate, &self.sandboxes, place, request, peer).await;
        answered.unwrap_or_else(|status| port.refused(status))
    }

    /// Answers a gRPC-Web call of a browser: a gRPC call with its trailers in the body.
    async fn grpc_web(&self, request: Request<Body>, peer: Peer) -> Response<Body> {
        let gate = self.gate.clone();
        let calls = tower::service_fn(move |request: Request<Body>| {
            let gate = gate.clone();
            async move { Ok::<_, Infallible>(gate.call(request, peer).await) }
        });
        match GrpcWebLayer::new().layer(calls).call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    async fn metrics(&self, headers: &HeaderMap) -> Response<Body> {
        if !self.metrics_open
            && let Err(status) = self.gate.authenticate(headers).await
        {
            return rest::failed(&status, headers);
        }
        let projects = self.gate.projects();
        if let Some(calls) = projects.cluster_calls() {
            self.gate.metrics().count_cluster(&calls);
        }
        self.sandboxes.measure().await;
        let text = self.gate.metrics().text(projects.open_count(), projects.nfs_statistics().as_ref());
        plain(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
    }

    async fn version(&self, headers: &HeaderMap) -> Response<Body> {
        match self.gate.authenticate(headers).await {
            Ok(_) => {
                let version =
                    serde_json::json!({"version": env!("CARGO_PKG_VERSION"), "api": amalgam_proto::API_VERSION});
                plain(StatusCode::OK, "application/json", format!("{version}\n"))
            }
            Err(status) => rest::failed(&status, headers),
        }
    }
}

/// Returns whether a request may come from a web page: it has an `Origin`, or its `Host` is not this machine (DNS rebinding).
fn is_from_page(request: &Request<Body>) -> bool {
    let named = request
        .headers()
        .get(HOST)
        .and_then(|host| host.to_str().ok())
        .or(request.uri().authority().map(Authority::as_str));
    let host = named.unwrap_or_default();
    let host = host
        .rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
        .map_or(host, |(host, _)| host);
    let is_this_machine = matches!(host, "localhost" | "127.0.0.1" | "[::1]" | "");
    request.headers().contains_key(ORIGIN) || !is_this_machine
}

fn is_grpc_web(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc-web"))
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

fn plain(status: StatusCode, content_type: &'static str, text: impl Into<bytes::Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(text.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Binds an address.
pub(crate) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_other_hosts_are_recognised() {
        let request = |headers: &[(&str, &str)]| {
            let mut request = Request::new(Body::empty());
            for (name, value) in headers {
                let name = http::HeaderName::from_bytes(name.as_bytes()).expect("a name");
                request.headers_mut().insert(name, value.parse().expect("a value"));
            }
            is_from_page(&request)
        };
        for host in ["localhost:8080", "127.0.0.1:1", "[::1]:80", "localhost", "127.0.0.1"] {
            assert!(!request(&[("host", host)]), "{host}");
        }
        for host in ["evil.example:8080", "127.0.0.1.evil.example", "localhost.evil"] {
            assert!(request(&[("host", host)]), "{host}");
        }
        assert!(request(&[("host", "localhost:8080"), ("origin", "http://evil.example")]));
        assert!(request(&[("host", "localhost:8080"), ("origin", "null")]));
    }
}
