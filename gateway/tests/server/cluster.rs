//! Nodes of a cluster: servers of one process on one PostgreSQL database and one bucket. Each has its own connections and files.
#![allow(clippy::print_stdout, reason = "a figure is printed")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use amalgam_gateway::{
    Catalog, ClusterOptions, DeliveryState, NewKey, NewWebhook, ProjectName, Scopes, WebhookOptions,
};
use amalgam_proto::v1;
use amalgam_proto::v1::event_service_client::EventServiceClient;
use amalgam_test_support::postgres;
use http::Method;
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _};
use tonic::Request;

use crate::receiver::Receiver;
use crate::running::{Running, Setup, now};

/// The time within which something must happen.
const WITHIN: Duration = Duration::from_secs(20);

/// A database of its own and a bucket, for the nodes of one test.
struct Place {
    options: ClusterOptions,
    _bucket: tempfile::TempDir,
}

impl Place {
    /// Makes a database; returns nothing after a skip where there is no PostgreSQL.
    async fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = tokio::task::spawn_blocking(postgres::shared).await.unwrap()?;
        let name = format!("cluster_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let mut connection = sqlx::PgConnection::connect(&server).await.unwrap();
        connection.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
        let bucket = tempfile::tempdir().unwrap();
        let options = ClusterOptions {
            database: server.replace("/postgres?", &format!("/{name}?")),
            bucket: format!("file://{}", bucket.path().display()),
            connections: 4,
            cache: None,
        };
        Some(Self { options, _bucket: bucket })
    }

    /// Starts a node.
    async fn node(&self) -> Running {
        self.node_with(Setup::default()).await
    }

    async fn node_with(&self, setup: Setup) -> Running {
        Running::with(Setup { cluster: Some(self.options.clone()), ..setup }).await
    }
}

/// Makes a call that must succeed, and returns its answer.
async fn call(node: &Running, key: &str, method: Method, path: &str, body: Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = node.rest(method, &format!("/api/v1{path}"), &[("x-api-key", key)], body).await;
    assert_eq!(answer.status, 200, "{path}: {:?}", answer.bytes);
    answer.json()
}

async fn write(node: &Running, key: &str, path: &str, text: &str) {
    let path = format!("/api/v1/workspaces/{path}");
    let written = node.rest(Method::PUT, &path, &[("x-api-key", key)], text.to_owned()).await;
    assert_eq!(written.status, 200, "{path}: {:?}", written.bytes);
}

async fn read(node: &Running, key: &str, path: &str) -> String {
    let answer = node.rest(Method::GET, &format!("/api/v1/workspaces/{path}"), &[("x-api-key", key)], "").await;
    assert_eq!(answer.status, 200, "{path}: {:?}", answer.bytes);
    String::from_utf8(answer.bytes.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_an_edit_and_a_merge_on_three_nodes_make_one_history() {
    let Some(place) = Place::new().await else { return };
    let (mut one, mut two, mut three) = (place.node().await, place.node().await, place.node().await);
    let key = one.key("merge", &[], false).await;
    call(&one, &key, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
    let edits = json!({"edits": [{"write": {"path": "a.txt", "text": "one\n"}}], "message": "first"});
    call(&one, &key, Method::POST, "/workspaces/main/commit-edits", edits).await;
    call(&one, &key, Method::POST, "/workspaces/main/fork", json!({"workspaceIds": ["ann"]})).await;
    let edits = json!({"edits": [{"write": {"path": "b.txt", "text": "two\n"}}], "message": "second"});
    call(&two, &key, Method::POST, "/workspaces/ann/commit-edits", edits).await;
    call(&three, &key, Method::POST, "/workspaces/main/merge", json!({"sources": ["workspaces/ann"]})).await;
    for node in [&one, &two, &three] {
        assert_eq!(read(node, &key, "main/files/a.txt").await, "one\n");
        assert_eq!(read(node, &key, "main/files/b.txt").await, "two\n");
    }
    for node in [&mut one, &mut two, &mut three] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_tree_is_where_its_next_call_is_and_a_dead_node_takes_no_edit_along() {
    let Some(place) = Place::new().await else { return };
    let (one, mut two, mut three) = (place.node().await, place.node().await, place.node().await);
    let key = one.key("write", &[], false).await;
    call(&one, &key, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
    write(&one, &key, "main/files/one", "1").await;
    assert_eq!(read(&two, &key, "main/files/one").await, "1", "a read on another node sees an uncommitted edit");
    write(&two, &key, "main/files/two", "2").await;
    write(&one, &key, "main/files/three", "3").await;
    // More than goes through the database in one piece: it becomes a checkpoint.
    let large = "x".repeat(3 << 20);
    write(&one, &key, "main/files/large", &large).await;
    // Its disk goes, and it is never told to stop.
    std::fs::remove_dir_all(one.home.path()).unwrap();
    for (path, text) in [("one", "1"), ("two", "2"), ("three", "3"), ("large", large.as_str())] {
        assert!(read(&three, &key, &format!("main/files/{path}")).await == *text, "{path}");
    }
    call(&three, &key, Method::POST, "/workspaces/main/commit", json!({"message": "all"})).await;
    let listed = call(&two, &key, Method::GET, "/snapshots?workspace=workspaces/main", Value::Null).await;
    assert_eq!(listed["snapshots"].as_array().map(Vec::len), Some(1), "{listed}");
    write(&two, &key, "main/files/four", "4").await;
    assert_eq!(read(&three, &key, "main/files/four").await, "4");
    assert_eq!(read(&three, &key, "main/files/two").await, "2");
    two.stop().await;
    assert_eq!(read(&three, &key, "main/files/four").await, "4", "a node that stops in order leaves its edits, too");
    three.stop().await;
    std::mem::forget(one);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn edits_of_one_workspace_on_two_nodes_at_once_are_all_kept() {
    const EDITS: usize = 12;
    let Some(place) = Place::new().await else { return };
    let (mut one, mut two) = (place.node().await, place.node().await);
    let key = one.key("write", &[], false).await;
    call(&one, &key, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
    let edit = async |node: &Running, who: &str| {
        for number in 0..EDITS {
            let path = format!("/api/v1/workspaces/main/files/{who}-{number}");
            loop {
                let answer = node.rest(Method::PUT, &path, &[("x-api-key", &key)], "text").await;
                match answer.status.as_u16() {
                    200 => break,
                    // The other node took the tree in the middle of the edit.
                    503 => {}
                    status => panic!("{status}: {:?}", answer.bytes),
                }
            }
        }
    };
    tokio::join!(edit(&one, "one"), edit(&two, "two"));
    for who in ["one", "two"] {
        for number in 0..EDITS {
            assert_eq!(read(&one, &key, &format!("main/files/{who}-{number}")).await, "text");
        }
    }
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_of_one_node_reaches_a_subscriber_of_another() {
    const COMMITS: usize = 40;
    let Some(place) = Place::new().await else { return };
    let (mut one, mut two) = (place.node().await, place.node().await);
    let key = one.key("write", &[], false).await;
    call(&one, &key, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
    let mut request = Request::new(v1::SubscribeRequest::default());
    request.metadata_mut().insert("x-api-key", key.parse().unwrap());
    let subscribed = EventServiceClient::new(two.channel().await).subscribe(request).await.unwrap();
    let mut events = subscribed.into_inner();
    let mut next = async || tokio::time::timeout(WITHIN, events.message()).await.unwrap().unwrap().unwrap();
    // The first message tells the position.
    next().await;
    let mut delays = Vec::new();
    for number in 0..COMMITS {
        let edits = json!({"edits": [{"write": {"path": "a.txt", "text": number.to_string()}}]});
        call(&one, &key, Method::POST, "/workspaces/main/commit-edits", edits).await;
        let committed = Instant::now();
        let event = next().await.event.expect("an event");
        assert_eq!(event.kind, "workspace.committed");
        delays.push(committed.elapsed());
    }
    delays.sort_unstable();
    let (half, most) = (delays[COMMITS / 2], delays[COMMITS * 99 / 100]);
    println!("from the answer of a commit to its event on another node: p50 {half:?}, p99 {most:?}");
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_projects_of_one_node_hold_on_the_others() {
    let Some(place) = Place::new().await else { return };
    let (mut one, mut two) = (place.node().await, place.node().await);
    let admin = one.key("admin", &[], false).await;
    call(&one, &admin, Method::POST, "/projects", json!({"projectId": "demo"})).await;
    let key = two.key("write", &["demo"], false).await;
    call(&two, &key, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
    let found = call(&one, &key, Method::GET, "/workspaces", Value::Null).await;
    assert_eq!(found["workspaces"].as_array().map(Vec::len), Some(1), "{found}");
    let sandbox = json!({"name": "s"}).to_string();
    let refused = one.rest(Method::POST, "/api/v1/sandboxes", &[("x-api-key", &admin)], sandbox).await;
    assert!(!refused.status.is_success(), "{:?}", refused.bytes);
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_is_called_once_for_a_change_on_any_node() {
    let Some(place) = Place::new().await else { return };
    let receiver = Receiver::start().await;
    let allow = vec!["127.0.0.0/8".parse().unwrap()];
    let setup =
        || Setup { webhooks: WebhookOptions { allow: allow.clone(), ..WebhookOptions::default() }, ..Setup::default() };
    let (mut one, mut two) = (place.node_with(setup()).await, place.node_with(setup()).await);
    let key = one.key("write", &[], false).await;
    call(&one, &key, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
    let new = NewWebhook {
        project: ProjectName::new("default").unwrap(),
        url: receiver.url(),
        kinds: vec!["workspace.committed".to_owned()],
        workspaces: Vec::new(),
        secret: None,
    };
    let (webhook, _) = one.catalog.create_webhook(&new, None, now()).await.unwrap();
    for (node, text) in [(&one, "a"), (&two, "b"), (&one, "c")] {
        let edits = json!({"edits": [{"write": {"path": "a.txt", "text": text}}]});
        call(node, &key, Method::POST, "/workspaces/main/commit-edits", edits).await;
    }
    let begun = Instant::now();
    let delivered = loop {
        let found = two.catalog.list_deliveries(&webhook.id, i64::MAX, 100, false).await.unwrap();
        if found.len() == 3 && found.iter().all(|delivery| delivery.state == DeliveryState::Delivered) {
            break found;
        }
        assert!(begun.elapsed() < WITHIN, "{found:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(delivered.iter().all(|delivery| delivery.attempts == 1), "{delivered:?}");
    assert_eq!(receiver.received().len(), 3);
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_catalog_in_postgresql_keeps_what_it_answered() {
    let Some(place) = Place::new().await else { return };
    let url = &place.options.database;
    let (first, second) = tokio::join!(Catalog::connect(url), Catalog::connect(url));
    let (first, second) = (first.unwrap(), second.unwrap());
    let name = ProjectName::new("one").unwrap();
    let project = first.create_project(&name, now()).await.unwrap();
    assert_eq!(second.project(&name).await.unwrap(), project);
    first.delete_project(&name, now()).await.unwrap();
    assert!(second.list_projects(None, 10, false).await.unwrap().is_empty());
    assert_eq!(second.list_projects(None, 10, true).await.unwrap().len(), 1);
    let new = NewKey { agent: "ann".to_owned(), scopes: Scopes::ALL, projects: vec![name], expires: Some(now()) };
    let (text, key) = first.create_key(&new, now()).await.unwrap();
    assert_eq!(second.key(text.id()).await.unwrap(), key);
    assert!(second.revoked_since(key.created).await.unwrap().is_empty());
    first.revoke_key(&key.id, now()).await.unwrap();
    assert_eq!(second.revoked_since(key.created).await.unwrap().len(), 1);
    assert!(first.copy_to(std::path::Path::new("copy.db")).await.is_err(), "its own tools back it up");
}

/// Uncommitted edits of one node, and the trees that its calls use, are roots of the other node's collection.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_collection_on_one_node_keeps_what_another_node_uses() {
    let Some(place) = Place::new().await else { return };
    let (mut one, mut two) = (place.node().await, place.node().await);
    let key = one.key("admin,merge", &[], false).await;
    call(&one, &key, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
    write(&one, &key, "main/files/kept", "kept").await;
    call(&one, &key, Method::POST, "/workspaces/main/commit", json!({"message": "first"})).await;
    // A checkpoint, and a journal on top of it.
    let large = "x".repeat(3 << 20);
    write(&two, &key, "main/files/large", &large).await;
    write(&two, &key, "main/files/small", "small").await;
    for _ in 0..2 {
        let answer =
            one.rest(Method::POST, "/api/v1/collections", &[("x-api-key", &key)], "{\"graceSeconds\": 0}").await;
        assert_eq!(answer.status, 200, "{:?}", answer.bytes);
        write(&two, &key, "main/files/between", "between").await;
    }
    for node in [&one, &two] {
        for (path, text) in [("kept", "kept"), ("large", large.as_str()), ("small", "small"), ("between", "between")] {
            assert!(read(node, &key, &format!("main/files/{path}")).await == *text, "{path}");
        }
    }
    call(&two, &key, Method::POST, "/workspaces/main/commit", json!({"message": "second"})).await;
    assert!(read(&one, &key, "main/files/large").await == large);
    one.stop().await;
    two.stop().await;
}
