//! The REST API as a client sees it.

use http::Method;
use serde_json::json;

use crate::running::Running;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workspaces_are_made_read_forked_and_deleted() {
    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    let auth = [("authorization", format!("Bearer {key}"))];
    let auth: Vec<_> = auth.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let made =
        server.rest(Method::POST, "/api/v1/workspaces", &auth, json!({"workspaceId": "agents/ann"}).to_string()).await;
    assert_eq!(made.status, 200, "{:?}", made.bytes);
    let etag = made.headers["etag"].to_str().unwrap().to_owned();
    let found = server.rest(Method::GET, "/api/v1/workspaces/agents%2Fann", &auth, "").await;
    assert_eq!((found.status.as_u16(), found.headers["etag"].to_str().unwrap()), (200, etag.as_str()));
    assert_eq!(found.json()["workspace"]["name"], "workspaces/agents/ann");
    let forks = json!({"workspaceIds": ["a", "b"]}).to_string();
    let forked = server.rest(Method::POST, "/api/v1/workspaces/agents%2Fann/fork", &auth, forks).await;
    assert_eq!(forked.json()["workspaces"].as_array().unwrap().len(), 2, "{:?}", forked.bytes);
    let stale = [auth.as_slice(), &[("if-match", "\"999\"")]].concat();
    let refused = server.rest(Method::DELETE, "/api/v1/workspaces/a", &stale, "").await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["name"]), (412, &"MOVED".into()));
    let deleted = server.rest(Method::DELETE, "/api/v1/workspaces/a", &auth, "").await;
    assert_eq!(deleted.status, 200, "{:?}", deleted.bytes);
    let gone = server.rest(Method::GET, "/api/v1/projects/default/workspaces/a", &auth, "").await;
    assert_eq!((gone.status.as_u16(), gone.json()["error"]["code"].as_u64()), (404, Some(3000)));
    let id = gone.headers["x-request-id"].to_str().unwrap().to_owned();
    assert_eq!(gone.json()["error"]["requestId"], id.as_str());
    server.stop().await;
    let audit = std::fs::read_to_string(server.home.path().join("audit.log")).unwrap();
    assert!(audit.contains(&id) && !audit.contains(key.rsplit_once('_').unwrap().1), "{audit}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idempotency_key_makes_a_retry_harmless() {
    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    let headers = [("x-api-key", key.as_str()), ("idempotency-key", "once")];
    let body = json!({"workspaceId": "main"}).to_string();
    for _ in 0..2 {
        let made = server.rest(Method::POST, "/api/v1/workspaces", &headers, body.clone()).await;
        assert_eq!(made.status, 200, "{:?}", made.bytes);
    }
    let other =
        server.rest(Method::POST, "/api/v1/workspaces", &headers, json!({"workspaceId": "b"}).to_string()).await;
    assert_eq!((other.status.as_u16(), &other.json()["error"]["name"]), (409, &"REQUEST_ID_REUSED".into()));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_requests_are_refused_and_say_why() {
    let mut server = Running::start().await;
    let key = server.key("admin", &[], false).await;
    let auth = [("x-api-key", key.as_str())];
    let deep = "[".repeat(100_000);
    for (method, path, body, status) in [
        (Method::POST, "/api/v1/workspaces", "{", 400),
        (Method::POST, "/api/v1/workspaces", "[]", 400),
        (Method::POST, "/api/v1/workspaces", r#"{"nothing": 1}"#, 400),
        (Method::POST, "/api/v1/workspaces", r#"{"workspaceId": 1}"#, 400),
        (Method::POST, "/api/v1/workspaces", r#"{"workspaceId": "../x"}"#, 400),
        (Method::POST, "/api/v1/workspaces", deep.as_str(), 400),
        (Method::GET, "/api/v1/workspaces?pageSize=x", "", 400),
        (Method::GET, "/api/v1/workspaces?nothing=1", "", 400),
        (Method::GET, "/api/v1/workspaces", "{}", 400),
        (Method::GET, "/api/v1/workspaces/%ff", "", 400),
        (Method::GET, "/api/v1/nothing", "", 404),
        (Method::GET, "/api/v1/projects/..%2F..%2Fetc/workspaces", "", 400),
        (Method::GET, "/etc/passwd", "", 404),
        (Method::PATCH, "/api/v1/projects", "", 405),
    ] {
        let answer = server.rest(method.clone(), path, &auth, body.to_owned()).await;
        let shown = &body[..body.len().min(40)];
        assert_eq!(answer.status.as_u16(), status, "{method} {path} {shown}: {:?}", answer.bytes);
        assert!(answer.json()["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{path}");
    }
    // A caller without a key does not learn what is wrong with its body.
    let unknown = server.rest(Method::POST, "/api/v1/workspaces", &[], "{").await;
    assert_eq!(unknown.status, 401);
    let id = unknown.json()["error"]["requestId"].as_str().unwrap().to_owned();
    assert!(id.starts_with("req-"), "{id}");
    let large = server.rest(Method::POST, "/api/v1/workspaces", &auth, vec![b' '; 17 << 20]).await;
    assert_eq!(large.status, 413);
    server.stop().await;
    let audit = std::fs::read_to_string(server.home.path().join("audit.log")).unwrap();
    let failed = audit.lines().find(|line| line.contains(&id)).expect("a failed authentication is recorded");
    assert!(failed.contains("authentication.failed"), "{failed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_a_list_of_json_lines() {
    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    let auth = [("x-api-key", key.as_str())];
    server.rest(Method::POST, "/api/v1/workspaces", &auth, json!({"workspaceId": "main"}).to_string()).await;
    let failed = server.rest(Method::GET, "/api/v1/diff?before.revision=nothing&after.empty=true", &auth, "").await;
    assert_eq!(failed.status, 404, "{:?}", failed.bytes);
    let empty = server.rest(Method::GET, "/api/v1/diff?before.empty=true&after.empty=true", &auth, "").await;
    assert_eq!(
        (empty.status.as_u16(), &empty.headers["content-type"]),
        (200, &"application/x-ndjson".parse().unwrap())
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_needs_no_key_and_metrics_do() {
    let mut server = Running::start().await;
    let key = server.key("read", &[], false).await;
    for path in ["/health", "/ready", "/api/v1/openapi.json"] {
        assert_eq!(server.rest(Method::GET, path, &[], "").await.status, 200, "{path}");
    }
    for path in ["/metrics", "/version"] {
        assert_eq!(server.rest(Method::GET, path, &[], "").await.status, 401, "{path}");
        assert_eq!(server.rest(Method::GET, path, &[("x-api-key", &key)], "").await.status, 200, "{path}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_creations_of_one_project_make_one() {
    let mut server = Running::start().await;
    let key = server.key("admin", &[], false).await;
    let auth = [("x-api-key", key.as_str())];
    let calls =
        (0..100).map(|_| server.rest(Method::POST, "/api/v1/projects", &auth, json!({"projectId": "one"}).to_string()));
    let mut made = 0;
    let answers = futures_of(calls).await;
    for answer in answers {
        match answer.status.as_u16() {
            200 => made += 1,
            409 => assert_eq!(answer.json()["error"]["name"], "ALREADY_EXISTS"),
            other => panic!("{other}: {:?}", answer.bytes),
        }
    }
    assert_eq!(made, 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_project_that_cannot_be_opened_does_not_keep_others_from_being_collected() {
    let mut server = Running::start().await;
    let key = server.key("admin", &[], false).await;
    let broken = amalgam_gateway::ProjectName::new("broken").unwrap();
    server.catalog.create_project(&broken, crate::running::now()).await.unwrap();
    std::fs::write(server.home.path().join("projects/broken"), "no directory").unwrap();
    let body = json!({"stores": true}).to_string();
    let done = server.rest(Method::POST, "/api/v1/gc", &[("x-api-key", &key)], body).await;
    assert_eq!(done.status, 200, "{:?}", done.bytes);
    assert_eq!(done.json()["collectedProjects"], 1, "{:?}", done.bytes);
    server.stop().await;
}

/// Runs futures together, and returns all results.
async fn futures_of<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.map(|future| Some(Box::pin(future))).collect();
    let mut results: Vec<_> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, result) in running.iter_mut().zip(&mut results) {
            if let Some(running) = future
                && let std::task::Poll::Ready(done) = running.as_mut().poll(cx)
            {
                *result = Some(done);
                *future = None;
            }
        }
        if running.iter().all(Option::is_none) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}
