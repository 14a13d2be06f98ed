//! Clients that send too much, too slowly or never to the end, a full disk, and clocks that jump: each is bounded, and others go on.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use amalgam_engine::Time;
use amalgam_gateway::{NewKey, ProjectName};
use amalgam_proto::v1;
use amalgam_proto::v1::event_service_client::EventServiceClient;
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;

use crate::running::{Running, Setup, now};

#[path = "../../../tests/src/harness/small_disk.rs"]
mod small_disk;

const WITHIN: Duration = Duration::from_secs(20);
/// A call of another client takes no longer than this while hostile ones are served. The machine may be busy with other tests.
const UNDISTURBED_WITHIN: Duration = Duration::from_secs(15);

async fn call(server: &Running, key: &str, method: Method, path: &str, body: Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = server.rest(method, &format!("/api/v1{path}"), &[("x-api-key", key)], body).await;
    assert_eq!(answer.status, 200, "{path}: {:?}", answer.bytes);
    answer.json()
}

/// A server with the workspace `main`, and a key that may change it.
async fn with_workspace() -> (Running, String) {
    let server = Running::start().await;
    let key = server.key("write", &[], false).await;
    call(&server, &key, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
    (server, key)
}

/// Another client reads and writes, in time.
async fn others_go_on(server: &Running, key: &str) {
    let began = Instant::now();
    for number in 0..5 {
        let path = format!("/api/v1/workspaces/main/files/other-{number}");
        let written = server.rest(Method::PUT, &path, &[("x-api-key", key)], "text").await;
        assert_eq!(written.status, 200, "{:?}", written.bytes);
        let read = server.rest(Method::GET, &path, &[("x-api-key", key)], "").await;
        assert_eq!((read.status.as_u16(), &read.bytes[..]), (200, &b"text"[..]));
    }
    assert!(began.elapsed() < UNDISTURBED_WITHIN, "{:?}", began.elapsed());
}

/// Everything that the server sends, until it closes the connection or the time is over.
async fn answer_of(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 4_096];
    while let Ok(Ok(count)) = tokio::time::timeout(WITHIN, stream.read(&mut piece)).await {
        bytes.extend_from_slice(&piece[..count]);
        // The head is enough.
        if count == 0 || bytes.windows(4).any(|window| window == b"\r\n\r\n") {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn head(server: &Running, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_clients_that_dribble_their_requests_disturb_nobody() {
    let (mut server, key) = with_workspace().await;
    let mut slow = Vec::new();
    for number in 0..200 {
        let text = match number % 2 {
            0 => "GET /api/v1/workspaces HTTP/1.1\r\nhost: localhost\r\nx-sl".to_owned(),
            _ => format!(
                "POST /api/v1/workspaces HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\ncontent-length: 100\r\n\r\n{{"
            ),
        };
        slow.push(head(&server, &text).await);
    }
    let dribble = tokio::spawn(async move {
        loop {
            for stream in &mut slow {
                let _ = stream.write_all(b" ").await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    others_go_on(&server, &key).await;
    dribble.abort();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn downloads_that_nobody_reads_disturb_nobody_and_end_with_their_clients() {
    let (mut server, key) = with_workspace().await;
    let large = vec![b'x'; 16 << 20];
    let path = "/api/v1/workspaces/main/files/large";
    assert_eq!(server.rest(Method::PUT, path, &[("x-api-key", &key)], large).await.status, 200);
    let mut unread = Vec::new();
    for _ in 0..50 {
        let text = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n\r\n");
        unread.push(head(&server, &text).await);
    }
    others_go_on(&server, &key).await;
    drop(unread);
    let running = async || {
        let metrics = server.rest(Method::GET, "/metrics", &[("x-api-key", &key)], "").await;
        let text = String::from_utf8(metrics.bytes.to_vec()).unwrap();
        text.lines().find_map(|line| line.strip_prefix("amalgam_calls_running ")).unwrap().parse::<u32>().unwrap()
    };
    let ended = async {
        while running().await != 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(WITHIN, ended).await.expect("calls end when their clients leave");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_never_ends_is_refused_at_the_limit() {
    let (mut server, key) = with_workspace().await;
    let text = format!(
        "POST /api/v1/workspaces HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let stream = head(&server, &text).await;
    let (mut read, mut write) = stream.into_split();
    let sending = tokio::spawn(async move {
        let piece = [b"10000\r\n".as_slice(), &vec![b' '; 0x10000], b"\r\n"].concat();
        let mut sent = 0_usize;
        // The server stops reading some time after the limit.
        while let Ok(Ok(())) = tokio::time::timeout(WITHIN, write.write_all(&piece)).await {
            sent += piece.len();
            assert!(sent < 1 << 30, "the server reads for ever");
        }
        sent
    });
    others_go_on(&server, &key).await;
    let mut answer = vec![0; 1_024];
    let count = tokio::time::timeout(WITHIN, read.read(&mut answer)).await.expect("an answer in time").unwrap_or(0);
    let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer:?}");
    drop(read);
    sending.await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bombs_and_lying_lengths_are_refused() {
    let (mut server, key) = with_workspace().await;
    let auth = ("x-api-key", key.as_str());
    // Compressed bodies are not taken, so a small one does not become a large one.
    for (method, path) in [
        (Method::POST, "/api/v1/workspaces"),
        (Method::POST, "/api/v1/workspaces/main/commit-edits"),
        (Method::PUT, "/api/v1/workspaces/main/files/bomb"),
    ] {
        for encoding in ["gzip", "br", "identity, gzip"] {
            let refused = server.rest(method.clone(), path, &[auth, ("content-encoding", encoding)], "\x1f\x08").await;
            assert_eq!(refused.status, 415, "{path} {encoding}: {:?}", refused.bytes);
            assert_eq!(refused.json()["error"]["name"], "UNSUPPORTED_MEDIA");
        }
    }
    // Depth, width, and numbers without end.
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(50_000), close.repeat(50_000));
    let wide = format!("{{\"workspaceIds\": [{}\"x\"]}}", "\"x\",".repeat(200_000));
    for body in [
        deep("[", "]"),
        deep("{\"a\":", "}"),
        format!("{{\"edits\": {}}}", deep("[", "]")),
        format!("{{\"pageSize\": 1{}}}", "0".repeat(1 << 20)),
    ] {
        let refused = server.rest(Method::POST, "/api/v1/workspaces/main/commit-edits", &[auth], body).await;
        assert_eq!(refused.status, 400, "{:?}", refused.bytes);
    }
    let refused = server.rest(Method::POST, "/api/v1/workspaces/main/fork", &[auth], wide).await;
    assert!((400..500).contains(&refused.status.as_u16()), "{}", refused.status);
    // A length that is larger than the body: the server waits for the rest, and the end of the connection ends it.
    let text = format!(
        "PUT /api/v1/workspaces/main/files/short HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\ncontent-length: 100\r\n\r\n0123456789"
    );
    let mut short = head(&server, &text).await;
    short.shutdown().await.unwrap();
    let answer = answer_of(&mut short).await;
    assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    let missing = server.rest(Method::GET, "/api/v1/workspaces/main/files/short", &[auth], "").await;
    assert_eq!(missing.status, 404, "half of a file is no file");
    // Two lengths, and a length beside chunks, could be read in two ways.
    for lengths in [
        "content-length: 5\r\ncontent-length: 6",
        "content-length: -1",
        "content-length: 5, 6",
        "content-length: 99999999999999999999",
    ] {
        let text = format!(
            "POST /api/v1/workspaces HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n{lengths}\r\n\r\n{{\"a\":"
        );
        let answer = answer_of(&mut head(&server, &text).await).await;
        assert!(!answer.starts_with("HTTP/1.1 2"), "{lengths}: {answer}");
    }
    others_go_on(&server, &key).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_frames_that_lie_about_their_length_are_refused() {
    use http_body_util::{BodyExt as _, Full};
    use tower::{Service as _, ServiceExt as _};
    let (mut server, key) = with_workspace().await;
    let name = "amalgam.v1.WorkspaceService/CreateWorkspace";
    for (what, frame) in [
        ("4 GiB", vec![0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3]),
        ("more than there is", vec![0, 0, 0, 0, 100, 1, 2, 3]),
        ("compressed", vec![1, 0, 0, 0, 3, 1, 2, 3]),
        ("no flag", vec![77, 0, 0, 0, 0]),
        ("a field of 4 GiB", vec![0, 0, 0, 0, 7, 0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, b'x']),
        ("half of a head", vec![0, 0]),
    ] {
        let mut request = crate::running::empty_call(name, &[("x-api-key", &key)]);
        *request.body_mut() = tonic::body::Body::new(Full::new(bytes::Bytes::from(frame)));
        let mut channel = server.channel().await;
        let response = channel.ready().await.unwrap().call(request).await.unwrap();
        let status = match tonic::Status::from_header_map(response.headers()) {
            Some(status) => status,
            None => {
                let body = response.into_body().collect().await.unwrap();
                tonic::Status::from_header_map(body.trailers().unwrap()).unwrap()
            }
        };
        assert_ne!(status.code(), Code::Ok, "{what}");
    }
    let mut request = crate::running::empty_call(name, &[("x-api-key", &key), ("grpc-encoding", "gzip")]);
    *request.body_mut() = tonic::body::Body::new(Full::new(bytes::Bytes::from_static(&[1, 0, 0, 0, 2, 0x1f, 0x8b])));
    let response = server.channel().await.ready().await.unwrap().call(request).await.unwrap();
    let status = tonic::Status::from_header_map(response.headers()).expect("refused at once");
    assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
    others_go_on(&server, &key).await;
    server.stop().await;
}

/// Subscribes to all new events.
async fn subscribe(server: &Running, key: &str) -> tonic::Streaming<v1::SubscribeResponse> {
    let mut request = tonic::Request::new(v1::SubscribeRequest::default());
    request.metadata_mut().insert("x-api-key", key.parse().unwrap());
    let mut stream = EventServiceClient::new(server.channel().await).subscribe(request).await.unwrap().into_inner();
    stream.message().await.unwrap().expect("where it begins");
    stream
}

/// A key that expires after a while.
async fn expiring_key(server: &Running, at: Time) -> String {
    let key = NewKey {
        agent: "ann".to_owned(),
        scopes: "write".parse().unwrap(),
        projects: Vec::<ProjectName>::new(),
        expires: Some(at),
    };
    server.catalog.create_key(&key, now()).await.unwrap().0.reveal()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_expires_ends_its_streams_and_no_others() {
    let (mut server, key) = with_workspace().await;
    let short = expiring_key(&server, Time(now().0 + 1_500_000_000)).await;
    let (mut ends, mut stays) = (subscribe(&server, &short).await, subscribe(&server, &key).await);
    let path = "/api/v1/workspaces/main/files/a";
    let text =
        format!("PUT {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {short}\r\ncontent-length: 10\r\n\r\n01234");
    let mut upload = head(&server, &text).await;
    let status = tokio::time::timeout(WITHIN, ends.message()).await.expect("in time").expect_err("it has ended");
    assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    assert!(status.message().contains("expired"), "{status:?}");
    let answer = answer_of(&mut upload).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 401 "), "{answer}");
    let missing = server.rest(Method::GET, path, &[("x-api-key", &key)], "").await;
    assert_eq!(missing.status, 404, "nothing was written");
    let refused = server.rest(Method::GET, "/api/v1/workspaces", &[("x-api-key", &short)], "").await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["name"]), (401, &"KEY_EXPIRED".into()));
    call(&server, &key, Method::POST, "/workspaces", json!({"workspaceId": "after"})).await;
    let event = tokio::time::timeout(WITHIN, stays.message()).await.expect("in time").unwrap();
    assert!(event.is_some(), "others go on");
    server.stop().await;
}

/// How far the clock of the test below is ahead.
static AHEAD: AtomicI64 = AtomicI64::new(0);

fn jumping() -> Time {
    Time(now().0 + AHEAD.load(Ordering::SeqCst))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_jump_lose_no_commit_and_no_event() {
    const HOUR: i64 = 3_600_000_000_000;
    let mut server = Running::with(Setup { now: jumping, ..Setup::default() }).await;
    let key = server.key("write", &[], false).await;
    let hour = expiring_key(&server, Time(now().0 + HOUR)).await;
    call(&server, &key, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
    let mut events = subscribe(&server, &key).await;
    let jumps = [0, 2 * HOUR, -48 * HOUR, 24 * 365 * HOUR, 0];
    for (number, jump) in jumps.into_iter().enumerate() {
        AHEAD.store(jump, Ordering::SeqCst);
        let edits =
            json!({"edits": [{"write": {"path": "a", "text": format!("{number}")}}], "message": format!("{number}")});
        call(&server, &key, Method::POST, "/workspaces/main/commit-edits", edits).await;
        let path = format!("/api/v1/workspaces/main/files/live-{number}");
        assert_eq!(server.rest(Method::PUT, &path, &[("x-api-key", &key)], "x").await.status, 200);
        let with_hour = server.rest(Method::GET, "/api/v1/workspaces", &[("x-api-key", &hour)], "").await;
        assert_eq!(with_hour.status.as_u16(), if jump > HOUR { 401 } else { 200 }, "jump {number}");
        let event = tokio::time::timeout(WITHIN, events.message()).await.expect("in time").unwrap().expect("an event");
        assert_eq!(event.event.map(|event| event.kind).as_deref(), Some("workspace.committed"), "jump {number}");
    }
    let log = call(&server, &key, Method::GET, "/snapshots?workspace=workspaces%2Fmain", Value::Null).await;
    let messages: Vec<_> =
        log["snapshots"].as_array().unwrap().iter().map(|one| one["message"].as_str().unwrap()).collect();
    assert_eq!(messages, ["4", "3", "2", "1", "0"], "the log is in the order of commits, whatever the clock said");
    let operations = call(&server, &key, Method::GET, "/operations", Value::Null).await;
    assert!(operations["operations"].as_array().unwrap().len() >= jumps.len());
    server.stop().await;
}

/// The processes of git that this process has started and that run.
fn git_processes() -> usize {
    let is_ours = |stat: String| {
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        let (state, parent) = (fields.next()?, fields.next()?);
        (name == "git" && state != "Z" && parent == std::process::id().to_string()).then_some(())
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|found| is_ours(std::fs::read_to_string(found.path().join("stat")).ok()?)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn git_clients_beyond_the_limit_of_a_project_wait_and_others_go_on() {
    /// `GitServeLimits::processes_max`.
    const PROCESSES_MAX: usize = 8;
    let (mut server, key) = with_workspace().await;
    let edits = json!({"edits": [{"write": {"path": "a", "text": "one"}}]});
    call(&server, &key, Method::POST, "/workspaces/main/commit-edits", edits).await;
    let advertise = "/default/main.git/info/refs?service=git-upload-pack";
    assert_eq!(server.rest(Method::GET, advertise, &[("x-api-key", &key)], "").await.status, 200);
    // Each of them holds a process of git, whose input never ends.
    let text = format!(
        "POST /default/main.git/git-upload-pack HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n\
         content-type: application/x-git-upload-pack-request\r\ncontent-length: 1000\r\n\r\n00"
    );
    let mut held = Vec::new();
    for _ in 0..PROCESSES_MAX {
        held.push(head(&server, &text).await);
    }
    let started = async {
        while git_processes() < PROCESSES_MAX {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(WITHIN, started).await.expect("each request has its process");
    let mut waiting = head(
        &server,
        &format!("GET {advertise} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\nconnection: close\r\n\r\n"),
    )
    .await;
    let mut first = [0; 15];
    let early = tokio::time::timeout(Duration::from_millis(700), waiting.read_exact(&mut first)).await;
    assert!(
        early.is_err(),
        "{} processes run, and one more waits: {:?}",
        PROCESSES_MAX,
        String::from_utf8_lossy(&first)
    );
    others_go_on(&server, &key).await;
    // When one of the others ends, the next one is served.
    drop(held);
    tokio::time::timeout(WITHIN, waiting.read_exact(&mut first)).await.expect("it is served now").unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    server.stop().await;
}

#[test]
fn a_full_disk_refuses_writes_keeps_what_was_acknowledged_and_lets_others_read() {
    let test = "bounds::a_full_disk_refuses_writes_keeps_what_was_acknowledged_and_lets_others_read";
    let Some(directory) = small_disk::on_a_small_disk(test, 96) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let home = tempfile::tempdir_in(&directory).unwrap();
        let server = Running::in_home(home, Setup::default()).await;
        let key = server.key("write", &[], false).await;
        let auth = [("x-api-key", key.as_str())];
        call(&server, &key, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
        let mut kept = Vec::new();
        let put = async |number: usize| {
            let path = format!("/api/v1/workspaces/main/files/kept-{number}");
            // Bytes that do not compress.
            let mut random = number as u64 + 1;
            let bytes: Vec<u8> = (0..64 << 10)
                .map(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 33) as u8
                })
                .collect();
            let answer = server.rest(Method::PUT, &path, &auth, bytes.clone()).await;
            (path, bytes, answer)
        };
        for number in 0..4 {
            let (path, bytes, answer) = put(number).await;
            assert_eq!(answer.status, 200, "{:?}", answer.bytes);
            kept.push((path, bytes));
        }
        call(&server, &key, Method::POST, "/workspaces/main/commit", json!({"message": "before"})).await;
        let filler = directory.join("filler");
        small_disk::fill_disk(&filler);
        let mut refused = 0;
        for number in 4..60 {
            let (path, bytes, answer) = put(number).await;
            match answer.status.as_u16() {
                200 => kept.push((path, bytes)),
                507 => refused += 1,
                other => panic!("{other}: {:?}", answer.bytes),
            }
        }
        assert!(refused > 0, "the disk is full");
        let edits = json!({"edits": [{"write": {"path": "committed", "text": "x".repeat(1 << 20)}}]}).to_string();
        let answer = server.rest(Method::POST, "/api/v1/workspaces/main/commit-edits", &auth, edits).await;
        assert_eq!(answer.status, 507, "{:?}", answer.bytes);
        for (path, bytes) in &kept {
            let read = server.rest(Method::GET, path, &auth, "").await;
            assert!(read.status == 200 && read.bytes[..] == bytes[..], "{path} was acknowledged: {}", read.status);
        }
        std::fs::remove_file(&filler).unwrap();
        let (path, bytes, answer) = put(100).await;
        assert_eq!(answer.status, 200, "there is room again: {:?}", answer.bytes);
        kept.push((path, bytes));
        call(&server, &key, Method::POST, "/workspaces/main/commit", json!({"message": "after"})).await;
        let mut server = server.restart(Setup::default()).await;
        for (path, bytes) in &kept {
            let read = server.rest(Method::GET, path, &[("x-api-key", &key)], "").await;
            assert!(read.status == 200 && read.bytes[..] == bytes[..], "{path} survives a restart");
        }
        server.stop().await;
    });
}
