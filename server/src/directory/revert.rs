//! Undo and redo in a directory.

use amalgam_engine::reference::Operation;
use amalgam_engine::{OperationContext, operation};
use amalgam_materializer::{Captured, Progress, Times};
use amalgam_proto::{Reason, v1};

use super::restore::{Target, add_skipped};
use super::{Directories, LockedDirectory};
use crate::context::Marks;
use crate::error::{Error, PARTLY, Result};
use crate::states::{Direction, GitScope, Renaming, Reverted};
use crate::views::ViewRevert;

impl Directories {
    /// Undoes the last change: uncommitted changes (they are recorded, so that nothing is lost), or else the last operation of the
    /// workspace.
    pub(crate) fn undo_directory(
        &self,
        request: &v1::UndoDirectoryRequest,
        act: &OperationContext,
        progress: &Progress,
    ) -> Result<v1::RevertResult> {
        if let Some(id) = self.live_named(&request.name)? {
            return match self.views.undo_view(id, request.with_git, act)? {
                ViewRevert::Done(result) => Ok(*result),
                ViewRevert::Renaming(renaming) => self.revert_renaming(&renaming, act),
            };
        }
        let mut locked = self.lock(&request.name)?;
        if self.states.is_replayed(act)? {
            return Ok(v1::RevertResult::default());
        }
        let git = self.states.git_scope(&locked.workspace, request.with_git)?;
        self.refuse_git_at_work(&locked, git)?;
        let captured = self.capture_all(&mut locked, progress)?;
        let recorded = self.record_edits(&locked, &captured, "undo", git, act)?;
        locked.save(&self.context);
        let next = self.states.next_to_revert(&locked.workspace, Direction::Undo)?;
        if let Some(renaming) = Renaming::of(&next, Direction::Undo) {
            drop(locked);
            return self.revert_renaming(&renaming, act);
        }
        let reverted = self.states.revert_visibly(&locked.workspace, next, captured.root, git, Direction::Undo, act)?;
        let reverted = Reverted { set_id: request.set_id, ..reverted };
        let mut result = self.follow_reverted(&mut locked, &reverted, &captured, act, progress)?;
        result.took_back_changes = recorded.is_some();
        Ok(result)
    }

    /// Redoes the operation that was undone last. Refused if there are changes since.
    pub(crate) fn redo_directory(
        &self,
        request: &v1::RedoDirectoryRequest,
        act: &OperationContext,
        progress: &Progress,
    ) -> Result<v1::RevertResult> {
        if let Some(id) = self.live_named(&request.name)? {
            return match self.views.redo_view(id, request.with_git, act)? {
                ViewRevert::Done(result) => Ok(*result),
                ViewRevert::Renaming(renaming) => self.revert_renaming(&renaming, act),
            };
        }
        let mut locked = self.lock(&request.name)?;
        if self.states.is_replayed(act)? {
            return Ok(v1::RevertResult::default());
        }
        let git = self.states.git_scope(&locked.workspace, request.with_git)?;
        self.refuse_git_at_work(&locked, git)?;
        let captured = self.capture_all(&mut locked, progress)?;
        locked.save(&self.context);
        let next = self.states.next_to_redo(&locked.workspace, captured.root)?;
        if let Some(renaming) = Renaming::of(&next, Direction::Redo) {
            drop(locked);
            return self.revert_renaming(&renaming, act);
        }
        let mut safety = None;
        if git.includes()
            && self.states.differs(self.states.state_root(&locked.workspace)?, Some(captured.root), git)?
        {
            let aside = self.context.workspaces.keep_aside(&locked.workspace, &captured.tree, "before redo", act);
            safety = Some(aside?);
        }
        let reverted = self.states.revert_visibly(&locked.workspace, next, captured.root, git, Direction::Redo, act)?;
        let reverted = Reverted { set_id: request.set_id, ..reverted };
        let mut result = self.follow_reverted(&mut locked, &reverted, &captured, act, progress)?;
        if let (Some(safety), Some(restored)) = (safety, &mut result.restored) {
            restored.safety = Some(self.context.snapshot_message(safety, &Marks::default())?);
            self.states.drop_aside(&locked.workspace, act)?;
        }
        Ok(result)
    }

    /// Gives a workspace its other name back. Its files do not change.
    fn revert_renaming(&self, renaming: &Renaming, act: &OperationContext) -> Result<v1::RevertResult> {
        let (by, of) = (self.rename_back(renaming, act)?, renaming.operation.clone());
        let (steps, direction) = (vec![of.sequence], renaming.direction);
        let reverted = Reverted { by, of, steps, direction, git: GitScope::LeaveAlone, set_id: false };
        self.states.revert_result(&reverted, v1::RestoreResult::default())
    }

    /// Gives a workspace its other name back, with its directories, its view and its publishing plan. Returns the operation that
    /// did so.
    pub(crate) fn rename_back(&self, renaming: &Renaming, act: &OperationContext) -> Result<Operation> {
        let (store, sequence) = (&self.context.store, renaming.operation.sequence);
        let mut by = None;
        self.rename_workspace_by(&renaming.from, &renaming.to, || {
            let done = match renaming.direction {
                Direction::Undo => operation::undo_operation(store, sequence, act),
                Direction::Redo => operation::redo_operation(store, sequence, act),
            };
            by = Some(done?);
            Ok(())
        })?;
        Ok(by.expect("the operation was reverted"))
    }

    /// Brings a directory to the state that its workspace has after an undo or a redo.
    fn follow_reverted(
        &self,
        locked: &mut LockedDirectory,
        reverted: &Reverted,
        there: &Captured,
        act: &OperationContext,
        progress: &Progress,
    ) -> Result<v1::RevertResult> {
        let workspace = self.context.workspaces.get(&locked.workspace)?;
        let root = self.context.head_root(workspace.state())?.ok_or_else(|| {
            Error::new(
                Reason::NothingToRevert,
                "the workspace has no snapshot any more; the directory is left as it is",
            )
        })?;
        let target = Target { root, paths: None, with_git: reverted.git.includes(), set_id: reverted.set_id };
        let times = if there.counts.ignored == 0 { Times::Exact } else { Times::OfBytes(act.time) };
        let known = self.known_unwritten(locked, root)?;
        let (mut brought, captured) = match self.bring_to(locked, &target, times, progress) {
            // No file was changed, so the workspace must not stay at the other state either.
            Err(error) if !error.details().contains_key(PARTLY) => {
                self.states.take_back(reverted, act)?;
                return Err(error);
            }
            // All files are written: another run would revert one more operation.
            Err(error @ Error::Hinted { .. }) => return Err(error),
            brought => brought.map_err(|error| error.with_hint_if_partly("run the command again to go on"))?,
        };
        brought.notices.retain(|notice| !known.contains(&notice.path));
        locked.record.in_step(workspace.head, act.time);
        if workspace.working.is_none() {
            self.note_conflicts(locked)?;
        }
        let warnings = locked.save(&self.context);
        let mut restored = self.restore_result(&brought, workspace.head)?;
        add_skipped(&mut restored.notices, there);
        restored.warnings = warnings;
        restored.left_alone = self.states.count_left_alone(root, captured.root, reverted.git)?;
        self.states.revert_result(reverted, restored)
    }
}
