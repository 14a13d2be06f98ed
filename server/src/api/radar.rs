//! The gRPC methods of `RadarService`: the conflict radar.

use amalgam_proto::v1;
use amalgam_proto::v1::radar_service_server::RadarService;
use tonic::{Request, Response, Status};

use super::{Api, actor, page_size};

#[tonic::async_trait]
impl RadarService for Api {
    async fn get_radar(&self, request: Request<v1::GetRadarRequest>) -> Result<Response<v1::GetRadarResponse>, Status> {
        let (caller, request) = (actor(&request), request.into_inner());
        let act_of = caller.clone();
        self.read(&caller, move |service| {
            let limit = page_size(request.page_size)?;
            service.radar.get(&request, limit, &service.context.act(&act_of))
        })
        .await
    }
}
