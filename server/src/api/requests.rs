//! The gRPC methods of `RequestService`: the state and the result of requests that carry an id.

use amalgam_proto::v1::request_service_server::RequestService;
use amalgam_proto::{IDENTIFIED_METHODS, Reason, v1};
use tonic::{Request, Response, Status};

use super::{Api, actor};
use crate::error::{Error, Result};
use crate::messages::operation_message;
use crate::service::Service;

#[tonic::async_trait]
impl RequestService for Api {
    async fn get_request(
        &self,
        request: Request<v1::GetRequestRequest>,
    ) -> Result<Response<v1::GetRequestResponse>, Status> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.short(move |service| get(service, &caller, &request)).await
    }
}

fn get(service: &Service, caller: &str, request: &v1::GetRequestRequest) -> Result<v1::GetRequestResponse> {
    let id = request.request_id.as_str();
    if id.is_empty() {
        return Err(Error::new(Reason::Invalid, "request_id: name the request"));
    }
    let is_asked = |method: &&&str| request.method.is_empty() || request.method == **method;
    let methods: Vec<_> = IDENTIFIED_METHODS.iter().filter(is_asked).copied().collect();
    if methods.is_empty() {
        let message = format!("method: `{}` takes no request id, or does not exist", request.method.escape_debug());
        return Err(Error::new(Reason::Invalid, message));
    }
    // Before the log is read: a request that ends in between is then found in the log.
    let running = methods.iter().copied().find(|method| service.context.requests.is_running(caller, method, id));
    let mut newest = None;
    for method in methods.iter().copied() {
        if let Some(done) = service.context.find_done(caller, method, id)? {
            newest = newest
                .filter(|(_, other): &(_, amalgam_engine::reference::Operation)| other.sequence > done.sequence)
                .or(Some((method, done)));
        }
    }
    let done_without_operation =
        || methods.iter().copied().find(|method| service.context.results.is_done(caller, method, id));
    Ok(match (newest, running) {
        (Some((method, done)), _) => v1::GetRequestResponse {
            state: v1::RequestState::Done.into(),
            method: method.to_owned(),
            operation: Some(operation_message(&done)),
        },
        (None, Some(method)) => v1::GetRequestResponse {
            state: v1::RequestState::Running.into(),
            method: method.to_owned(),
            operation: None,
        },
        (None, None) => match done_without_operation() {
            Some(method) => v1::GetRequestResponse {
                state: v1::RequestState::Done.into(),
                method: method.to_owned(),
                operation: None,
            },
            None => v1::GetRequestResponse { state: v1::RequestState::NotDone.into(), ..Default::default() },
        },
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use amalgam_engine::Time;
    use amalgam_proto::v1::request_service_client::RequestServiceClient;
    use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;
    use tower::Layer as _;

    use super::*;
    use crate::api::Origin;
    use crate::call_log::CallLogLayer;
    use crate::calls::{Calls, Kind};
    use crate::home::Home;
    use crate::serve::routes;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_request_that_waits_for_its_turn_is_running_then_done() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let calls = Calls::new();
        let api = Api::new(service, Arc::clone(&calls), Origin::Network);
        let layered = CallLogLayer(Origin::Network).layer(routes(api).prepare());
        let mut workspaces = WorkspaceServiceClient::new(layered.clone());
        let create = v1::CreateWorkspaceRequest { workspace_id: "main".to_owned(), ..Default::default() };
        workspaces.create_workspace(create).await.expect("created");
        let mut requests = RequestServiceClient::new(layered);
        let mut state = async || {
            let asked = v1::GetRequestRequest { request_id: "once".to_owned(), ..Default::default() };
            requests.get_request(asked).await.expect("answered").into_inner()
        };
        assert_eq!(state().await.state(), v1::RequestState::NotDone);
        let mut turns = Vec::new();
        while let Ok(turn) = tokio::time::timeout(std::time::Duration::ZERO, calls.permit(Kind::Work)).await {
            turns.push(turn);
        }
        let fork = v1::ForkWorkspaceRequest {
            name: "workspaces/main".to_owned(),
            // Enough forks that the call needs a permit.
            workspace_ids: (0..100).map(|number| format!("try-{number}")).collect(),
            request_id: "once".to_owned(),
            ..Default::default()
        };
        let forking = tokio::spawn(async move { workspaces.fork_workspace(fork).await });
        let running = loop {
            let found = state().await;
            if found.state() != v1::RequestState::NotDone {
                break found;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!((running.state(), running.method.as_str()), (v1::RequestState::Running, "ForkWorkspace"));
        drop(turns);
        forking.await.expect("no panic").expect("forked");
        let done = state().await;
        assert_eq!(done.state(), v1::RequestState::Done);
        assert_eq!(done.operation.map(|operation| operation.action).as_deref(), Some("fork"));
    }
}
