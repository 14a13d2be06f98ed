//! Nodes of a cluster: servers of one process on one PostgreSQL database and one bucket. Each has its own connections and files.
#![allow(clippy::print_stdout, reason = "a figure is printed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use amalgam_cloud::{Cloud, CloudOptions, open_bucket};
use amalgam_engine::queue::{Queue, QueueOptions};
use amalgam_engine::{History, OperationContext, Store, StoreOptions, WorkspaceName, Workspaces};
use amalgam_gateway::{
    Catalog, CatalogError, ClusterOptions, DeliveryState, NewKey, NewWebhook, ProjectName, Scopes, WebhookOptions,
};
use amalgam_proto::v1;
use amalgam_proto::v1::event_service_client::EventServiceClient;
use amalgam_test_support::postgres;
use amalgam_test_support::postgres_proxy::PostgresProxy;
use http::Method;
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _};
use tonic::Request;

use crate::receiver::Receiver;
use crate::running::{Running, Setup, now};

/// The time within which something must happen.
const WITHIN: Duration = Duration::from_secs(20);
/// The time within which a node goes on after a failover: a call without an answer is given up after 20 seconds.
const FAILOVER_WITHIN: Duration = Duration::from_secs(120);

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
async fn a_project_that_one_node_deletes_is_closed_on_the_others() {
    let Some(place) = Place::new().await else { return };
    let (mut one, mut two) = (place.node().await, place.node().await);
    let admin = one.key("admin", &[], false).await;
    call(&one, &admin, Method::POST, "/projects", json!({"projectId": "demo"})).await;
    let key = two.key("write", &["demo"], false).await;
    call(&two, &key, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
    call(&one, &admin, Method::DELETE, "/projects/demo", Value::Null).await;
    let began = Instant::now();
    loop {
        let answer = two.rest(Method::GET, "/api/v1/workspaces/main", &[("x-api-key", &key)], "").await;
        if answer.status != 200 {
            break;
        }
        assert!(began.elapsed() < WITHIN, "the other node still serves the project");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    call(&one, &admin, Method::POST, "/projects/demo/undelete", json!({})).await;
    call(&two, &key, Method::GET, "/workspaces/main", Value::Null).await;
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

/// Repeats a call of the catalog until it succeeds. Failures meanwhile are those that a caller repeats.
async fn until_done<T>(what: &str, call: impl AsyncFn() -> Result<T, CatalogError>) -> T {
    let begun = Instant::now();
    loop {
        match call().await {
            Ok(done) => return done,
            Err(error) => {
                let status = tonic::Status::from(error);
                assert_eq!(status.code(), tonic::Code::Unavailable, "{what}: {status:?}");
                assert!(begun.elapsed() < FAILOVER_WITHIN, "{what}: {status:?}");
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Repeats a call of the API until it succeeds. Returns its answer and the number of refusals, which are all 503.
async fn until_answered(node: &Running, key: &str, method: Method, path: &str, body: Value) -> (Value, usize) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (begun, mut refusals) = (Instant::now(), 0);
    loop {
        let answer = node.rest(method.clone(), &format!("/api/v1{path}"), &[("x-api-key", key)], body.clone()).await;
        if answer.status == 200 {
            return (answer.json(), refusals);
        }
        assert_eq!(answer.status, 503, "{path}: {:?}", answer.bytes);
        assert!(begun.elapsed() < FAILOVER_WITHIN, "{path}: {:?}", answer.bytes);
        refusals += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A PostgreSQL server with a synchronous standby, behind a proxy that leads to the first one.
async fn replicated() -> Option<(postgres::Postgres, postgres::Postgres, PostgresProxy)> {
    let started = tokio::task::spawn_blocking(|| {
        let mut primary = postgres::own()?;
        let standby = primary.start_standby().expect("a standby");
        let proxy = PostgresProxy::start(primary.directory());
        Some((primary, standby, proxy))
    });
    started.await.unwrap()
}

/// Keys, projects and webhooks of a node whose PostgreSQL server is restarted, and then replaced by its standby. The node is not started
/// anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_goes_on_when_postgresql_is_restarted_and_when_it_is_replaced() {
    let Some((mut primary, mut standby, proxy)) = replicated().await else { return };
    let bucket = tempfile::tempdir().unwrap();
    let options = ClusterOptions {
        database: postgres::url(proxy.directory()),
        bucket: format!("file://{}", bucket.path().display()),
        connections: 4,
        cache: None,
    };
    let mut node = Running::with(Setup { cluster: Some(options), ..Setup::default() }).await;
    let admin = node.key("admin,merge", &[], false).await;
    call(&node, &admin, Method::POST, "/projects", json!({"projectId": "before"})).await;
    call(&node, &admin, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
    let new = NewWebhook {
        project: ProjectName::new("default").unwrap(),
        url: "http://127.0.0.1:9/".to_owned(),
        kinds: Vec::new(),
        workspaces: Vec::new(),
        secret: None,
    };
    let (webhook, _) = node.catalog.create_webhook(&new, None, now()).await.unwrap();

    let primary = tokio::task::spawn_blocking(move || {
        primary.restart();
        primary.wait_for_standby();
        primary
    });
    let mut primary = primary.await.unwrap();
    until_answered(&node, &admin, Method::POST, "/projects", json!({"projectId": "between"})).await;
    let edits = json!({"edits": [{"write": {"path": "a.txt", "text": "one\n"}}], "message": "first"});
    until_answered(&node, &admin, Method::POST, "/workspaces/main/commit-edits", edits).await;

    let stopped = tokio::task::spawn_blocking(move || primary.stop());
    stopped.await.unwrap();
    // Without a server a call fails, in a way that its caller repeats.
    let body = json!({"projectId": "during"}).to_string();
    let refused = node.rest(Method::POST, "/api/v1/projects", &[("x-api-key", &admin)], body).await;
    assert_eq!(refused.status, 503, "{:?}", refused.bytes);
    let promoted = tokio::task::spawn_blocking(move || {
        standby.promote();
        standby
    });
    let standby = promoted.await.unwrap();
    proxy.redirect(standby.directory());
    until_answered(&node, &admin, Method::POST, "/projects", json!({"projectId": "after"})).await;
    let (listed, _) = until_answered(&node, &admin, Method::GET, "/projects", Value::Null).await;
    let names: Vec<_> = listed["projects"].as_array().unwrap().iter().map(|project| project["name"].clone()).collect();
    for project in ["before", "between", "after"] {
        assert!(names.iter().any(|name| name == &format!("projects/{project}")), "{project}: {names:?}");
    }
    assert!(!names.iter().any(|name| name == "projects/during"), "it was refused: {names:?}");
    assert_eq!(until_done("webhook", async || node.catalog.webhook(&webhook.id).await).await.id, webhook.id);
    let new = NewKey { agent: "bob".to_owned(), scopes: Scopes::ALL, projects: Vec::new(), expires: None };
    let (text, made) = until_done("key", async || node.catalog.create_key(&new, now()).await).await;
    assert_eq!(node.catalog.key(text.id()).await.unwrap(), made);
    // The store of the project was opened anew on the new server.
    let edits = json!({"edits": [{"write": {"path": "b.txt", "text": "two\n"}}], "message": "second"});
    until_answered(&node, &admin, Method::POST, "/workspaces/main/commit-edits", edits).await;
    for (path, text) in [("a.txt", "one\n"), ("b.txt", "two\n")] {
        assert_eq!(read(&node, &admin, &format!("main/files/{path}")).await, text);
    }
    node.stop().await;
}

/// A server that was replaced and does not know it: its commits wait for the standby, which does not come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_catalog_leaves_a_server_that_was_replaced_and_still_runs() {
    let Some((primary, mut standby, proxy)) = replicated().await else { return };
    let catalog = Catalog::connect(&postgres::url(proxy.directory())).await.unwrap();
    let (one, two) = (ProjectName::new("one").unwrap(), ProjectName::new("two").unwrap());
    catalog.create_project(&one, now()).await.unwrap();
    let promoted = tokio::task::spawn_blocking(move || {
        standby.promote();
        standby
    });
    let standby = promoted.await.unwrap();
    // The connections that exist lead to the old server still.
    proxy.redirect(standby.directory());
    let error = catalog.create_project(&two, now()).await.expect_err("the old server waits for its standby");
    assert_eq!(tonic::Status::from(error).code(), tonic::Code::Unavailable);
    until_done("project", async || catalog.create_project(&two, now()).await).await;
    let fresh = Catalog::connect(&standby.url()).await.unwrap();
    let listed = fresh.list_projects(None, 10, true).await.unwrap();
    assert_eq!(listed.iter().map(|project| project.name.clone()).collect::<Vec<_>>(), [one, two]);
    drop(primary);
}

/// Connections over which nothing comes back, as after a machine is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_catalog_leaves_connections_that_do_not_answer() {
    let Some(server) = tokio::task::spawn_blocking(postgres::own).await.unwrap() else { return };
    let proxy = PostgresProxy::start(server.directory());
    let catalog = Catalog::connect(&postgres::url(proxy.directory())).await.unwrap();
    let name = ProjectName::new("one").unwrap();
    catalog.create_project(&name, now()).await.unwrap();
    proxy.hold_present();
    let found = until_done("project", async || catalog.project(&name).await).await;
    assert_eq!(found.name, name);
    proxy.release();
}

/// An entry that its node put into the queue and did not merge, as if it had died right then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_of_a_node_that_died_is_merged_by_another_one() {
    let Some(place) = Place::new().await else { return };
    let mut node = place.node().await;
    let key = node.key("merge", &[], false).await;
    call(&node, &key, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
    let edits = json!({"edits": [{"write": {"path": "a.txt", "text": "one\n"}}], "message": "first"});
    call(&node, &key, Method::POST, "/workspaces/main/commit-edits", edits).await;
    call(&node, &key, Method::POST, "/workspaces/main/fork", json!({"workspaceIds": ["ann"]})).await;
    let edits = json!({"edits": [{"write": {"path": "b.txt", "text": "two\n"}}], "message": "second"});
    call(&node, &key, Method::POST, "/workspaces/ann/commit-edits", edits).await;
    let (database, bucket) = (place.options.database.clone(), place.options.bucket.clone());
    let submitted = tokio::task::spawn_blocking(move || {
        let options = CloudOptions::new(database, open_bucket(&bucket).unwrap(), "default");
        let store = Store::new(Arc::new(Cloud::open(&options).unwrap()), &StoreOptions::default());
        let (workspaces, history) = (Workspaces::of(&store), History::of(&store));
        let queue = Queue::of(&workspaces, &history);
        let name = |name: &str| WorkspaceName::new(name).unwrap();
        let act = OperationContext::new("ann", now());
        queue.submit(&name("ann"), &name("main"), &QueueOptions::default(), &act).unwrap();
    });
    submitted.await.unwrap();
    let begun = Instant::now();
    loop {
        let path = "/api/v1/workspaces/main/files/b.txt";
        let answer = node.rest(Method::GET, path, &[("x-api-key", &key)], "").await;
        if answer.status == 200 {
            break;
        }
        assert!(begun.elapsed() < FAILOVER_WITHIN, "{:?}", answer.bytes);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    node.stop().await;
}
