//! Lists in pages, etags of workspaces, and where the files of a workspace are.

use http::Method;
use serde_json::{Value, json};

use crate::running::Running;

async fn call(server: &Running, key: &str, method: Method, path: &str, body: Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = server.rest(method, &format!("/api/v1{path}"), &[("x-api-key", key)], body).await;
    assert_eq!(answer.status, 200, "{path}: {:?}", answer.bytes);
    answer.json()
}

/// All items of a list, read in pages of a size.
async fn all(server: &Running, key: &str, path: &str, field: &str, size: usize) -> Vec<Value> {
    let (mut found, mut token) = (Vec::new(), String::new());
    loop {
        let page =
            call(server, key, Method::GET, &format!("{path}?pageSize={size}&pageToken={token}"), Value::Null).await;
        let items = page[field].as_array().unwrap().clone();
        assert!(items.len() <= size, "{page}");
        found.extend(items);
        let next = page["nextPageToken"].as_str().unwrap();
        if next.is_empty() {
            return found;
        }
        token = percent_encoding::utf8_percent_encode(next, percent_encoding::NON_ALPHANUMERIC).to_string();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reviews_and_the_sizes_of_workspaces_come_in_pages() {
    let mut server = Running::start().await;
    let key = server.key("merge", &[], false).await;
    let write = |text: &str| json!({"edits": [{"write": {"path": "a.txt", "text": text}}]});
    call(&server, &key, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
    call(&server, &key, Method::POST, "/workspaces/main/commit-edits", write("base\n")).await;
    let sides = ["a", "b", "c", "d", "e"];
    call(&server, &key, Method::POST, "/workspaces/main/fork", json!({"workspaceIds": sides})).await;
    call(&server, &key, Method::POST, "/workspaces/main/commit-edits", write("ours\n")).await;
    for side in sides {
        let edits = write(&format!("theirs {side}\n"));
        call(&server, &key, Method::POST, &format!("/workspaces/{side}/commit-edits"), edits).await;
        let published = call(&server, &key, Method::POST, &format!("/workspaces/{side}/publish"), json!({})).await;
        assert_eq!(published["merge"]["how"], "MERGE_HOW_REVIEW", "{published}");
    }
    for size in [1, 2, 5, 100] {
        let reviews = all(&server, &key, "/reviews", "reviews", size).await;
        let sources: Vec<_> = reviews.iter().map(|review| review["entry"]["workspace"].as_str().unwrap()).collect();
        assert_eq!(sources, sides.map(|side| format!("workspaces/{side}")), "pages of {size}");
        let sizes = all(&server, &key, "/store", "workspaces", size).await;
        let names: Vec<_> = sizes.iter().map(|one| one["workspace"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "b", "c", "d", "e", "main"].map(|name| format!("workspaces/{name}")));
        assert!(all(&server, &key, "/queue", "entries", size).await.is_empty());
    }
    for path in ["/queue?pageToken=nothing", "/reviews?pageToken=queue%2Fmain%3Ax", "/store?pageToken=..%2F"] {
        let refused = server.rest(Method::GET, &format!("/api/v1{path}"), &[("x-api-key", &key)], "").await;
        assert_eq!(refused.status, 400, "{path}: {:?}", refused.bytes);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_list_takes_a_negative_page_size() {
    let mut server = Running::start().await;
    let key = server.key("admin", &[], false).await;
    call(&server, &key, Method::POST, "/workspaces", json!({"workspaceId": "x"})).await;
    let edits = json!({"edits": [{"write": {"path": "a", "text": "one"}}]});
    call(&server, &key, Method::POST, "/workspaces/x/commit-edits", edits).await;
    call(&server, &key, Method::POST, "/episodes", json!({"episodeId": "x"})).await;
    let made = call(&server, &key, Method::POST, "/webhooks", json!({"url": "https://example.com/"})).await;
    let hook = made["webhook"]["name"].as_str().unwrap().replace("webhooks/", "");
    let document = amalgam_gateway::openapi();
    let mut lists = 0;
    for (path, verbs) in document["paths"].as_object().unwrap() {
        let parameters = verbs["get"]["parameters"].as_array().into_iter().flatten();
        if !parameters.into_iter().any(|parameter| parameter["name"] == "pageSize") {
            continue;
        }
        lists += 1;
        let path = match path.contains("webhook") {
            true => path.replace("{name}", &hook),
            false => {
                path.split('/').map(|word| if word.starts_with('{') { "x" } else { word }).collect::<Vec<_>>().join("/")
            }
        };
        let path = if path.starts_with("/api/") { path } else { format!("/api/v1{path}") };
        let refused = server.rest(Method::GET, &format!("{path}?pageSize=-1"), &[("x-api-key", &key)], "").await;
        assert_eq!(refused.status, 400, "{path}: {:?}", refused.bytes);
    }
    assert!(lists >= 10, "{lists} lists with pages");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_a_workspace_are_refused_with_an_etag_of_the_past() {
    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    let write = |text: &str| json!({"edits": [{"write": {"path": "a.txt", "text": text}}]});
    call(&server, &key, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
    call(&server, &key, Method::POST, "/workspaces/main/commit-edits", write("one")).await;
    let before = call(&server, &key, Method::GET, "/workspaces/main", Value::Null).await;
    let old = before["workspace"]["etag"].as_str().unwrap().to_owned();
    call(&server, &key, Method::POST, "/workspaces/main/commit-edits", write("two")).await;
    let changes = [
        (Method::POST, "/workspaces/main/restore", json!({"revision": "@~"})),
        (Method::PATCH, "/workspaces/main", json!({"project": "p"})),
        (Method::POST, "/workspaces/main/rename", json!({"newWorkspaceId": "trunk"})),
    ];
    for (method, path, body) in changes {
        let path = format!("/api/v1{path}");
        let stale = [("x-api-key", key.as_str()), ("if-match", old.as_str())];
        let refused = server.rest(method.clone(), &path, &stale, body.to_string()).await;
        assert_eq!((refused.status.as_u16(), &refused.json()["error"]["name"]), (412, &"MOVED".into()), "{path}");
        let now = call(&server, &key, Method::GET, "/workspaces/main", Value::Null).await;
        let now = now["workspace"]["etag"].as_str().unwrap().to_owned();
        let fresh = [("x-api-key", key.as_str()), ("if-match", now.as_str()), ("idempotency-key", "once")];
        for _ in 0..2 {
            let done = server.rest(method.clone(), &path, &fresh, body.to_string()).await;
            assert_eq!(done.status, 200, "a retry is not stale: {path}: {:?}", done.bytes);
        }
    }
    call(&server, &key, Method::GET, "/workspaces/trunk", Value::Null).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_that_is_not_exported_has_no_path_over_the_network() {
    let mut server = Running::start().await;
    let (key, reader) = (server.key("write", &[], false).await, server.key("read", &[], false).await);
    call(&server, &key, Method::POST, "/workspaces", json!({"workspaceId": "main"})).await;
    let path = "/api/v1/workspaces/main/path";
    let none = server.rest(Method::GET, path, &[("x-api-key", &key)], "").await;
    assert_eq!((none.status.as_u16(), &none.json()["error"]["name"]), (404, &"NOT_FOUND".into()));
    assert!(none.json()["error"]["message"].as_str().unwrap().contains("amalgam export nfs"), "{:?}", none.bytes);
    assert_eq!(server.rest(Method::GET, path, &[("x-api-key", &reader)], "").await.status, 403);
    let missing = server.rest(Method::GET, "/api/v1/workspaces/nothing/path", &[("x-api-key", &key)], "").await;
    assert_eq!(missing.status, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_webhooks_come_in_pages() {
    let mut server = Running::start().await;
    let key = server.key("admin", &[], false).await;
    for number in 0..4 {
        let body = json!({"agent": format!("agent-{number}"), "scopes": ["read"]});
        call(&server, &key, Method::POST, "/keys", body).await;
        let hook = json!({"url": format!("https://example.com/{number}")});
        call(&server, &key, Method::POST, "/webhooks", hook).await;
    }
    for size in [1, 2, 5, 100] {
        let keys = all(&server, &key, "/keys", "keys", size).await;
        let agents: Vec<_> = keys.iter().map(|key| key["agent"].as_str().unwrap()).collect();
        assert_eq!(agents, ["ann", "agent-0", "agent-1", "agent-2", "agent-3"], "pages of {size}");
        let hooks = all(&server, &key, "/webhooks", "webhooks", size).await;
        let urls: Vec<_> = hooks.iter().map(|hook| hook["url"].as_str().unwrap().rsplit('/').next().unwrap()).collect();
        assert_eq!(urls, ["0", "1", "2", "3"], "pages of {size}");
    }
    // A page goes on behind a webhook that was deleted meanwhile.
    let page = call(&server, &key, Method::GET, "/webhooks?pageSize=2", Value::Null).await;
    let token = page["nextPageToken"].as_str().unwrap();
    let last = page["webhooks"][1]["name"].as_str().unwrap();
    call(&server, &key, Method::DELETE, &format!("/{last}"), Value::Null).await;
    let rest = call(&server, &key, Method::GET, &format!("/webhooks?pageToken={token}"), Value::Null).await;
    assert_eq!(rest["webhooks"].as_array().unwrap().len(), 2, "{rest}");
    let others = call(&server, &key, Method::GET, "/webhooks?project=nothing", Value::Null).await;
    assert_eq!(others["webhooks"], json!([]));
    for path in ["/keys?pageToken=nothing", "/webhooks?pageToken=1.%2F"] {
        let refused = server.rest(Method::GET, &format!("/api/v1{path}"), &[("x-api-key", &key)], "").await;
        assert_eq!(refused.status, 400, "{path}: {:?}", refused.bytes);
    }
    server.stop().await;
}
