//! The gRPC methods of `ConflictService`: conflicts and their resolutions.

use amalgam_proto::v1;
use amalgam_proto::v1::conflict_service_server::ConflictService;
use tonic::{Request, Response, Status};

use super::{Answers, Api, actor, page_size};
use crate::call_log::workspace_id;
use crate::caller::Origin;
use crate::calls::Kind;
use crate::error::Result;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ConflictService for Api {
    type ReadConflictStream = Answers<v1::ReadConflictResponse>;

    async fn list_conflicts(&self, request: Request<v1::ListConflictsRequest>) -> Answer<v1::ListConflictsResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.check_state(request.state.as_ref())?;
        self.read(&caller, move |service| {
            let here = service.context.here(&request.workspace)?;
            let held = service.directories.hold_state(request.state.as_ref(), here.as_ref())?;
            service.conflicts.list_conflicts(&request, &held, page_size(request.page_size)?)
        })
        .await
    }

    async fn read_conflict(&self, request: Request<v1::ReadConflictRequest>) -> Answer<Self::ReadConflictStream> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.check_state(request.state.as_ref())?;
        self.stream(&caller, move |service, sender| {
            let here = service.context.here(&request.workspace)?;
            let held = service.directories.hold_state(request.state.as_ref(), here.as_ref())?;
            service.conflicts.read_conflict(&request, &held, |part| sender.send(part))
        })
    }

    async fn resolve_conflicts(
        &self,
        request: Request<v1::ResolveConflictsRequest>,
    ) -> Answer<v1::ResolveConflictsResponse> {
        let (actor, request) = self.identified(request);
        let origin = self.origin;
        self.slow(&actor.clone(), Kind::Merge, move |service, caller| {
            let workspace = workspace_id(&request.workspace)?;
            if origin == Origin::Network {
                service.files.refuse_directory(&workspace)?;
            }
            let act = service.context.act_for(&actor, &request)?;
            let done = service.directories.resolve_conflicts(&request, &act, caller)?;
            service.views.head_moved(&workspace)?;
            Ok(done)
        })
        .await
    }

    async fn list_resolutions(
        &self,
        request: Request<v1::ListResolutionsRequest>,
    ) -> Answer<v1::ListResolutionsResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| service.conflicts.list_resolutions(&request, page_size(request.page_size)?))
            .await
    }

    async fn forget_resolutions(
        &self,
        request: Request<v1::ForgetResolutionsRequest>,
    ) -> Answer<v1::ForgetResolutionsResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let act = service.context.act_for(&actor, &request)?;
            service.conflicts.forget_resolutions(&request, &act)
        })
        .await
    }
}
