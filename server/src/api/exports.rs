//! The gRPC methods of `ExportService`: NFS exports.
//!
//! An export opens a port of the machine, so only the local user may create one. Callers on the network may ask for the path of an
//! exported workspace.

use amalgam_proto::v1;
use amalgam_proto::v1::export_service_server::ExportService;
use tonic::{Request, Response, Status};

use super::Api;
use crate::call_log::workspace_id;
use crate::caller::Origin;
use crate::calls::Kind;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ExportService for Api {
    async fn create_export(&self, request: Request<v1::CreateExportRequest>) -> Answer<v1::CreateExportResponse> {
        self.local_only()?;
        let (actor, request) = self.identified(request);
        self.slow(&actor.clone(), Kind::Work, move |service, _| {
            service.context.once(&actor, &request, || service.exports.create(&request))
        })
        .await
    }

    async fn list_exports(&self, _request: Request<v1::ListExportsRequest>) -> Answer<v1::ListExportsResponse> {
        self.local_only()?;
        self.short(|service| service.exports.list()).await
    }

    async fn delete_export(&self, request: Request<v1::DeleteExportRequest>) -> Answer<v1::DeleteExportResponse> {
        self.local_only()?;
        let (actor, request) = self.identified(request);
        self.slow(&actor.clone(), Kind::Work, move |service, _| {
            service.context.once(&actor, &request, || service.exports.delete(&request))
        })
        .await
    }

    async fn get_workspace_path(
        &self,
        request: Request<v1::GetWorkspacePathRequest>,
    ) -> Answer<v1::GetWorkspacePathResponse> {
        let (request, is_local) = (request.into_inner(), self.origin == Origin::Local);
        self.short(move |service| service.exports.workspace_path(&workspace_id(&request.workspace)?, is_local)).await
    }
}
