//! Subscriptions: filters, positions, resumption, and the stream of server-sent events.

use std::time::Duration;

use amalgam_proto::v1;
use amalgam_proto::v1::event_service_client::EventServiceClient;
use http::Method;
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpStream;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::running::Running;

const WITHIN: Duration = Duration::from_secs(20);

async fn create(server: &Running, key: &str, name: &str) {
    let body = json!({"workspaceId": name}).to_string();
    let made = server.rest(Method::POST, "/api/v1/workspaces", &[("x-api-key", key)], body).await;
    assert_eq!(made.status, 200, "{:?}", made.bytes);
}

async fn commit(server: &Running, key: &str, name: &str, text: &str) {
    let edits = json!({"edits": [{"write": {"path": "a.txt", "text": text}}]});
    let path = format!("/api/v1/workspaces/{name}/commit-edits");
    let done = server.rest(Method::POST, &path, &[("x-api-key", key)], edits.to_string()).await;
    assert_eq!(done.status, 200, "{:?}", done.bytes);
}

async fn subscribe(
    channel: &Channel,
    key: &str,
    request: v1::SubscribeRequest,
) -> Result<tonic::Streaming<v1::SubscribeResponse>, Status> {
    let mut request = Request::new(request);
    request.metadata_mut().insert("x-api-key", key.parse().unwrap());
    Ok(EventServiceClient::new(channel.clone()).subscribe(request).await?.into_inner())
}

async fn next(stream: &mut tonic::Streaming<v1::SubscribeResponse>) -> v1::SubscribeResponse {
    tokio::time::timeout(WITHIN, stream.message()).await.expect("in time").expect("no error").expect("no end")
}

fn of_kinds(after: &str, workspaces: &[&str], kinds: &[&str]) -> v1::SubscribeRequest {
    let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    v1::SubscribeRequest {
        after: after.to_owned(),
        workspaces: texts(workspaces),
        kinds: texts(kinds),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_gets_what_it_asked_for_and_resumes_without_a_gap() {
    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    let channel = server.channel().await;
    let mut all = subscribe(&channel, &key, of_kinds("", &[], &[])).await.unwrap();
    let begin = next(&mut all).await;
    assert!(begin.event.is_none(), "the first message tells the position: {begin:?}");
    let filter = of_kinds("", &["workspaces/agents/*"], &["workspace.committed"]);
    let mut filtered = subscribe(&channel, &key, filter).await.unwrap();
    next(&mut filtered).await;
    create(&server, &key, "main").await;
    create(&server, &key, "agents%2Fann".replace("%2F", "/").as_str()).await;
    commit(&server, &key, "main", "one").await;
    commit(&server, &key, "agents%2Fann", "two").await;
    let mut events = Vec::new();
    while events.len() < 4 {
        events.push(next(&mut all).await.event.unwrap());
    }
    let kinds: Vec<_> = events.iter().map(|event| (event.kind.as_str(), event.workspaces.join(" "))).collect();
    assert_eq!(
        kinds,
        [
            ("workspace.created", "workspaces/main".to_owned()),
            ("workspace.created", "workspaces/agents/ann".to_owned()),
            ("workspace.committed", "workspaces/main".to_owned()),
            ("workspace.committed", "workspaces/agents/ann".to_owned()),
        ]
    );
    assert!(events[2].snapshot.starts_with("snapshots/") && events[2].actor == "ann", "{:?}", events[2]);
    let only = next(&mut filtered).await.event.unwrap();
    assert_eq!((only.position.as_str(), only.kind.as_str()), (events[3].position.as_str(), "workspace.committed"));
    for (seen, left) in [(0, 3), (2, 1)] {
        let mut resumed = subscribe(&channel, &key, of_kinds(&events[seen].position, &[], &[])).await.unwrap();
        assert_eq!(next(&mut resumed).await.position, events[seen].position);
        for expected in &events[events.len() - left..] {
            assert_eq!(next(&mut resumed).await.event.unwrap().position, expected.position);
        }
    }
    let request = v1::SubscribeRequest { compact: true, ..of_kinds(&events[1].position, &[], &[]) };
    let mut compact = subscribe(&channel, &key, request).await.unwrap();
    next(&mut compact).await;
    let message = next(&mut compact).await;
    assert_eq!(message.position, events[2].position);
    let event = message.event.unwrap();
    assert!(event.position.is_empty() && event.snapshot.is_empty(), "{event:?}");
    let hex: String = event.snapshot_id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(format!("snapshots/{hex}"), events[2].snapshot);
    let mut first = subscribe(&channel, &key, of_kinds("first", &[], &["workspace.created"])).await.unwrap();
    next(&mut first).await;
    assert_eq!(next(&mut first).await.event.unwrap().position, events[0].position);
    for bad in [of_kinds("x", &[], &[]), of_kinds("", &["main"], &[]), of_kinds("", &[], &["workspace.exploded"])] {
        let refused = subscribe(&channel, &key, bad.clone()).await.expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument, "{bad:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_position_that_the_log_does_not_have_is_out_of_range_and_says_where_it_begins() {
    let mut server = Running::start().await;
    let key = server.key("admin", &[], false).await;
    create(&server, &key, "main").await;
    for number in 0..5 {
        commit(&server, &key, "main", &number.to_string()).await;
    }
    // Trimmed as a collection does it.
    let home = server.home.path().join("projects/default");
    server.stop().await;
    let open = || amalgam_server::Service::open(&amalgam_server::Home::new(&home), crate::running::now, &[]);
    let service = loop {
        match open() {
            Err(error) if error.reason() == amalgam_proto::Reason::Busy => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            opened => break opened.expect("the store is free"),
        }
    };
    let round = service.store().begin_sweep().unwrap();
    let begins = round.trim_operations(4, 100).unwrap();
    drop(round);
    drop(service);
    let mut server = server.restart(crate::running::Setup::default()).await;
    let channel = server.channel().await;
    let last = subscribe(&channel, &key, of_kinds("", &[], &[])).await.unwrap();
    let last = {
        let mut last = last;
        next(&mut last).await.position
    };
    for trimmed in ["0", "1", "999999"] {
        let refused = subscribe(&channel, &key, of_kinds(trimmed, &[], &[])).await.expect_err("refused");
        assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
        let failure = amalgam_proto::Failure::of_status(&refused).unwrap();
        assert_eq!(
            (failure.details["first"].as_str(), failure.details["last"].as_str()),
            ((begins - 1).to_string().as_str(), last.as_str())
        );
    }
    let path = "/api/v1/events?after=0";
    let refused = server.rest(Method::GET, path, &[("x-api-key", &key)], "").await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["name"]), (416, &"OUT_OF_RANGE".into()));
    let mut rest = subscribe(&channel, &key, of_kinds(&(begins - 1).to_string(), &[], &[])).await.unwrap();
    next(&mut rest).await;
    assert_eq!(next(&mut rest).await.event.unwrap().position, begins.to_string());
    server.stop().await;
}

/// Reads server-sent events until so many have come. Returns their ids and data.
async fn sse(server: &Running, headers: &[(&str, &str)], count: usize) -> Vec<(String, serde_json::Value)> {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut request = http::Request::get("/api/v1/events?kinds=workspace.*").header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.header("accept", "text/event-stream").body(http_body_util::Empty::<bytes::Bytes>::new());
    let mut response = send.send_request(request.unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    let (mut text, mut events) = (String::new(), Vec::new());
    while events.len() < count {
        let frame = tokio::time::timeout(WITHIN, response.frame()).await.expect("in time").unwrap().unwrap();
        text.push_str(&String::from_utf8_lossy(&frame.into_data().unwrap()));
        while let Some((event, rest)) = text.split_once("\n\n") {
            let line = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            if let (Some(id), Some(data)) = (line("id: "), line("data: ")) {
                events.push((id, serde_json::from_str(&data).unwrap()));
            }
            text = rest.to_owned();
        }
    }
    connection.abort();
    events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_sent_events_have_ids_and_go_on_after_the_last_one() {
    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    create(&server, &key, "main").await;
    let begin = sse(&server, &[("x-api-key", &key), ("last-event-id", "first")], 2).await;
    assert!(begin[0].1["event"].is_null() && begin[1].1["event"]["kind"] == "workspace.created", "{begin:?}");
    let last = begin[1].0.clone();
    commit(&server, &key, "main", "one").await;
    commit(&server, &key, "main", "two").await;
    let resumed = sse(&server, &[("x-api-key", &key), ("last-event-id", &last)], 3).await;
    assert_eq!(resumed[0].0, last);
    for (id, data) in &resumed[1..] {
        assert_eq!(
            (data["event"]["kind"].as_str(), data["position"].as_str()),
            (Some("workspace.committed"), Some(id.as_str()))
        );
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_tells_subscribers_where_to_resume() {
    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    let channel = server.channel().await;
    let mut stream = subscribe(&channel, &key, of_kinds("", &[], &[])).await.unwrap();
    next(&mut stream).await;
    create(&server, &key, "main").await;
    let position = next(&mut stream).await.position;
    server.ask_to_stop();
    let ended = tokio::time::timeout(WITHIN, stream.message()).await.expect("in time").expect_err("an error");
    let failure = amalgam_proto::Failure::of_status(&ended).unwrap();
    assert_eq!((failure.reason, failure.details.get("position")), (amalgam_proto::Reason::Busy, Some(&position)));
    server.stop().await;
}
