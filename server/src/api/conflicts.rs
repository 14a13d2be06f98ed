//! Conflicts, for the API.

use amalgam_proto::v1;
use amalgam_proto::v1::conflict_service_server::ConflictService;
use tonic::{Request, Response, Status};

use super::{Answers, Api, actor, page_size};
use crate::failure::Result;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ConflictService for Api {
    type ReadConflictStream = Answers<v1::ReadConflictResponse>;

    async fn list_conflicts(&self, request: Request<v1::ListConflictsRequest>) -> Answer<v1::ListConflictsResponse> {
        let request = request.into_inner();
        self.check_state(request.state.as_ref())?;
        self.short(move |service| service.list_conflicts(&request, page_size(request.page_size))).await
    }

    async fn read_conflict(&self, request: Request<v1::ReadConflictRequest>) -> Answer<Self::ReadConflictStream> {
        let request = request.into_inner();
        self.check_state(request.state.as_ref())?;
        Ok(self.stream(move |service, sender| service.read_conflict(&request, |part| sender.send(part))))
    }

    async fn resolve_conflicts(
        &self,
        request: Request<v1::ResolveConflictsRequest>,
    ) -> Answer<v1::ResolveConflictsResponse> {
        // A workspace may have a directory, which is then written to.
        self.local_only()?;
        let (actor, request) = (actor(&request), request.into_inner());
        self.short(move |service| {
            let act = service.act_for(&actor, &request)?;
            service.resolve_conflicts(&request, &act)
        })
        .await
    }

    async fn list_resolutions(
        &self,
        request: Request<v1::ListResolutionsRequest>,
    ) -> Answer<v1::ListResolutionsResponse> {
        let request = request.into_inner();
        self.short(move |service| service.list_resolutions(&request, page_size(request.page_size))).await
    }

    async fn forget_resolutions(
        &self,
        request: Request<v1::ForgetResolutionsRequest>,
    ) -> Answer<v1::ForgetResolutionsResponse> {
        let (actor, request) = (actor(&request), request.into_inner());
        self.short(move |service| {
            let act = service.act_for(&actor, &request)?;
            service.forget_resolutions(&request, &act)
        })
        .await
    }
}
