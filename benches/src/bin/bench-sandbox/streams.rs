//! Output of commands as a stream, over gRPC and as server-sent events, and the echo of a terminal over a WebSocket.

use std::time::{Duration, Instant};

use amalgam_benches::bench::Bench;
use amalgam_benches::served::runtime;
use amalgam_benches::{Bar, Result, Samples};
use amalgam_proto::v1;
use data_encoding::BASE64;
use futures_util::{SinkExt as _, StreamExt as _};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::site::{Kind, Site, milliseconds};

pub const FIGURES: &[&str] = &[
    "streamed output, gRPC",
    "streamed output, SSE",
    "streamed output, first byte, p50",
    "terminal echo over a WebSocket, p99",
];

const MEGABYTE: f64 = 1e6;
/// A terminal reads lines, and a line has a limit.
const KEYS_PER_LINE: usize = 50;
const ECHO_WITHIN: Duration = Duration::from_secs(10);

pub fn run(bench: &mut Bench) -> Result<()> {
    let directory = bench.directory("streams");
    let (bytes, times, keys) = (bench.size(512_000_000, 8_000_000), bench.size(200, 10), bench.size(2_000, 100));
    let (grpc, sse, first, echo) = runtime()?.block_on(async {
        let site = Site::start(&directory, &Kind::local()).await?;
        let (id, _) = site.create().await?;
        let grpc = stream(&site, &id, bytes).await?;
        let sse = events(&site, &id, bytes).await?;
        let first = first_bytes(&site, &id, times).await?;
        let echo = echoes(&site, &id, keys).await?;
        site.stop().await?;
        Ok::<_, amalgam_benches::served::BoxedError>((grpc, sse, first, echo))
    })?;
    let how = format!("{:.0} MB of text in lines of 64 bytes, all of it received", bytes as f64 / MEGABYTE);
    bench.add(FIGURES[0], (grpc, "MB/s"), Bar::AtLeast(100.0), format!("{how}; as bytes"));
    bench.add(FIGURES[1], (sse, "MB/s"), Bar::AtLeast(40.0), format!("{how}; as JSON, read by the client"));
    bench.add(FIGURES[2], (first.p50(), "ms"), Bar::AtMost(5.0), format!("`echo here`; {}", first.describe("ms")));
    bench.add(FIGURES[3], (echo.p99(), "ms"), Bar::AtMost(10.0), format!("one key; {}", echo.describe("ms")));
    Ok(())
}

/// A command that writes so many bytes of text.
fn writer(bytes: usize) -> String {
    let line = "0123456789abcdef".repeat(4);
    format!("yes {} | head -c {bytes}", &line[..63])
}

/// Megabytes per second of a stream. Fails if bytes are missing.
async fn stream(site: &Site, id: &str, bytes: usize) -> Result<f64> {
    let request = v1::StreamCommandRequest {
        sandbox_id: id.to_owned(),
        command: writer(bytes),
        binary: true,
        ..Default::default()
    };
    let begin = Instant::now();
    let mut events = site.client.clone().stream_command(request).await?.into_inner();
    let mut received = 0;
    while let Some(event) = events.message().await? {
        received += event.output.len();
    }
    complete(received, bytes)?;
    Ok(received as f64 / MEGABYTE / begin.elapsed().as_secs_f64())
}

fn complete(received: usize, expected: usize) -> Result<()> {
    match received == expected {
        true => Ok(()),
        false => Err(format!("{received} of {expected} bytes were received").into()),
    }
}

/// Megabytes per second of the text in server-sent events. Fails if bytes are missing.
async fn events(site: &Site, id: &str, bytes: usize) -> Result<f64> {
    let stream = TcpStream::connect(site.served.address).await?;
    let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let body = json!({"command": writer(bytes), "stream": true}).to_string();
    let request = http::Request::post(format!("/api/v1/sandboxes/{id}/process/run"))
        .header("host", "localhost")
        .header("x-api-key", &site.served.key)
        .header("content-type", "application/json")
        .header("accept", "text/event-stream")
        .body(Full::new(bytes::Bytes::from(body)))?;
    let begin = Instant::now();
    let mut body = send.send_request(request).await?.into_body();
    let (mut received, mut rest) = (0, Vec::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        rest.extend_from_slice(&data);
        let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') else { continue };
        let lines: Vec<u8> = rest.drain(..=end).collect();
        for line in lines.split(|byte| *byte == b'\n') {
            let Some(event) = line.strip_prefix(b"data: ") else { continue };
            let event: Value = serde_json::from_slice(event)?;
            if event["type"] == "stdout" || event["type"].is_null() {
                received += event["data"].as_str().map_or(0, str::len);
            }
        }
    }
    connection.abort();
    complete(received, bytes)?;
    Ok(received as f64 / MEGABYTE / begin.elapsed().as_secs_f64())
}

/// From the call to the first output.
async fn first_bytes(site: &Site, id: &str, times: usize) -> Result<Samples> {
    let mut values = Vec::new();
    for _ in 0..times {
        let request = v1::StreamCommandRequest {
            sandbox_id: id.to_owned(),
            command: "echo here".to_owned(),
            ..Default::default()
        };
        let begin = Instant::now();
        let mut events = site.client.clone().stream_command(request).await?.into_inner();
        loop {
            let event = events.message().await?.ok_or("the stream ended without output")?;
            if event.r#type == "stdout" {
                values.push(milliseconds(begin.elapsed()));
                break;
            }
        }
        while events.message().await?.is_some() {}
    }
    Ok(Samples::new(values))
}

/// From a key that is sent to its echo.
async fn echoes(site: &Site, id: &str, keys: usize) -> Result<Samples> {
    let request = v1::CreateTerminalRequest {
        sandbox_id: id.to_owned(),
        cols: 80,
        rows: 24,
        shell: "/bin/cat".to_owned(),
        ..Default::default()
    };
    let opened = site.client.clone().create_terminal(request).await?.into_inner();
    let path = opened.websocket_url.find("/api/").map(|at| &opened.websocket_url[at..]).ok_or("no WebSocket")?;
    let request = format!("ws://{}{path}", site.served.address).into_client_request()?;
    let stream = TcpStream::connect(site.served.address).await?;
    stream.set_nodelay(true)?;
    let (mut socket, _) = client_async(request, stream).await?;
    let mut values = Vec::new();
    for number in 0..keys {
        if number % KEYS_PER_LINE == KEYS_PER_LINE - 1 {
            // The echo of the line, and the line that `cat` writes.
            type_in(&mut socket, "\n").await?;
            read(&mut socket, 2 * "\r\n".len() + KEYS_PER_LINE - 1).await?;
            continue;
        }
        let begin = Instant::now();
        type_in(&mut socket, "x").await?;
        read(&mut socket, 1).await?;
        values.push(milliseconds(begin.elapsed()));
    }
    Ok(Samples::new(values))
}

type Socket = WebSocketStream<TcpStream>;

async fn type_in(socket: &mut Socket, text: &str) -> Result<()> {
    let message = json!({"type": "input", "data": BASE64.encode(text.as_bytes())});
    Ok(socket.send(Message::text(message.to_string())).await?)
}

/// Reads so many bytes of output.
async fn read(socket: &mut Socket, bytes: usize) -> Result<()> {
    let mut received = 0;
    while received < bytes {
        let next = tokio::time::timeout(ECHO_WITHIN, socket.next()).await?;
        let Message::Text(text) = next.ok_or("the WebSocket ended")?? else { continue };
        let message: Value = serde_json::from_str(&text)?;
        let data = message["data"].as_str().unwrap_or_default();
        received += BASE64.decode(data.as_bytes())?.len();
    }
    Ok(())
}
