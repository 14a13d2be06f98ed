//! Ports of sandboxes over HTTP: a request below the path of a port is forwarded to the program that listens there, and its
//! response is returned. An upgrade (a WebSocket) becomes a connection that carries bytes in both directions.
//!
//! Each request has a connection of its own to the program. Nothing is queued: a side that does not read holds the other one back,
//! and a connection that is idle for too long is closed.

mod headers;

use std::time::Duration;

use amalgam_proto::{Failure, Reason};
use amalgam_sandbox::LinkStream;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CONNECTION, HOST, HeaderName, LOCATION, UPGRADE,
};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method as Verb, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;
use tracing::debug;

use super::activity::{Activity, Watched};
use super::port_token::{TOKENS, is_token};
use super::{Sandboxes, sandbox_status};
use crate::gate::{Admitted, Gate, PROJECT_HEADER, Peer};
use crate::method::Method;
use headers::{Route, for_client, for_program, wanted_protocol};

/// The method whose rights a request needs, and whose name the audit log shows.
const METHOD: &str = "/amalgam.v1.SandboxService/OpenPort";
const ROOT: &str = "/api/v1/";
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Maximum size of the head of a response, and of the buffer for its body.
const BUFFER_BYTES: usize = 64 << 10;
/// Size of the buffer for each direction of an upgraded connection, in bytes.
const COPY_BYTES: usize = 16 << 10;
/// Maximum time that both sides may take to switch to another protocol.
const UPGRADE_WITHIN: Duration = Duration::from_secs(30);

/// The port that a request is for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PortPlace {
    reach: Reach,
    /// The part of the URL path before the program's own path.
    prefix: String,
    /// The path and the query for the program.
    target: String,
    /// Whether relative links of a page at this URL work: the path has a slash after the token or the port.
    is_complete: bool,
}

/// How a request names a port, and authenticates its caller.
#[derive(Debug, PartialEq, Eq)]
enum Reach {
    /// With a key.
    Key { project: Option<String>, sandbox: String, port: String },
    /// By a token, without a key.
    Token(String),
}

impl PortPlace {
    /// Returns whether the request has a token, and so needs no key.
    pub(crate) fn has_token(&self) -> bool {
        matches!(self.reach, Reach::Token(_))
    }

    /// Returns the port of a sandbox for a caller with a key, at a host name or a listener of its own.
    pub(crate) fn of_key(sandbox: String, port: String, uri: &Uri) -> Self {
        let reach = Reach::Key { project: None, sandbox, port };
        Self { reach, prefix: String::new(), target: target(uri.path(), uri.query()), is_complete: true }
    }
}

/// Returns the port that a request is for, or `None` if it is for none. `domain` is the domain below which each token is a host
/// name.
pub(crate) fn place<B>(request: &Request<B>, domain: Option<&str>) -> Option<PortPlace> {
    let (path, query) = (request.uri().path(), request.uri().query());
    if let Some(token) = domain.and_then(|domain| token_of_host(request, domain)) {
        let (reach, target) = (Reach::Token(token), target(path, query));
        return Some(PortPlace { reach, prefix: String::new(), target, is_complete: true });
    }
    let (reach, rest, is_complete) = match path.strip_prefix(TOKENS) {
        Some(after) => {
            let (token, rest) = after.split_once('/').map_or((after, None), |(token, rest)| (token, Some(rest)));
            (Reach::Token(token.to_owned()), rest.unwrap_or_default(), rest.is_some())
        }
        None => {
            let decoded = |text: &str| percent_decode_str(text).decode_utf8().ok().map(std::borrow::Cow::into_owned);
            let after = path.strip_prefix(ROOT)?;
            let (project, after) = match after.strip_prefix("projects/") {
                Some(after) => after.split_once('/').map(|(project, after)| (decoded(project), after))?,
                None => (None, after),
            };
            let (sandbox, after) = after.strip_prefix("sandboxes/")?.split_once('/')?;
            // Without a slash behind the port, the request is the call that creates a URL.
            let (port, rest) = after.strip_prefix("ports/")?.split_once('/')?;
            (Reach::Key { project, sandbox: decoded(sandbox)?, port: port.to_owned() }, rest, true)
        }
    };
    let prefix = path[..path.len() - rest.len()].trim_end_matches('/').to_owned();
    Some(PortPlace { reach, prefix, target: target(&format!("/{rest}"), query), is_complete })
}

fn target(path: &str, query: Option<&str>) -> String {
    query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"))
}

/// Returns the token in the host name of a request, or `None` if there is none.
fn token_of_host<B>(request: &Request<B>, domain: &str) -> Option<String> {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok())?;
    let without_port = |text: &str| text.rsplit_once(':').map_or(text, |(name, _)| name).to_ascii_lowercase();
    let name = without_port(host);
    let token = name.strip_suffix(&without_port(domain))?.strip_suffix('.')?;
    is_token(token).then(|| token.to_owned())
}

/// Forwards a request to the program at a port.
///
/// # Errors
/// The caller has no right, the sandbox does not run, or nothing answers at the port.
pub(crate) async fn answer(
    gate: &Gate,
    sandboxes: &Sandboxes,
    place: PortPlace,
    mut request: Request<Body>,
    peer: Peer,
) -> Result<Response<Body>, Status> {
    if let Some(answer) = answer_here(&place, &request) {
        return Ok(answer);
    }
    let (admitted, sandbox, port, authorization) = admit(gate, sandboxes, &place, &mut request, peer).await?;
    if request.method() == Verb::CONNECT {
        return Err(invalid("CONNECT: this is no proxy for other hosts"));
    }
    let living = sandboxes.running(&admitted.project, &sandbox).await?;
    let stream = living.link.dial_port(port).await.map_err(|error| sandbox_status(&error))?;
    let (is_secret, is_tls) = (place.has_token(), sandboxes.inner.is_tls);
    let route = Route { prefix: place.prefix, is_secret, port, is_tls };
    let protocol = wanted_protocol(request.headers()).filter(|_| request.version() == Version::HTTP_11);
    let client = protocol.is_some().then(|| hyper::upgrade::on(&mut request));
    let mut headers = for_program(request.headers(), &route, authorization);
    match &protocol {
        Some(protocol) => {
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, protocol.clone());
        }
        None => drop(headers.insert(CONNECTION, HeaderValue::from_static("close"))),
    }
    let target: PathAndQuery = place.target.parse().map_err(|_| invalid("the path is malformed"))?;
    let (head, body) = request.into_parts();
    let mut outgoing = Request::new(body);
    *outgoing.method_mut() = head.method;
    *outgoing.uri_mut() = Uri::from(target);
    *outgoing.headers_mut() = headers;
    let idle_max = sandboxes.parts()?.options.port_idle_max;
    let activity = Activity::new();
    let stop = guard(admitted, activity.clone(), idle_max);
    let response = send(outgoing, Watched { inner: stream, activity }, stop.clone(), port).await?;
    finish(response, client.zip(protocol), &route, stop)
}

/// Answers requests that need no program: redirects a URL without its final slash, and answers the CORS preflight of a browser.
fn answer_here(place: &PortPlace, request: &Request<Body>) -> Option<Response<Body>> {
    let mut response = Response::new(Body::empty());
    if !place.is_complete && request.method() == Verb::GET && wanted_protocol(request.headers()).is_none() {
        let location = format!("{}{}", place.prefix, place.target);
        *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
        response.headers_mut().insert(LOCATION, HeaderValue::from_str(&location).ok()?);
        return Some(response);
    }
    let is_question =
        request.method() == Verb::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if is_question && place.has_token() && !place.prefix.is_empty() {
        *response.status_mut() = StatusCode::NO_CONTENT;
        for name in [ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_HEADERS] {
            response.headers_mut().insert(name, HeaderValue::from_static("*"));
        }
        return Some(response);
    }
    None
}

/// Checks a request. Returns the sandbox, the port, and the `Authorization` header that is meant for the program.
async fn admit(
    gate: &Gate,
    sandboxes: &Sandboxes,
    place: &PortPlace,
    request: &mut Request<Body>,
    peer: Peer,
) -> Result<(Admitted, String, u16, Option<HeaderValue>), Status> {
    let method = Method::find(METHOD).ok_or_else(|| Status::internal("the table of methods is incomplete"))?;
    let authorization = request.headers().get(AUTHORIZATION).cloned();
    match &place.reach {
        Reach::Key { project, sandbox, port } => {
            if let Some(project) = project {
                let value = HeaderValue::from_str(project);
                let value = value.map_err(|_| invalid("the name of the project is malformed"))?;
                request.headers_mut().insert(HeaderName::from_static(PROJECT_HEADER), value);
            }
            // With a key in `X-API-Key`, the `Authorization` header is the program's.
            let authorization = authorization.filter(|_| request.headers().contains_key(API_KEY));
            let admitted = gate.admit(method, request, peer, None).await?;
            Ok((admitted, sandbox.clone(), port_of(port)?, authorization))
        }
        Reach::Token(text) => {
            let token = sandboxes.find_port_token(text)?;
            let mut admitted = gate.admit(method, request, peer, Some(token.holder)).await?;
            tokio::select! {
                biased;
                // The key that requested the token is not valid any more.
                status = &mut admitted.cut => return Err(status),
                () = std::future::ready(()) => {}
            }
            Ok((admitted, token.sandbox, token.port, authorization))
        }
    }
}

/// Parses a port number from 1 to 65535.
pub(super) fn port_of(text: &str) -> Result<u16, Status> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse().ok().filter(|port| is_number && *port > 0);
    port.ok_or_else(|| invalid("port: 1 to 65535"))
}

fn invalid(why: &str) -> Status {
    Failure::new(Reason::Invalid, why).into_status()
}

/// Returns a receiver that becomes true when a connection must end: the key is not valid any more, the server stops, or the
/// connection is idle. The request is recorded when all receivers are dropped.
fn guard(mut admitted: Admitted, activity: Activity, idle_max: Duration) -> watch::Receiver<bool> {
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            status = &mut admitted.cut => debug!(%status, "a connection to a port was cut off"),
            () = activity.idle(idle_max) => debug!("a connection to a port was idle for too long"),
            () = stop.closed() => {}
        }
        stop.send_replace(true);
    });
    stopped
}

/// Sends a request to a program, and returns its response. The connection stays open until the response is read.
async fn send(
    request: Request<Body>,
    stream: Watched<LinkStream>,
    mut stop: watch::Receiver<bool>,
    port: u16,
) -> Result<Response<Incoming>, Status> {
    let failed = |error: hyper::Error| {
        let message = format!("the program at port {port} did not answer like a web server: {error}");
        Failure::new(Reason::PortUnreachable, message).into_status()
    };
    let mut builder = http1::Builder::new();
    builder.max_buf_size(BUFFER_BYTES);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(failed)?;
    tokio::spawn(async move {
        tokio::select! {
            ended = connection.with_upgrades() => {
                if let Err(error) = ended {
                    debug!(%error, port, "a connection to a port broke");
                }
            }
            _ = stop.wait_for(|stop| *stop) => {}
        }
    });
    sender.send_request(request).await.map_err(failed)
}

/// Builds the response for the client. After an upgrade, a task copies bytes in both directions.
fn finish(
    mut response: Response<Incoming>,
    upgrade: Option<(OnUpgrade, HeaderValue)>,
    route: &Route,
    stop: watch::Receiver<bool>,
) -> Result<Response<Body>, Status> {
    let mut headers = for_client(response.headers(), route);
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some((client, protocol)) = upgrade else {
            let message = format!("the program at port {} changed the protocol without being asked", route.port);
            return Err(Failure::new(Reason::PortUnreachable, message).into_status());
        };
        tokio::spawn(carry(client, hyper::upgrade::on(&mut response), stop));
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    let (head, body) = response.into_parts();
    let mut answer = Response::new(Body::new(body));
    *answer.status_mut() = head.status;
    *answer.headers_mut() = headers;
    Ok(answer)
}

/// Copies bytes between a client and a program after both have switched the protocol.
async fn carry(client: OnUpgrade, program: OnUpgrade, mut stop: watch::Receiver<bool>) {
    let both = async { tokio::try_join!(client, program) };
    let (client, program) = match tokio::time::timeout(UPGRADE_WITHIN, both).await {
        Ok(Ok(both)) => both,
        Ok(Err(error)) => return debug!(%error, "a connection to a port was not upgraded"),
        Err(_) => return,
    };
    let (mut client, mut program) = (TokioIo::new(client), TokioIo::new(program));
    tokio::select! {
        // One of the two sides has closed the connection.
        _ = tokio::io::copy_bidirectional_with_sizes(&mut client, &mut program, COPY_BYTES, COPY_BYTES) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uri: &str, host: &str) -> Option<PortPlace> {
        let request = Request::get(uri).header(HOST, host).body(()).expect("a request");
        place(&request, Some("ports.example:8080"))
    }

    #[test]
    fn places_are_paths_with_a_key_or_a_token_or_host_names_with_a_token() {
        let token = "a2".repeat(16);
        let key = |project: Option<&str>| Reach::Key {
            project: project.map(str::to_owned),
            sandbox: "sbx-1".to_owned(),
            port: "8000".to_owned(),
        };
        let check = |uri: &str, host: &str, reach: Reach, prefix: &str, target: &str| {
            let (prefix, target) = (prefix.to_owned(), target.to_owned());
            assert_eq!(of(uri, host), Some(PortPlace { reach, prefix, target, is_complete: true }), "{uri}");
        };
        let prefix = "/api/v1/sandboxes/sbx-1/ports/8000";
        check("/api/v1/sandboxes/sbx-1/ports/8000/", "h", key(None), prefix, "/");
        check("/api/v1/sandboxes/sbx-1/ports/8000/a//b%2Fc?x=/y", "h", key(None), prefix, "/a//b%2Fc?x=/y");
        let in_project = "/api/v1/projects/p/sandboxes/sbx-1/ports/8000";
        check(&format!("{in_project}/a"), "h", key(Some("p")), in_project, "/a");
        let by_token = || Reach::Token(token.clone());
        check(&format!("/ports/{token}/a?b"), "h", by_token(), &format!("/ports/{token}"), "/a?b");
        for host in [format!("{token}.ports.example"), format!("{token}.PORTS.example:99")] {
            check("/api/v1/sandboxes?x", &host, by_token(), "", "/api/v1/sandboxes?x");
        }
        for other in ["/api/v1/sandboxes/sbx-1/ports/8000", "/api/v1/sandboxes/sbx-1/pty/1/", "/ports", "/x/ports/1/"] {
            assert_eq!(of(other, "h"), None, "{other}");
        }
        for host in
            ["ports.example", "x.ports.example", &format!("{token}.other.example"), &format!("{token}xports.example")]
        {
            assert_eq!(of("/", host), None, "{host}");
        }
        let bare = of(&format!("/ports/{token}?q"), "h").expect("a place");
        assert_eq!((bare.is_complete, bare.target.as_str()), (false, "/?q"));
        assert_eq!(bare.prefix, format!("/ports/{token}"));
    }

    #[test]
    fn only_numbers_of_ports_are_ports() {
        assert_eq!(port_of("8000").expect("a port"), 8000);
        for bad in ["", "0", "65536", "-1", "+1", "80a", " 80", "0x50", "99999999999"] {
            assert!(port_of(bad).is_err(), "{bad}");
        }
    }
}
