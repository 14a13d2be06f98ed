//! Files by REST: bytes in and out, with ranges and etags, beside gRPC on the same live tree.

use amalgam_proto::v1;
use amalgam_proto::v1::file_service_client::FileServiceClient;
use http::Method;
use serde_json::json;

use crate::running::Running;

const FILE: &str = "/api/v1/workspaces/main/files/src/a%20b.txt";

async fn with_workspace() -> (Running, String) {
    let server = Running::start().await;
    let key = server.key("write", &[], false).await;
    let auth = [("x-api-key", key.as_str())];
    let made = server.rest(Method::POST, "/api/v1/workspaces", &auth, json!({"workspaceId": "main"}).to_string()).await;
    assert_eq!(made.status, 200, "{:?}", made.bytes);
    (server, key)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_written_read_in_parts_and_removed() {
    let (mut server, key) = with_workspace().await;
    let auth = [("x-api-key", key.as_str())];
    let written = server.rest(Method::PUT, FILE, &auth, "0123456789").await;
    assert_eq!(written.status, 200, "{:?}", written.bytes);
    let etag = written.headers["etag"].to_str().unwrap().to_owned();
    let read = server.rest(Method::GET, FILE, &auth, "").await;
    assert_eq!((read.status.as_u16(), &read.bytes[..]), (200, &b"0123456789"[..]));
    assert_eq!(
        (&read.headers["etag"], &read.headers["content-length"]),
        (&etag.parse().unwrap(), &"10".parse().unwrap())
    );
    for (range, expected, shown) in
        [("bytes=2-4", "234", "bytes 2-4/10"), ("bytes=7-", "789", "bytes 7-9/10"), ("bytes=-2", "89", "bytes 8-9/10")]
    {
        let part = server.rest(Method::GET, FILE, &[auth[0], ("range", range)], "").await;
        assert_eq!((part.status.as_u16(), &part.bytes[..]), (206, expected.as_bytes()), "{range}");
        assert_eq!(part.headers["content-range"], shown, "{range}");
    }
    let beyond = server.rest(Method::GET, FILE, &[auth[0], ("range", "bytes=10-")], "").await;
    assert_eq!(beyond.status, 416);
    let same = server.rest(Method::GET, FILE, &[auth[0], ("if-none-match", &etag)], "").await;
    assert_eq!((same.status.as_u16(), same.bytes.len()), (304, 0));
    let head = server.rest(Method::HEAD, FILE, &auth, "").await;
    assert_eq!((head.status.as_u16(), &head.headers["content-length"]), (200, &"10".parse().unwrap()));
    assert_eq!(server.rest(Method::DELETE, FILE, &auth, "").await.status, 204);
    assert_eq!(server.rest(Method::GET, FILE, &auth, "").await.status, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_under_a_condition_that_does_not_hold_changes_nothing() {
    let (mut server, key) = with_workspace().await;
    let auth = [("x-api-key", key.as_str())];
    let first = server.rest(Method::PUT, FILE, &[auth[0], ("if-none-match", "*")], "one").await;
    assert_eq!(first.status, 200, "{:?}", first.bytes);
    let again = server.rest(Method::PUT, FILE, &[auth[0], ("if-none-match", "*")], "two").await;
    assert_eq!(again.status, 409, "{:?}", again.bytes);
    let stale = server.rest(Method::PUT, FILE, &[auth[0], ("if-match", "\"nothing\"")], "two").await;
    assert_eq!(stale.status, 412, "{:?}", stale.bytes);
    let wrong = server.rest(Method::PUT, FILE, &[auth[0], ("amalgam-digest", &"0".repeat(64))], "two").await;
    assert_eq!(wrong.status, 400, "{:?}", wrong.bytes);
    let etag = first.headers["etag"].to_str().unwrap();
    let digest = blake3_hex(b"two");
    let good = server.rest(Method::PUT, FILE, &[auth[0], ("if-match", etag), ("amalgam-digest", &digest)], "two").await;
    assert_eq!(good.status, 200, "{:?}", good.bytes);
    assert_eq!(&server.rest(Method::GET, FILE, &auth, "").await.bytes[..], b"two");
    server.stop().await;
}

fn blake3_hex(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rest_and_grpc_see_one_live_tree_and_commits_end_in_one_history() {
    let (mut server, key) = with_workspace().await;
    let auth = [("x-api-key", key.as_str())];
    assert_eq!(server.rest(Method::PUT, FILE, &auth, "by REST").await.status, 200);
    let mut client = FileServiceClient::with_interceptor(server.channel().await, {
        let key: tonic::metadata::MetadataValue<_> = key.parse().unwrap();
        move |mut request: tonic::Request<()>| {
            request.metadata_mut().insert("x-api-key", key.clone());
            Ok(request)
        }
    });
    let stat =
        v1::StatFileRequest { workspace: "workspaces/main".into(), path: "src/a b.txt".into(), ..Default::default() };
    let file = client.stat_file(stat).await.unwrap().into_inner().file.unwrap();
    assert_eq!(file.size, 7);
    let edit = json!({"replace": {"path": "src/a b.txt", "oldText": "REST", "newText": "an edit"}}).to_string();
    let edited = server.rest(Method::POST, "/api/v1/workspaces/main/edit", &auth, edit).await;
    assert_eq!(edited.status, 200, "{:?}", edited.bytes);
    let status = server.rest(Method::GET, "/api/v1/workspaces/main/status", &auth, "").await;
    assert_eq!(status.status, 200, "{:?}", status.bytes);
    let committed =
        server.rest(Method::POST, "/api/v1/workspaces/main/commit", &auth, json!({"message": "one"}).to_string()).await;
    assert_eq!(committed.status, 200, "{:?}", committed.bytes);
    let old = server.rest(Method::GET, &format!("{FILE}?revision=@"), &auth, "").await;
    assert_eq!(&old.bytes[..], b"by an edit", "{:?}", old.status);
    let accept = [auth[0], ("accept", "text/x-diff")];
    let patch = server.rest(Method::GET, "/api/v1/patch?before.empty=true&after.revision=main@", &accept, "").await;
    assert!(String::from_utf8_lossy(&patch.bytes).contains("+by an edit"), "{:?}", patch.bytes);
    let listed = server.rest(Method::GET, "/api/v1/workspaces/main/list?recursive=true", &auth, "").await;
    assert_eq!(listed.status, 200, "{:?}", listed.bytes);
    assert!(listed.json().to_string().contains("src/a b.txt"), "{:?}", listed.bytes);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_file_goes_in_and_out_as_a_stream() {
    let (mut server, key) = with_workspace().await;
    let auth = [("x-api-key", key.as_str())];
    let bytes: Vec<u8> = (0..40_u32 << 20).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let written = server.rest(Method::PUT, FILE, &auth, bytes.clone()).await;
    assert_eq!(written.status, 200, "{:?}", written.bytes);
    assert_eq!(written.json()["digest"], blake3_hex(&bytes));
    let read = server.rest(Method::GET, FILE, &auth, "").await;
    assert!(read.bytes == bytes, "{} bytes", read.bytes.len());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_that_lead_out_are_refused() {
    let (mut server, key) = with_workspace().await;
    let auth = [("x-api-key", key.as_str())];
    for path in ["..%2fx", "a/../../x", "%2fetc/passwd", "a/%00", "", "a//b"] {
        let target = format!("/api/v1/workspaces/main/files/{path}");
        let refused = server.rest(Method::PUT, &target, &auth, "x").await;
        assert!(refused.status.is_client_error(), "{path}: {:?} {:?}", refused.status, refused.bytes);
    }
    let reader = server.key("read", &[], false).await;
    let refused = server.rest(Method::PUT, FILE, &[("x-api-key", &reader)], "x").await;
    assert_eq!(refused.status, 403);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_brings_back_edits_that_a_restore_took_away() {
    let (mut server, key) = with_workspace().await;
    let auth = [("x-api-key", key.as_str())];
    let base = "/api/v1/workspaces/main";
    assert_eq!(server.rest(Method::PUT, FILE, &auth, "1").await.status, 200);
    assert_eq!(server.rest(Method::POST, &format!("{base}/commit"), &auth, "{}").await.status, 200);
    assert_eq!(server.rest(Method::PUT, FILE, &auth, "2").await.status, 200);
    let restored =
        server.rest(Method::POST, &format!("{base}/restore"), &auth, json!({"revision": "@"}).to_string()).await;
    assert_eq!(restored.status, 200, "{:?}", restored.bytes);
    assert_eq!(&server.rest(Method::GET, FILE, &auth, "").await.bytes[..], b"1");
    let undo = json!({"workspace": "workspaces/main"}).to_string();
    let undone = server.rest(Method::POST, "/api/v1/operations/undo", &auth, undo.clone()).await;
    assert_eq!(undone.status, 200, "{:?}", undone.bytes);
    assert_eq!(&server.rest(Method::GET, FILE, &auth, "").await.bytes[..], b"2");
    let redone = server.rest(Method::POST, "/api/v1/operations/redo", &auth, undo).await;
    assert_eq!(redone.status, 200, "{:?}", redone.bytes);
    assert_eq!(&server.rest(Method::GET, FILE, &auth, "").await.bytes[..], b"1");
    server.stop().await;
}
