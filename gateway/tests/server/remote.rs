//! Calls that a caller without a directory on the host needs: forks of old states, conflicts, dry runs, uncommitted changes in merges.

use http::Method;
use serde_json::{Value, json};

use crate::running::Running;

async fn call(server: &Running, key: &str, method: Method, path: &str, body: Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = server.rest(method, &format!("/api/v1{path}"), &[("x-api-key", key)], body).await;
    assert_eq!(answer.status, 200, "{path}: {:?}", answer.bytes);
    answer.json()
}

async fn post(server: &Running, key: &str, path: &str, body: Value) -> Value {
    call(server, key, Method::POST, path, body).await
}

async fn commit(server: &Running, key: &str, workspace: &str, text: &str) -> Value {
    let edits = json!({"edits": [{"write": {"path": "a.txt", "text": text}}]});
    post(server, key, &format!("/workspaces/{workspace}/commit-edits"), edits).await
}

async fn read(server: &Running, key: &str, workspace: &str) -> String {
    let path = format!("/api/v1/workspaces/{workspace}/files/a.txt");
    let answer = server.rest(Method::GET, &path, &[("x-api-key", key)], "").await;
    String::from_utf8_lossy(&answer.bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_begins_at_any_snapshot_with_its_own_agent_and_target() {
    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    post(&server, &key, "/workspaces", json!({"workspaceId": "main", "agent": "boss"})).await;
    post(&server, &key, "/workspaces", json!({"workspaceId": "trunk"})).await;
    let first = commit(&server, &key, "main", "one").await["snapshot"]["name"].clone();
    commit(&server, &key, "main", "two").await;
    let fork = json!({"workspaceIds": ["old"], "revision": "@~", "agent": "ann", "project": "p", "target": "workspaces/trunk"});
    let forked = post(&server, &key, "/workspaces/main/fork", fork).await["workspaces"][0].clone();
    assert_eq!((&forked["head"], &forked["base"]), (&first, &first));
    assert_eq!(
        (&forked["agent"], &forked["project"], &forked["target"]),
        (&"ann".into(), &"p".into(), &"workspaces/trunk".into())
    );
    assert_eq!(read(&server, &key, "old").await, "one");
    let plain =
        post(&server, &key, "/workspaces/main/fork", json!({"workspaceIds": ["new"]})).await["workspaces"][0].clone();
    // The fork is the maker's, whose rights apply to it.
    assert_eq!((&plain["agent"], &plain["target"]), (&"ann".into(), &"workspaces/main".into()));
    for bad in [
        json!({"workspaceIds": []}),
        json!({"workspaceIds": ["x"], "revision": "nothing"}),
        json!({"workspaceIds": ["x"], "target": "workspaces/none"}),
    ] {
        let refused =
            server.rest(Method::POST, "/api/v1/workspaces/main/fork", &[("x-api-key", &key)], bad.to_string()).await;
        assert!((400..500).contains(&refused.status.as_u16()), "{bad}: {:?}", refused.bytes);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_can_be_asked_what_it_would_change() {
    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    post(&server, &key, "/workspaces", json!({"workspaceId": "main"})).await;
    commit(&server, &key, "main", "one").await;
    let labelled = json!({"edits": [{"write": {"path": "b/c.txt", "text": "new"}}], "labels": ["v2"]});
    let labelled = {
        let mut edits = labelled;
        edits["edits"][0]["write"]["createParents"] = true.into();
        post(&server, &key, "/workspaces/main/commit-edits", edits).await
    };
    assert_eq!(labelled["snapshot"]["labels"], json!(["v2"]), "the answer of a commit has its labels");
    commit(&server, &key, "main", "two").await;
    let head = call(&server, &key, Method::GET, "/workspaces/main", Value::Null).await["workspace"]["head"].clone();
    let restore = |paths: Value| json!({"revision": "@~2", "paths": paths, "dryRun": true});
    let would = post(&server, &key, "/workspaces/main/restore", restore(json!([]))).await;
    let paths: Vec<_> =
        would["changes"].as_array().unwrap().iter().map(|change| change["path"].as_str().unwrap()).collect();
    assert!(would["changed"] == true && paths.contains(&"a.txt") && paths.contains(&"b/c.txt"), "{would}");
    let would = post(&server, &key, "/workspaces/main/restore", restore(json!(["a.txt"]))).await;
    assert_eq!(would["changes"].as_array().unwrap().len(), 1, "{would}");
    assert_eq!(call(&server, &key, Method::GET, "/workspaces/main", Value::Null).await["workspace"]["head"], head);
    assert_eq!(read(&server, &key, "main").await, "two");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conflicts_are_resolved_and_uncommitted_changes_merged_over_the_network() {
    let mut server = Running::start().await;
    let key = server.key("merge", &[], false).await;
    post(&server, &key, "/workspaces", json!({"workspaceId": "main"})).await;
    commit(&server, &key, "main", "base\n").await;
    post(&server, &key, "/workspaces/main/fork", json!({"workspaceIds": ["side"]})).await;
    commit(&server, &key, "main", "ours\n").await;
    // Not committed: it is merged only if the caller asks for it.
    let path = "/api/v1/workspaces/side/files/a.txt";
    assert_eq!(server.rest(Method::PUT, path, &[("x-api-key", &key)], "theirs\n").await.status, 200);
    let merge = json!({"sources": ["workspaces/side"]});
    let without = post(&server, &key, "/workspaces/main/merge", merge).await;
    assert_eq!(without["merge"]["how"], "MERGE_HOW_ALREADY", "{without}");
    let merged =
        post(&server, &key, "/workspaces/main/merge", json!({"sources": ["workspaces/side"], "capture": true})).await;
    assert_eq!(merged["merge"]["conflicts"].as_array().unwrap().len(), 1, "{merged}");
    let listed = call(&server, &key, Method::GET, "/workspaces/main/conflicts?state.revision=main", Value::Null).await;
    assert_eq!(listed["conflicts"].as_array().unwrap().len(), 1, "{listed}");
    let resolve = json!({"paths": ["a.txt"], "version": "theirs"});
    let resolved = post(&server, &key, "/workspaces/main/conflicts/resolve", resolve).await;
    assert_eq!((resolved["resolved"].as_array().unwrap().len(), &resolved["left"]), (1, &0.into()), "{resolved}");
    assert_eq!(read(&server, &key, "main").await, "theirs\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_creations_of_one_workspace_make_one() {
    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (channel, key) = (server.channel().await, key.clone());
        calls.spawn(async move {
            let mut workspaces = amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient::new(channel);
            let mut request = tonic::Request::new(amalgam_proto::v1::CreateWorkspaceRequest {
                workspace_id: "one".to_owned(),
                ..Default::default()
            });
            request.metadata_mut().insert("x-api-key", key.parse().unwrap());
            workspaces.create_workspace(request).await.map(drop).map_err(|status| status.code())
        });
    }
    let results = calls.join_all().await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    assert!(results.iter().all(|result| matches!(result, Ok(()) | Err(tonic::Code::AlreadyExists))), "{results:?}");
    server.stop().await;
}
