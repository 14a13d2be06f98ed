//! Watches of live trees: the paths that differ from the state that was reported last.

use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{TreePath, WorkingTree};
use amalgam_proto::v1;
use amalgam_view::{Difference, differences};
use tokio::sync::watch;

use super::Files;
use super::path::show_path;
use crate::error::Result;
use crate::permissions::is_visible_in;

/// The most paths in one message; with more, the client lists the tree again.
const PATHS_MAX: usize = 10_000;

/// A watch of a live tree.
pub(crate) struct TreeWatch {
    files: Files,
    workspace: String,
    path: TreePath,
    /// The state that was reported last.
    seen: WorkingTree,
    /// Changes whenever the tree may have changed.
    pub(crate) changes: watch::Receiver<u64>,
    /// The workspace that is watched.
    pub(crate) name: WorkspaceName,
}

impl Files {
    /// Begins a watch.
    pub(crate) fn watch(&self, request: &v1::WatchFilesRequest) -> Result<TreeWatch> {
        let name = crate::call_log::workspace_id(&request.workspace)?;
        self.refuse_directory(&name)?;
        let path = super::path::parse_path(&request.path)?;
        // Registered before the tree is read, so that no change is missed.
        let changes = self.views.watch_tree(&name)?;
        let seen = self.read_tree(&request.workspace, "")?.tree;
        Ok(TreeWatch { files: self.clone(), workspace: request.workspace.clone(), path, seen, changes, name })
    }
}

impl TreeWatch {
    /// Returns the changes since the last report, or `None` if there are none.
    pub(crate) fn report(&mut self) -> Result<Option<v1::WatchFilesResponse>> {
        // Read for each report: the policy may have changed since.
        let guard = self.files.context.permissions.reading(Some(&self.name))?;
        let now = self.files.read_tree(&self.workspace, "")?.tree;
        let found = differences(&self.seen, &now)?;
        let before = std::mem::replace(&mut self.seen, now);
        let mut changes = Vec::new();
        for (path, difference) in &found {
            if path.below(&self.path).is_none() || !is_visible_in(&guard, &[&before, &self.seen], path)? {
                continue;
            }
            if changes.len() == PATHS_MAX {
                return Ok(Some(v1::WatchFilesResponse { changes: Vec::new(), resync: true }));
            }
            let kind = difference_kind(*difference).into();
            changes.push(v1::FileChange { path: show_path(path), kind, from_path: String::new() });
        }
        Ok((!changes.is_empty()).then_some(v1::WatchFilesResponse { changes, resync: false }))
    }
}

/// Converts a difference to the kind of change in messages.
pub(super) fn difference_kind(difference: Difference) -> v1::ChangeKind {
    match difference {
        Difference::Added => v1::ChangeKind::Added,
        Difference::Removed => v1::ChangeKind::Removed,
        Difference::Modified => v1::ChangeKind::Modified,
    }
}
