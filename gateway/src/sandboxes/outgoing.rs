//! The proxy through which a sandbox without a network reaches the hosts of its allow-list: `CONNECT`, and plain HTTP.
//!
//! Everything else is refused. A name is resolved here, once, and the connection goes to an address that was checked: a name that leads
//! to a private address is refused, unless the operator allows that network. Each refusal is counted, and is in the log of the sandbox
//! and in the audit log, unless there are too many of them.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use amalgam_sandbox::{LinkStream, OnOutgoing};
use amalgam_server::Network;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Method as Verb, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tonic::body::Body;
use tracing::debug;

use super::activity::{Activity, Watched};
use super::allow_list::HostRule;
use super::hop_headers::without_hops;
use super::{Sandboxes, allowed_hosts_of};
use crate::catalog::SandboxRecord;
use crate::public_address::is_public;

/// Maximum time that a program in a sandbox may take to send the head of a request.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// Maximum time that resolving a name may take, and then connecting to one address.
const RESOLVE_WITHIN: Duration = Duration::from_secs(10);
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of addresses of a name that are tried.
const ADDRESSES_MAX: usize = 4;
/// Maximum size of the head of a message, and of the buffer for its body.
const BUFFER_BYTES: usize = 64 << 10;
/// Size of the buffer for each direction of a tunnel, in bytes.
const COPY_BYTES: usize = 16 << 10;
/// Maximum number of refusals that are logged within [`LINES_WINDOW`].
const LINES_MAX: u32 = 20;
const LINES_WINDOW: Duration = Duration::from_secs(10);
/// Maximum number of characters of a host name in a log.
const LOGGED_CHARACTERS_MAX: usize = 253;

/// The outgoing proxy of one sandbox, with its allow-list.
struct Outgoing {
    sandboxes: Sandboxes,
    sandbox: String,
    project: String,
    rules: Vec<HostRule>,
    networks: Vec<Network>,
    idle_max: Duration,
    lines: Mutex<(Instant, u32)>,
}

/// Why the proxy refuses a request.
enum Refused {
    /// The request is no proxy request.
    Malformed(&'static str),
    /// The host is not in the allow-list.
    NotAllowed(String, u16),
    /// The name resolves to an address that is not public.
    NotPublic(String, u16, IpAddr),
    /// The name does not resolve, or no address accepts a connection.
    Unreachable(String, u16, String),
}

impl Sandboxes {
    /// Returns the handler for connections of a sandbox to the proxy, or `None` if the sandbox has no allow-list.
    pub(super) fn outgoing(&self, record: &SandboxRecord) -> Option<OnOutgoing> {
        let options = &self.inner.parts.as_ref()?.options;
        let mut rules = allowed_hosts_of(record);
        if rules.is_empty() {
            return None;
        }
        // The operator may have changed the setting since the sandbox was created.
        rules.retain(|rule| options.hosts.iter().any(|hosts| hosts.covers(rule)));
        let outgoing = Arc::new(Outgoing {
            sandboxes: self.clone(),
            sandbox: record.id.clone(),
            project: record.project.as_str().to_owned(),
            rules,
            networks: options.networks.clone(),
            idle_max: options.port_idle_max,
            lines: Mutex::new((Instant::now(), 0)),
        });
        Some(OnOutgoing(Box::new(move |stream| drop(tokio::spawn(Arc::clone(&outgoing).serve(stream))))))
    }
}

impl Outgoing {
    /// Serves the requests of one connection.
    async fn serve(self: Arc<Self>, stream: LinkStream) {
        let service = service_fn(move |request: Request<Incoming>| {
            let outgoing = Arc::clone(&self);
            async move { Ok::<_, Infallible>(outgoing.answer(request).await) }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(BUFFER_BYTES);
        if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await {
            debug!(%error, "a connection of a sandbox to the proxy ended with an error");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let answered = match request.method() == Verb::CONNECT {
            true => self.tunnel(request).await,
            false => self.forward(request).await,
        };
        answered.unwrap_or_else(|refused| self.refuse(&refused))
    }

    /// Answers `CONNECT`: connects to the host, and copies bytes in both directions.
    async fn tunnel(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Refused> {
        let authority = request.uri().authority().cloned();
        let authority = authority.ok_or(Refused::Malformed("CONNECT needs a host and a port"))?;
        let port = authority.port_u16().ok_or(Refused::Malformed("CONNECT needs a host and a port"))?;
        let mut host = self.dial(authority.host(), port).await?;
        let client = hyper::upgrade::on(&mut request);
        let idle_max = self.idle_max;
        tokio::spawn(async move {
            let Ok(Ok(client)) = tokio::time::timeout(HEAD_WITHIN, client).await else { return };
            let activity = host.activity.clone();
            let mut client = TokioIo::new(client);
            tokio::select! {
                // One of the two sides has closed the connection.
                _ = tokio::io::copy_bidirectional_with_sizes(&mut client, &mut host, COPY_BYTES, COPY_BYTES) => {}
                () = activity.idle(idle_max) => debug!("a connection of a sandbox was idle for too long"),
            }
        });
        Ok(Response::new(Body::empty()))
    }

    /// Forwards a request for an `http://` URL.
    async fn forward(&self, request: Request<Incoming>) -> Result<Response<Body>, Refused> {
        const FORM: &str = "this is a proxy: it takes CONNECT, and requests with a whole http:// URL";
        let (mut head, body) = request.into_parts();
        let (scheme, authority) = (head.uri.scheme().cloned(), head.uri.authority().cloned());
        let authority = authority.filter(|_| scheme == Some(Scheme::HTTP)).ok_or(Refused::Malformed(FORM))?;
        let (name, port) = (authority.host().to_owned(), authority.port_u16().unwrap_or(80));
        let host = self.dial(&name, port).await?;
        let (activity, idle_max) = (host.activity.clone(), self.idle_max);
        let failed = |error: hyper::Error| Refused::Unreachable(name.clone(), port, error.to_string());
        let mut builder = hyper::client::conn::http1::Builder::new();
        builder.max_buf_size(BUFFER_BYTES);
        let (mut sender, connection) = builder.handshake(TokioIo::new(host)).await.map_err(failed)?;
        tokio::spawn(async move {
            tokio::select! {
                _ = connection => {}
                () = activity.idle(idle_max) => debug!("a connection of a sandbox was idle for too long"),
            }
        });
        let mut headers = without_hops(&head.headers);
        for name in [CONTENT_LENGTH, EXPECT] {
            headers.remove(name);
        }
        headers.insert(HOST, host_header(&authority).ok_or(Refused::Malformed(FORM))?);
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        let target = head.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
        (head.headers, head.uri) = (headers, Uri::from(target));
        head.extensions.clear();
        let mut outgoing = Request::new(body);
        (*outgoing.method_mut(), *outgoing.uri_mut(), *outgoing.headers_mut()) = (head.method, head.uri, head.headers);
        let response = sender.send_request(outgoing).await.map_err(failed)?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Refused::Malformed("a WebSocket goes through CONNECT"));
        }
        let headers = without_hops(response.headers());
        let (head, body) = response.into_parts();
        let mut answer = Response::new(Body::new(body));
        (*answer.status_mut(), *answer.headers_mut()) = (head.status, headers);
        Ok(answer)
    }

    /// Connects to a host of the allow-list, at an address that was checked.
    async fn dial(&self, host: &str, port: u16) -> Result<Watched<TcpStream>, Refused> {
        let name = host.trim_start_matches('[').trim_end_matches(']');
        if !self.rules.iter().any(|rule| rule.permits(name, port)) {
            return Err(Refused::NotAllowed(name.to_owned(), port));
        }
        let unreachable = |why: &str| Refused::Unreachable(name.to_owned(), port, why.to_owned());
        let resolved = tokio::time::timeout(RESOLVE_WITHIN, tokio::net::lookup_host((name, port))).await;
        let resolved = resolved.map_err(|_| unreachable("its name is not resolved in time"))?;
        let found: Vec<SocketAddr> = resolved.map_err(|_| unreachable("it has no address"))?.collect();
        let is_allowed = |address: &&SocketAddr| {
            is_public(address.ip()) || self.networks.iter().any(|network| network.contains(address.ip()))
        };
        let allowed: Vec<_> = found.iter().filter(is_allowed).take(ADDRESSES_MAX).collect();
        if allowed.is_empty() {
            return Err(match found.first() {
                Some(address) => Refused::NotPublic(name.to_owned(), port, address.ip()),
                None => unreachable("it has no address"),
            });
        }
        for address in allowed {
            if let Ok(Ok(stream)) = tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(address)).await {
                // Without Nagle's algorithm, small messages are sent at once.
                let _ = stream.set_nodelay(true);
                return Ok(Watched { inner: stream, activity: Activity::new() });
            }
        }
        Err(unreachable("it accepts no connection"))
    }

    /// Builds the response to a refused request. Refusals by the allow-list are counted and logged.
    fn refuse(&self, refused: &Refused) -> Response<Body> {
        let (status, message, is_policy) = match refused {
            Refused::Malformed(why) => (StatusCode::BAD_REQUEST, (*why).to_owned(), false),
            Refused::NotAllowed(host, port) => {
                let message = format!("{}:{port} is not in the allow-list of the sandbox", logged(host));
                (StatusCode::FORBIDDEN, message, true)
            }
            Refused::NotPublic(host, port, address) => {
                let message = format!("{}:{port} leads to {address}, which is no public address", logged(host));
                (StatusCode::FORBIDDEN, message, true)
            }
            Refused::Unreachable(host, port, why) => {
                (StatusCode::BAD_GATEWAY, format!("{}:{port} cannot be reached: {why}", logged(host)), false)
            }
        };
        if is_policy {
            self.sandboxes.inner.metrics.connection_refused();
            if self.has_line() {
                self.sandboxes.note(&self.sandbox, &format!("refused: {message}"));
                let now = self.sandboxes.now();
                self.sandboxes.inner.audit.write_refused_connection(now, &self.project, &self.sandbox, &message);
            }
        }
        let mut response = Response::new(Body::new(Full::new(Bytes::from(format!("amalgam: {message}\n")))));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    }

    /// Counts a refusal, and returns whether it may be logged: at most [`LINES_MAX`] within [`LINES_WINDOW`].
    fn has_line(&self) -> bool {
        let mut lines = self.lines.lock();
        if lines.0.elapsed() > LINES_WINDOW {
            *lines = (Instant::now(), 0);
        }
        lines.1 += 1;
        lines.1 <= LINES_MAX
    }
}

/// Returns a host name for logs: escaped and truncated.
fn logged(host: &str) -> String {
    host.escape_debug().take(LOGGED_CHARACTERS_MAX).collect()
}

/// Returns the `Host` header for an authority, without user name and password. `None` if it is no valid header value.
fn host_header(authority: &Authority) -> Option<HeaderValue> {
    let host = authority.as_str().rsplit('@').next()?;
    HeaderValue::from_str(host).ok()
}
