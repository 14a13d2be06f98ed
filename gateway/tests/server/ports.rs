//! Ports of sandboxes reached through the server: HTTP and WebSockets, with a key and by a URL with a token, and hostile uses of both.

use std::time::{Duration, Instant};

use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use crate::running::{Answer, Setup};
use crate::site::{Site, WITHIN};

/// The program that listens in a sandbox.
const PROGRAM: &str = include_str!("port_program.py");

impl Site {
    /// Starts the program in a sandbox, and waits until it listens.
    async fn listen_in(&self, id: &str, port: u16, address: &str) {
        // A backslash begins an escape in texts of the API.
        let program = PROGRAM.replace('\\', "\\\\");
        let write = json!({"command": "cat > /tmp/program.py", "stdin": program});
        let written = self.call(Method::POST, &format!("/sandboxes/{id}/process/run"), write).await;
        assert_eq!(written.status, 200, "{:?}", written.bytes);
        let command = format!(
            "python3 /tmp/program.py {port} {address} > /tmp/{port}.log 2>&1 & \
             until grep -q listening /tmp/{port}.log; do sleep 0.02; done"
        );
        assert_eq!(self.run(id, &command).await["exitCode"], 0);
    }

    /// A request to a port, with a key.
    pub async fn at_port(&self, method: Method, id: &str, port: u16, path: &str, headers: &[(&str, &str)]) -> Answer {
        let key = [("x-api-key", self.key.as_str())];
        let headers: Vec<_> = key.iter().chain(headers).copied().collect();
        self.server.rest(method, &format!("/api/v1/sandboxes/{id}/ports/{port}{path}"), &headers, "").await
    }

    /// The URL of a port, as `(url, path)`.
    async fn port_url(&self, id: &str, port: u16) -> (String, String) {
        let opened = self.call(Method::POST, &format!("/sandboxes/{id}/ports/{port}"), json!({})).await;
        assert_eq!(opened.status, 200, "{:?}", opened.bytes);
        let opened = opened.json();
        let url = opened["url"].as_str().unwrap().to_owned();
        assert_eq!(format!("http://{}/", opened["host"].as_str().unwrap()), url);
        let path = url.strip_prefix("http://localhost").unwrap_or_default().to_owned();
        (url, path)
    }

    /// Sends bytes as they are, and returns what comes back until the connection ends.
    async fn raw(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.server.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        let _ = tokio::time::timeout(WITHIN, stream.read_to_end(&mut bytes)).await.unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.bytes).into_owned()
}

fn value<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_server_in_a_sandbox_without_a_network_is_reached_with_a_key() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    let command = "echo hello > page.html; python3 -m http.server 8000 --bind 127.0.0.1 > /tmp/log 2>&1 & \
                   until (echo > /dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.02; done";
    let started = site.run(&id, &format!("bash -c '{command}'")).await;
    assert_eq!(started["exitCode"], 0, "{started}");
    let page = site.at_port(Method::GET, &id, 8000, "/page.html?a=b", &[]).await;
    assert_eq!((page.status.as_u16(), &page.bytes[..]), (200, &b"hello\n"[..]));
    assert_eq!(value(&page.headers, "content-type"), "text/html");
    let missing = site.at_port(Method::GET, &id, 8000, "/none", &[]).await;
    assert_eq!(missing.status, 404);
    assert!(text(&missing).contains("Error response"), "the answer is the program's");
    let closed = site.at_port(Method::GET, &id, 8001, "/", &[]).await;
    assert_eq!((closed.status.as_u16(), &closed.json()["error"]["name"]), (502, &"PORT_UNREACHABLE".into()));
    assert!(text(&closed).contains("port is not open"), "{:?}", closed.bytes);
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_hops_and_lengths_end_at_the_server() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    site.listen_in(&id, 9000, "::1").await;
    let own = [("authorization", "Basic b3duOm93bg=="), ("cookie", "a=b"), ("x-forwarded-host", "forged"), ("te", "x")];
    let seen = text(&site.at_port(Method::GET, &id, 9000, "/a//%2e%2e/b?c=%20d", &own).await);
    assert!(seen.starts_with("GET /a//%2e%2e/b?c=%20d HTTP/1.1\r\n"), "{seen}");
    for expected in ["host: localhost:9000", "authorization: Basic b3duOm93bg==", "cookie: a=b", "connection: close"] {
        assert!(seen.contains(expected), "{expected}: {seen}");
    }
    for absent in [site.key.as_str(), "x-api-key", "forged", "amalgam-", "te: x"] {
        assert!(!seen.contains(absent), "{absent}: {seen}");
    }
    // A key in the other header is no header of the program's.
    let bearer = format!("Bearer {}", site.key);
    let path = format!("/api/v1/sandboxes/{id}/ports/9000/");
    let seen = text(&site.server.rest(Method::GET, &path, &[("authorization", &bearer)], "").await);
    assert!(seen.starts_with("GET / HTTP/1.1\r\n") && !seen.contains("authorization"), "{seen}");
    let posted = site.server.rest(Method::POST, &path, &[("x-api-key", &site.key)], vec![b'x'; 100_000]).await;
    assert!(text(&posted).ends_with("BODY 100000 REST 0"), "{}", text(&posted));
    // Two lengths, a hidden second request, and names of headers that would take others away.
    let key = &site.key;
    let hidden = "GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n";
    let smuggled = [
        format!("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Content-Length: 0\r\nConnection: content-length, host\r\n\r\n{hidden}"),
        format!("Content-Length: 3\r\nContent-Length: 99\r\n\r\nabc{hidden}"),
        format!("Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{hidden}"),
    ];
    for rest in smuggled {
        let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nX-API-Key: {key}\r\n");
        let answered =
            site.raw(&format!("{head}{}", rest.replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))).await;
        let is_refused = answered.starts_with("HTTP/1.1 400");
        assert!(is_refused || answered.contains(" REST 0"), "{rest:?}: {answered}");
        assert!(!answered.contains("GET /hidden"), "{rest:?}: {answered}");
    }
    let two = site.at_port(Method::GET, &id, 9000, "/two-answers", &[]).await;
    assert_eq!(&two.bytes[..], b"first");
    for broken in ["/broken", "/unasked"] {
        let answer = site.at_port(Method::GET, &id, 9000, broken, &[]).await;
        assert_eq!(answer.json()["error"]["name"], "PORT_UNREACHABLE", "{broken}");
    }
    assert_eq!(&site.at_port(Method::GET, &id, 9000, "/flooded", &[]).await.bytes[..], b"0");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_with_a_token_needs_no_key_and_ends_with_the_key_and_the_sandbox() {
    let mut site = Site::start_with(|options| options.port_domain = Some("ports.test".to_owned())).await;
    let id = site.create(json!({"template": "host"})).await;
    site.listen_in(&id, 9000, "0.0.0.0").await;
    let (url, _) = site.port_url(&id, 9000).await;
    let host = url.strip_prefix("http://").unwrap().strip_suffix('/').unwrap();
    let token = host.strip_suffix(".ports.test").unwrap();
    // By the host name: all paths are the program's.
    let seen = text(&site.server.rest(Method::GET, "/api/v1/sandboxes", &[("host", host)], "").await);
    assert!(seen.starts_with("GET /api/v1/sandboxes HTTP/1.1\r\n") && !seen.contains(token), "{seen}");
    // By the path: cookies and redirections stay below it, and a page there has an origin of its own.
    let referer = format!("http://localhost/ports/{token}/");
    let seen = site.server.rest(Method::GET, &format!("/ports/{token}/x"), &[("referer", &referer)], "").await;
    assert!(text(&seen).starts_with("GET /x HTTP/1.1\r\n") && !text(&seen).contains(token), "{}", text(&seen));
    assert!(value(&seen.headers, "content-security-policy").starts_with("sandbox "));
    let moved = site.server.rest(Method::GET, &format!("/ports/{token}/moved"), &[], "").await;
    assert_eq!((moved.status.as_u16(), value(&moved.headers, "location")), (302, &*format!("/ports/{token}/there")));
    assert_eq!(value(&moved.headers, "set-cookie"), format!("id=1; Path=/ports/{token}/"));
    let bare = site.server.rest(Method::GET, &format!("/ports/{token}?q"), &[], "").await;
    assert_eq!((bare.status.as_u16(), value(&bare.headers, "location")), (308, &*format!("/ports/{token}/?q")));
    // Neither another port nor the API.
    let wrong = format!("/ports/{}/", "a".repeat(32));
    assert_eq!(site.server.rest(Method::GET, &wrong, &[], "").await.status, 401);
    assert_eq!(site.server.rest(Method::GET, "/api/v1/sandboxes", &[("x-api-key", token)], "").await.status, 401);
    for (port, body) in
        [("0", json!({})), ("65536", json!({})), ("x", json!({})), ("80", json!({"timeoutSeconds": 90_000}))]
    {
        let refused = site.call(Method::POST, &format!("/sandboxes/{id}/ports/{port}"), body).await;
        assert_eq!(refused.status, 400, "{port}: {:?}", refused.bytes);
    }
    let reader = site.server.key("read run", &[], false).await;
    let path = format!("/api/v1/sandboxes/{id}/ports/9000");
    assert_eq!(site.server.rest(Method::POST, &path, &[("x-api-key", &reader)], "{}").await.status, 403);
    assert_eq!(site.server.rest(Method::GET, &format!("{path}/"), &[("x-api-key", &reader)], "").await.status, 403);
    assert_eq!(site.server.rest(Method::GET, &format!("{path}/"), &[], "").await.status, 401);
    // A key that is revoked takes its URLs with it.
    let brief = site.server.key("write run", &[], false).await;
    let opened = site.server.rest(Method::POST, &path, &[("x-api-key", &brief)], "{}").await.json();
    let brief_host = opened["host"].as_str().unwrap().to_owned();
    assert_eq!(site.server.rest(Method::GET, "/", &[("host", &brief_host)], "").await.status, 200);
    let admin = site.server.key("admin", &[], false).await;
    let key_id = brief.rsplit('_').nth(1).unwrap();
    let revoked =
        site.server.rest(Method::DELETE, &format!("/api/v1/keys/{key_id}"), &[("x-api-key", &admin)], "").await;
    assert_eq!(revoked.status, 200, "{:?}", revoked.bytes);
    assert_eq!(site.server.rest(Method::GET, "/", &[("host", &brief_host)], "").await.status, 401);
    site.call(Method::DELETE, &format!("/sandboxes/{id}"), Value::Null).await;
    assert_eq!(site.server.rest(Method::GET, "/", &[("host", host)], "").await.status, 401);
    let log = std::fs::read_to_string(site.server.home.path().join("audit.log")).unwrap();
    assert!(log.contains("OpenPort") && !log.contains(token), "{log}");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_project_takes_its_sandboxes_and_their_urls_with_it() {
    let mut site = Site::start_with(|options| options.port_domain = Some("ports.test".to_owned())).await;
    let id = site.create(json!({"template": "host"})).await;
    site.listen_in(&id, 9000, "0.0.0.0").await;
    let (url, _) = site.port_url(&id, 9000).await;
    let host = url.strip_prefix("http://").unwrap().strip_suffix('/').unwrap();
    assert_eq!(site.server.rest(Method::GET, "/", &[("host", host)], "").await.status, 200);
    let admin = site.server.key("admin run", &[], false).await;
    let admin = [("x-api-key", admin.as_str())];
    let deleted = site.server.rest(Method::DELETE, "/api/v1/projects/default", &admin, "").await;
    assert_eq!(deleted.status, 200, "{:?}", deleted.bytes);
    assert!(!site.server.rest(Method::GET, "/", &[("host", host)], "").await.status.is_success());
    let seen = site.server.rest(Method::GET, &format!("/api/v1/sandboxes/{id}"), &admin, "").await;
    assert!(!seen.status.is_success(), "{:?}", seen.bytes);
    let restored = site.server.rest(Method::POST, "/api/v1/projects/default/undelete", &admin, "{}").await;
    assert_eq!(restored.status, 200, "{:?}", restored.bytes);
    assert_eq!(site.get(&id).await["state"], "stopped");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn websockets_go_through_with_a_key_and_by_a_token() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    site.listen_in(&id, 9000, "127.0.0.1").await;
    let (_, path) = site.port_url(&id, 9000).await;
    let with_key = format!("ws://localhost/api/v1/sandboxes/{id}/ports/9000/ws");
    for (url, key) in [(with_key, Some(site.key.as_str())), (format!("ws://localhost{path}ws"), None)] {
        let mut socket = site.websocket(&url, key).await.unwrap();
        for (sent, expected) in [("hello".to_owned(), "HELLO".to_owned()), ("x".repeat(3_000), "X".repeat(3_000))] {
            socket.send(Message::text(sent)).await.unwrap();
            let received = tokio::time::timeout(WITHIN, socket.next()).await.unwrap().unwrap().unwrap();
            assert_eq!(received, Message::text(expected));
        }
        socket.close(None).await.unwrap();
    }
    let closed = format!("ws://localhost/api/v1/sandboxes/{id}/ports/9001/ws");
    assert_eq!(site.websocket(&closed, Some(&site.key)).await.map(drop), Err(StatusCode::BAD_GATEWAY));
    let mut socket = site.websocket(&format!("ws://localhost{path}ws"), None).await.unwrap();
    site.call(Method::DELETE, &format!("/sandboxes/{id}"), Value::Null).await;
    let ended = tokio::time::timeout(WITHIN, socket.next()).await.unwrap();
    assert!(!matches!(ended, Some(Ok(_))), "{ended:?}");
    site.server.stop().await;
}

/// The connections to ports that the server counts.
async fn connections(site: &Site) -> u64 {
    let metrics = site.server.rest(Method::GET, "/metrics", &[("x-api-key", &site.key)], "").await;
    let text = text(&metrics);
    let line = text.lines().find(|line| line.starts_with("sandbox_port_connections ")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until the server counts no connection to a port.
async fn await_no_connection(site: &Site) {
    let began = Instant::now();
    while connections(site).await > 0 {
        assert!(began.elapsed() < WITHIN, "connections stay");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_side_that_never_reads_holds_the_other_one_back_and_is_cut_off() {
    const UNDER_WAY_MAX: u64 = 24 << 20;
    let mut site = Site::start_with(|options| options.port_idle_max = Duration::from_secs(8)).await;
    let id = site.create(json!({"template": "host"})).await;
    site.listen_in(&id, 9000, "127.0.0.1").await;
    let head = |verb: &str, path: &str, more: &str| {
        let place = format!("/api/v1/sandboxes/{id}/ports/9000{path}");
        format!("{verb} {place} HTTP/1.1\r\nHost: h\r\nX-API-Key: {}\r\n{more}\r\n", site.key)
    };
    // A client that never reads, of a program that never stops to write.
    let mut deaf_client = TcpStream::connect(site.server.address).await.unwrap();
    deaf_client.write_all(head("GET", "/flood", "").as_bytes()).await.unwrap();
    // A program that never reads, of a client that never stops to write.
    let mut eager = TcpStream::connect(site.server.address).await.unwrap();
    eager.write_all(head("POST", "/deaf", "Content-Length: 1000000000\r\n").as_bytes()).await.unwrap();
    let block = vec![b'x'; 1 << 16];
    let mut sent = 0_u64;
    // Ends when nothing is taken any more: the program holds the client back.
    while let Ok(Ok(())) = tokio::time::timeout(Duration::from_millis(500), eager.write_all(&block)).await {
        sent += block.len() as u64;
        assert!(sent < UNDER_WAY_MAX, "{sent} bytes are under way");
    }
    let flooded =
        || async { text(&site.at_port(Method::GET, &id, 9000, "/flooded", &[]).await).parse::<u64>().unwrap() };
    let first = flooded().await;
    assert!(0 < first && first < UNDER_WAY_MAX, "{first}");
    assert!(connections(&site).await >= 2);
    // Both are idle, and end.
    await_no_connection(&site).await;
    assert!(flooded().await < UNDER_WAY_MAX, "the client that never reads got more");
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(WITHIN, deaf_client.read_to_end(&mut rest)).await.expect("it was cut off");
    assert!((rest.len() as u64) < UNDER_WAY_MAX, "{}", rest.len());
    assert_eq!(site.run(&id, "echo undisturbed").await["stdout"], "undisturbed\n");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_are_limited_and_disturb_no_other_sandbox() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    let other = site.create(json!({"template": "host"})).await;
    site.listen_in(&id, 9000, "127.0.0.1").await;
    site.listen_in(&other, 9000, "127.0.0.1").await;
    let request =
        format!("GET /api/v1/sandboxes/{id}/ports/9000/deaf HTTP/1.1\r\nHost: h\r\nX-API-Key: {}\r\n\r\n", site.key);
    let mut clients = Vec::new();
    for _ in 0..1_000 {
        let mut client = TcpStream::connect(site.server.address).await.unwrap();
        client.write_all(request.as_bytes()).await.unwrap();
        clients.push(client);
    }
    let began = Instant::now();
    while connections(&site).await < 256 {
        assert!(began.elapsed() < WITHIN);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let refused = site.at_port(Method::GET, &id, 9000, "/", &[]).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["name"]), (429, &"TOO_MANY".into()));
    // The first 256 wait for the program; all others are told.
    let mut reading = tokio::task::JoinSet::new();
    for mut client in clients {
        reading.spawn(async move {
            let mut bytes = [0; 12];
            client.read_exact(&mut bytes).await.map(|_| bytes)
        });
    }
    for _ in 0..1_000 - 256 {
        let told = tokio::time::timeout(WITHIN, reading.join_next()).await.unwrap().unwrap().unwrap().unwrap();
        assert_eq!(&told, b"HTTP/1.1 429");
    }
    assert_eq!(site.at_port(Method::GET, &other, 9000, "/", &[]).await.status, 200);
    assert_eq!(site.run(&id, "echo undisturbed").await["stdout"], "undisturbed\n");
    assert_eq!(reading.len(), 256);
    drop(reading);
    await_no_connection(&site).await;
    assert_eq!(site.at_port(Method::GET, &id, 9000, "/", &[]).await.status, 200);
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dials_the_socket_of_ports_gets_nothing_and_blocks_nobody_for_long() {
    let mut site = Site::start().await;
    let id = site.create(json!({"template": "host"})).await;
    site.listen_in(&id, 9000, "127.0.0.1").await;
    let flood = "
import socket, time
held = []
for count in range(600):
    one = socket.socket(socket.AF_UNIX)
    one.setblocking(False)
    try:
        one.connect('/run/amalgam/link/ports.sock')
        one.send(b'0' * (65 if count % 2 else 3))
    except OSError:
        pass
    held.append(one)
print(len(held), flush=True)
time.sleep(600)
";
    let command = format!("python3 -c \"{flood}\" > /tmp/flood & until grep -q 600 /tmp/flood; do sleep 0.02; done");
    assert_eq!(site.run(&id, &command).await["exitCode"], 0);
    let began = Instant::now();
    loop {
        let answer = site.at_port(Method::GET, &id, 9000, "/", &[]).await;
        if answer.status == 200 {
            break;
        }
        assert!(began.elapsed() < WITHIN, "{:?}", answer.bytes);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(site.run(&id, "echo undisturbed").await["stdout"], "undisturbed\n");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_e2b_client_reaches_a_port_by_headers_or_by_the_host() {
    let mut site = Site::start_in(Setup { has_e2b: true, ..Setup::default() }, |_| {}).await;
    let id = site.create(json!({"template": "host"})).await;
    site.listen_in(&id, 9000, "127.0.0.1").await;
    let named = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", "9000")];
    assert_eq!(site.server.e2b(Method::GET, "/files", &named, "").await.status, 401);
    for name in ["e2b-traffic-access-token", "x-access-token", "x-api-key"] {
        let headers: Vec<_> = named.iter().copied().chain([(name, site.key.as_str())]).collect();
        let seen = site.server.e2b(Method::GET, "/files?path=x", &headers, "").await;
        assert!(text(&seen).starts_with("GET /files?path=x HTTP/1.1\r\n"), "{name}: {}", text(&seen));
        assert!(!text(&seen).contains(&site.key) && !text(&seen).contains(&id), "{}", text(&seen));
    }
    let host = format!("9000-{id}.e2b.test");
    let by_host = [("host", host.as_str()), ("x-access-token", site.key.as_str())];
    assert_eq!(site.server.e2b(Method::GET, "/", &by_host, "").await.status, 200);
    let closed = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", "9001"), ("x-access-token", site.key.as_str())];
    let closed = site.server.e2b(Method::GET, "/", &closed, "").await;
    assert_eq!(closed.status, 502);
    assert!(closed.json()["message"].as_str().unwrap().contains("port is not open"), "{:?}", closed.bytes);
    let gone = [("e2b-sandbox-id", "sbx-none"), ("e2b-sandbox-port", "9001"), ("x-access-token", site.key.as_str())];
    let gone = site.server.e2b(Method::GET, "/", &gone, "").await;
    assert_eq!((gone.status.as_u16(), gone.json()["message"].as_str().unwrap().contains("was not found")), (502, true));
    site.server.stop().await;
}
