//! The gRPC methods of `FollowService`: workspaces that follow a source.

use amalgam_proto::v1;
use amalgam_proto::v1::follow_service_server::FollowService;
use amalgam_proto::v1::follow_source_request::Source;
use tonic::{Request, Response, Status};

use super::Api;
use super::merges::visible_merge;
use crate::call_log::workspace_id;
use crate::calls::Kind;
use crate::followers::{Updated, follows_nothing};
use crate::service::Service;

type Answer<T> = Result<Response<T>, Status>;

/// Removes paths that are hidden from the caller from an update and its merge. Returns `None` for both if nothing was updated.
fn visible(
    service: &Service,
    updated: Option<Updated>,
) -> crate::error::Result<(Option<v1::FollowUpdate>, Option<v1::Merge>)> {
    let Some(Updated { update, merge }) = updated else { return Ok((None, None)) };
    let (mut update, mut merge) = (update.message(), merge);
    // The reason may name paths that only the agent of the source can see.
    if service.context.permissions.reading(None)?.hides() {
        update.reason.clear();
        merge.iter_mut().for_each(|merge| merge.reason.clear());
    }
    let merge = merge.map(|merge| visible_merge(service, merge)).transpose()?.flatten();
    Ok((Some(update), merge))
}

#[tonic::async_trait]
impl FollowService for Api {
    async fn follow_source(&self, request: Request<v1::FollowSourceRequest>) -> Answer<v1::FollowSourceResponse> {
        let (actor, request) = self.identified(request);
        if !matches!(request.source, Some(Source::SourceWorkspace(_)) | None) {
            self.host_paths_only_local()?;
        }
        self.slow(&actor.clone(), Kind::Merge, move |service, caller| {
            let act = service.context.act_for(&actor, &request)?;
            let (workspace, updated) = service.followers.follow(&request, &act, caller)?;
            let (update, merge) = visible(service, updated)?;
            Ok(v1::FollowSourceResponse { workspace: Some(workspace), update, merge })
        })
        .await
    }

    async fn unfollow_source(&self, request: Request<v1::UnfollowSourceRequest>) -> Answer<v1::UnfollowSourceResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let act = service.context.act_for(&actor, &request)?;
            Ok(v1::UnfollowSourceResponse { workspace: Some(service.followers.unfollow(&request, &act)?) })
        })
        .await
    }

    async fn update_follower(&self, request: Request<v1::UpdateFollowerRequest>) -> Answer<v1::UpdateFollowerResponse> {
        let (actor, request) = self.identified(request);
        self.slow(&actor.clone(), Kind::Merge, move |service, caller| {
            service.context.once(&actor, &request, || {
                let name = workspace_id(&request.workspace)?;
                let act = service.context.act(&actor);
                let (update, merge) = if request.dry_run {
                    (None, visible_merge(service, service.followers.preview(&name, &act, caller)?)?)
                } else {
                    let updated = service.followers.update(&name, &act, caller)?;
                    if updated.is_none() && !request.if_following {
                        return Err(follows_nothing(&name));
                    }
                    visible(service, updated)?
                };
                let workspace = Some(service.views.workspace_message(&name)?);
                Ok(v1::UpdateFollowerResponse { workspace, update, merge })
            })
        })
        .await
    }
}
