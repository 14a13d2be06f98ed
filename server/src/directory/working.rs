//! The state of a directory's files beside the line of snapshots: recorded before it gives way, so that undo brings it back.

use amalgam_engine::workspace::{Change, WorkspaceName};
use amalgam_engine::{Act, RootId, SnapshotId};
use amalgam_materializer::Captured;

use super::Grasp;
use crate::error::Result;
use crate::left_alone::GitScope;
use crate::service::Service;

/// What the log calls edits that are recorded because a restore or an undo is about to replace them.
pub(crate) const EDIT: &str = "edit";
/// What the log calls a restore.
const RESTORE: &str = "restore";
/// What the log calls a restore that wrote into `.git`. Undoing it writes there, too.
const RESTORE_WITH_GIT: &str = "restore with .git";

/// What the log calls a restore of this scope.
pub(crate) fn restore_action(git: GitScope) -> &'static str {
    if git.includes() { RESTORE_WITH_GIT } else { RESTORE }
}

/// What the log calls a restore that led back to the head, so that no snapshot says what it was.
pub(crate) fn cleared_action(git: GitScope, words: &str) -> String {
    if git.includes() { format!("{RESTORE_WITH_GIT}: {words}") } else { words.to_owned() }
}

/// Whether an operation of this name wrote into `.git`.
pub(crate) fn wrote_git(action: &str) -> bool {
    action.starts_with(RESTORE_WITH_GIT)
}

impl Service {
    /// The tree that a workspace's files had after the last recorded operation.
    pub(crate) fn state_root(&self, workspace: &WorkspaceName) -> Result<Option<RootId>> {
        self.head_root(self.inner.workspaces.get(workspace)?.state())
    }

    /// Records what was captured as the state of a workspace's files, if it is not recorded yet. The head stays where it is.
    pub(super) fn record_edits(
        &self,
        grasp: &Grasp,
        captured: &Captured,
        before: &str,
        git: GitScope,
        act: &Act,
    ) -> Result<Option<SnapshotId>> {
        if !self.differs(self.state_root(&grasp.workspace)?, Some(captured.root), git)? {
            return Ok(None);
        }
        // The request belongs to what comes after it.
        let act = Act { request: None, ..act.clone() };
        let change = Change::new(format!("before {before}"));
        let workspaces = &self.inner.workspaces;
        let recorded = workspaces.record_working(&grasp.workspace, &captured.tree, &change, &act, EDIT);
        Ok(recorded.map(Some)?)
    }

    /// Whether a request was carried out before. What it asked for is there; doing it again would undo what came since.
    pub(crate) fn is_replayed(&self, act: &Act) -> Result<bool> {
        Ok(self.done_before(act)?.is_some())
    }
}
