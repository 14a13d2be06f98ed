//! Requests that are done once: the id that the caller gave each, and the arguments it came with.

use prost::Message;

use crate::v1;

/// A request that may carry an id, so that a retry is recognised.
pub trait Identified {
    /// The method that the request calls.
    const METHOD: &'static str;

    /// Returns the id that the caller gave the request; empty if it gave none.
    fn request_id(&self) -> &str;

    /// Encodes the arguments of the request. Equal requests give equal bytes.
    fn arguments(&self) -> Vec<u8>;
}

macro_rules! identified {
    ($($request:ident = $method:literal),+ $(,)?) => {
        /// The methods whose requests may carry an id.
        pub const IDENTIFIED_METHODS: &[&str] = &[$($method),+];

        $(impl Identified for v1::$request {
            const METHOD: &'static str = $method;

            fn request_id(&self) -> &str {
                &self.request_id
            }

            fn arguments(&self) -> Vec<u8> {
                self.encode_to_vec()
            }
        })+
    };
}

identified! {
    AcceptReviewRequest = "AcceptReview",
    ApplyEditsRequest = "ApplyEdits",
    ApproveRuleCommandRequest = "ApproveRuleCommand",
    AttachDirectoryRequest = "AttachDirectory",
    BackUpStoreRequest = "BackUpStore",
    BeginEpisodeRequest = "BeginEpisode",
    CaptureDirectoryRequest = "CaptureDirectory",
    CheckoutDirectoryRequest = "CheckoutDirectory",
    CollectStoreRequest = "CollectStore",
    CommitEditsRequest = "CommitEdits",
    CommitWorkspaceRequest = "CommitWorkspace",
    CompleteWorkspaceRequest = "CompleteWorkspace",
    ConfirmClockRequest = "ConfirmClock",
    CreateExportRequest = "CreateExport",
    CreateSymlinkRequest = "CreateSymlink",
    CreateWorkspaceRequest = "CreateWorkspace",
    DeleteExportRequest = "DeleteExport",
    DeleteLabelRequest = "DeleteLabel",
    DeleteStateRequest = "DeleteState",
    DeleteWorkspaceRequest = "DeleteWorkspace",
    DetachDirectoryRequest = "DetachDirectory",
    DropEpisodeRequest = "DropEpisode",
    EditFileRequest = "EditFile",
    FinishEpisodeRequest = "FinishEpisode",
    FollowSourceRequest = "FollowSource",
    ForgetResolutionsRequest = "ForgetResolutions",
    ForgetTombstoneRequest = "ForgetTombstone",
    ForkWorkspaceRequest = "ForkWorkspace",
    ImportOptions = "ImportTree",
    MakeDirectoryRequest = "MakeDirectory",
    MergeWorkspacesRequest = "MergeWorkspaces",
    MountRequest = "Mount",
    PauseCollectionRequest = "PauseCollection",
    PrepareMountRequest = "PrepareMount",
    PublishWorkspaceRequest = "PublishWorkspace",
    PurgeContentRequest = "PurgeContent",
    ReceiveOptions = "ReceiveSnapshots",
    RecordStepRequest = "RecordStep",
    RedoDirectoryRequest = "RedoDirectory",
    RedoOperationRequest = "RedoOperation",
    RejectReviewRequest = "RejectReview",
    ReleaseEpisodeRequest = "ReleaseEpisode",
    ReleaseQueueEntryRequest = "ReleaseQueueEntry",
    RemoveFileRequest = "RemoveFile",
    RenameFileRequest = "RenameFile",
    RenameWorkspaceRequest = "RenameWorkspace",
    ResolveConflictsRequest = "ResolveConflicts",
    RestoreBackupRequest = "RestoreBackup",
    RestoreDirectoryRequest = "RestoreDirectory",
    RestoreWorkspaceRequest = "RestoreWorkspace",
    RevokeRuleCommandRequest = "RevokeRuleCommand",
    SchedulePublishingRequest = "SchedulePublishing",
    SetAttributesRequest = "SetAttributes",
    SetLabelRequest = "SetLabel",
    SetPolicyRequest = "SetPolicy",
    SetStateRequest = "SetState",
    SubmitWorkspaceRequest = "SubmitWorkspace",
    TakeReviewRequest = "TakeReview",
    UndeleteWorkspaceRequest = "UndeleteWorkspace",
    UndoDirectoryRequest = "UndoDirectory",
    UndoOperationRequest = "UndoOperation",
    UnfollowSourceRequest = "UnfollowSource",
    UnmountRequest = "Unmount",
    UpdateDirectoryRequest = "UpdateDirectory",
    UpdateFollowerRequest = "UpdateFollower",
    UpdateStepsRequest = "UpdateSteps",
    UpdateWorkspaceRequest = "UpdateWorkspace",
    VerifyStoreRequest = "VerifyStore",
    WithdrawQueueEntryRequest = "WithdrawQueueEntry",
    WriteFileHeader = "WriteFile",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_requests_have_equal_arguments() {
        let keys = || (0..64).map(|number| (format!("key {number}"), number.to_string()));
        let forward = v1::CaptureDirectoryRequest { metadata: keys().collect(), ..Default::default() };
        let backward = v1::CaptureDirectoryRequest { metadata: keys().rev().collect(), ..Default::default() };
        assert_eq!(forward.arguments(), backward.arguments());
        let other = v1::CaptureDirectoryRequest { message: "other".to_owned(), ..forward.clone() };
        assert_ne!(forward.arguments(), other.arguments());
    }
}
