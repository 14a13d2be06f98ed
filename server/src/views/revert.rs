//! Restoring, undoing and redoing a workspace that is mounted: first what is there becomes a snapshot, then the head moves, then the
//! view goes to it while it is in use.

use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{Act, TreePath, entry_at, operation};
use amalgam_proto::{Failure, Reason, v1};

use super::ViewGrasp;
use super::live::Secured;
use crate::failure::{Result, of_engine};
use crate::service::{Marks, Service};

/// How many changes of a plan go into one message.
const PLAN_PART: usize = 500;

impl Service {
    /// Makes a live view what a snapshot holds.
    pub(crate) fn restore_view(
        &self,
        id: u64,
        request: &v1::RestoreDirectoryRequest,
        act: &Act,
        mut part: impl FnMut(v1::Plan) -> Result<()>,
    ) -> Result<v1::RestoreResult> {
        if !request.contents.is_empty() {
            let message = "parts of files cannot be restored in a mount; restore whole files, or edit them";
            return Err(Failure::new(Reason::Invalid, message));
        }
        let grasp = self.grasp_view(id)?;
        let paths = request.paths.iter().map(TreePath::new).collect::<Result<Vec<_>, _>>();
        let paths = paths.map_err(|source| of_engine(source.into()))?;
        let wanted = self.hold_revision(&request.revision, Some(&grasp.workspace))?;
        let snapshot = wanted.snapshot.expect("a revision is a snapshot");
        let held = self.hold_live(&grasp)?;
        self.check_view_paths(&grasp, wanted.root.expect("a revision has a tree"), &paths)?;
        if request.dry_run {
            let (mut changes, _) = self.plan_of(held.root, wanted.root)?;
            changes.retain(|change| is_within(&change.path, &paths));
            for changes in changes.chunks(PLAN_PART) {
                part(v1::Plan { changes: changes.to_vec() })?;
            }
            return Ok(v1::RestoreResult::default());
        }
        let secured = self.secure_view(&grasp, &format!("restore {}", snapshot.short()), act)?;
        let (workspaces, name) = (&self.inner.workspaces, &grasp.workspace);
        let done = match paths.is_empty() {
            true => workspaces.restore(name, snapshot, act),
            false => workspaces.restore_paths(name, snapshot, &paths, act),
        };
        let is_new = done.map_err(of_engine)?.is_new;
        let mut result = self.follow_head(&grasp, &secured, act)?;
        result.safety = secured.snapshot.map(|safety| self.snapshot_message(safety, &Marks::default())).transpose()?;
        result.changed |= is_new;
        result.notices.extend(wanted.notices());
        Ok(result)
    }

    /// A path that is in neither tree is a slip of the hand.
    fn check_view_paths(&self, grasp: &ViewGrasp, root: amalgam_engine::RootId, paths: &[TreePath]) -> Result<()> {
        let wanted = self.inner.store.root(root).map_err(of_engine)?;
        let live = grasp.live.view.fork();
        for path in paths {
            let there = entry_at(&self.inner.store, &wanted, path).map_err(of_engine)?.is_some();
            if !there && live.stat(path.as_bytes()).map_err(of_engine)?.is_none() {
                return Err(of_engine(amalgam_engine::Error::NotFound { path: path.clone() }));
            }
        }
        Ok(())
    }

    /// Takes back the last thing that happened: changes that are in no snapshot yet, or else the last operation of the workspace.
    pub(crate) fn undo_view(&self, id: u64, act: &Act) -> Result<v1::RevertResult> {
        let grasp = self.grasp_view(id)?;
        let secured = self.secure_view(&grasp, "undo", act)?;
        self.refuse_nothing_to_undo(&grasp.workspace)?;
        let done = self.inner.workspaces.undo(&grasp.workspace, act).map_err(of_engine)?;
        self.view_reverted(&grasp, &done, &secured, act)
    }

    /// Does again what was taken back last. Changes made since would be in the way.
    pub(crate) fn redo_view(&self, id: u64, act: &Act) -> Result<v1::RevertResult> {
        let grasp = self.grasp_view(id)?;
        let secured = self.untouched(&grasp)?;
        let Some(secured) = secured else {
            let message = "there are changes since; `amalgam undo` or `amalgam commit` first";
            return Err(Failure::new(Reason::UncommittedChanges, message));
        };
        let done = self.inner.workspaces.redo(&grasp.workspace, act).map_err(of_engine)?;
        self.view_reverted(&grasp, &done, &secured, act)
    }

    fn view_reverted(
        &self,
        grasp: &ViewGrasp,
        done: &amalgam_engine::reference::Operation,
        secured: &Secured,
        act: &Act,
    ) -> Result<v1::RevertResult> {
        let restored = self.follow_head(grasp, secured, act)?;
        let reverts = done.draft.reverts.and_then(|revert| revert.undone().or(revert.redone()));
        let reverted = reverts.map(|sequence| operation::operation(&self.inner.store, sequence)).transpose();
        Ok(v1::RevertResult {
            reverted: reverted.map_err(of_engine)?.as_ref().map(crate::api::operation_message),
            operation: Some(crate::api::operation_message(done)),
            took_back_changes: secured.snapshot.is_some(),
            restored: Some(restored),
        })
    }

    /// Moves the head of a workspace that may be mounted: what the mount holds is a snapshot first, and afterwards it shows the new
    /// head.
    pub(crate) fn move_head<T>(
        &self,
        workspace: &WorkspaceName,
        before: &str,
        act: &Act,
        go: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(grasp) = self.grasp_view_of(workspace)? else { return go() };
        let secured = self.secure_view(&grasp, before, act)?;
        let done = go()?;
        self.follow_head(&grasp, &secured, act)?;
        Ok(done)
    }
}

fn is_within(path: &[u8], paths: &[TreePath]) -> bool {
    paths.is_empty()
        || paths.iter().any(|above| {
            let above = above.as_bytes();
            path.strip_prefix(above).is_some_and(|rest| above.is_empty() || rest.is_empty() || rest[0] == b'/')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_covers_itself_and_what_is_below_it() {
        let paths = [TreePath::new("src").expect("a path")];
        for (path, covered) in [("src", true), ("src/a", true), ("srcs", false), ("a/src", false)] {
            assert_eq!(is_within(path.as_bytes(), &paths), covered, "{path}");
        }
        assert!(is_within(b"anything", &[]));
    }
}
