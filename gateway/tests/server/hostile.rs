//! Clients that hold requests open, reach for more than their key permits, or say one thing twice.

use std::time::Duration;

use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::running::Running;

const WITHIN: Duration = Duration::from_secs(20);

/// Sends the head of a request and a part of its body.
async fn begin(server: &Running, method: &str, path: &str, key: &str, length: usize, part: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(part).await.unwrap();
    stream
}

/// The first line of the answer; empty if the connection ended without one.
async fn status_line(stream: &mut TcpStream) -> String {
    let mut bytes = vec![0; 4_096];
    let read = tokio::time::timeout(WITHIN, stream.read(&mut bytes)).await.expect("in time");
    let text = String::from_utf8_lossy(&bytes[..read.unwrap_or(0)]).into_owned();
    text.lines().next().unwrap_or_default().to_owned()
}

async fn with_workspace(server: &Running, key: &str, project: &str) {
    let path = format!("/api/v1/projects/{project}/workspaces");
    let made =
        server.rest(Method::POST, &path, &[("x-api-key", key)], json!({"workspaceId": "main"}).to_string()).await;
    assert_eq!(made.status, 200, "{:?}", made.bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_admin_of_one_project_is_no_admin_of_the_server() {
    let mut server = Running::start().await;
    let limited = server.key("admin", &["default"], false).await;
    let auth = [("x-api-key", limited.as_str())];
    for (method, path, body) in [
        (Method::POST, "/api/v1/keys", json!({"agent": "boss", "scopes": ["admin"]})),
        (Method::GET, "/api/v1/keys", json!(null)),
        (Method::POST, "/api/v1/projects", json!({"projectId": "mine"})),
        (Method::DELETE, "/api/v1/projects/default", json!(null)),
    ] {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let refused = server.rest(method, path, &auth, body).await;
        assert_eq!(refused.status, 403, "{path}: {:?}", refused.bytes);
    }
    assert_eq!(server.rest(Method::GET, "/api/v1/projects/default", &auth, "").await.status, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_ends_an_upload() {
    let mut server = Running::start().await;
    let (admin, key) = (server.key("admin", &[], false).await, server.key("write", &[], false).await);
    with_workspace(&server, &admin, "default").await;
    let path = "/api/v1/workspaces/main/files/a.txt";
    let mut upload = begin(&server, "PUT", path, &key, 10, b"01234").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let id = amalgam_gateway::KeyText::parse(&key).unwrap().id().clone();
    let revoke = format!("/api/v1/keys/{id}");
    assert_eq!(server.rest(Method::DELETE, &revoke, &[("x-api-key", &admin)], "").await.status, 200);
    let line = status_line(&mut upload).await;
    assert!(line.is_empty() || line.contains(" 401 "), "{line}");
    let _ = upload.write_all(b"56789").await;
    let found = server.rest(Method::GET, path, &[("x-api-key", &admin)], "").await;
    assert_eq!(found.status, 404, "nothing was written: {:?}", found.bytes);
    drop(upload);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_project_with_a_held_upload_is_deleted_and_comes_back() {
    let mut server = Running::start().await;
    let admin = server.key("admin", &[], false).await;
    let auth = [("x-api-key", admin.as_str())];
    server.rest(Method::POST, "/api/v1/projects", &auth, json!({"projectId": "one"}).to_string()).await;
    with_workspace(&server, &admin, "one").await;
    let path = "/api/v1/projects/one/workspaces/main/files/a.txt";
    let mut upload = begin(&server, "PUT", path, &admin, 10, b"01234").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(server.rest(Method::DELETE, "/api/v1/projects/one", &auth, "").await.status, 200);
    let line = status_line(&mut upload).await;
    assert!(!line.contains(" 200 "), "{line}");
    assert_eq!(server.rest(Method::POST, "/api/v1/projects/one/undelete", &auth, "").await.status, 200);
    let found = server.rest(Method::GET, "/api/v1/projects/one/workspaces", &auth, "").await;
    assert_eq!(found.status, 200, "{:?}", found.bytes);
    assert_eq!(server.rest(Method::GET, path, &auth, "").await.status, 404);
    drop(upload);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_body_of_a_caller_without_a_key_is_not_waited_for() {
    let mut server = Running::start().await;
    let mut held = begin(&server, "POST", "/api/v1/workspaces", "nothing", 16 << 20, b"{").await;
    assert!(status_line(&mut held).await.contains(" 401 "));
    drop(held);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_does_not_override_the_path() {
    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    let auth = [("x-api-key", key.as_str())];
    with_workspace(&server, &key, "default").await;
    server.rest(Method::PUT, "/api/v1/workspaces/main/files/a", &auth, "x").await;
    server.rest(Method::POST, "/api/v1/workspaces/main/commit", &auth, "{}").await;
    for body in [json!({"label_id": "evil", "revision": "main"}), json!({"labelId": "evil", "revision": "main"})] {
        let set = server.rest(Method::PUT, "/api/v1/labels/good", &auth, body.to_string()).await;
        assert_eq!((set.status.as_u16(), &set.json()["label"]["name"]), (200, &"labels/good".into()), "{body}");
    }
    let twice = json!({"workspaceId": "a", "workspace_id": "b"}).to_string();
    assert_eq!(server.rest(Method::POST, "/api/v1/workspaces", &auth, twice).await.status, 400);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_in_a_directory_like_a_repository_is_a_file() {
    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    let auth = [("x-api-key", key.as_str())];
    with_workspace(&server, &key, "default").await;
    let path = "/api/v1/workspaces/main/files/x.git/info/refs";
    assert_eq!(server.rest(Method::PUT, path, &auth, "text").await.status, 200);
    let read = server.rest(Method::GET, &format!("{path}?revision="), &auth, "").await;
    assert_eq!((read.status.as_u16(), &read.bytes[..]), (200, &b"text"[..]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_that_is_not_read_ends_with_its_key() {
    let mut server = Running::start().await;
    let (admin, key) = (server.key("admin", &[], false).await, server.key("read", &[], false).await);
    with_workspace(&server, &admin, "default").await;
    let path = "/api/v1/workspaces/main/files/large";
    let large = vec![7; 64 << 20];
    assert_eq!(server.rest(Method::PUT, path, &[("x-api-key", &admin)], large).await.status, 200);
    let unread = begin(&server, "GET", path, &key, 0, b"").await;
    let running = async || {
        let metrics = server.rest(Method::GET, "/metrics", &[("x-api-key", &admin)], "").await;
        let text = String::from_utf8_lossy(&metrics.bytes).into_owned();
        text.lines().find_map(|line| line.strip_prefix("amalgam_calls_running ")).unwrap().parse::<u32>().unwrap()
    };
    tokio::time::timeout(WITHIN, async {
        while running().await != 1 {
            tokio::time::sleep(Duration::from_millis(20)).await
        }
    })
    .await
    .unwrap();
    let id = amalgam_gateway::KeyText::parse(&key).unwrap().id().clone();
    server.catalog.revoke_key(&id, crate::running::now()).await.unwrap();
    let ended = async {
        while running().await != 0 {
            tokio::time::sleep(Duration::from_millis(20)).await
        }
    };
    tokio::time::timeout(WITHIN, ended).await.expect("the call ends although its client does not read");
    drop(unread);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_replaces_names_or_purges_needs_an_admin() {
    use amalgam_proto::v1;
    use amalgam_proto::v1::transfer_service_client::TransferServiceClient;
    let mut server = Running::start().await;
    for (scopes, is_admin) in [("write", false), ("admin", true)] {
        let key = server.key(scopes, &[], false).await;
        for options in [
            v1::ReceiveOptions { replace: true, ..Default::default() },
            v1::ReceiveOptions { tombstones: true, ..Default::default() },
        ] {
            let first = v1::receive_snapshots_request::Event::Options(options);
            let messages = tokio_stream::iter([v1::ReceiveSnapshotsRequest { event: Some(first) }]);
            let mut request = tonic::Request::new(messages);
            request.metadata_mut().insert("x-api-key", key.parse().unwrap());
            let refused = TransferServiceClient::new(server.channel().await).receive_snapshots(request).await;
            let refused = refused.expect_err("the stream is empty");
            assert_eq!(refused.code() == tonic::Code::PermissionDenied, !is_admin, "{scopes}: {refused:?}");
        }
    }
    server.stop().await;
}
