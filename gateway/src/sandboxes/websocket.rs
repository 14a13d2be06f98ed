//! Terminals over WebSockets, in messages of JSON: `input`, `resize` and `ping` from the client; `output`, `exit`, `pong` and `error` from
//! the server. Bytes are in base64.
//!
//! Nothing is queued for a client: the terminal keeps its last output, and a client that does not read is disconnected.

use std::sync::Arc;
use std::time::Duration;

use amalgam_proto::{Failure, Reason};
use amalgam_sandbox::{Link, Terminal, TerminalSize};
use bytes::Bytes;
use data_encoding::BASE64;
use futures_util::SinkExt as _;
use http::header::{CONNECTION, HeaderName, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use http::{HeaderMap, HeaderValue, Method as Verb, Request, Response, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_stream::StreamExt as _;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tonic::Status;
use tonic::body::Body;
use tracing::debug;

use super::{Sandboxes, sandbox_status};
use crate::gate::{Admitted, Gate, PROJECT_HEADER, Peer};
use crate::method::Method;

/// The method whose rights a connection needs.
const METHOD: &str = "/amalgam.v1.SandboxService/WriteTerminal";
const ROOT: &str = "/api/v1/";
/// Maximum size of a message of a client.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Size of the read buffer of one connection.
const BUFFER_BYTES: usize = 16 << 10;
/// Maximum number of bytes of output in one message.
const OUTPUT_BYTES_MAX: usize = 48 << 10;

/// When the server pings silent clients, and when it disconnects them.
#[derive(Clone, Copy, Debug)]
pub struct TerminalTimes {
    /// How often the server sends a ping.
    pub ping_interval: Duration,
    /// A client that has sent nothing for this long is disconnected.
    pub idle_max: Duration,
    /// A client that does not accept a message for this long is disconnected.
    pub write_max: Duration,
}

impl Default for TerminalTimes {
    fn default() -> Self {
        Self {
            ping_interval: Duration::from_secs(30),
            idle_max: Duration::from_secs(90),
            write_max: Duration::from_secs(30),
        }
    }
}

/// The terminal that a request for a WebSocket names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place {
    project: Option<String>,
    sandbox: String,
    terminal: String,
    ticket: Option<String>,
    offset: u64,
}

/// Returns the terminal that a request below `/api/v1` names, or `None` if it is no request for a WebSocket.
pub(crate) fn place<B>(request: &Request<B>) -> Option<Place> {
    if request.method() != Verb::GET {
        return None;
    }
    let decoded = |text: &str| percent_decode_str(text).decode_utf8().ok().map(std::borrow::Cow::into_owned);
    let words: Vec<_> = request.uri().path().strip_prefix(ROOT)?.split('/').collect();
    let (project, rest) = match words.as_slice() {
        ["projects", project, rest @ ..] => (Some(decoded(project)?), rest),
        rest => (None, rest),
    };
    let ["sandboxes", sandbox, "pty", terminal, "ws"] = rest else { return None };
    let mut place =
        Place { project, sandbox: decoded(sandbox)?, terminal: decoded(terminal)?, ticket: None, offset: 0 };
    for pair in request.uri().query().unwrap_or_default().split('&') {
        match pair.split_once('=') {
            Some(("ticket", ticket)) => place.ticket = Some(ticket.to_owned()),
            Some(("offset", offset)) => place.offset = offset.parse().ok()?,
            _ => {}
        }
    }
    Some(place)
}

/// Answers a request for a WebSocket.
///
/// # Errors
/// The caller has no right, there is no such terminal, or the request is not one for a WebSocket.
pub(crate) async fn answer(
    gate: &Gate,
    sandboxes: &Sandboxes,
    place: Place,
    mut request: Request<Body>,
    peer: Peer,
) -> Result<Response<Body>, Status> {
    if let Some(project) = &place.project {
        let value = HeaderValue::from_str(project).map_err(|_| invalid("the name of the project is malformed"))?;
        request.headers_mut().insert(HeaderName::from_static(PROJECT_HEADER), value);
    }
    let ticket = place.ticket.as_deref().map(|ticket| sandboxes.take_ticket(ticket, &place.terminal)).transpose()?;
    let method = Method::find(METHOD).ok_or_else(|| Status::internal("the table of methods is incomplete"))?;
    let admitted = gate.admit(method, &mut request, peer, ticket).await?;
    let living = sandboxes.running(&admitted.project, &place.sandbox).await?;
    let terminal = living.link.terminal(&place.terminal).map_err(|error| sandbox_status(&error))?;
    let accept = accept_of(request.headers())?;
    let upgrade = hyper::upgrade::on(&mut request);
    let connection = Connection {
        link: living.link,
        terminal,
        offset: place.offset,
        times: sandboxes.parts()?.options.terminal_times,
    };
    tokio::spawn(serve(connection, upgrade, admitted));
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    Ok(response)
}

fn invalid(why: &str) -> Status {
    Failure::new(Reason::Invalid, why).into_status()
}

/// Checks the headers of a WebSocket handshake, and returns the value of `Sec-WebSocket-Accept`.
fn accept_of(headers: &HeaderMap) -> Result<HeaderValue, Status> {
    let has = |name: HeaderName, word: &str| {
        let mut values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.any(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(word)))
    };
    let key = headers.get(SEC_WEBSOCKET_KEY);
    let is_handshake = has(UPGRADE, "websocket") && has(CONNECTION, "upgrade") && has(SEC_WEBSOCKET_VERSION, "13");
    let key = key.filter(|_| is_handshake).ok_or_else(|| {
        invalid("this path is a WebSocket: it needs HTTP/1.1 with `Connection: Upgrade`, `Upgrade: websocket` and version 13")
    })?;
    HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(|_| Status::internal("a key without an answer"))
}

/// A client that is connected to a terminal.
struct Connection {
    link: Link,
    terminal: Arc<Terminal>,
    offset: u64,
    times: TerminalTimes,
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Why a connection ends.
enum Ended {
    /// The client has disconnected or does not read, so that no reason can be sent.
    Lost,
    /// The client gets a close frame with a code and a reason.
    Told(CloseCode, &'static str),
}

async fn serve(mut connection: Connection, upgrade: OnUpgrade, mut admitted: Admitted) {
    let upgraded = match tokio::time::timeout(connection.times.write_max, upgrade).await {
        Ok(Ok(upgraded)) => upgraded,
        Ok(Err(error)) => return debug!(%error, "a WebSocket was not made"),
        Err(_) => return,
    };
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(0)
        .max_write_buffer_size(4 * MESSAGE_BYTES_MAX)
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX));
    let mut socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
    let ended = tokio::select! {
        ended = connection.run(&mut socket) => ended,
        status = &mut admitted.cut => {
            debug!(%status, "a terminal was cut off");
            Ended::Told(CloseCode::Away, "the server stops, or the key is not valid any more")
        }
    };
    if let Ended::Told(code, reason) = ended {
        let frame = CloseFrame { code, reason: reason.into() };
        let _ = tokio::time::timeout(connection.times.write_max, socket.close(Some(frame))).await;
    }
}

impl Connection {
    async fn run(&mut self, socket: &mut Socket) -> Ended {
        let mut pings = tokio::time::interval(self.times.ping_interval);
        pings.tick().await;
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                (part, end) = self.terminal.next(self.offset) => {
                    for chunk in part.chunks {
                        for data in chunk.data.chunks(OUTPUT_BYTES_MAX) {
                            let message = json!({"type": "output", "data": BASE64.encode(data)});
                            if self.send(socket, &message).await.is_err() {
                                return Ended::Lost;
                            }
                        }
                    }
                    self.offset = part.next;
                    let Some(end) = end else { continue };
                    let message = match end {
                        Ok(code) => json!({"type": "exit", "exitCode": code}),
                        Err(why) => json!({"type": "error", "message": why}),
                    };
                    return match self.send(socket, &message).await {
                        Ok(()) => Ended::Told(CloseCode::Normal, "the terminal has ended"),
                        Err(()) => Ended::Lost,
                    };
                }
                message = socket.next() => {
                    heard = Instant::now();
                    match message {
                        None | Some(Err(_)) | Some(Ok(Message::Close(_))) => return Ended::Lost,
                        Some(Ok(Message::Text(text))) => {
                            if self.take(socket, &text).await.is_err() {
                                return Ended::Lost;
                            }
                        }
                        Some(Ok(Message::Binary(_))) => {
                            return Ended::Told(CloseCode::Unsupported, "messages are JSON in text frames");
                        }
                        // The library answers pings.
                        Some(Ok(_)) => {}
                    }
                }
                _ = pings.tick() => {
                    let ping = socket.send(Message::Ping(Bytes::new()));
                    if !matches!(tokio::time::timeout(self.times.write_max, ping).await, Ok(Ok(()))) {
                        return Ended::Lost;
                    }
                }
                () = tokio::time::sleep_until(heard + self.times.idle_max) => {
                    return Ended::Told(CloseCode::Policy, "nothing was heard for too long");
                }
            }
        }
    }

    async fn send(&self, socket: &mut Socket, message: &Value) -> Result<(), ()> {
        let sending = socket.send(Message::text(message.to_string()));
        match tokio::time::timeout(self.times.write_max, sending).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(()),
        }
    }

    /// Handles one message of a client. A malformed one is answered with an error, and the connection stays open.
    async fn take(&self, socket: &mut Socket, text: &str) -> Result<(), ()> {
        let done = match ClientMessage::parse(text) {
            Ok(ClientMessage::Ping) => return self.send(socket, &json!({"type": "pong"})).await,
            Ok(ClientMessage::Input(data)) => self.link.write_terminal(&self.terminal.id, data).await,
            Ok(ClientMessage::Resize(size)) => self.link.resize_terminal(&self.terminal.id, size).await,
            Err(why) => return self.send(socket, &json!({"type": "error", "message": why})).await,
        };
        match done {
            Ok(()) => Ok(()),
            Err(error) => self.send(socket, &json!({"type": "error", "message": error.to_string()})).await,
        }
    }
}

/// A message of a client.
#[derive(Debug, PartialEq, Eq)]
enum ClientMessage {
    Input(Bytes),
    Resize(TerminalSize),
    Ping,
}

impl ClientMessage {
    fn parse(text: &str) -> Result<Self, &'static str> {
        let value: Value = serde_json::from_str(text).map_err(|_| "the message is not JSON")?;
        match value["type"].as_str() {
            Some("ping") => Ok(Self::Ping),
            Some("input") => {
                let data = value["data"].as_str().ok_or("input: `data` is missing")?;
                let data = BASE64.decode(data.as_bytes()).map_err(|_| "input: `data` is not base64")?;
                Ok(Self::Input(data.into()))
            }
            Some("resize") => {
                let one = |name: &str| {
                    value[name].as_u64().and_then(|count| u16::try_from(count).ok()).filter(|count| *count > 0)
                };
                let size = one("cols").zip(one("rows")).map(|(cols, rows)| TerminalSize { cols, rows });
                size.map(Self::Resize).ok_or("resize: `cols` and `rows` are 1 to 65535")
            }
            _ => Err("`type` is input, resize or ping"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_with_project_ticket_and_offset() {
        let of = |uri: &str| place(&Request::get(uri).body(()).expect("a request"));
        let found = of("/api/v1/projects/demo/sandboxes/sbx-1/pty/pty-2/ws?ticket=t&offset=7").expect("a place");
        let (project, ticket) = (Some("demo".to_owned()), Some("t".to_owned()));
        let (sandbox, terminal) = ("sbx-1".to_owned(), "pty-2".to_owned());
        assert_eq!(found, Place { project, sandbox, terminal, ticket, offset: 7 });
        assert!(of("/api/v1/sandboxes/sbx-1/pty/pty-2/ws").is_some());
        for other in ["/api/v1/sandboxes/sbx-1/pty/pty-2", "/sandboxes/a/pty/b/ws", "/api/v1/sandboxes/a/pty/b/ws/c"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn messages_are_read_and_malformed_ones_are_named() {
        let input = ClientMessage::parse(r#"{"type": "input", "data": "bHMK"}"#);
        assert_eq!(input, Ok(ClientMessage::Input(Bytes::from_static(b"ls\n"))));
        let resize = ClientMessage::parse(r#"{"type": "resize", "cols": 100, "rows": 40}"#);
        assert_eq!(resize, Ok(ClientMessage::Resize(TerminalSize { cols: 100, rows: 40 })));
        assert_eq!(ClientMessage::parse(r#"{"type": "ping"}"#), Ok(ClientMessage::Ping));
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"type": "input"}"#,
            r#"{"type": "input", "data": "%"}"#,
            r#"{"type": "resize", "cols": 0, "rows": 1}"#,
            r#"{"type": "resize", "cols": 70000, "rows": 1}"#,
        ] {
            assert!(ClientMessage::parse(bad).is_err(), "{bad}");
        }
    }
}
