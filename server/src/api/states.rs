//! The gRPC methods of `StateService`: state values.

use amalgam_proto::v1;
use amalgam_proto::v1::file_edit::Edit;
use amalgam_proto::v1::state_service_server::StateService;
use tonic::{Request, Response, Status};

use super::{Api, actor, page_size};
use crate::error::Result;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl StateService for Api {
    async fn get_state(&self, request: Request<v1::GetStateRequest>) -> Answer<v1::GetStateResponse> {
        let request = request.into_inner();
        self.short(move |service| {
            let value = service.files.state(&request.workspace, &request.revision, &request.key)?;
            Ok(v1::GetStateResponse { value: Some(value) })
        })
        .await
    }

    async fn list_states(&self, request: Request<v1::ListStatesRequest>) -> Answer<v1::ListStatesResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| service.files.states(&request, page_size(request.page_size)?)).await
    }

    async fn set_state(&self, request: Request<v1::SetStateRequest>) -> Answer<v1::SetStateResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            service.context.once(&actor, &request, || {
                let v1::SetStateRequest { workspace, key, json, if_match, if_absent, .. } = request.clone();
                let edit = v1::StateEdit { key, json: Some(json), if_match, if_absent, allow_missing: false };
                let value = service.files.state_message(&edit.key, edit.json.as_deref().unwrap_or_default());
                service.files.edit(&workspace, &[v1::FileEdit { edit: Some(Edit::SetState(edit)) }])?;
                Ok(v1::SetStateResponse { value: Some(value) })
            })
        })
        .await
    }

    async fn delete_state(&self, request: Request<v1::DeleteStateRequest>) -> Answer<v1::DeleteStateResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            service.context.once(&actor, &request, || {
                let v1::DeleteStateRequest { workspace, key, if_match, allow_missing, .. } = request.clone();
                let edit = v1::StateEdit { key, json: None, if_match, if_absent: false, allow_missing };
                service.files.edit(&workspace, &[v1::FileEdit { edit: Some(Edit::SetState(edit)) }])?;
                Ok(v1::DeleteStateResponse {})
            })
        })
        .await
    }
}
