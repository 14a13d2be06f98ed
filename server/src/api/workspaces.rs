//! Workspaces, for the API.

use amalgam_engine::TreePath;
use amalgam_engine::workspace::{NewWorkspace, WorkspaceName};
use amalgam_proto::v1;
use amalgam_proto::v1::workspace_service_server::WorkspaceService;
use tonic::{Request, Response, Status};

use super::{Api, actor, page_size};
use crate::call_log::workspace_id;
use crate::calls::Kind;
use crate::error::{Error, Result};
use crate::messages::operation_message;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl WorkspaceService for Api {
    async fn create_workspace(
        &self,
        request: Request<v1::CreateWorkspaceRequest>,
    ) -> Answer<v1::CreateWorkspaceResponse> {
        let (actor, request) = (actor(&request), request.into_inner());
        self.short(move |service| {
            let name = WorkspaceName::new(request.workspace_id.as_str())?;
            let from = match request.from.as_str() {
                "" => None,
                revision => Some(service.context.resolve(revision, None)?),
            };
            let act = service.context.act_for(&actor, &request)?;
            let new = NewWorkspace { from, agent: request.agent, project: request.project, target: None };
            if service.context.done_before(&act)?.is_none() {
                service.directories.detach_ended_workspaces(std::slice::from_ref(&name))?;
                service.context.workspaces.create(&name, &new, &act)?;
            }
            Ok(v1::CreateWorkspaceResponse { workspace: Some(service.views.workspace_message(&name)?) })
        })
        .await
    }

    async fn get_workspace(&self, request: Request<v1::GetWorkspaceRequest>) -> Answer<v1::GetWorkspaceResponse> {
        let request = request.into_inner();
        self.short(move |service| {
            let name = workspace_id(&request.name)?;
            Ok(v1::GetWorkspaceResponse { workspace: Some(service.views.workspace_message(&name)?) })
        })
        .await
    }

    async fn list_workspaces(&self, request: Request<v1::ListWorkspacesRequest>) -> Answer<v1::ListWorkspacesResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| {
            let after = match request.page_token.as_str() {
                "" => None,
                token => Some(WorkspaceName::new(token)?),
            };
            let limit = page_size(request.page_size);
            let found = service.context.workspaces.list(&request.prefix, after.as_ref(), limit)?;
            let next = if found.len() == limit { found.last().map(|last| last.name.to_string()) } else { None };
            let workspaces =
                found.iter().map(|found| service.views.workspace_message(&found.name)).collect::<Result<_>>()?;
            Ok(v1::ListWorkspacesResponse { workspaces, next_page_token: next.unwrap_or_default() })
        })
        .await
    }

    async fn fork_workspace(&self, request: Request<v1::ForkWorkspaceRequest>) -> Answer<v1::ForkWorkspaceResponse> {
        let (actor, request) = (actor(&request), request.into_inner());
        self.slow(&actor.clone(), Kind::Work, move |service, _| {
            let from = workspace_id(&request.name)?;
            let into = request.workspace_ids.iter().map(|name| WorkspaceName::new(name.as_str()));
            let into = into.collect::<Result<Vec<_>, _>>()?;
            let act = service.context.act_for(&actor, &request)?;
            let done = match service.context.done_before(&act)? {
                Some(done) => done,
                None => {
                    service.views.secure_live(&from, "a fork", &act)?;
                    service.directories.detach_ended_workspaces(&into)?;
                    service.context.workspaces.fork(&from, &into, &act)?
                }
            };
            let workspaces = into.iter().map(|name| service.views.workspace_message(name)).collect::<Result<_>>()?;
            Ok(v1::ForkWorkspaceResponse { workspaces, operation: Some(operation_message(&done)) })
        })
        .await
    }

    async fn restore_workspace(
        &self,
        request: Request<v1::RestoreWorkspaceRequest>,
    ) -> Answer<v1::RestoreWorkspaceResponse> {
        let (actor, request) = (actor(&request), request.into_inner());
        self.short(move |service| {
            let name = workspace_id(&request.name)?;
            let snapshot = service.context.resolve(&request.revision, Some(&name))?;
            let act = service.context.act_for(&actor, &request)?;
            let workspaces = &service.context.workspaces;
            let paths = request.paths.iter().map(TreePath::new).collect::<Result<Vec<_>, _>>();
            let paths = paths?;
            let restore = || match paths.is_empty() {
                true => workspaces.restore(&name, snapshot, &act).map_err(Error::from),
                false => workspaces.restore_paths(&name, snapshot, &paths, &act).map_err(Error::from),
            };
            let words = format!("restore {}", snapshot.short());
            let changed = service.views.move_head(&name, &words, &act, restore)?.is_new;
            Ok(v1::RestoreWorkspaceResponse { workspace: Some(service.views.workspace_message(&name)?), changed })
        })
        .await
    }

    async fn rename_workspace(
        &self,
        request: Request<v1::RenameWorkspaceRequest>,
    ) -> Answer<v1::RenameWorkspaceResponse> {
        let (actor, request) = (actor(&request), request.into_inner());
        self.short(move |service| {
            let from = workspace_id(&request.name)?;
            let to = WorkspaceName::new(request.new_workspace_id.as_str())?;
            let act = service.context.act_for(&actor, &request)?;
            if service.context.done_before(&act)?.is_none() {
                service.directories.rename_workspace(&from, &to, &act)?;
            }
            Ok(v1::RenameWorkspaceResponse { workspace: Some(service.views.workspace_message(&to)?) })
        })
        .await
    }

    async fn update_workspace(
        &self,
        request: Request<v1::UpdateWorkspaceRequest>,
    ) -> Answer<v1::UpdateWorkspaceResponse> {
        let (actor, request) = (actor(&request), request.into_inner());
        self.short(move |service| {
            let name = workspace_id(&request.name)?;
            let act = service.context.act_for(&actor, &request)?;
            service.context.workspaces.describe(&name, &request.agent, &request.project, &act)?;
            Ok(v1::UpdateWorkspaceResponse { workspace: Some(service.views.workspace_message(&name)?) })
        })
        .await
    }

    async fn delete_workspace(
        &self,
        request: Request<v1::DeleteWorkspaceRequest>,
    ) -> Answer<v1::DeleteWorkspaceResponse> {
        let (actor, request) = (actor(&request), request.into_inner());
        self.short(move |service| {
            let name = workspace_id(&request.name)?;
            let act = service.context.act_for(&actor, &request)?;
            let done = match service.context.done_before(&act)? {
                Some(done) => done,
                None => service.directories.delete_workspace(&name, &request.etag, &act)?,
            };
            Ok(v1::DeleteWorkspaceResponse { operation: Some(operation_message(&done)) })
        })
        .await
    }

    async fn undelete_workspace(
        &self,
        request: Request<v1::UndeleteWorkspaceRequest>,
    ) -> Answer<v1::UndeleteWorkspaceResponse> {
        let (actor, request) = (actor(&request), request.into_inner());
        self.short(move |service| {
            let name = workspace_id(&request.name)?;
            let act = service.context.act_for(&actor, &request)?;
            if service.context.done_before(&act)?.is_none() {
                service.context.workspaces.undelete(&name, &act)?;
            }
            Ok(v1::UndeleteWorkspaceResponse { workspace: Some(service.views.workspace_message(&name)?) })
        })
        .await
    }
}
