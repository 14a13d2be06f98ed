//! The history that the names on captions come from.

use amalgam_engine::SnapshotId;
use amalgam_engine::workspace::WorkspaceName;

/// The history that the names on captions come from. Equal conflicts of unrelated histories, for example of two projects, have
/// captions of their own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CaptionSource {
    /// The history of a workspace.
    Workspace(WorkspaceName),
    /// The history before a snapshot.
    Snapshot(SnapshotId),
    /// Any history that has the conflict.
    Any,
}

impl CaptionSource {
    /// Returns the source for a tree that a call reads: the snapshot that it belongs to, or else the workspace of the call.
    pub(crate) fn of(snapshot: Option<SnapshotId>, here: Option<&WorkspaceName>) -> Self {
        match (snapshot, here) {
            (Some(snapshot), _) => Self::Snapshot(snapshot),
            (None, Some(workspace)) => Self::Workspace(workspace.clone()),
            (None, None) => Self::Any,
        }
    }
}
