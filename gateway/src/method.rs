//! Every method of the API: who may call it over the network, and where it is in the REST API. A method without a row is refused.

use crate::key::{Scope, Scopes};

/// The rights that a caller of a method needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: health checks.
    Open,
    /// A key with all these scopes, for the project of the call. The store of the project answers.
    Project(&'static [Scope]),
    /// A key with all these scopes, for the project of the call. The server itself answers: calls about sandboxes, which use the
    /// project's store but are no methods of it.
    InProject(&'static [Scope]),
    /// A key with all these scopes; the call is about the server and not about one project.
    Server(&'static [Scope]),
    /// The Unix socket: the call names paths of the host, runs commands on it, or ends the process.
    LocalOnly,
}

impl Access {
    /// Returns whether a method needs the scope `admin` for the whole server. Keys that are limited to projects may not call it.
    pub fn is_for_server_admins(self) -> bool {
        matches!(self, Self::Server(needed) if needed.contains(&Scope::Admin))
    }

    /// Returns the first needed scope that a caller lacks, or `None` if it has all.
    pub fn lacking(self, scopes: Scopes) -> Option<Scope> {
        match self {
            Self::Open | Self::LocalOnly => None,
            Self::Project(needed) | Self::InProject(needed) | Self::Server(needed) => {
                needed.iter().copied().find(|scope| !scopes.has(*scope))
            }
        }
    }
}

/// One method of the API.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// `package.Service/Method`.
    pub name: &'static str,
    /// The rights that its caller needs.
    pub access: Access,
    /// Its verb and path in the REST API; empty if it has none. `{field}` is a field of the request; `{field=things}` a field whose
    /// value begins with `things/`, which the path leaves out.
    pub rest: &'static str,
}

impl Method {
    /// Returns the method of a gRPC path, or `None` if there is none.
    pub fn find(path: &str) -> Option<&'static Self> {
        let name = path.strip_prefix('/')?;
        let found = METHODS.binary_search_by(|method| method.name.cmp(name)).ok()?;
        Some(&METHODS[found])
    }
}

const READ: Access = Access::Project(&[Scope::Read]);
const WRITE: Access = Access::Project(&[Scope::Write]);
const MERGE: Access = Access::Project(&[Scope::Merge]);
/// For calls that may run a test that was stored with a queue entry.
const MERGE_AND_RUN: Access = Access::Project(&[Scope::Merge, Scope::Run]);
const ADMIN: Access = Access::Project(&[Scope::Admin]);
const RUN: Access = Access::InProject(&[Scope::Run]);
/// For calls that run commands in a workspace, and so may change it.
const WRITE_AND_RUN: Access = Access::InProject(&[Scope::Write, Scope::Run]);
/// For a call that runs a command on a fork, and merges the fork.
const WRITE_RUN_AND_MERGE: Access = Access::InProject(&[Scope::Write, Scope::Run, Scope::Merge]);
const SERVER_READ: Access = Access::Server(&[Scope::Read]);
const SERVER_ADMIN: Access = Access::Server(&[Scope::Admin]);
const LOCAL: Access = Access::LocalOnly;

const fn row(name: &'static str, access: Access, rest: &'static str) -> Method {
    Method { name, access, rest }
}

/// All methods by name.
#[rustfmt::skip]
pub const METHODS: &[Method] = &[
    row("amalgam.v1.CollectionService/CollectStore", ADMIN, "POST /collections"),
    row("amalgam.v1.CollectionService/ConfirmClock", ADMIN, ""),
    row("amalgam.v1.CollectionService/GetCollection", ADMIN, "GET /collections/current"),
    row("amalgam.v1.CollectionService/ListGrowth", READ, "GET /growth"),
    row("amalgam.v1.CollectionService/MeasureExactly", READ, ""),
    row("amalgam.v1.CollectionService/MeasureUsage", READ, "GET /usage"),
    row("amalgam.v1.CollectionService/PauseCollection", ADMIN, "POST /collections/pause"),
    row("amalgam.v1.CollectionService/PlanCollection", ADMIN, "GET /collections/plan"),
    row("amalgam.v1.ConflictService/ForgetResolutions", WRITE, "POST /resolutions/forget"),
    row("amalgam.v1.ConflictService/ListConflicts", READ, "GET /workspaces/{workspace=workspaces}/conflicts"),
    row("amalgam.v1.ConflictService/ListResolutions", READ, "GET /resolutions"),
    row("amalgam.v1.ConflictService/ReadConflict", READ, "POST /conflicts/read"),
    row("amalgam.v1.ConflictService/ResolveConflicts", WRITE, "POST /workspaces/{workspace=workspaces}/conflicts/resolve"),
    row("amalgam.v1.DirectoryService/AttachDirectory", LOCAL, ""),
    row("amalgam.v1.DirectoryService/CaptureDirectory", LOCAL, ""),
    row("amalgam.v1.DirectoryService/CheckoutDirectory", LOCAL, ""),
    row("amalgam.v1.DirectoryService/DetachDirectory", LOCAL, ""),
    row("amalgam.v1.DirectoryService/DetectChanges", LOCAL, ""),
    row("amalgam.v1.DirectoryService/FindDirectory", LOCAL, ""),
    row("amalgam.v1.DirectoryService/ListDirectories", LOCAL, ""),
    row("amalgam.v1.DirectoryService/RedoDirectory", LOCAL, ""),
    row("amalgam.v1.DirectoryService/RestoreDirectory", LOCAL, ""),
    row("amalgam.v1.DirectoryService/UndoDirectory", LOCAL, ""),
    row("amalgam.v1.DirectoryService/UpdateDirectory", LOCAL, ""),
    row("amalgam.v1.DirectoryService/WatchDirectory", LOCAL, ""),
    row("amalgam.v1.EpisodeService/BeginEpisode", WRITE, "POST /episodes"),
    row("amalgam.v1.EpisodeService/CompareSteps", READ, "GET /episodes/{name=episodes}/compare"),
    row("amalgam.v1.EpisodeService/DropEpisode", WRITE, "DELETE /episodes/{name=episodes}"),
    row("amalgam.v1.EpisodeService/ExportEpisode", READ, "GET /episodes/{name=episodes}/export"),
    row("amalgam.v1.EpisodeService/FinishEpisode", WRITE, "POST /episodes/{name=episodes}/finish"),
    row("amalgam.v1.EpisodeService/GetBestSteps", READ, "GET /episodes/{name=episodes}/best"),
    row("amalgam.v1.EpisodeService/GetEpisode", READ, "GET /episodes/{name=episodes}"),
    row("amalgam.v1.EpisodeService/GetStepPath", READ, "GET /episodes/{name=episodes}/path"),
    row("amalgam.v1.EpisodeService/ListEpisodes", READ, "GET /episodes"),
    row("amalgam.v1.EpisodeService/ListSteps", READ, "GET /episodes/{name=episodes}/steps"),
    row("amalgam.v1.EpisodeService/RecordStep", WRITE, "POST /episodes/{name=episodes}/steps"),
    row("amalgam.v1.EpisodeService/ReleaseEpisode", WRITE, "POST /episodes/{name=episodes}/release"),
    row("amalgam.v1.EpisodeService/UpdateSteps", WRITE, "PATCH /episodes/{name=episodes}/steps"),
    row("amalgam.v1.EventService/Subscribe", READ, "GET /events"),
    row("amalgam.v1.ExchangeService/ExportTree", READ, ""),
    row("amalgam.v1.ExchangeService/ImportTree", WRITE, ""),
    row("amalgam.v1.ExportService/CreateExport", LOCAL, ""),
    row("amalgam.v1.ExportService/DeleteExport", LOCAL, ""),
    // The path with its secret lets a client write, so the right to read is not enough.
    row("amalgam.v1.ExportService/GetWorkspacePath", WRITE, "GET /workspaces/{workspace=workspaces}/path"),
    row("amalgam.v1.ExportService/ListExports", LOCAL, ""),
    row("amalgam.v1.FileService/ApplyEdits", WRITE, "POST /workspaces/{workspace=workspaces}/edits"),
    row("amalgam.v1.FileService/CommitEdits", WRITE, "POST /workspaces/{workspace=workspaces}/commit-edits"),
    row("amalgam.v1.FileService/CreateSymlink", WRITE, "POST /workspaces/{workspace=workspaces}/symlinks"),
    row("amalgam.v1.FileService/EditFile", WRITE, "POST /workspaces/{workspace=workspaces}/edit"),
    row("amalgam.v1.FileService/GlobFiles", READ, "GET /workspaces/{workspace=workspaces}/glob"),
    row("amalgam.v1.FileService/GrepFiles", READ, "GET /workspaces/{workspace=workspaces}/grep"),
    row("amalgam.v1.FileService/ListFiles", READ, "GET /workspaces/{workspace=workspaces}/list"),
    row("amalgam.v1.FileService/MakeDirectory", WRITE, "POST /workspaces/{workspace=workspaces}/directories"),
    row("amalgam.v1.FileService/ReadFile", READ, ""),
    row("amalgam.v1.FileService/ReadFiles", READ, "POST /workspaces/{workspace=workspaces}/read"),
    row("amalgam.v1.FileService/RemoveFile", WRITE, "POST /workspaces/{workspace=workspaces}/remove"),
    row("amalgam.v1.FileService/RenameFile", WRITE, "POST /workspaces/{workspace=workspaces}/rename-file"),
    row("amalgam.v1.FileService/SetAttributes", WRITE, "PATCH /workspaces/{workspace=workspaces}/attributes"),
    row("amalgam.v1.FileService/StatFile", READ, "GET /workspaces/{workspace=workspaces}/stat"),
    row("amalgam.v1.FileService/StatFiles", READ, "POST /workspaces/{workspace=workspaces}/stat"),
    row("amalgam.v1.FileService/WatchFiles", READ, "GET /workspaces/{workspace=workspaces}/watch"),
    row("amalgam.v1.FileService/WriteFile", WRITE, ""),
    row("amalgam.v1.FollowService/FollowSource", MERGE, "POST /workspaces/{workspace=workspaces}/follow"),
    row("amalgam.v1.FollowService/UnfollowSource", MERGE, "POST /workspaces/{workspace=workspaces}/unfollow"),
    row("amalgam.v1.FollowService/UpdateFollower", MERGE, "POST /workspaces/{workspace=workspaces}/update"),
    row("amalgam.v1.KeyService/CreateKey", SERVER_ADMIN, "POST /keys"),
    row("amalgam.v1.KeyService/GetCaller", SERVER_READ, "GET /caller"),
    row("amalgam.v1.KeyService/ListKeys", SERVER_ADMIN, "GET /keys"),
    row("amalgam.v1.KeyService/RevokeKey", SERVER_ADMIN, "DELETE /keys/{name=keys}"),
    row("amalgam.v1.MergeService/AcceptReview", MERGE_AND_RUN, "POST /reviews/{name=reviews}/accept"),
    row("amalgam.v1.MergeService/ApproveRuleCommand", LOCAL, ""),
    row("amalgam.v1.MergeService/CheckRules", READ, "POST /rules/check"),
    row("amalgam.v1.MergeService/CompleteWorkspace", MERGE, "POST /workspaces/{submission.workspace=workspaces}/complete"),
    row("amalgam.v1.MergeService/ExplainRules", READ, "POST /rules/explain"),
    row("amalgam.v1.MergeService/GetQueueEntry", READ, "GET /queue/{name=queue}"),
    row("amalgam.v1.MergeService/GetReview", READ, "GET /reviews/{name=reviews}"),
    row("amalgam.v1.MergeService/GetRules", LOCAL, ""),
    row("amalgam.v1.MergeService/ListQueue", READ, "GET /queue"),
    row("amalgam.v1.MergeService/ListReviews", READ, "GET /reviews"),
    row("amalgam.v1.MergeService/ListRuleCommands", LOCAL, ""),
    row("amalgam.v1.MergeService/MergeWorkspaces", MERGE, "POST /workspaces/{target=workspaces}/merge"),
    row("amalgam.v1.MergeService/PublishWorkspace", MERGE, "POST /workspaces/{submission.workspace=workspaces}/publish"),
    row("amalgam.v1.MergeService/RejectReview", MERGE, "POST /reviews/{name=reviews}/reject"),
    row("amalgam.v1.MergeService/ReleaseQueueEntry", MERGE_AND_RUN, "POST /queue/{name=queue}/release"),
    row("amalgam.v1.MergeService/RevokeRuleCommand", LOCAL, ""),
    row("amalgam.v1.MergeService/SchedulePublishing", MERGE, "POST /workspaces/{submission.workspace=workspaces}/schedule"),
    row("amalgam.v1.MergeService/SubmitWorkspace", MERGE, "POST /workspaces/{submission.workspace=workspaces}/submit"),
    row("amalgam.v1.MergeService/TakeReview", MERGE_AND_RUN, "POST /reviews/{name=reviews}/take"),
    row("amalgam.v1.MergeService/WithdrawQueueEntry", MERGE, "DELETE /queue/{name=queue}"),
    row("amalgam.v1.MountService/ListMounts", LOCAL, ""),
    row("amalgam.v1.MountService/Mount", LOCAL, ""),
    row("amalgam.v1.MountService/PrepareMount", LOCAL, ""),
    row("amalgam.v1.MountService/Unmount", LOCAL, ""),
    row("amalgam.v1.OperationService/GetOperation", READ, "GET /operations/{name=operations}"),
    row("amalgam.v1.OperationService/ListOperations", READ, "GET /operations"),
    row("amalgam.v1.OperationService/RedoOperation", WRITE, "POST /operations/redo"),
    row("amalgam.v1.OperationService/UndoOperation", WRITE, "POST /operations/undo"),
    row("amalgam.v1.OperationService/WatchOperations", READ, "GET /operations/watch"),
    row("amalgam.v1.PolicyService/CheckPolicy", READ, "POST /policy/check"),
    row("amalgam.v1.PolicyService/ExplainPolicy", READ, "GET /policy/explain"),
    row("amalgam.v1.PolicyService/GetPolicy", ADMIN, "GET /policy"),
    row("amalgam.v1.PolicyService/ListPolicyChanges", ADMIN, "GET /policy/changes"),
    row("amalgam.v1.PolicyService/SetPolicy", ADMIN, "PUT /policy"),
    row("amalgam.v1.ProjectService/CreateProject", SERVER_ADMIN, "POST /projects"),
    row("amalgam.v1.ProjectService/DeleteProject", SERVER_ADMIN, "DELETE /projects/{name=projects}"),
    row("amalgam.v1.ProjectService/GetProject", SERVER_READ, "GET /projects/{name=projects}"),
    row("amalgam.v1.ProjectService/GetProjectUsage", SERVER_READ, "GET /projects/{name=projects}/usage"),
    row("amalgam.v1.ProjectService/ListProjects", SERVER_READ, "GET /projects"),
    row("amalgam.v1.ProjectService/UndeleteProject", SERVER_ADMIN, "POST /projects/{name=projects}/undelete"),
    row("amalgam.v1.RadarService/GetRadar", READ, "GET /radar"),
    row("amalgam.v1.RequestService/GetRequest", READ, "GET /requests/{request_id}"),
    row("amalgam.v1.SandboxService/AttachCommand", RUN, "GET /sandboxes/{sandbox_id}/process/{command_id}/output"),
    row("amalgam.v1.SandboxService/AttachTerminal", RUN, "GET /sandboxes/{sandbox_id}/pty/{pty_id}/output"),
    row("amalgam.v1.SandboxService/BatchDeleteSandboxes", WRITE_AND_RUN, "POST /sandboxes/batch-delete"),
    row("amalgam.v1.SandboxService/CreateSandbox", WRITE_AND_RUN, "POST /sandboxes"),
    row("amalgam.v1.SandboxService/CreateTerminal", WRITE_AND_RUN, "POST /sandboxes/{sandbox_id}/pty"),
    row("amalgam.v1.SandboxService/DeleteSandbox", WRITE_AND_RUN, "DELETE /sandboxes/{id}"),
    row("amalgam.v1.SandboxService/ExtendSandbox", WRITE_AND_RUN, "POST /sandboxes/{id}/extend"),
    row("amalgam.v1.SandboxService/ForkSandbox", WRITE_AND_RUN, "POST /sandboxes/{id}/fork"),
    row("amalgam.v1.SandboxService/GetSandbox", RUN, "GET /sandboxes/{id}"),
    row("amalgam.v1.SandboxService/GetSandboxLogs", RUN, "GET /sandboxes/{id}/logs"),
    row("amalgam.v1.SandboxService/GetSandboxStats", RUN, "GET /sandboxes/{id}/stats"),
    row("amalgam.v1.SandboxService/GetTemplate", RUN, "GET /templates/{name}"),
    row("amalgam.v1.SandboxService/KillCommand", WRITE_AND_RUN, "POST /sandboxes/{sandbox_id}/process/{command_id}/kill"),
    row("amalgam.v1.SandboxService/KillTerminal", WRITE_AND_RUN, "DELETE /sandboxes/{sandbox_id}/pty/{pty_id}"),
    row("amalgam.v1.SandboxService/ListCommands", RUN, "GET /sandboxes/{sandbox_id}/process"),
    row("amalgam.v1.SandboxService/ListSandboxes", RUN, "GET /sandboxes"),
    row("amalgam.v1.SandboxService/ListTemplates", RUN, "GET /templates"),
    row("amalgam.v1.SandboxService/OpenPort", WRITE_AND_RUN, "POST /sandboxes/{sandbox_id}/ports/{port}"),
    row("amalgam.v1.SandboxService/PauseSandbox", WRITE_AND_RUN, "POST /sandboxes/{id}/pause"),
    row("amalgam.v1.SandboxService/ResizeTerminal", WRITE_AND_RUN, "POST /sandboxes/{sandbox_id}/pty/{pty_id}/resize"),
    row("amalgam.v1.SandboxService/ResumeSandbox", WRITE_AND_RUN, "POST /sandboxes/{id}/resume"),
    row("amalgam.v1.SandboxService/RunCommand", WRITE_AND_RUN, "POST /sandboxes/{sandbox_id}/process/run"),
    row("amalgam.v1.SandboxService/RunOnFork", WRITE_RUN_AND_MERGE, "POST /sandboxes/run"),
    row("amalgam.v1.SandboxService/SetSandboxTimeout", WRITE_AND_RUN, "POST /sandboxes/{id}/timeout"),
    row("amalgam.v1.SandboxService/StreamCommand", WRITE_AND_RUN, "POST /sandboxes/{sandbox_id}/process/stream"),
    row("amalgam.v1.SandboxService/WatchSandboxes", RUN, "GET /sandboxes/events"),
    row("amalgam.v1.SandboxService/WriteCommand", WRITE_AND_RUN, "POST /sandboxes/{sandbox_id}/process/{command_id}/input"),
    row("amalgam.v1.SandboxService/WriteTerminal", WRITE_AND_RUN, "POST /sandboxes/{sandbox_id}/pty/{pty_id}/input"),
    row("amalgam.v1.SnapshotService/BlameFile", READ, "GET /snapshots/{revision}/blame"),
    row("amalgam.v1.SnapshotService/DeleteLabel", WRITE, "DELETE /labels/{name=labels}"),
    row("amalgam.v1.SnapshotService/DiffStates", READ, "GET /diff"),
    row("amalgam.v1.SnapshotService/FindPaths", READ, "GET /find"),
    row("amalgam.v1.SnapshotService/GetPatch", READ, "GET /patch"),
    row("amalgam.v1.SnapshotService/GetSnapshot", READ, "GET /snapshots/{revision}"),
    row("amalgam.v1.SnapshotService/InspectChange", READ, "GET /insight"),
    row("amalgam.v1.SnapshotService/ListEntries", READ, ""),
    row("amalgam.v1.SnapshotService/ListLabels", READ, "GET /labels"),
    row("amalgam.v1.SnapshotService/ListSnapshots", READ, "GET /snapshots"),
    row("amalgam.v1.SnapshotService/ListVersions", READ, "GET /snapshots/{revision}/versions"),
    row("amalgam.v1.SnapshotService/NextBisectStep", READ, "POST /bisect"),
    row("amalgam.v1.SnapshotService/ReadFile", READ, ""),
    row("amalgam.v1.SnapshotService/SearchFiles", READ, "GET /search"),
    row("amalgam.v1.SnapshotService/SetLabel", WRITE, "PUT /labels/{label_id}"),
    row("amalgam.v1.StateService/DeleteState", WRITE, "DELETE /workspaces/{workspace=workspaces}/state/{key}"),
    row("amalgam.v1.StateService/GetState", READ, "GET /workspaces/{workspace=workspaces}/state/{key}"),
    row("amalgam.v1.StateService/ListStates", READ, "GET /workspaces/{workspace=workspaces}/state"),
    row("amalgam.v1.StateService/SetState", WRITE, "PUT /workspaces/{workspace=workspaces}/state/{key}"),
    row("amalgam.v1.StoreService/GetStore", LOCAL, ""),
    row("amalgam.v1.StoreService/MeasureStore", READ, "GET /store"),
    row("amalgam.v1.StoreService/StopServer", LOCAL, ""),
    row("amalgam.v1.StoreService/VerifyStore", ADMIN, "POST /store/verify"),
    row("amalgam.v1.SystemService/CollectGarbage", SERVER_ADMIN, "POST /gc"),
    row("amalgam.v1.SystemService/GetSystemStats", SERVER_READ, "GET /stats"),
    row("amalgam.v1.TransferService/BackUpStore", LOCAL, ""),
    row("amalgam.v1.TransferService/ForgetTombstone", ADMIN, ""),
    row("amalgam.v1.TransferService/GetHave", READ, ""),
    row("amalgam.v1.TransferService/ListTombstones", READ, "GET /tombstones"),
    row("amalgam.v1.TransferService/PlanPurge", ADMIN, ""),
    row("amalgam.v1.TransferService/PurgeContent", ADMIN, ""),
    row("amalgam.v1.TransferService/ReceiveSnapshots", WRITE, ""),
    row("amalgam.v1.TransferService/RestoreBackup", LOCAL, ""),
    row("amalgam.v1.TransferService/SendSnapshots", READ, ""),
    row("amalgam.v1.WebhookService/CreateWebhook", SERVER_ADMIN, "POST /webhooks"),
    row("amalgam.v1.WebhookService/DeleteWebhook", SERVER_ADMIN, "DELETE /webhooks/{name=webhooks}"),
    row("amalgam.v1.WebhookService/GetWebhook", SERVER_ADMIN, "GET /webhooks/{name=webhooks}"),
    row("amalgam.v1.WebhookService/ListDeliveries", SERVER_ADMIN, "GET /webhooks/{name=webhooks}/deliveries"),
    row("amalgam.v1.WebhookService/ListWebhooks", SERVER_ADMIN, "GET /webhooks"),
    row("amalgam.v1.WebhookService/ReplayDelivery", SERVER_ADMIN, "POST /webhooks/{name=webhooks}/deliveries/{number}/replay"),
    row("amalgam.v1.WebhookService/TestWebhook", SERVER_ADMIN, "POST /webhooks/{name=webhooks}/test"),
    row("amalgam.v1.WorkspaceService/CommitWorkspace", WRITE, "POST /workspaces/{name=workspaces}/commit"),
    row("amalgam.v1.WorkspaceService/CreateWorkspace", WRITE, "POST /workspaces"),
    row("amalgam.v1.WorkspaceService/DeleteWorkspace", WRITE, "DELETE /workspaces/{name=workspaces}"),
    row("amalgam.v1.WorkspaceService/ForkWorkspace", WRITE, "POST /workspaces/{name=workspaces}/fork"),
    row("amalgam.v1.WorkspaceService/GetStatus", READ, "GET /workspaces/{name=workspaces}/status"),
    row("amalgam.v1.WorkspaceService/GetWorkspace", READ, "GET /workspaces/{name=workspaces}"),
    row("amalgam.v1.WorkspaceService/ListWorkspaces", READ, "GET /workspaces"),
    row("amalgam.v1.WorkspaceService/RenameWorkspace", WRITE, "POST /workspaces/{name=workspaces}/rename"),
    row("amalgam.v1.WorkspaceService/RestoreWorkspace", WRITE, "POST /workspaces/{name=workspaces}/restore"),
    row("amalgam.v1.WorkspaceService/UndeleteWorkspace", WRITE, "POST /workspaces/{name=workspaces}/undelete"),
    row("amalgam.v1.WorkspaceService/UpdateWorkspace", WRITE, "PATCH /workspaces/{name=workspaces}"),
    row("grpc.health.v1.Health/Check", Access::Open, ""),
    row("grpc.health.v1.Health/List", Access::Open, ""),
    row("grpc.health.v1.Health/Watch", Access::Open, ""),
    row("grpc.reflection.v1.ServerReflection/ServerReflectionInfo", SERVER_READ, ""),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::schema::schema;

    #[test]
    fn every_method_of_the_descriptor_has_a_row_and_every_row_a_method() {
        let ruled: BTreeSet<_> = METHODS.iter().map(|method| method.name.to_owned()).collect();
        let is_ours = |name: &&String| name.starts_with("amalgam.");
        let described: BTreeSet<_> = schema()
            .services()
            .flat_map(|service| service.methods().collect::<Vec<_>>())
            .map(|method| format!("{}/{}", method.parent_service().full_name(), method.name()))
            .collect();
        assert_eq!(ruled.iter().filter(is_ours).collect::<Vec<_>>(), described.iter().collect::<Vec<_>>());
        assert!(METHODS.is_sorted_by_key(|method| method.name), "the table is searched by bisection");
    }

    #[test]
    fn a_method_without_a_row_is_not_found() {
        for path in ["/amalgam.v1.WorkspaceService/Explode", "", "/", "amalgam.v1.WorkspaceService/GetWorkspace"] {
            assert!(Method::find(path).is_none(), "{path}");
        }
        assert_eq!(Method::find("/amalgam.v1.WorkspaceService/GetWorkspace").map(|method| method.access), Some(READ));
    }

    #[test]
    fn a_caller_lacks_the_first_scope_that_it_does_not_have() {
        assert_eq!(MERGE_AND_RUN.lacking("merge".parse().expect("scopes")), Some(Scope::Run));
        assert_eq!(READ.lacking(Scopes::default()), Some(Scope::Read));
        assert_eq!(ADMIN.lacking(Scopes::ALL), None);
    }
}
