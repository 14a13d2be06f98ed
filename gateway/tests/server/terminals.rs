//! Terminals over WebSockets: the messages, the ticket, and clients that are silent or do not read.

use std::time::Duration;

use amalgam_gateway::TerminalTimes;
use data_encoding::BASE64;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::site::{Site, WITHIN};

pub type Socket = WebSocketStream<TcpStream>;

impl Site {
    /// Opens a terminal. Returns its id and the address of its WebSocket.
    pub async fn terminal(&self, id: &str) -> (String, String) {
        let open = json!({"cols": 80, "rows": 24, "shell": "/bin/sh"});
        let opened = self.call(Method::POST, &format!("/sandboxes/{id}/pty"), open).await;
        assert_eq!(opened.status, 200, "{:?}", opened.bytes);
        let opened = opened.json();
        let text = |name: &str| opened[name].as_str().unwrap().to_owned();
        (text("id"), text("websocketUrl"))
    }

    /// Connects to a WebSocket. The status of the refusal if there is one.
    pub async fn websocket(&self, url: &str, key: Option<&str>) -> Result<Socket, StatusCode> {
        let mut request = url.into_client_request().unwrap();
        if let Some(key) = key {
            request.headers_mut().insert("x-api-key", key.parse().unwrap());
        }
        let stream = TcpStream::connect(self.server.address).await.unwrap();
        match client_async(request, stream).await {
            Ok((socket, _)) => Ok(socket),
            Err(Error::Http(response)) => Err(response.status()),
            Err(error) => panic!("{error}"),
        }
    }
}

pub async fn send(socket: &mut Socket, message: Value) {
    socket.send(Message::text(message.to_string())).await.unwrap();
}

pub async fn type_in(socket: &mut Socket, text: &str) {
    send(socket, json!({"type": "input", "data": BASE64.encode(text.as_bytes())})).await;
}

/// The next message of the server.
async fn next(socket: &mut Socket) -> Message {
    tokio::time::timeout(WITHIN, socket.next()).await.unwrap().unwrap().unwrap()
}

/// The next JSON message that is no output.
async fn next_json(socket: &mut Socket) -> Value {
    loop {
        if let Message::Text(text) = next(socket).await {
            let message: Value = serde_json::from_str(&text).unwrap();
            if message["type"] != "output" {
                return message;
            }
        }
    }
}

/// Reads output until it contains a text.
pub async fn read_until(socket: &mut Socket, wanted: &str) {
    let mut screen = String::new();
    while !screen.contains(wanted) {
        if let Message::Text(text) = next(socket).await {
            let message: Value = serde_json::from_str(&text).unwrap();
            let data = BASE64.decode(message["data"].as_str().unwrap_or_default().as_bytes()).unwrap();
            screen.push_str(&String::from_utf8_lossy(&data));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_over_a_websocket_has_input_size_and_end() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    let (_, url) = site.terminal(&id).await;
    assert!(url.starts_with("ws://localhost/api/v1/projects/default/sandboxes/"), "{url}");
    let mut socket = site.websocket(&url, None).await.unwrap();
    send(&mut socket, json!({"type": "resize", "cols": 100, "rows": 40})).await;
    type_in(&mut socket, "stty size; echo a$((1+1))b\n").await;
    read_until(&mut socket, "40 100\r\na2b").await;
    send(&mut socket, json!({"type": "ping"})).await;
    assert_eq!(next_json(&mut socket).await, json!({"type": "pong"}));
    for wrong in ["x", "{}", r#"{"type": "input", "data": "%"}"#] {
        socket.send(Message::text(wrong)).await.unwrap();
        assert_eq!(next_json(&mut socket).await["type"], "error", "{wrong}");
    }
    type_in(&mut socket, "exit 3\n").await;
    assert_eq!(next_json(&mut socket).await, json!({"type": "exit", "exitCode": 3}));
    let Message::Close(Some(frame)) = next(&mut socket).await else { panic!("a close frame comes after the end") };
    assert_eq!(frame.code, CloseCode::Normal);
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_opens_one_connection_and_a_key_any_number() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    let (_, url) = site.terminal(&id).await;
    let (_, other_url) = site.terminal(&id).await;
    let (place, ticket) = url.split_once("?ticket=").unwrap();
    let (other_place, other_ticket) = other_url.split_once("?ticket=").unwrap();
    let refused = site.websocket(&format!("{other_place}?ticket={ticket}"), None).await.map(drop);
    assert_eq!(refused, Err(StatusCode::UNAUTHORIZED), "the ticket is for the other terminal");
    assert_eq!(site.websocket(&url, None).await.map(drop), Err(StatusCode::UNAUTHORIZED), "a wrong use uses it up");
    let good = format!("{other_place}?ticket={other_ticket}");
    let mut socket = site.websocket(&good, None).await.unwrap();
    type_in(&mut socket, "echo here\n").await;
    read_until(&mut socket, "here\r\n").await;
    assert_eq!(site.websocket(&good, None).await.map(drop), Err(StatusCode::UNAUTHORIZED), "once");
    assert_eq!(site.websocket(place, None).await.map(drop), Err(StatusCode::UNAUTHORIZED), "neither ticket nor key");
    let reader = site.server.key("read run", &[], false).await;
    assert_eq!(site.websocket(place, Some(&reader)).await.map(drop), Err(StatusCode::FORBIDDEN));
    // Both see the terminal; the second one from its beginning.
    let mut second = site.websocket(other_place, Some(&site.key)).await.unwrap();
    read_until(&mut second, "here\r\n").await;
    let plain = other_place.strip_prefix("ws://localhost/api/v1").unwrap();
    let answer = site.call(Method::GET, plain, Value::Null).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["name"]), (400, &"INVALID_ARGUMENT".into()));
    let unknown = format!("{}x", other_place.strip_suffix("/ws").unwrap()) + "/ws";
    assert_eq!(site.websocket(&unknown, Some(&site.key)).await.map(drop), Err(StatusCode::NOT_FOUND));
    let log = std::fs::read_to_string(site.server.home.path().join("audit.log")).unwrap();
    assert!(!log.contains(ticket) && !log.contains(other_ticket), "{log}");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_silent_or_never_reads_is_cut_off() {
    let mut site = Site::start_with(|options| {
        options.terminal_times = TerminalTimes {
            ping_interval: Duration::from_millis(200),
            idle_max: Duration::from_secs(3),
            write_max: Duration::from_millis(300),
        };
    })
    .await;
    let id = site.create(json!({"template": "host"})).await;
    // A client that answers pings stays, though it says nothing by itself.
    let (_, url) = site.terminal(&id).await;
    let mut polite = site.websocket(&url, None).await.unwrap();
    let (terminal, url) = site.terminal(&id).await;
    let path = url.strip_prefix("ws://localhost").unwrap();
    let mut silent = TcpStream::connect(site.server.address).await.unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    silent.write_all(request.as_bytes()).await.unwrap();
    let (answered, _) = tokio::join!(end_of(&mut silent), async {
        // Answers pings meanwhile.
        let _ = tokio::time::timeout(Duration::from_secs(4), read_until(&mut polite, "never printed")).await;
    });
    assert!(answered.starts_with("HTTP/1.1 101") && answered.contains("nothing was heard"), "{answered}");
    type_in(&mut polite, "echo still$((1+1))here\n").await;
    read_until(&mut polite, "still2here").await;
    // A client that never reads, of a terminal that never stops to write.
    let key = [("x-api-key", site.key.as_str())];
    let typed = json!({"data": BASE64.encode(b"yes 0123456789012345678901234567890123456789\n")}).to_string();
    let input = format!("/api/v1/sandboxes/{id}/pty/{terminal}/input");
    assert_eq!(site.server.rest(Method::POST, &input, &key, typed).await.status, 200);
    let place = path.split_once("?ticket=").unwrap().0;
    let mut deaf = TcpStream::connect(site.server.address).await.unwrap();
    let request = format!(
        "GET {place} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-API-Key: {}\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        site.key
    );
    deaf.write_all(request.as_bytes()).await.unwrap();
    // The buffers of the kernel fill, then the time for a write passes.
    tokio::time::sleep(Duration::from_secs(2)).await;
    end_of(&mut deaf).await;
    assert_eq!(site.run(&id, "echo undisturbed").await["stdout"], "undisturbed\n");
    site.server.stop().await;
}

/// Reads until the server closes the connection. What came, as far as it is text.
async fn end_of(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset ends it, too.
    let _ = tokio::time::timeout(WITHIN, stream.read_to_end(&mut bytes)).await.expect("the server closes it");
    String::from_utf8_lossy(&bytes).into_owned()
}
