//! The gRPC methods of `WorkspaceService`: workspaces.

use amalgam_engine::lean::hold_tree;
use amalgam_engine::workspace::{Committed, ForkOptions, NewWorkspace, Taken, Workspace, WorkspaceName, with_paths_of};
use amalgam_engine::{OperationContext, SnapshotId, TreePath};
use amalgam_proto::v1::workspace_service_server::WorkspaceService;
use amalgam_proto::{Reason, v1};
use tonic::{Request, Response, Status};

use super::{Api, actor, page_size};
use crate::call_log::{restricted_agent, workspace_id};
use crate::calls::Kind;
use crate::directory::Uncommitted;
use crate::error::{Error, Result};
use crate::messages::operation_message;
use crate::service::Service;

type Answer<T> = Result<Response<T>, Status>;

/// The most forks of one request that are made without a blocking thread.
const BRIEF_FORKS_MAX: usize = 16;

/// Returns the options of the forks that a request asks for.
fn fork_options(service: &Service, from: &WorkspaceName, request: &v1::ForkWorkspaceRequest) -> Result<ForkOptions> {
    let start = match request.revision.as_str() {
        "" => None,
        revision => Some(service.context.resolve(revision, Some(from))?),
    };
    let target = match request.target.as_str() {
        "" => None,
        // Fails if the target does not exist.
        name => Some(service.context.workspaces.get(&amalgam_proto::workspace_id(name)?)?.name),
    };
    // A fork belongs to the agent that makes it, and that agent's own rights apply.
    let agent = match restricted_agent() {
        Some(_) => Some(agent_of_caller(service, request.agent.as_deref().unwrap_or_default())?),
        None => request.agent.clone(),
    };
    Ok(ForkOptions { from: start, agent, project: request.project.clone(), target })
}

/// Returns a page of the workspaces whose names start with a prefix. Hidden ones are listed only if the prefix begins with a dot.
fn list_visible(
    service: &Service,
    prefix: &str,
    mut after: Option<WorkspaceName>,
    limit: usize,
) -> Result<Vec<Workspace>> {
    let mut found = Vec::new();
    loop {
        let page = service.context.workspaces.list(prefix, after.as_ref(), limit - found.len())?;
        after = page.last().map(|last| last.name.clone());
        let is_last = found.len() + page.len() < limit;
        found.extend(page.into_iter().filter(|one| !one.name.is_hidden() || prefix.starts_with('.')));
        if is_last || found.len() == limit {
            return Ok(found);
        }
    }
}

/// Returns whether a fork only writes references: no live tree or directory has to be recorded first.
fn is_brief_fork(service: &Service, request: &v1::ForkWorkspaceRequest) -> bool {
    let has_view = |name: &str| {
        let name = amalgam_proto::workspace_id(name);
        name.map_or(true, |name| service.views.numbered_view(&name).is_ok_and(|view| view.is_some()))
    };
    let is_local = !service.context.is_shared();
    is_local
        && request.workspace_ids.len() <= BRIEF_FORKS_MAX
        && service.context.registry.is_empty()
        && !has_view(&request.name)
}

fn fork(service: &Service, actor: &str, request: &v1::ForkWorkspaceRequest) -> Result<v1::ForkWorkspaceResponse> {
    let from = workspace_id(&request.name)?;
    let into = request.workspace_ids.iter().map(|name| WorkspaceName::new(name.as_str()));
    let into = into.collect::<Result<Vec<_>, _>>()?;
    if into.is_empty() {
        return Err(Error::new(Reason::Invalid, "workspace_ids: name at least one new workspace"));
    }
    let act = service.context.act_for(actor, request)?;
    let done = match service.context.done_before(&act)? {
        Some(done) => done,
        None => {
            let options = fork_options(service, &from, request)?;
            if options.from.is_none() {
                service.views.secure_live(&from, "a fork", &act)?;
            }
            service.directories.detach_ended_workspaces(&into)?;
            service.context.workspaces.fork_with(&from, &into, &options, &act)?
        }
    };
    let workspaces = into.iter().map(|name| service.views.workspace_message(name)).collect::<Result<_>>()?;
    Ok(v1::ForkWorkspaceResponse { workspaces, operation: Some(operation_message(&done)) })
}

/// Returns the agent of a new workspace: the requested one, or that of the caller. Under a policy, a restricted caller may not name
/// another agent.
fn agent_of_caller(service: &Service, asked: &str) -> Result<String> {
    match restricted_agent() {
        Some(caller) if asked.is_empty() || asked == caller => Ok(caller),
        Some(caller) if service.context.permissions.policy()?.is_some() => {
            let message = format!("a workspace of another agent than {caller} is made by a key with the scope `admin`");
            Err(Error::new(Reason::Forbidden, message))
        }
        _ => Ok(asked.to_owned()),
    }
}

/// Refuses to remove or rename the workspace of another agent if the policy restricts the caller: names of workspaces are paths to
/// all their files.
fn judge_name(service: &Service, name: &WorkspaceName) -> Result<()> {
    match service.context.workspaces.find(name)? {
        Some(found) => judge_owner(service, name, &found.agent),
        None => Ok(()),
    }
}

/// Refuses to remove, rename or bring back a workspace that belongs to another agent, if the policy restricts the caller.
pub(super) fn judge_owner(service: &Service, name: &WorkspaceName, owner: &str) -> Result<()> {
    let Some(caller) = restricted_agent() else { return Ok(()) };
    if owner == caller || service.context.permissions.guard(&[&caller])?.is_unrestricted() {
        return Ok(());
    }
    let message = format!(
        "{caller} may not remove or rename {name}, which is no workspace of its own: the policy restricts {caller}; a key with the scope `admin` may"
    );
    Err(Error::new(Reason::Forbidden, message).with("agent", caller))
}

/// Refuses to give a workspace another agent, if there is a policy and the caller is no admin.
pub(super) fn judge_agent(service: &Service, before: &str, after: &str) -> Result<()> {
    if before == after || restricted_agent().is_none() || service.context.permissions.policy()?.is_none() {
        return Ok(());
    }
    Err(Error::new(Reason::Forbidden, "the agent of a workspace is set by a key with the scope `admin`"))
}

/// Refuses a restore that makes changes which the policy does not permit to the caller.
fn judge_restore(service: &Service, name: &WorkspaceName, to: SnapshotId, paths: &[TreePath]) -> Result<()> {
    let context = &service.context;
    let guard = context.permissions.moving(name)?;
    if guard.is_open() {
        return Ok(());
    }
    let before = context.head_root(context.head(name)?)?;
    let held = hold_tree(&context.store, to)?;
    let Some(root) = before.filter(|_| !paths.is_empty()) else {
        return context.permissions.judge(&guard, before, Some(held.root), "this restore");
    };
    let tree = with_paths_of(&context.store, root, held.root, paths, Taken::AsItWas)?;
    let (after, _pin) = tree.freeze().hold()?;
    context.permissions.judge(&guard, before, Some(after), "this restore")
}

/// Restores a workspace, or some paths of it, to a snapshot, together with its live tree.
fn restore(
    service: &Service,
    name: &WorkspaceName,
    to: SnapshotId,
    paths: &[TreePath],
    act: &OperationContext,
) -> Result<v1::RestoreWorkspaceResponse> {
    let workspaces = &service.context.workspaces;
    let go = || {
        // For a restore of some paths, the head has the changes of the live tree by now.
        judge_restore(service, name, to, paths)?;
        match paths.is_empty() {
            true => workspaces.restore(name, to, act).map_err(Error::from),
            false => workspaces.restore_paths(name, to, paths, act).map_err(Error::from),
        }
    };
    let words = format!("restore {}", to.short());
    let changed = service.views.move_head(name, paths, &words, act, go)?.is_new;
    let workspace = Some(service.views.workspace_message(name)?);
    Ok(v1::RestoreWorkspaceResponse { workspace, changed, changes: Vec::new() })
}

#[tonic::async_trait]
impl WorkspaceService for Api {
    async fn create_workspace(
        &self,
        request: Request<v1::CreateWorkspaceRequest>,
    ) -> Answer<v1::CreateWorkspaceResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let name = WorkspaceName::new(request.workspace_id.as_str())?;
            let act = service.context.act_for(&actor, &request)?;
            if service.context.done_before(&act)?.is_none() {
                let from = match request.from.as_str() {
                    "" => None,
                    revision => Some(service.context.resolve(revision, None)?),
                };
                let agent = agent_of_caller(service, &request.agent)?;
                let new = NewWorkspace { from, agent, project: request.project, target: None };
                service.directories.detach_ended_workspaces(std::slice::from_ref(&name))?;
                service.context.workspaces.create(&name, &new, &act)?;
            }
            Ok(v1::CreateWorkspaceResponse { workspace: Some(service.views.workspace_message(&name)?) })
        })
        .await
    }

    async fn get_workspace(&self, request: Request<v1::GetWorkspaceRequest>) -> Answer<v1::GetWorkspaceResponse> {
        let request = request.into_inner();
        self.quick(move |service| {
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
            let limit = page_size(request.page_size)?;
            let found = list_visible(service, &request.prefix, after, limit)?;
            let next = if found.len() == limit { found.last().map(|last| last.name.to_string()) } else { None };
            let workspaces =
                found.iter().map(|found| service.views.workspace_message(&found.name)).collect::<Result<_>>()?;
            Ok(v1::ListWorkspacesResponse { workspaces, next_page_token: next.unwrap_or_default() })
        })
        .await
    }

    async fn fork_workspace(&self, request: Request<v1::ForkWorkspaceRequest>) -> Answer<v1::ForkWorkspaceResponse> {
        let (actor, request) = self.identified(request);
        let is_brief = is_brief_fork(&self.service, &request);
        let caller = actor.clone();
        let work = move |service: &Service| fork(service, &actor, &request);
        let work = match is_brief {
            true => match self.brief(work) {
                Ok(done) => return done,
                Err(work) => work,
            },
            false => work,
        };
        self.slow(&caller, Kind::Work, move |service, _| work(service)).await
    }

    async fn restore_workspace(
        &self,
        request: Request<v1::RestoreWorkspaceRequest>,
    ) -> Answer<v1::RestoreWorkspaceResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let name = workspace_id(&request.name)?;
            let act = service.context.act_for(&actor, &request)?;
            // A second restore would discard later edits.
            if let Some(done) = service.context.done_before(&act)? {
                let changed = Committed::of_operation(&name, &done).is_some_and(|done| done.is_new);
                let workspace = Some(service.views.workspace_message(&name)?);
                return Ok(v1::RestoreWorkspaceResponse { workspace, changed, changes: Vec::new() });
            }
            let paths = request.paths.iter().map(TreePath::new).collect::<Result<Vec<_>, _>>();
            let paths = paths?;
            if request.dry_run {
                let snapshot = service.context.resolve(&request.revision, Some(&name))?;
                let changes = service.files.changes_of_restore(&name, snapshot, &paths)?;
                let workspace = Some(service.views.workspace_message(&name)?);
                return Ok(v1::RestoreWorkspaceResponse { workspace, changed: !changes.is_empty(), changes });
            }
            // A restore to the head records no operation.
            service.context.once(&actor, &request, || {
                let snapshot = service.context.resolve(&request.revision, Some(&name))?;
                service.directories.check_etag(&name, &request.etag)?;
                restore(service, &name, snapshot, &paths, &act)
            })
        })
        .await
    }

    async fn commit_workspace(
        &self,
        request: Request<v1::CommitWorkspaceRequest>,
    ) -> Answer<v1::CommitWorkspaceResponse> {
        let (actor, request) = self.identified(request);
        self.slow(&actor.clone(), Kind::Work, move |service, _| {
            let act = service.context.act_for(&actor, &request)?;
            service.files.commit_workspace(&request, &act)
        })
        .await
    }

    async fn get_status(&self, request: Request<v1::GetStatusRequest>) -> Answer<v1::GetStatusResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| service.files.status(&workspace_id(&request.name)?)).await
    }

    async fn rename_workspace(
        &self,
        request: Request<v1::RenameWorkspaceRequest>,
    ) -> Answer<v1::RenameWorkspaceResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let from = workspace_id(&request.name)?;
            let to = WorkspaceName::new(request.new_workspace_id.as_str())?;
            let act = service.context.act_for(&actor, &request)?;
            match service.context.done_before(&act)? {
                // The first attempt may have ended before all places of the workspace had the new name.
                Some(_) => service.directories.complete_renaming(&from, &to)?,
                None => {
                    service.directories.check_etag(&from, &request.etag)?;
                    judge_name(service, &from)?;
                    service.directories.rename_workspace(&from, &to, &act)?;
                }
            }
            Ok(v1::RenameWorkspaceResponse { workspace: Some(service.views.workspace_message(&to)?) })
        })
        .await
    }

    async fn update_workspace(
        &self,
        request: Request<v1::UpdateWorkspaceRequest>,
    ) -> Answer<v1::UpdateWorkspaceResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let name = workspace_id(&request.name)?;
            let act = service.context.act_for(&actor, &request)?;
            let before = service.context.workspaces.get(&name)?.agent;
            judge_agent(service, &before, &request.agent)?;
            if service.context.done_before(&act)?.is_none() {
                service.directories.check_etag(&name, &request.etag)?;
            }
            service.context.workspaces.describe(&name, &request.agent, &request.project, &act)?;
            service.views.apply_policy()?;
            Ok(v1::UpdateWorkspaceResponse { workspace: Some(service.views.workspace_message(&name)?) })
        })
        .await
    }

    async fn delete_workspace(
        &self,
        request: Request<v1::DeleteWorkspaceRequest>,
    ) -> Answer<v1::DeleteWorkspaceResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let name = workspace_id(&request.name)?;
            let act = service.context.act_for(&actor, &request)?;
            let uncommitted = if request.discard_uncommitted { Uncommitted::Discard } else { Uncommitted::Refuse };
            let done = match service.context.done_before(&act)? {
                Some(done) => done,
                None => {
                    judge_name(service, &name)?;
                    service.directories.delete_workspace(&name, &request.etag, uncommitted, &act)?
                }
            };
            Ok(v1::DeleteWorkspaceResponse { operation: Some(operation_message(&done)) })
        })
        .await
    }

    async fn undelete_workspace(
        &self,
        request: Request<v1::UndeleteWorkspaceRequest>,
    ) -> Answer<v1::UndeleteWorkspaceResponse> {
        let (actor, request) = self.identified(request);
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

#[cfg(test)]
mod tests {
    use amalgam_engine::Time;
    use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;
    use amalgam_view::TreeEdit;
    use tower::Layer as _;

    use super::*;
    use crate::api::Origin;
    use crate::call_log::CallLogLayer;
    use crate::calls::Calls;
    use crate::home::Home;
    use crate::serve::routes;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_renaming_that_is_retried_after_a_crash_takes_the_live_tree_along() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let (context, views) = (&service.context, &service.views);
        let [old, new] = ["old", "new"].map(|name| WorkspaceName::new(name).expect("a name"));
        context.workspaces.create(&old, &NewWorkspace::default(), &context.act("ann")).expect("made");
        let used = views.use_view(&old).expect("opened");
        let path = TreePath::new("mine").expect("a path");
        used.edit(&mut [], |_, _| Ok((vec![TreeEdit::Create { path, mode: 0o644 }], ()))).expect("edited");
        drop(used);
        let request = v1::RenameWorkspaceRequest {
            name: "workspaces/old".to_owned(),
            new_workspace_id: "new".to_owned(),
            request_id: "1".to_owned(),
            ..Default::default()
        };
        // The first attempt dies after the operation.
        let act = context.act_for("unknown", &request).expect("a new id");
        context.workspaces.rename(&old, &new, &act).expect("renamed");
        let api = Api::new(service.clone(), Calls::new(), Origin::Local);
        let mut workspaces = WorkspaceServiceClient::new(CallLogLayer(Origin::Local).layer(routes(api).prepare()));
        for _ in 0..2 {
            workspaces.rename_workspace(request.clone()).await.expect("a retry");
            assert!(views.has_uncommitted(&new).expect("a look") && !views.has_uncommitted(&old).expect("a look"));
        }
        assert!(views.use_view(&new).expect("opened").view().fork().exists("mine").expect("a look"));
    }
}
