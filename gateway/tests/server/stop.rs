//! Stopping, deadlines, and projects that are deleted.

use std::time::{Duration, Instant};

use http::Method;
use http_body_util::BodyExt as _;
use serde_json::json;
use tonic::{Code, Status};
use tower::{Service as _, ServiceExt as _};

use crate::running::{Running, empty_call};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_subscriptions_and_leaves_what_was_acknowledged() {
    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    let auth = [("x-api-key", key.as_str())];
    server.rest(Method::POST, "/api/v1/workspaces", &auth, json!({"workspaceId": "main"}).to_string()).await;
    let channel = server.channel().await;
    let request = empty_call("amalgam.v1.OperationService/WatchOperations", &auth);
    let response = channel.clone().ready().await.unwrap().call(request).await.unwrap();
    let reading = tokio::spawn(response.into_body().collect());
    let began = Instant::now();
    server.ask_to_stop();
    let body = tokio::time::timeout(Duration::from_secs(20), reading).await.expect("the stream ends").unwrap();
    assert!(body.is_ok(), "it ends with a status: {:?}", body.err());
    server.stop().await;
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let home = amalgam_server::Home::new(server.home.path().join("projects/default"));
    let open = || amalgam_server::Service::open(&home, crate::running::now, &[]);
    // A thread that follows the log ends within a second.
    let service = loop {
        match open() {
            Err(error)
                if error.reason() == amalgam_proto::Reason::Busy && began.elapsed() < Duration::from_secs(30) =>
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            opened => break opened.expect("the store is free"),
        }
    };
    assert_eq!(service.usage().unwrap().workspaces, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_a_stream() {
    let mut server = Running::start().await;
    let key = server.key("read", &[], false).await;
    let headers = [("x-api-key", key.as_str()), ("grpc-timeout", "200m")];
    let request = empty_call("amalgam.v1.OperationService/WatchOperations", &headers);
    let response = server.channel().await.ready().await.unwrap().call(request).await.unwrap();
    let body =
        tokio::time::timeout(Duration::from_secs(20), response.into_body().collect()).await.expect("in time").unwrap();
    let status = Status::from_header_map(body.trailers().expect("trailers")).expect("a status");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_project_is_refused_and_comes_back() {
    let mut server = Running::start().await;
    let key = server.key("admin", &[], false).await;
    let auth = [("x-api-key", key.as_str())];
    let made = server.rest(Method::POST, "/api/v1/projects", &auth, json!({"projectId": "one"}).to_string()).await;
    assert_eq!(made.status, 200, "{:?}", made.bytes);
    let path = "/api/v1/projects/one/workspaces";
    server.rest(Method::POST, path, &auth, json!({"workspaceId": "main"}).to_string()).await;
    assert_eq!(server.rest(Method::DELETE, "/api/v1/projects/one", &auth, "").await.status, 200);
    assert_eq!(server.rest(Method::GET, path, &auth, "").await.status, 404);
    assert_eq!(server.rest(Method::POST, "/api/v1/projects/one/undelete", &auth, "").await.status, 200);
    let found = server.rest(Method::GET, path, &auth, "").await;
    assert_eq!(found.json()["workspaces"].as_array().unwrap().len(), 1, "{:?}", found.bytes);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_among_a_thousand_calls_answers_or_refuses_each_and_keeps_what_was_acknowledged() {
    use amalgam_proto::v1::CreateWorkspaceRequest;
    use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;

    let mut server = Running::start().await;
    let key = server.key("write", &[], false).await;
    let mut channels = Vec::new();
    for _ in 0..10 {
        channels.push(server.channel().await);
    }
    let (answered, mut first_answer) = tokio::sync::watch::channel(0_u32);
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..1_000 {
        let (channel, key, answered) = (channels[number % channels.len()].clone(), key.clone(), answered.clone());
        calls.spawn(async move {
            let name = format!("w-{number}");
            let mut request =
                tonic::Request::new(CreateWorkspaceRequest { workspace_id: name.clone(), ..Default::default() });
            request.metadata_mut().insert("x-api-key", key.parse().unwrap());
            let result = WorkspaceServiceClient::new(channel).create_workspace(request).await;
            answered.send_modify(|count| *count += 1);
            (name, result.map(drop))
        });
    }
    first_answer.wait_for(|count| *count > 0).await.unwrap();
    server.ask_to_stop();
    let results = tokio::time::timeout(Duration::from_secs(40), calls.join_all()).await.expect("each call ends");
    for (name, result) in &results {
        let is_clean = match result {
            Ok(()) => true,
            // Refused by the server, or not sent on a connection that it closed.
            Err(status) => status.code() == Code::Unavailable || std::error::Error::source(status).is_some(),
        };
        assert!(is_clean, "{name}: {result:?}");
    }
    server.stop().await;
    let server = server.restart(crate::running::Setup::default()).await;
    let mut workspaces = WorkspaceServiceClient::new(server.channel().await);
    for (name, _) in results.iter().filter(|(_, result)| result.is_ok()) {
        let name = format!("workspaces/{name}");
        let mut request = tonic::Request::new(amalgam_proto::v1::GetWorkspaceRequest { name: name.clone() });
        request.metadata_mut().insert("x-api-key", key.parse().unwrap());
        workspaces.get_workspace(request).await.unwrap_or_else(|status| panic!("{name} was acknowledged: {status}"));
    }
    let mut server = server;
    server.stop().await;
}
