//! Ids of requests: in every error, and as the answer to what became of a call.

use http::Method;
use serde_json::json;

use crate::running::Running;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refusal_has_a_request_id_that_the_audit_log_has_too() {
    let mut server = Running::start().await;
    let key = server.key("read", &[], false).await;
    let auth = [("x-api-key", key.as_str())];
    let mut ids = Vec::new();
    for (method, path, body, status) in [
        (Method::POST, "/api/v1/workspaces", "{", 400),
        (Method::GET, "/api/v1/nothing", "", 404),
        (Method::GET, "/nothing", "", 404),
        (Method::PATCH, "/api/v1/projects", "", 405),
        (Method::GET, "/api/v1/workspaces/%ff", "", 400),
        (Method::GET, "/api/v1/workspaces/main/files/a?mode=x", "", 400),
        (Method::PATCH, "/api/v1/workspaces/main/files/a", "", 405),
        (Method::POST, "/api/v1/workspaces", r#"{"workspaceId": "x"}"#, 403),
    ] {
        let refused = server.rest(method, path, &auth, body).await;
        assert_eq!(refused.status, status, "{path}: {:?}", refused.bytes);
        let id = refused.json()["error"]["requestId"].as_str().unwrap().to_owned();
        assert!(id.starts_with("req-"), "{path}: {id}");
        assert_eq!(refused.headers["x-request-id"].to_str().unwrap(), id, "{path}");
        assert_eq!(refused.headers.contains_key("allow"), status == 405, "{path}");
        ids.push(id);
    }
    let own = [auth[0], ("x-request-id", "mine-7")];
    let refused = server.rest(Method::GET, "/api/v1/nothing", &own, "").await;
    assert_eq!(refused.json()["error"]["requestId"], "mine-7");
    ids.push("mine-7".to_owned());
    for path in ["/api/v1/nothing", "/nothing"] {
        assert_eq!(server.rest(Method::GET, path, &[], "").await.status, 401, "{path}");
    }
    assert!(server.rest(Method::GET, "/health", &[], "").await.headers.contains_key("x-request-id"));
    server.stop().await;
    let audit = std::fs::read_to_string(server.home.path().join("audit.log")).unwrap();
    for id in ids {
        assert!(audit.lines().any(|line| line.contains(&id) && line.contains("\"agent\":\"ann\"")), "{id}: {audit}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_requests_count_for_the_rate_limit() {
    let few = amalgam_gateway::RatePreset { other: 3.try_into().unwrap(), ..amalgam_gateway::RatePreset::DEFAULT };
    let mut server = Running::with_rates(few).await;
    let key = server.key("read", &[], false).await;
    for expected in [400, 400, 400, 429] {
        let answer = server.rest(Method::POST, "/api/v1/workspaces", &[("x-api-key", &key)], "{").await;
        assert_eq!(answer.status, expected, "{:?}", answer.bytes);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_learns_what_became_of_its_request() {
    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    let headers = [("x-api-key", key.as_str()), ("idempotency-key", "once")];
    let body = json!({"workspaceId": "main"}).to_string();
    assert_eq!(server.rest(Method::POST, "/api/v1/workspaces", &headers, body).await.status, 200);
    let state = async |path: &str, key: &str| {
        let answer = server.rest(Method::GET, path, &[("x-api-key", key)], "").await;
        assert_eq!(answer.status, 200, "{path}: {:?}", answer.bytes);
        answer.json()
    };
    let done = state("/api/v1/requests/once", &key).await;
    assert_eq!((&done["state"], &done["method"]), (&"REQUEST_STATE_DONE".into(), &"CreateWorkspace".into()));
    assert_eq!(done["operation"]["action"], "create");
    assert_eq!(state("/api/v1/requests/once?method=CreateWorkspace", &key).await["state"], "REQUEST_STATE_DONE");
    for path in ["/api/v1/requests/never", "/api/v1/requests/once?method=CommitEdits"] {
        assert_eq!(state(path, &key).await["state"], "REQUEST_STATE_NOT_DONE", "{path}");
    }
    let bob = amalgam_gateway::NewKey {
        agent: "bob".to_owned(),
        scopes: "read".parse().unwrap(),
        projects: Vec::new(),
        expires: None,
    };
    let other = server.catalog.create_key(&bob, crate::running::now()).await.unwrap().0.reveal();
    assert_eq!(state("/api/v1/requests/once", &other).await["state"], "REQUEST_STATE_NOT_DONE", "it is ann's");
    let unknown = server.rest(Method::GET, "/api/v1/requests/once?method=GetWorkspace", &headers[..1], "").await;
    assert_eq!(unknown.status, 400);
    server.stop().await;
}

/// Calls that change something and take no id, with the reason.
const WITHOUT_REQUEST_ID: &[(&str, &str)] = &[
    ("KeyService/", "the text of a key is shown once, and not kept for a retry"),
    ("ProjectService/", "a project has a name: a retry is refused, or changes nothing"),
    ("WebhookService/", "the secret of a webhook is shown once, and not kept for a retry"),
    ("SandboxService/", "commands are found by their ids, sandboxes by their names"),
    ("EventService/Subscribe", "it reads"),
    ("SystemService/CollectGarbage", "a second one finds nothing to remove"),
    ("StoreService/StopServer", "a process ends once"),
];

#[test]
fn every_call_that_changes_something_takes_a_request_id() {
    let pool = prost_reflect::DescriptorPool::decode(amalgam_proto::FILE_DESCRIPTOR_SET).unwrap();
    let mut missing = Vec::new();
    for method in amalgam_gateway::METHODS {
        let (service, call) = method.name.split_once('/').unwrap();
        let Some(service) = pool.get_service_by_name(service) else { continue };
        let asked = service.methods().find(|one| one.name() == call).unwrap().input();
        // The first message of a stream has it inside.
        let inner = asked.fields().filter_map(|field| field.kind().as_message().cloned());
        let takes_id = std::iter::once(asked.clone())
            .chain(inner.filter(|_| asked.oneofs().len() == 1))
            .any(|message| message.get_field_by_name("request_id").is_some());
        let reads = ["Get", "List", "Read", "Stat", "Glob", "Grep", "Watch", "Find", "Search", "Diff", "Inspect"];
        let also = ["Blame", "Compare", "Export", "Measure", "Plan", "Detect", "Check", "Explain", "Next", "Send"];
        let is_read = reads.iter().chain(&also).any(|word| call.starts_with(word));
        let name = method.name.strip_prefix("amalgam.v1.").unwrap_or_default();
        let is_known = WITHOUT_REQUEST_ID.iter().any(|(known, _)| name.starts_with(known));
        if !takes_id && !is_read && !is_known {
            missing.push(name);
        }
    }
    assert!(missing.is_empty(), "no request id: {missing:?}");
}
