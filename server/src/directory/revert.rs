//! Undo and redo of what happened to a directory.

use amalgam_engine::reference::{Operation, RefChange};
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{Act, RootId, SnapshotId, operation};
use amalgam_gc::retention::AUTOMATIC;
use amalgam_materializer::{Captured, Progress, Times};
use amalgam_proto::{Reason, v1};

use super::restore::{Target, add_skipped};
use super::working::wrote_git;
use super::{CAPTURE, Grasp};
use crate::error::{Error, Result};
use crate::left_alone::GitScope;
use crate::service::{Marks, Service};

/// What the log calls another name of a workspace.
const RENAME: &str = "rename";

/// Which way through the operations of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Undo,
    Redo,
}

/// An operation that was undone or redone.
pub(crate) struct Reverted {
    /// The operation that did so.
    pub(crate) by: Operation,
    /// The operation that was undone or redone.
    pub(crate) of: Operation,
    /// Whether `.git` is written, too.
    pub(crate) git: GitScope,
    /// Whether files get set-ID bits, capabilities and devices of foreign trees, too.
    pub(crate) set_id: bool,
}

impl Service {
    /// Takes back the last thing that happened: changes that are in no snapshot yet (they are recorded, so that nothing is lost), or
    /// else the last operation of the workspace.
    pub(crate) fn undo_directory(
        &self,
        request: &v1::UndoDirectoryRequest,
        act: &Act,
        progress: &Progress,
    ) -> Result<v1::RevertResult> {
        if let Some(id) = self.live_named(&request.name)? {
            return self.undo_view(id, request.with_git, act);
        }
        let mut grasp = self.grasp(&request.name)?;
        if self.is_replayed(act)? {
            return Ok(v1::RevertResult::default());
        }
        let git = self.git_scope(&grasp.workspace, request.with_git)?;
        let captured = self.look_as(&mut grasp, progress, true)?;
        let recorded = self.record_edits(&grasp, &captured, "undo", git, act)?;
        grasp.save(self);
        let next = self.next_to_revert(&grasp.workspace, Direction::Undo)?;
        if let Some((from, to)) = renaming(&next, Direction::Undo) {
            drop(grasp);
            return self.revert_renaming(&next, &from, &to, Direction::Undo, act);
        }
        let reverted = self.revert_visibly(&grasp.workspace, next, captured.root, git, Direction::Undo, act)?;
        let reverted = Reverted { set_id: request.set_id, ..reverted };
        let mut result = self.follow_reverted(&mut grasp, &reverted, &captured, act, progress)?;
        result.took_back_changes = recorded.is_some();
        Ok(result)
    }

    /// Does again what was taken back last. Changes made since would be in the way.
    pub(crate) fn redo_directory(
        &self,
        request: &v1::RedoDirectoryRequest,
        act: &Act,
        progress: &Progress,
    ) -> Result<v1::RevertResult> {
        if let Some(id) = self.live_named(&request.name)? {
            return self.redo_view(id, request.with_git, act);
        }
        let mut grasp = self.grasp(&request.name)?;
        if self.is_replayed(act)? {
            return Ok(v1::RevertResult::default());
        }
        let git = self.git_scope(&grasp.workspace, request.with_git)?;
        let captured = self.look_as(&mut grasp, progress, true)?;
        grasp.save(self);
        let next = self.next_to_redo(&grasp.workspace, captured.root)?;
        if let Some((from, to)) = renaming(&next, Direction::Redo) {
            drop(grasp);
            return self.revert_renaming(&next, &from, &to, Direction::Redo, act);
        }
        let mut safety = None;
        if git.includes() && self.differs(self.state_root(&grasp.workspace)?, Some(captured.root), git)? {
            let aside = self.inner.workspaces.keep_aside(&grasp.workspace, &captured.tree, "before redo", act);
            safety = Some(aside?);
        }
        let reverted = self.revert_visibly(&grasp.workspace, next, captured.root, git, Direction::Redo, act)?;
        let reverted = Reverted { set_id: request.set_id, ..reverted };
        let mut result = self.follow_reverted(&mut grasp, &reverted, &captured, act, progress)?;
        if let (Some(safety), Some(restored)) = (safety, &mut result.restored) {
            restored.safety = Some(self.snapshot_message(safety, &Marks::default())?);
            self.drop_aside(&grasp.workspace, act)?;
        }
        Ok(result)
    }

    /// What was kept aside is not needed any more; collections keep it for the grace time.
    pub(crate) fn drop_aside(&self, workspace: &WorkspaceName, act: &Act) -> Result<()> {
        let (store, name) = (&self.inner.store, workspace.aside_reference());
        let act = Act { request: None, ..act.clone() };
        Ok(operation::remove_reference(store, &name, &act, "drop what was kept aside").map(drop)?)
    }

    /// The operation that an undo takes back, or a redo does again.
    pub(crate) fn next_to_revert(&self, workspace: &WorkspaceName, direction: Direction) -> Result<Operation> {
        let (store, reference) = (&self.inner.store, workspace.reference());
        let next = match direction {
            Direction::Undo => operation::next_to_undo(store, &reference),
            Direction::Redo => operation::next_to_redo(store, &reference),
        };
        let begins = |change: &RefChange| {
            change.name == reference && change.before.as_ref().is_none_or(|value| value.target.is_none())
        };
        let nothing = |message: String| Err(Error::new(Reason::NothingToRevert, message));
        match (next?, direction) {
            (Some(next), Direction::Undo) if next.draft.action != RENAME && next.changes.iter().any(begins) => {
                nothing(format!("nothing to undo in {workspace}: it is at its first snapshot"))
            }
            (Some(next), _) => Ok(next),
            (None, Direction::Undo) => nothing(format!("nothing to undo in {workspace}")),
            (None, Direction::Redo) => {
                nothing(format!("nothing to redo in {workspace}: nothing was undone since the last change"))
            }
        }
    }

    /// The operation that a redo does again, if nothing but `.git` changed since the undo.
    pub(crate) fn next_to_redo(&self, workspace: &WorkspaceName, there: RootId) -> Result<Operation> {
        let next = self.next_to_revert(workspace, Direction::Redo)?;
        let setting = self.git_scope(workspace, false)?;
        if !self.differs(self.state_root(workspace)?, Some(there), setting)? {
            return Ok(next);
        }
        let after = next.changes.iter().find(|change| change.name == workspace.reference());
        let snapshot = after.and_then(|change| change.after.as_ref()).and_then(|value| value.target);
        let id = snapshot.map(|id| SnapshotId::from_bytes(id.hash).short()).unwrap_or_default();
        let message = format!(
            "files were changed since the undo, and a redo would overwrite them; `amalgam restore {id}` overwrites them, and `amalgam \
             undo` then brings them back"
        );
        Err(Error::new(Reason::UncommittedChanges, message))
    }

    /// Undoes or redoes an operation. Automatic snapshots of nothing but what is left alone would look like no step at all: the next
    /// operation follows at once.
    pub(crate) fn revert_visibly(
        &self,
        workspace: &WorkspaceName,
        next: Operation,
        there: RootId,
        git: GitScope,
        direction: Direction,
        act: &Act,
    ) -> Result<Reverted> {
        let (store, mut next, mut act) = (&self.inner.store, next, act.clone());
        loop {
            let by = match direction {
                Direction::Undo => operation::undo_operation(store, next.sequence, &act),
                Direction::Redo => operation::redo_operation(store, next.sequence, &act),
            };
            let by = by?;
            let git = if wrote_git(&next.draft.action) { GitScope::Include } else { git };
            let is_seen =
                !self.is_automatic(workspace, &next)? || self.differs(self.state_root(workspace)?, Some(there), git)?;
            let reverted = Reverted { by, of: next, git, set_id: false };
            match self.next_to_revert(workspace, direction) {
                Ok(further) if !is_seen && further.draft.action != RENAME => next = further,
                _ => return Ok(reverted),
            }
            // The request belongs to the first.
            act.request = None;
        }
    }

    /// Whether an operation was a snapshot that was taken without being asked for.
    fn is_automatic(&self, workspace: &WorkspaceName, found: &Operation) -> Result<bool> {
        let change = found.changes.iter().find(|change| change.name == workspace.reference());
        let target = change.and_then(|change| change.after.as_ref()).and_then(|value| value.target);
        let Some(target) = target.filter(|_| found.draft.action == CAPTURE) else { return Ok(false) };
        let snapshot = self.inner.store.snapshot(SnapshotId::from_bytes(target.hash))?;
        Ok(snapshot.metadata.contains_key(AUTOMATIC))
    }

    /// Gives a workspace its other name back. Nothing happens to its files.
    pub(crate) fn revert_renaming(
        &self,
        next: &Operation,
        from: &WorkspaceName,
        to: &WorkspaceName,
        direction: Direction,
        act: &Act,
    ) -> Result<v1::RevertResult> {
        let store = &self.inner.store;
        let mut by = None;
        self.rename_workspace_by(from, to, || {
            let done = match direction {
                Direction::Undo => operation::undo_operation(store, next.sequence, act),
                Direction::Redo => operation::redo_operation(store, next.sequence, act),
            };
            by = Some(done?);
            Ok(())
        })?;
        let by = by.expect("it was done");
        self.revert_result(
            &Reverted { by, of: next.clone(), git: GitScope::LeaveAlone, set_id: false },
            v1::RestoreResult::default(),
        )
    }

    /// Brings a directory to the state that its workspace has after an undo or a redo.
    fn follow_reverted(
        &self,
        grasp: &mut Grasp,
        reverted: &Reverted,
        there: &Captured,
        act: &Act,
        progress: &Progress,
    ) -> Result<v1::RevertResult> {
        let workspace = self.inner.workspaces.get(&grasp.workspace)?;
        let root = self.head_root(workspace.state())?.ok_or_else(|| {
            Error::new(
                Reason::NothingToRevert,
                "the workspace has no snapshot any more; the directory is left as it is",
            )
        })?;
        let target = Target { root, paths: None, with_git: reverted.git.includes(), set_id: reverted.set_id };
        let times = if there.counts.ignored == 0 { Times::Exact } else { Times::OfBytes(act.time) };
        let brought = self.bring_to(grasp, &target, times, progress);
        let (brought, captured) =
            brought.map_err(|error| error.with_hint_if_partly("run the command again to go on"))?;
        grasp.record.in_step(workspace.head, act.time);
        if workspace.working.is_none() {
            self.note_conflicts(grasp)?;
        }
        let warnings = grasp.save(self);
        let mut restored = self.restore_result(&brought, workspace.head)?;
        add_skipped(&mut restored.notices, there);
        restored.warnings = warnings;
        restored.left_alone = self.count_left_alone(root, captured.root, reverted.git)?;
        self.revert_result(reverted, restored)
    }

    /// What an undo or a redo came to, for the wire.
    pub(crate) fn revert_result(&self, reverted: &Reverted, restored: v1::RestoreResult) -> Result<v1::RevertResult> {
        Ok(v1::RevertResult {
            reverted: Some(crate::api::operation_message(&reverted.of)),
            operation: Some(crate::api::operation_message(&reverted.by)),
            took_back_changes: false,
            cannot_redo: false,
            restored: Some(restored),
            description: self.describe_operation(&reverted.of)?,
        })
    }
}

/// The names that an undo or a redo of a renaming moves a workspace from and to; nothing for other operations.
pub(crate) fn renaming(found: &Operation, direction: Direction) -> Option<(WorkspaceName, WorkspaceName)> {
    if found.draft.action != RENAME {
        return None;
    }
    let name = |change: &RefChange| WorkspaceName::of_reference(&change.name).ok();
    let old = found.changes.iter().find(|change| change.after.is_none()).and_then(name)?;
    let new = found.changes.iter().find(|change| change.before.is_none()).and_then(name)?;
    Some(match direction {
        Direction::Undo => (new, old),
        Direction::Redo => (old, new),
    })
}
