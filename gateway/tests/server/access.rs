//! Who may call what: every method of the API with every kind of key.

use std::time::Duration;

use amalgam_gateway::{Access, METHODS, Method, RatePreset, Scope};
use http_body_util::BodyExt as _;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower::{Service as _, ServiceExt as _};

use crate::running::{Running, empty_call};

/// How long a call may take before it counts as let in: streams have no end.
const LET_IN_AFTER: Duration = Duration::from_millis(300);

/// The result of a call without fields; nothing if it has none for a while.
async fn code(channel: &Channel, method: &Method, headers: &[(&str, &str)]) -> Option<Code> {
    let request = empty_call(method.name, headers);
    let mut channel = channel.clone();
    let ended = async {
        let response = channel.ready().await.unwrap().call(request).await.unwrap();
        if let Some(status) = Status::from_header_map(response.headers()) {
            return status.code();
        }
        let body = response.into_body().collect().await;
        let trailers = body.ok().and_then(|body| body.trailers().cloned());
        trailers.and_then(|trailers| Status::from_header_map(&trailers)).map_or(Code::Unknown, |status| status.code())
    };
    tokio::time::timeout(LET_IN_AFTER, ended).await.ok()
}

fn is_refused(code: Option<Code>) -> bool {
    matches!(code, Some(Code::Unauthenticated | Code::PermissionDenied))
}

fn scopes_of(method: &Method) -> &'static [Scope] {
    match method.access {
        Access::Project(scopes) | Access::InProject(scopes) | Access::Server(scopes) => scopes,
        Access::Open | Access::LocalOnly => &[],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_method_is_reached_without_a_valid_key() {
    let mut server = Running::start().await;
    let (expired, revoked) = (server.key("admin", &[], true).await, server.key("admin", &[], false).await);
    let id = amalgam_gateway::KeyText::parse(&revoked).unwrap().id().clone();
    server.catalog.revoke_key(&id, crate::running::now()).await.unwrap();
    let mut wrong = server.key("admin", &[], false).await;
    let last = if wrong.ends_with('a') { 'q' } else { 'a' };
    wrong.pop();
    wrong.push(last);
    let channel = server.channel().await;
    for method in METHODS.iter().filter(|method| method.access != Access::Open) {
        assert_eq!(code(&channel, method, &[]).await, Some(Code::Unauthenticated), "{}: no key", method.name);
        for (what, key) in [("wrong", &wrong), ("expired", &expired), ("revoked", &revoked)] {
            let found = code(&channel, method, &[("x-api-key", key)]).await;
            assert_eq!(found, Some(Code::Unauthenticated), "{}: {what} key", method.name);
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_method_needs_its_scopes_and_nothing_less() {
    let mut server = Running::start().await;
    let channel = server.channel().await;
    let mut keys = Vec::new();
    for scope in Scope::ALL {
        keys.push((scope, server.key(scope.word(), &[], false).await));
    }
    for method in METHODS {
        // It would stop background work of the store under test.
        if method.name.ends_with("/PauseCollection") {
            continue;
        }
        for (scope, key) in &keys {
            let has = scope.word().parse::<amalgam_gateway::Scopes>().unwrap();
            let may = method.access == Access::Open
                || (method.access != Access::LocalOnly && scopes_of(method).iter().all(|needed| has.has(*needed)));
            let found = code(&channel, method, &[("x-api-key", key)]).await;
            assert_eq!(is_refused(found), !may, "{} with {}: {found:?}", method.name, scope.word());
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_project_reaches_nothing() {
    let mut server = Running::start().await;
    let channel = server.channel().await;
    let other = server.key("admin", &["other"], false).await;
    for method in METHODS.iter().filter(|method| matches!(method.access, Access::Project(_) | Access::InProject(_))) {
        let found = code(&channel, method, &[("x-api-key", &other), ("amalgam-project", "default")]).await;
        assert_eq!(found, Some(Code::PermissionDenied), "{}", method.name);
    }
    // Without a header the key's only project is meant, which does not exist.
    let get = Method::find("/amalgam.v1.WorkspaceService/ListWorkspaces").unwrap();
    assert_eq!(code(&channel, get, &[("x-api-key", &other)]).await, Some(Code::NotFound));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_methods_are_unimplemented_and_bad_projects_invalid() {
    let mut server = Running::start().await;
    let channel = server.channel().await;
    let key = server.key("admin", &[], false).await;
    let get = Method::find("/amalgam.v1.WorkspaceService/ListWorkspaces").unwrap();
    for project in ["..", "A", "a/b", "a%2fb", " "] {
        let found = code(&channel, get, &[("x-api-key", &key), ("amalgam-project", project)]).await;
        assert_eq!(found, Some(Code::InvalidArgument), "{project:?}");
    }
    let unknown = Method { name: "amalgam.v1.WorkspaceService/Explode", access: Access::Open, rest: "" };
    assert_eq!(code(&channel, &unknown, &[("x-api-key", &key)]).await, Some(Code::Unimplemented));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_ends_open_streams() {
    let mut server = Running::start().await;
    let channel = server.channel().await;
    let key = server.key("read", &[], false).await;
    let request = empty_call("amalgam.v1.OperationService/WatchOperations", &[("x-api-key", &key)]);
    let response = channel.clone().ready().await.unwrap().call(request).await.unwrap();
    let reading = tokio::spawn(response.into_body().collect());
    let id = amalgam_gateway::KeyText::parse(&key).unwrap().id().clone();
    // Another process revokes it: only the catalog knows.
    server.catalog.revoke_key(&id, crate::running::now()).await.unwrap();
    let body = tokio::time::timeout(Duration::from_secs(20), reading).await.expect("the stream ends").unwrap().unwrap();
    let status = Status::from_header_map(body.trailers().expect("trailers")).expect("a status");
    assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    assert!(status.message().contains("revoked"), "{status:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_used_its_calls_is_told_when_to_try_again() {
    let few = RatePreset { other: 5.try_into().unwrap(), ..RatePreset::DEFAULT };
    let mut server = Running::with_rates(few).await;
    let key = server.key("read", &[], false).await;
    for _ in 0..5 {
        let answer = server.rest(http::Method::GET, "/api/v1/workspaces", &[("x-api-key", &key)], "").await;
        assert_eq!(answer.status, 200);
    }
    let refused = server.rest(http::Method::GET, "/api/v1/workspaces", &[("x-api-key", &key)], "").await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["name"]), (429, &"RATE_LIMITED".into()));
    let seconds: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=12).contains(&seconds), "{seconds}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_and_commands_have_rate_limits_of_their_own() {
    let one = 1.try_into().unwrap();
    let rates = RatePreset { create_sandbox: one, run_command: one, ..RatePreset::DEFAULT };
    let mut server = Running::with_rates(rates).await;
    let key = server.key("write,run", &[], false).await;
    let headers = [("x-api-key", key.as_str()), ("content-type", "application/json")];
    let post = async |path: &str| server.rest(http::Method::POST, path, &headers, "{}").await.status.as_u16();
    // This server has no sandboxes. Refused calls count, too.
    for path in ["/api/v1/sandboxes", "/api/v1/sandboxes/sbx-none/process/run"] {
        assert_ne!(post(path).await, 429, "{path}");
        assert_eq!(post(path).await, 429, "{path}");
    }
    assert_eq!(post("/api/v1/sandboxes/sbx-none/fork").await, 429, "a fork is a creation");
    assert_eq!(post("/api/v1/sandboxes/sbx-none/process/stream").await, 429, "a stream is of a command");
    let listed = server.rest(http::Method::GET, "/api/v1/workspaces", &headers, "").await;
    assert_eq!(listed.status, 200, "other calls have their own limit");
    server.stop().await;
}
