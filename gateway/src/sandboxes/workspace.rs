//! Calls of this process to the store for the workspace of a sandbox: create, mount, commit, unmount and delete.

use std::future::Future;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use amalgam_proto::v1::follow_service_client::FollowServiceClient;
use amalgam_proto::v1::merge_service_client::MergeServiceClient;
use amalgam_proto::v1::mount_service_client::MountServiceClient;
use amalgam_proto::v1::snapshot_service_client::SnapshotServiceClient;
use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;
use amalgam_proto::{Failure, Reason, v1};
use amalgam_sandbox::MountAccess;
use amalgam_server::OpenStore;
use amalgam_server::api::ACTOR_HEADER;
use bytes::Bytes;
use tonic::body::Body;
use tonic::{Code, Request, Status};

/// Maximum number of attempts to delete a workspace that is still mounted.
const DELETE_TRIES_MAX: u32 = 100;
const DELETE_RETRY_DELAY: Duration = Duration::from_millis(50);

/// A client of a store that this process has open. Calls are made as `actor`.
#[derive(Clone)]
pub(super) struct StoreCalls {
    store: Arc<OpenStore>,
    actor: String,
}

/// A gRPC transport that calls a store in this process, without a connection.
#[derive(Clone)]
pub(super) struct Direct(Arc<OpenStore>);

impl tower::Service<http::Request<Body>> for Direct {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let store = Arc::clone(&self.0);
        Box::pin(async move { Ok(store.call_for_server(request).await) })
    }
}

impl StoreCalls {
    pub(super) fn new(store: Arc<OpenStore>, actor: &str) -> Self {
        Self { store, actor: actor.to_owned() }
    }

    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Ok(actor) = self.actor.parse() {
            request.metadata_mut().insert(ACTOR_HEADER, actor);
        }
        request
    }

    /// Returns a transport to the store.
    pub(super) fn direct(&self) -> Direct {
        Direct(Arc::clone(&self.store))
    }

    fn workspaces(&self) -> WorkspaceServiceClient<Direct> {
        WorkspaceServiceClient::new(Direct(Arc::clone(&self.store)))
    }

    fn mounts(&self) -> MountServiceClient<Direct> {
        MountServiceClient::new(Direct(Arc::clone(&self.store)))
    }

    /// Creates a workspace, with the contents of the snapshot or the workspace `from` if it is not empty. Returns its name.
    pub(super) async fn create(&self, id: &str, from: &str) -> Result<String, Status> {
        let message = v1::CreateWorkspaceRequest {
            workspace_id: id.to_owned(),
            from: from.to_owned(),
            agent: self.actor.clone(),
            ..v1::CreateWorkspaceRequest::default()
        };
        let made = self.workspaces().create_workspace(self.request(message)).await?.into_inner();
        Ok(made.workspace.unwrap_or_default().name)
    }

    /// Returns the name of an existing workspace, or fails if there is none.
    pub(super) async fn find(&self, name: &str) -> Result<String, Status> {
        let message = v1::GetWorkspaceRequest { name: name.to_owned() };
        let found = self.workspaces().get_workspace(self.request(message)).await?.into_inner();
        Ok(found.workspace.unwrap_or_default().name)
    }

    /// Returns the names of all workspaces whose ids have a prefix. The prefix does not include `workspaces/`.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<String>, Status> {
        let mut message = v1::ListWorkspacesRequest { prefix: prefix.to_owned(), ..Default::default() };
        let mut names = Vec::new();
        loop {
            let page = self.workspaces().list_workspaces(self.request(message.clone())).await?.into_inner();
            names.extend(page.workspaces.into_iter().map(|workspace| workspace.name));
            if page.next_page_token.is_empty() {
                return Ok(names);
            }
            message.page_token = page.next_page_token;
        }
    }

    /// Forks a workspace as it is now, with uncommitted changes. Returns the names of the forks.
    pub(super) async fn fork(&self, name: &str, ids: Vec<String>) -> Result<Vec<String>, Status> {
        let message = v1::ForkWorkspaceRequest {
            name: name.to_owned(),
            workspace_ids: ids,
            ..v1::ForkWorkspaceRequest::default()
        };
        let forked = self.workspaces().fork_workspace(self.request(message)).await?.into_inner();
        Ok(forked.workspaces.into_iter().map(|workspace| workspace.name).collect())
    }

    /// Forks a workspace as it is now, to merge the fork into it later. Returns the name of the fork and its head.
    pub(super) async fn fork_to_merge(&self, name: &str) -> Result<(String, String), Status> {
        let mut random = [0; 5];
        getrandom::fill(&mut random).map_err(|error| Status::internal(error.to_string()))?;
        let suffix = data_encoding::BASE32_NOPAD.encode(&random).to_ascii_lowercase();
        let id = format!("{}-run-{suffix}", name.strip_prefix("workspaces/").unwrap_or(name));
        let message = v1::ForkWorkspaceRequest {
            name: name.to_owned(),
            workspace_ids: vec![id],
            agent: Some(self.actor.clone()),
            target: name.to_owned(),
            ..v1::ForkWorkspaceRequest::default()
        };
        let forked = self.workspaces().fork_workspace(self.request(message)).await?.into_inner();
        let fork =
            forked.workspaces.into_iter().next().ok_or_else(|| Status::internal("a fork without a workspace"))?;
        Ok((fork.name, fork.head))
    }

    /// Returns the head of a workspace, `snapshots/{hex}`; empty if it has none.
    pub(super) async fn head(&self, name: &str) -> Result<String, Status> {
        let message = v1::GetWorkspaceRequest { name: name.to_owned() };
        let found = self.workspaces().get_workspace(self.request(message)).await?.into_inner();
        Ok(found.workspace.unwrap_or_default().head)
    }

    /// Returns at most `limit` changes between two snapshots, and the number of further ones.
    pub(super) async fn changes(
        &self,
        before: &str,
        after: &str,
        limit: usize,
    ) -> Result<(Vec<v1::Change>, i64), Status> {
        let state = |name: &str| {
            let state = match name.strip_prefix("snapshots/") {
                Some(id) => v1::state::State::Revision(id.to_owned()),
                None => v1::state::State::Empty(true),
            };
            Some(v1::State { state: Some(state) })
        };
        let message = v1::DiffStatesRequest { before: state(before), after: state(after), ..Default::default() };
        let mut snapshots = SnapshotServiceClient::new(Direct(Arc::clone(&self.store)));
        let mut parts = snapshots.diff_states(self.request(message)).await?.into_inner();
        let (mut changes, mut more) = (Vec::new(), 0);
        while let Some(part) = parts.message().await? {
            for change in part.changes {
                match changes.len() < limit {
                    true => changes.push(change),
                    false => more += 1,
                }
            }
        }
        Ok((changes, more))
    }

    /// Merges a workspace into its target through the queue, and ends it. Returns the merge, and whether the workspace has ended.
    pub(super) async fn complete(
        &self,
        name: &str,
        target: &str,
        message: &str,
        on_refused: &str,
    ) -> Result<(Option<v1::Merge>, bool), Status> {
        let submission = v1::Submission {
            workspace: name.to_owned(),
            target: target.to_owned(),
            message: message.to_owned(),
            on_refused: on_refused.to_owned(),
            ..v1::Submission::default()
        };
        let message = v1::CompleteWorkspaceRequest { submission: Some(submission), ..Default::default() };
        let mut merges = MergeServiceClient::new(Direct(Arc::clone(&self.store)));
        let mut tries = 0;
        loop {
            match merges.complete_workspace(self.request(message.clone())).await {
                Ok(done) => {
                    let done = done.into_inner();
                    return Ok((done.merge, done.ended));
                }
                // The kernel removes the mount of the sandbox some moments after its last process has ended.
                Err(status) if is_mounted(&status) && tries < DELETE_TRIES_MAX => {
                    tries += 1;
                    tokio::time::sleep(DELETE_RETRY_DELAY).await;
                }
                Err(status) => return Err(status),
            }
        }
    }

    /// Updates a workspace that follows a source. Does nothing for one that follows none; leaves conflicts in its files.
    pub(super) async fn update(&self, name: &str) -> Result<(), Status> {
        let message =
            v1::UpdateFollowerRequest { workspace: name.to_owned(), if_following: true, ..Default::default() };
        let mut follows = FollowServiceClient::new(Direct(Arc::clone(&self.store)));
        follows.update_follower(self.request(message)).await.map(drop)
    }

    /// Mounts a workspace at a directory of the host. Writes beyond the quota fail.
    pub(super) async fn mount(
        &self,
        name: &str,
        path: &Path,
        access: MountAccess,
        quota_bytes: u64,
    ) -> Result<(), Status> {
        let (shown_uid, shown_gid) = access.shown_owner.unwrap_or_default();
        let allow_other = access.allows_others;
        let options =
            v1::MountOptions { allow_other, shown_uid, shown_gid, quota_bytes, ..v1::MountOptions::default() };
        let message = v1::MountRequest {
            path: Bytes::copy_from_slice(path.as_os_str().as_bytes()),
            mode: v1::MountMode::ReadWrite.into(),
            workspace: name.to_owned(),
            options: Some(options),
            ..v1::MountRequest::default()
        };
        self.mounts().mount(self.request(message)).await?;
        Ok(())
    }

    /// Mounts a snapshot read-only at a directory of the host.
    pub(super) async fn mount_snapshot(&self, revision: &str, path: &Path) -> Result<(), Status> {
        let message = v1::MountRequest {
            path: Bytes::copy_from_slice(path.as_os_str().as_bytes()),
            mode: v1::MountMode::Snapshot.into(),
            revision: revision.to_owned(),
            ..v1::MountRequest::default()
        };
        self.mounts().mount(self.request(message)).await?;
        Ok(())
    }

    /// Returns all labels whose names have a prefix.
    pub(super) async fn labels(&self, prefix: &str) -> Result<Vec<v1::Label>, Status> {
        let mut message = v1::ListLabelsRequest { prefix: prefix.to_owned(), ..v1::ListLabelsRequest::default() };
        let mut snapshots = SnapshotServiceClient::new(Direct(Arc::clone(&self.store)));
        let mut labels = Vec::new();
        loop {
            let page = snapshots.list_labels(self.request(message.clone())).await?.into_inner();
            labels.extend(page.labels);
            if page.next_page_token.is_empty() {
                return Ok(labels);
            }
            message.page_token = page.next_page_token;
        }
    }

    /// Unmounts a directory. Uncommitted changes stay with the workspace.
    pub(super) async fn unmount(&self, path: &Path) -> Result<(), Status> {
        let path = Bytes::copy_from_slice(path.as_os_str().as_bytes());
        let message = |lazy| {
            let target = Some(v1::unmount_request::Target::Path(path.clone()));
            self.request(v1::UnmountRequest { target, lazy, ..Default::default() })
        };
        match self.mounts().unmount(message(false)).await {
            Ok(_) => Ok(()),
            Err(status) if status.code() == Code::NotFound => Err(status),
            // A process of the host has a file open there, so the unmount is lazy.
            Err(_) => self.mounts().unmount(message(true)).await.map(drop),
        }
    }

    /// Commits the files of a workspace.
    pub(super) async fn commit(&self, name: &str, message: &str) -> Result<(), Status> {
        let message = v1::CommitWorkspaceRequest {
            name: name.to_owned(),
            message: message.to_owned(),
            ..v1::CommitWorkspaceRequest::default()
        };
        self.workspaces().commit_workspace(self.request(message)).await?;
        Ok(())
    }

    /// Deletes a workspace. It can be undeleted for a while. A workspace with uncommitted changes is refused.
    pub(super) async fn delete(&self, name: &str) -> Result<(), Status> {
        self.delete_as(v1::DeleteWorkspaceRequest { name: name.to_owned(), ..Default::default() }).await
    }

    /// Deletes a workspace together with its uncommitted changes.
    pub(super) async fn discard(&self, name: &str) -> Result<(), Status> {
        let (name, discard_uncommitted) = (name.to_owned(), true);
        self.delete_as(v1::DeleteWorkspaceRequest { name, discard_uncommitted, ..Default::default() }).await
    }

    async fn delete_as(&self, message: v1::DeleteWorkspaceRequest) -> Result<(), Status> {
        let mut tries = 0;
        loop {
            let request = self.request(message.clone());
            let Err(status) = self.workspaces().delete_workspace(request).await else { return Ok(()) };
            // The kernel removes a mount some moments after the last process in it has ended.
            if !is_mounted(&status) || tries == DELETE_TRIES_MAX {
                return Err(status);
            }
            tries += 1;
            tokio::time::sleep(DELETE_RETRY_DELAY).await;
        }
    }
}

fn is_mounted(status: &Status) -> bool {
    Failure::of_status(status).is_some_and(|failure| failure.reason == Reason::Mounted)
}
