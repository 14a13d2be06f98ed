//! The gRPC methods of `MountService`: FUSE mounts. All of these calls name paths of the host.

use amalgam_proto::v1;
use amalgam_proto::v1::mount_service_server::MountService;
use tonic::{Request, Response, Status};

use super::{Api, page_size};
use crate::calls::Kind;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl MountService for Api {
    async fn mount(&self, request: Request<v1::MountRequest>) -> Answer<v1::MountResponse> {
        self.local_only()?;
        let (actor, request) = self.identified(request);
        self.slow(&actor.clone(), Kind::Work, move |service, _| {
            service.context.once(&actor, &request, || service.views.mount(&request))
        })
        .await
    }

    async fn prepare_mount(&self, request: Request<v1::PrepareMountRequest>) -> Answer<v1::PrepareMountResponse> {
        self.local_only()?;
        let (actor, request) = self.identified(request);
        self.slow(&actor.clone(), Kind::Work, move |service, _| {
            service.context.once(&actor, &request, || service.views.prepare_mount(&request))
        })
        .await
    }

    async fn unmount(&self, request: Request<v1::UnmountRequest>) -> Answer<v1::UnmountResponse> {
        self.local_only()?;
        let (actor, request) = self.identified(request);
        self.slow(&actor.clone(), Kind::Work, move |service, _| {
            service.context.once(&actor, &request, || service.views.unmount(&request))
        })
        .await
    }

    async fn list_mounts(&self, request: Request<v1::ListMountsRequest>) -> Answer<v1::ListMountsResponse> {
        self.local_only()?;
        let request = request.into_inner();
        self.short(move |service| service.views.list_mounts(&request.page_token, page_size(request.page_size)?)).await
    }
}
