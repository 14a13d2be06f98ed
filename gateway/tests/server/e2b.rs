//! The listener for e2b clients: routes, keys, messages of both forms, and requests of abuse. Real clients are tested by `make e2b`.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::running::{Answer, Running, Setup};
use crate::site::{Site, WITHIN};

const STREAM: &str = "application/connect+json";

fn setup() -> Setup {
    Setup { has_e2b: true, ..Setup::default() }
}

fn framed(flags: u8, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[flags], &length[..], message].concat()
}

/// The messages of a stream, each with its flags.
fn messages(mut bytes: &[u8]) -> Vec<(u8, Value)> {
    let mut found = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(5) {
        let length = usize::try_from(u32::from_be_bytes(head[1..].try_into().unwrap())).unwrap();
        found.push((head[0], serde_json::from_slice(&rest[..length]).unwrap()));
        bytes = &rest[length..];
    }
    assert!(bytes.is_empty(), "{bytes:?}");
    found
}

/// A sandbox of an e2b client.
struct Client<'a> {
    server: &'a Running,
    key: &'a str,
    id: String,
}

impl<'a> Client<'a> {
    async fn create(server: &'a Running, key: &'a str) -> Self {
        let made = server.e2b(Method::POST, "/v2/sandboxes", &[("x-api-key", key)], "{\"templateID\": \"base\"}").await;
        assert_eq!(made.status, 201, "{:?}", made.bytes);
        let id = made.json()["sandboxID"].as_str().unwrap().to_owned();
        Self { server, key, id }
    }

    async fn send(&self, path: &str, content_type: &str, body: impl Into<bytes::Bytes>) -> Answer {
        let headers = [
            ("e2b-sandbox-id", self.id.as_str()),
            ("x-access-token", self.key),
            ("content-type", content_type),
            ("connect-protocol-version", "1"),
        ];
        self.server.e2b(Method::POST, path, &headers, body).await
    }

    async fn rpc(&self, method: &str, body: Value) -> Answer {
        self.send(&format!("/{method}"), "application/json", body.to_string()).await
    }

    async fn start(&self, body: Value) -> Vec<(u8, Value)> {
        let answer = self.send("/process.Process/Start", STREAM, framed(0, body.to_string().as_bytes())).await;
        assert_eq!((answer.status.as_u16(), answer.headers["content-type"].to_str().unwrap()), (200, STREAM));
        messages(&answer.bytes)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_need_a_key_and_unknown_ones_are_refused_by_name() {
    let mut server = Running::with(setup()).await;
    let key = server.key("write run", &[], false).await;
    let reader = server.key("read", &[], false).await;
    for (method, path) in [
        (Method::POST, "/sandboxes"),
        (Method::GET, "/v2/sandboxes"),
        (Method::GET, "/sandboxes/sbx-1"),
        (Method::DELETE, "/sandboxes/sbx-1"),
        (Method::GET, "/snapshots"),
    ] {
        for wrong in ["", "nonsense", "e2b_00"] {
            let refused = server.e2b(method.clone(), path, &[("x-api-key", wrong)], "{}").await;
            assert_eq!((refused.status.as_u16(), &refused.json()["code"]), (401, &401.into()), "{method} {path}");
        }
    }
    let refused = server.e2b(Method::GET, "/v2/sandboxes", &[("x-api-key", &reader)], "").await;
    assert_eq!(refused.status, 403, "{:?}", refused.bytes);
    let headers = [("x-api-key", key.as_str())];
    for (method, path) in [
        (Method::GET, "/templates"),
        (Method::PUT, "/sandboxes/sbx-1/network"),
        (Method::GET, "/sandboxes/sbx-1/logs"),
        (Method::POST, "/init"),
        (Method::GET, "/api/v1/workspaces"),
        (Method::GET, "/"),
        (Method::POST, "/v9/sandboxes"),
    ] {
        let refused = server.e2b(method.clone(), path, &headers, "").await;
        let message = refused.json()["message"].as_str().unwrap().to_owned();
        assert_eq!(refused.status, 501, "{message}");
        assert!(message.contains(path) && message.contains("not served"), "{message}");
    }
    for id in ["..", "%2e%2e%2f", "a'b", "%00", &"a".repeat(300)] {
        for (method, rest) in
            [(Method::GET, ""), (Method::DELETE, ""), (Method::POST, "/timeout"), (Method::POST, "/fork")]
        {
            let path = format!("/sandboxes/{id}{rest}");
            let refused = server.e2b(method, &path, &headers, "{\"timeout\": 5}").await;
            assert_eq!(refused.status, 404, "{path}: {:?}", refused.bytes);
        }
    }
    assert_eq!(server.e2b(Method::GET, "/health", &[], "").await.status, 204);
    // The other listener knows none of this.
    assert_eq!(server.rest(Method::GET, "/v2/sandboxes", &headers, "").await.status, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_both_forms_are_answered_and_those_of_abuse_refused() {
    let mut site = Site::start_in(setup(), |_| {}).await;
    let client = Client::create(&site.server, &site.key).await;
    let process = json!({"cmd": "/bin/sh", "args": ["-c", "echo out; echo err >&2; exit 3"]});
    let events = client.start(json!({"process": process, "stdin": false})).await;
    assert!(events[0].1["event"]["start"]["pid"].as_u64().unwrap() > 1, "{events:?}");
    let end = &events[events.len() - 2].1["event"]["end"];
    assert_eq!((&end["exitCode"], &end["exited"]), (&3.into(), &true.into()), "{events:?}");
    assert_eq!(events.last().unwrap(), &(2, json!({})));
    let bytes = |stream: &str| events.iter().find_map(|(_, event)| event["event"]["data"][stream].as_str());
    assert_eq!((bytes("stdout"), bytes("stderr")), (Some("b3V0Cg=="), Some("ZXJyCg==")), "{events:?}");
    // The same in binary form: a path in field 1, an entry in field 1.
    let request = [&[0x0a, 10][..], b"/workspace"].concat();
    let answer = client.send("/filesystem.Filesystem/Stat", "application/proto", request).await;
    assert_eq!((answer.status.as_u16(), answer.headers["content-type"].as_bytes()), (200, &b"application/proto"[..]));
    assert!(answer.bytes.windows(9).any(|part| part == b"workspace"), "{:?}", answer.bytes);
    let program = b"/bin/true";
    let process = [&[0x0a, 11, 0x0a, 9][..], program].concat();
    let answer = client.send("/process.Process/Start", "application/connect+proto", framed(0, &process)).await;
    assert_eq!(answer.headers["content-type"].as_bytes(), b"application/connect+proto");
    // An event with a start in it, first, and the end of the stream in JSON, last.
    assert_eq!((answer.bytes[0], answer.bytes[5]), (0, 0x0a), "{:?}", answer.bytes);
    assert!(answer.bytes.ends_with(&framed(2, b"{}")), "{:?}", answer.bytes);
    // Streams of abuse end with an error, and others go on.
    let lying = [&[0, 0xff, 0xff, 0xff, 0xff][..], b"{}"].concat();
    let endless = framed(0, b"{}").repeat(10_000);
    for (body, code) in [
        (Vec::new(), "invalid_argument"),
        (lying, "resource_exhausted"),
        (endless, "invalid_argument"),
        (framed(0, b"{\"process\": {}}"), "invalid_argument"),
        (framed(0x40, b"{}"), "invalid_argument"),
        (b"\0\0\0\0\x09{}".to_vec(), "invalid_argument"),
    ] {
        let answer = client.send("/process.Process/Start", STREAM, body).await;
        let last = messages(&answer.bytes).pop().unwrap();
        assert_eq!((answer.status.as_u16(), last.0, &last.1["error"]["code"]), (200, 2, &code.into()), "{last:?}");
    }
    for content_type in ["text/plain", "application/json", "application/connect+xml", "multipart/form-data"] {
        let refused = client.send("/process.Process/Start", content_type, framed(0, b"{}")).await;
        assert_eq!(refused.status, 415, "{content_type}");
    }
    let refused = client.rpc("process.Process/Explode", json!({})).await;
    assert!(refused.json()["message"].as_str().unwrap().contains("process.Process/Explode"), "{:?}", refused.bytes);
    let long = "a/".repeat(3_000);
    for (path, status) in [("/workspace/none", 404), ("/a\u{0}b", 400), (long.as_str(), 400)] {
        assert_eq!(client.rpc("filesystem.Filesystem/Stat", json!({"path": path})).await.status, status, "{path:.20}");
    }
    let words = json!({"path": "/tmp/$(touch /workspace/owned)'; touch /workspace/owned; '"});
    assert_eq!(client.rpc("filesystem.Filesystem/MakeDir", words).await.status, 200);
    let owned = client.rpc("filesystem.Filesystem/Stat", json!({"path": "/workspace/owned"})).await;
    assert_eq!(owned.status, 404, "a path is no command: {:?}", owned.bytes);
    for (content_type, body) in [
        ("multipart/form-data; boundary=x", "--x\r\ncut"),
        ("multipart/form-data", "--x--"),
        ("multipart/form-data; boundary=x", "--x--\r\n"),
        ("application/octet-stream", "no path"),
    ] {
        let refused = client.send("/files", content_type, body).await;
        assert_eq!(refused.status, 400, "{content_type}: {:?}", refused.bytes);
    }
    let unkeyed = [("e2b-sandbox-id", client.id.as_str())];
    let signed = site.server.e2b(Method::GET, "/files?path=/etc/passwd&signature=v1_x", &unkeyed, "").await;
    assert!(signed.json()["message"].as_str().unwrap().contains("signature"), "{:?}", signed.bytes);
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_stream_has_signs_of_life_and_ends_at_its_deadline() {
    let mut site = Site::start_in(setup(), |_| {}).await;
    let client = Client::create(&site.server, &site.key).await;
    for (path, body) in [
        ("/process.Process/Start", json!({"process": {"cmd": "/bin/sleep", "args": ["600"]}})),
        ("/process.Process/Start", json!({"process": {"cmd": "/bin/cat"}, "pty": {"size": {"cols": 80, "rows": 24}}})),
        ("/filesystem.Filesystem/WatchDir", json!({"path": "/tmp"})),
    ] {
        let headers = [
            ("e2b-sandbox-id", client.id.as_str()),
            ("x-access-token", client.key),
            ("content-type", STREAM),
            ("keepalive-ping-interval", "1"),
            ("connect-timeout-ms", "2500"),
        ];
        let answer = site.server.e2b(Method::POST, path, &headers, framed(0, body.to_string().as_bytes())).await;
        let events = messages(&answer.bytes);
        let is_alive =
            |(_, event): &(u8, Value)| !event["keepalive"].is_null() || !event["event"]["keepalive"].is_null();
        assert!(events.iter().filter(|event| is_alive(event)).count() >= 2, "{path}: {events:?}");
        let (flags, last) = events.last().unwrap();
        assert_eq!((*flags, &last["error"]["code"]), (2, &"deadline_exceeded".into()), "{path}: {events:?}");
    }
    // The deadline killed both processes.
    let left = client.rpc("process.Process/List", json!({})).await.json();
    assert_eq!(left, json!({}), "{left}");
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_is_reached_only_with_a_key_of_its_project_and_only_while_it_runs() {
    let mut site = Site::start_in(setup(), |_| {}).await;
    let admin = site.server.key("admin", &[], false).await;
    let (as_admin, project) = ([("x-api-key", admin.as_str())], json!({"projectId": "other"}).to_string());
    let made = site.server.rest(Method::POST, "/api/v1/projects", &as_admin, project).await;
    assert_eq!(made.status, 200, "{:?}", made.bytes);
    let other = site.server.key("write run", &["other"], false).await;
    let client = Client::create(&site.server, &site.key).await;
    let stranger = Client { server: &site.server, key: &other, id: client.id.clone() };
    let unkeyed = Client { server: &site.server, key: "nonsense", id: client.id.clone() };
    for (who, status) in [(&stranger, 502), (&unkeyed, 401)] {
        for method in ["process.Process/List", "filesystem.Filesystem/Stat"] {
            assert_eq!(who.rpc(method, json!({})).await.status, status, "{method}");
        }
        let read = [("e2b-sandbox-id", who.id.as_str()), ("x-access-token", who.key)];
        assert_eq!(site.server.e2b(Method::GET, "/files?path=/etc/passwd", &read, "").await.status, status);
        assert_eq!(site.server.e2b(Method::GET, "/health", &read, "").await.status, status);
    }
    let port = [("e2b-sandbox-id", client.id.as_str()), ("x-access-token", client.key), ("e2b-sandbox-port", "80")];
    let closed = site.server.e2b(Method::GET, "/health", &port, "").await;
    assert!(closed.json()["message"].as_str().unwrap().contains("port is not open"), "{:?}", closed.bytes);
    let key = [("x-api-key", site.key.as_str())];
    let path = format!("/sandboxes/{}", client.id);
    for (body, name) in [("{\"memory\": true}", "memory"), ("[]", "body")] {
        let refused = site.server.e2b(Method::POST, &format!("{path}/pause"), &key, body).await;
        assert_eq!(refused.status, 400);
        assert!(refused.json()["message"].as_str().unwrap().contains(name), "{:?}", refused.bytes);
    }
    assert_eq!(site.server.e2b(Method::POST, &format!("{path}/pause"), &key, "").await.status, 204);
    assert_eq!(site.server.e2b(Method::POST, &format!("{path}/pause"), &key, "").await.status, 409);
    let gone = client.rpc("process.Process/List", json!({})).await;
    assert_eq!(gone.status, 502, "{:?}", gone.bytes);
    assert!(gone.json()["message"].as_str().unwrap().contains("was not found"));
    assert_eq!(site.server.e2b(Method::POST, &format!("{path}/resume"), &key, "").await.status, 201);
    assert_eq!(client.rpc("process.Process/List", json!({})).await.status, 200);
    // A request that is repeated creates no second sandbox.
    let repeated = [("x-api-key", site.key.as_str()), ("idempotency-key", "once")];
    let one = site.server.e2b(Method::POST, "/v2/sandboxes", &repeated, "{}").await.json();
    let two = site.server.e2b(Method::POST, "/v2/sandboxes", &repeated, "{}").await.json();
    assert_eq!(one["sandboxID"], two["sandboxID"], "{one} {two}");
    assert_eq!(site.server.e2b(Method::DELETE, &path, &key, "").await.status, 204);
    assert_eq!(site.server.e2b(Method::DELETE, &path, &key, "").await.status, 404);
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_repeated_after_a_disconnect_creates_no_second_sandbox() {
    let mut site = Site::start_in(setup(), |_| {}).await;
    let ids = async || {
        let listed = site.call(Method::GET, "/sandboxes", Value::Null).await.json();
        let items = listed["items"].as_array().cloned().unwrap_or_default();
        items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut stream = TcpStream::connect(site.server.e2b.unwrap()).await.unwrap();
    let request = format!(
        "POST /v2/sandboxes HTTP/1.1\r\nhost: localhost\r\nx-api-key: {}\r\nidempotency-key: once\r\n\
         content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}",
        site.key
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let began = Instant::now();
    while ids().await.is_empty() {
        assert!(began.elapsed() < WITHIN);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(stream);
    let headers = [("x-api-key", site.key.as_str()), ("idempotency-key", "once")];
    let made = site.server.e2b(Method::POST, "/v2/sandboxes", &headers, "{}").await;
    assert_eq!(made.status, 201, "{:?}", made.bytes);
    assert_eq!(ids().await, [made.json()["sandboxID"].as_str().unwrap()]);
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_keeps_sandboxes_that_a_time_out_paused_and_forgets_those_that_it_ended() {
    let mut site = Site::start_in(setup(), |options| options.expiry_interval = Duration::from_millis(100)).await;
    let admin = site.server.key("admin", &[], false).await;
    let key = [("x-api-key", site.key.as_str())];
    let create = async |body: Value| {
        let made = site.server.e2b(Method::POST, "/v2/sandboxes", &key, body.to_string()).await;
        assert_eq!(made.status, 201, "{:?}", made.bytes);
        made.json()["sandboxID"].as_str().unwrap().to_owned()
    };
    let paused = create(json!({"templateID": "base", "timeout": 1, "autoPause": true})).await;
    let ended = create(json!({"templateID": "base", "timeout": 1})).await;
    for id in [&paused, &ended] {
        site.reach(id, "stopped").await;
    }
    let collected = site.server.rest(Method::POST, "/api/v1/gc", &[("x-api-key", admin.as_str())], "{}").await;
    assert_eq!(collected.status, 200, "{:?}", collected.bytes);
    let connect = async |id: &str| {
        site.server.e2b(Method::POST, &format!("/v2/sandboxes/{id}/connect"), &key, "{\"timeout\": 60}").await
    };
    let resumed = connect(&paused).await;
    assert_eq!(resumed.status, 201, "{:?}", resumed.bytes);
    assert_eq!(connect(&ended).await.status, 404);
    assert_eq!(site.call(Method::GET, &format!("/sandboxes/{ended}"), Value::Null).await.status, 404);
    site.server.stop().await;
}

/// The query of a signed URL, as e2b clients make it.
fn signed(path: &str, operation: &str, user: &str, token: &str, expiration: Option<i64>) -> String {
    use sha2::Digest as _;
    let mut text = format!("{path}:{operation}:{user}:{token}");
    if let Some(at) = expiration {
        text = format!("{text}:{at}");
    }
    let digest = data_encoding::BASE64_NOPAD.encode(&sha2::Sha256::digest(text.as_bytes()));
    let signature = format!("v1_{digest}").replace('+', "%2B").replace('/', "%2F");
    let user = if user.is_empty() { String::new() } else { format!("&username={user}") };
    let expiration = expiration.map(|at| format!("&signature_expiration={at}")).unwrap_or_default();
    format!("/files?path={path}{user}&signature={signature}{expiration}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signed_urls_are_good_for_one_file_one_operation_and_until_they_expire() {
    const FAR: i64 = 32_503_680_000;
    let mut site = Site::start_in(setup(), |_| {}).await;
    let as_key = [("x-api-key", site.key.as_str())];
    let made = site.server.e2b(Method::POST, "/v2/sandboxes", &as_key, "{\"templateID\": \"base\"}").await.json();
    let (id, token) = (made["sandboxID"].as_str().unwrap(), made["envdAccessToken"].as_str().unwrap());
    let other = site.server.e2b(Method::POST, "/v2/sandboxes", &as_key, "{}").await.json();
    let other = other["sandboxID"].as_str().unwrap();
    let octets = [("content-type", "application/octet-stream")];
    let write = signed("note", "write", "user", token, Some(FAR));
    let written = site.server.e2b(Method::POST, &write, &octets, "by url").await;
    assert_eq!(written.status, 200, "{:?}", written.bytes);
    // With and without a user, an end and the name of the sandbox.
    let good = [
        signed("note", "read", "", token, None),
        signed("note", "read", "", token, Some(FAR)),
        signed("note", "read", "user", token, Some(FAR)),
    ];
    for url in &good {
        for headers in [&[][..], &[("e2b-sandbox-id", id)][..]] {
            let read = site.server.e2b(Method::GET, url, headers, "").await;
            assert_eq!((read.status.as_u16(), &read.bytes[..]), (200, &b"by url"[..]), "{url}");
        }
    }
    // The token itself is still the credential of all other requests.
    let with_token = [("e2b-sandbox-id", id), ("x-access-token", token)];
    assert_eq!(site.server.e2b(Method::GET, "/files?path=note", &with_token, "").await.status, 200);
    let refused = [
        (Method::GET, signed("note", "read", "", token, Some(1)), "", "expired"),
        (Method::GET, signed("note", "read", "", token, Some(-1)), "", "expired"),
        (
            Method::GET,
            good[1].replace("signature_expiration=32503680000", "signature_expiration=32503680001"),
            "",
            "invalid",
        ),
        (Method::GET, good[1].replace("&signature_expiration=32503680000", ""), "", "invalid"),
        (Method::GET, good[0].replace("path=note", "path=other"), "", "invalid"),
        (Method::GET, format!("{}&username=user", good[0]), "", "invalid"),
        (Method::GET, format!("{}&username=root", good[0]), "", "invalid"),
        (Method::GET, write.clone(), "", "invalid"),
        (Method::POST, good[0].clone(), "", "invalid"),
        (Method::GET, good[0].clone(), other, "invalid"),
        (Method::GET, signed("note", "read", "", "nonsense", None), "", "invalid"),
        (Method::GET, signed("note", "read", "", &site.key, None), "", "invalid"),
        (Method::GET, signed("note", "read", "", "", None), "", "invalid"),
        (Method::GET, "/files?path=note&signature=".to_owned(), "", "invalid"),
        (Method::GET, "/files?path=note".to_owned(), id, "missing"),
    ];
    for (method, url, sandbox, word) in refused {
        let mut headers = octets.to_vec();
        if !sandbox.is_empty() {
            headers.push(("e2b-sandbox-id", sandbox));
        }
        let answer = site.server.e2b(method, &url, &headers, "changed").await;
        let body = answer.json();
        assert_eq!((answer.status.as_u16(), body["code"].as_u64()), (401, Some(401)), "{url}: {body}");
        assert!(body["message"].as_str().unwrap().contains(word), "{url}: {body}");
    }
    let read = site.server.e2b(Method::GET, &good[0], &[], "").await;
    assert_eq!(&read.bytes[..], b"by url", "no refused request changed it");
    // A URL ends with its sandbox.
    assert_eq!(site.server.e2b(Method::DELETE, &format!("/sandboxes/{id}"), &as_key, "").await.status, 204);
    assert_eq!(site.server.e2b(Method::GET, &good[0], &[], "").await.status, 401);
    site.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_has_the_home_of_its_sandbox_and_new_sandboxes_get_it() {
    let mut site = Site::start_in(setup(), |_| {}).await;
    let client = Client::create(&site.server, &site.key).await;
    site.run(&client.id, "echo work > note; echo packages > ~/note; echo temporary > /tmp/note").await;
    let headers = [("x-api-key", site.key.as_str())];
    let path = format!("/sandboxes/{}/snapshots", client.id);
    let made = site.server.e2b(Method::POST, &path, &headers, "{\"name\": \"ready\"}").await;
    assert_eq!(made.status, 201, "{:?}", made.bytes);
    site.run(&client.id, "echo later > ~/note").await;
    let create = async |template: &str| {
        let body = json!({"templateID": template}).to_string();
        site.server.e2b(Method::POST, "/v2/sandboxes", &headers, body).await
    };
    let second = create("ready").await;
    assert_eq!(second.status, 201, "{:?}", second.bytes);
    let id = second.json()["sandboxID"].as_str().unwrap().to_owned();
    assert_eq!(site.run(&id, "cat note ~/note /tmp/note").await["stdout"], "work\npackages\ntemporary\n");
    let deleted = site.server.e2b(Method::DELETE, "/templates/ready", &headers, "").await;
    assert_eq!(deleted.status, 204, "{:?}", deleted.bytes);
    assert_eq!(create("ready").await.status, 404);
    let labels = site.call(Method::GET, "/labels?prefix=e2b-", Value::Null).await.json();
    assert_eq!(labels["labels"].as_array().map_or(0, Vec::len), 0, "{labels}");
    site.server.stop().await;
}
