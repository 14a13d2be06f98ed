//! How each method of the API treats the policy: most ask a guard themselves; a method that cannot is refused to agents whom it would
//! show, or let change, more than the policy permits. A method without a row is refused.

use amalgam_proto::Reason;

use super::Permissions;
use crate::error::{Error, Result};
use Handling::{Admin, ChangesAny, Guarded, ShowsAll};

/// The start of the path of every method.
const PACKAGE: &str = "/amalgam.v1.";

/// How a method treats the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handling {
    /// It asks a guard, or it concerns no path.
    Guarded,
    /// It needs the scope `admin`, and the policy does not apply to admins.
    Admin,
    /// It shows paths or contents of whole trees.
    ShowsAll,
    /// It changes trees without a guard.
    ChangesAny,
}

impl Permissions {
    /// Refuses a method to an agent for whom it cannot enforce the policy.
    pub(crate) fn check_method(&self, path: &str, agent: &str) -> Result<()> {
        let Some(name) = path.strip_prefix(PACKAGE) else { return Ok(()) };
        let found = METHODS.binary_search_by(|(method, _)| (*method).cmp(name)).ok();
        let guard = self.guard(&[agent])?;
        // A reviewer sees the reviews and conflicts that it decides.
        let is_decision = name.starts_with("MergeService/") || name.starts_with("ConflictService/");
        if is_decision && self.policy()?.is_some_and(|policy| policy.is_reviewer(agent)) {
            return Ok(());
        }
        let why = match found.map(|found| METHODS[found].1) {
            Some(Guarded | Admin) => return Ok(()),
            Some(ShowsAll) if !guard.hides() => return Ok(()),
            Some(ShowsAll) => "it cannot leave out the paths that the policy hides",
            Some(ChangesAny) if guard.is_unrestricted() => return Ok(()),
            Some(ChangesAny) => "it would change paths without asking the policy",
            None if guard.is_unrestricted() => return Ok(()),
            None => "it does not know the policy",
        };
        let message = format!("{agent} may not call {name}: {why}; a key with the scope `admin` may");
        Err(Error::new(Reason::Forbidden, message).with("agent", agent))
    }
}

/// All methods of a project that the network may call, by name.
#[rustfmt::skip]
const METHODS: &[(&str, Handling)] = &[
    ("CollectionService/CollectStore", Admin),
    ("CollectionService/ConfirmClock", Admin),
    ("CollectionService/GetCollection", Admin),
    ("CollectionService/ListGrowth", ShowsAll),
    ("CollectionService/MeasureExactly", ShowsAll),
    ("CollectionService/MeasureUsage", ShowsAll),
    ("CollectionService/PauseCollection", Admin),
    ("CollectionService/PlanCollection", Admin),
    ("ConflictService/ForgetResolutions", ChangesAny),
    ("ConflictService/ListConflicts", ShowsAll),
    ("ConflictService/ListResolutions", ShowsAll),
    ("ConflictService/ReadConflict", ShowsAll),
    ("ConflictService/ResolveConflicts", ChangesAny),
    ("EpisodeService/BeginEpisode", Guarded),
    ("EpisodeService/CompareSteps", ShowsAll),
    ("EpisodeService/DropEpisode", Guarded),
    ("EpisodeService/ExportEpisode", ShowsAll),
    ("EpisodeService/FinishEpisode", Guarded),
    ("EpisodeService/GetBestSteps", Guarded),
    ("EpisodeService/GetEpisode", Guarded),
    ("EpisodeService/GetStepPath", Guarded),
    ("EpisodeService/ListEpisodes", Guarded),
    ("EpisodeService/ListSteps", Guarded),
    ("EpisodeService/RecordStep", Guarded),
    ("EpisodeService/ReleaseEpisode", ChangesAny),
    ("EpisodeService/UpdateSteps", Guarded),
    ("EventService/Subscribe", Guarded),
    ("ExchangeService/ExportTree", Guarded),
    ("ExchangeService/ImportTree", ChangesAny),
    // A mount has the rights of the workspace's agent, not of the caller.
    ("ExportService/GetWorkspacePath", ChangesAny),
    ("FileService/ApplyEdits", Guarded),
    ("FileService/CommitEdits", Guarded),
    ("FileService/CreateSymlink", Guarded),
    ("FileService/EditFile", Guarded),
    ("FileService/GlobFiles", Guarded),
    ("FileService/GrepFiles", Guarded),
    ("FileService/ListFiles", Guarded),
    ("FileService/MakeDirectory", Guarded),
    ("FileService/ReadFile", Guarded),
    ("FileService/ReadFiles", Guarded),
    ("FileService/RemoveFile", Guarded),
    ("FileService/RenameFile", Guarded),
    ("FileService/SetAttributes", Guarded),
    ("FileService/StatFile", Guarded),
    ("FileService/StatFiles", Guarded),
    ("FileService/WatchFiles", Guarded),
    ("FileService/WriteFile", Guarded),
    ("FollowService/FollowSource", Guarded),
    ("FollowService/UnfollowSource", Guarded),
    ("FollowService/UpdateFollower", Guarded),
    ("MergeService/AcceptReview", Guarded),
    ("MergeService/CheckRules", Guarded),
    ("MergeService/CompleteWorkspace", Guarded),
    ("MergeService/ExplainRules", Guarded),
    ("MergeService/GetQueueEntry", Guarded),
    ("MergeService/GetReview", ShowsAll),
    ("MergeService/ListQueue", Guarded),
    ("MergeService/ListReviews", ShowsAll),
    ("MergeService/MergeWorkspaces", Guarded),
    ("MergeService/PublishWorkspace", Guarded),
    ("MergeService/RejectReview", Guarded),
    ("MergeService/ReleaseQueueEntry", Guarded),
    ("MergeService/SchedulePublishing", Guarded),
    ("MergeService/SubmitWorkspace", Guarded),
    ("MergeService/TakeReview", Guarded),
    ("MergeService/WithdrawQueueEntry", Guarded),
    ("OperationService/GetOperation", Guarded),
    ("OperationService/ListOperations", Guarded),
    ("OperationService/RedoOperation", Guarded),
    ("OperationService/UndoOperation", Guarded),
    ("OperationService/WatchOperations", Guarded),
    ("PolicyService/CheckPolicy", Guarded),
    ("PolicyService/ExplainPolicy", Guarded),
    ("PolicyService/GetPolicy", Admin),
    ("PolicyService/ListPolicyChanges", Admin),
    ("PolicyService/SetPolicy", Admin),
    ("RadarService/GetRadar", Guarded),
    ("RequestService/GetRequest", Guarded),
    ("SnapshotService/BlameFile", Guarded),
    ("SnapshotService/DeleteLabel", Guarded),
    ("SnapshotService/DiffStates", Guarded),
    ("SnapshotService/FindPaths", Guarded),
    ("SnapshotService/GetPatch", Guarded),
    ("SnapshotService/GetSnapshot", Guarded),
    ("SnapshotService/InspectChange", Guarded),
    ("SnapshotService/ListEntries", Guarded),
    ("SnapshotService/ListLabels", Guarded),
    ("SnapshotService/ListSnapshots", Guarded),
    ("SnapshotService/ListVersions", Guarded),
    ("SnapshotService/NextBisectStep", Guarded),
    ("SnapshotService/ReadFile", Guarded),
    ("SnapshotService/SearchFiles", Guarded),
    ("SnapshotService/SetLabel", Guarded),
    ("StateService/DeleteState", Guarded),
    ("StateService/GetState", Guarded),
    ("StateService/ListStates", Guarded),
    ("StateService/SetState", Guarded),
    ("StoreService/MeasureStore", ShowsAll),
    ("StoreService/VerifyStore", Admin),
    ("TransferService/ForgetTombstone", Admin),
    ("TransferService/GetHave", ShowsAll),
    ("TransferService/ListTombstones", ShowsAll),
    ("TransferService/PlanPurge", Admin),
    ("TransferService/PurgeContent", Admin),
    ("TransferService/ReceiveSnapshots", ChangesAny),
    ("TransferService/SendSnapshots", ShowsAll),
    ("WorkspaceService/CommitWorkspace", Guarded),
    ("WorkspaceService/CreateWorkspace", Guarded),
    ("WorkspaceService/DeleteWorkspace", Guarded),
    ("WorkspaceService/ForkWorkspace", Guarded),
    ("WorkspaceService/GetStatus", Guarded),
    ("WorkspaceService/GetWorkspace", Guarded),
    ("WorkspaceService/ListWorkspaces", Guarded),
    ("WorkspaceService/RenameWorkspace", Guarded),
    ("WorkspaceService/RestoreWorkspace", Guarded),
    ("WorkspaceService/UndeleteWorkspace", Guarded),
    ("WorkspaceService/UpdateWorkspace", Guarded),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_sorted() {
        assert!(METHODS.is_sorted_by_key(|(name, _)| *name));
    }
}
