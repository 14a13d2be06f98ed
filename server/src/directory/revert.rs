//! Undo and redo of what happened to a directory.

use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{Act, operation};
use amalgam_materializer::{Progress, Times};
use amalgam_proto::{Failure, Reason, v1};

use super::Grasp;
use super::restore::Target;
use crate::failure::{Result, of_engine};
use crate::service::Service;

impl Service {
    /// Takes back the last thing that happened: changes that are in no snapshot yet (they are in one afterwards, so that nothing is
    /// lost), or else the last operation of the workspace.
    pub(crate) fn undo_directory(&self, name: &str, act: &Act, progress: &Progress) -> Result<v1::RevertResult> {
        if let Some(id) = self.live_named(name)? {
            return self.undo_view(id, act);
        }
        let mut grasp = self.grasp(name)?;
        let (secured, ignored) = self.secure(&mut grasp, "undo", act, progress)?;
        self.refuse_nothing_to_undo(&grasp.workspace)?;
        let done = self.inner.workspaces.undo(&grasp.workspace, act).map_err(of_engine)?;
        self.follow(&mut grasp, &done, secured.is_some(), ignored, act, progress)
    }

    /// A workspace that stands at its first snapshot cannot go further back.
    pub(crate) fn refuse_nothing_to_undo(&self, workspace: &WorkspaceName) -> Result<()> {
        let reference = workspace.reference();
        let first = operation::next_to_undo(&self.inner.store, &reference).map_err(of_engine)?;
        let begins = |change: &amalgam_engine::reference::RefChange| {
            change.name == reference && change.before.as_ref().is_none_or(|value| value.target.is_none())
        };
        match &first {
            Some(first) if !first.changes.iter().any(begins) => Ok(()),
            _ => {
                let message = format!("nothing to undo in {workspace}: this is its first snapshot");
                Err(Failure::new(Reason::NothingToRevert, message))
            }
        }
    }

    /// Does again what was taken back last. Changes made since would be in the way.
    pub(crate) fn redo_directory(&self, name: &str, act: &Act, progress: &Progress) -> Result<v1::RevertResult> {
        if let Some(id) = self.live_named(name)? {
            return self.redo_view(id, act);
        }
        let mut grasp = self.grasp(name)?;
        let head = self.head(&grasp.workspace)?;
        let captured = self.look_as(&mut grasp, progress, true)?;
        if !self.is_same(self.head_root(head)?, Some(captured.root))? {
            grasp.save(self)?;
            let message = "there are changes since; `amalgam undo` or `amalgam commit` first";
            return Err(Failure::new(Reason::UncommittedChanges, message));
        }
        let done = self.inner.workspaces.redo(&grasp.workspace, act).map_err(of_engine)?;
        self.follow(&mut grasp, &done, false, captured.counts.ignored, act, progress)
    }

    /// Brings a directory to where its workspace's head went.
    fn follow(
        &self,
        grasp: &mut Grasp,
        done: &amalgam_engine::reference::Operation,
        took_back_changes: bool,
        ignored: u64,
        act: &Act,
        progress: &Progress,
    ) -> Result<v1::RevertResult> {
        let head = self.head(&grasp.workspace)?;
        let root = self.head_root(head)?.ok_or_else(|| {
            Failure::new(
                Reason::NothingToRevert,
                "the workspace has no snapshot any more; the directory is left as it is",
            )
        })?;
        let target = Target { root, paths: None, with_git: false };
        let times = if ignored == 0 { Times::Exact } else { Times::OfBytes(act.time) };
        let (brought, _) = self.bring_to(grasp, &target, times, progress)?;
        grasp.record.in_step(head, act.time);
        self.note_conflicts(grasp)?;
        grasp.save(self)?;
        let reverts = done.draft.reverts.and_then(|revert| revert.undone().or(revert.redone()));
        let reverted = reverts.map(|sequence| operation::operation(&self.inner.store, sequence)).transpose();
        Ok(v1::RevertResult {
            reverted: reverted.map_err(of_engine)?.as_ref().map(crate::api::operation_message),
            operation: Some(crate::api::operation_message(done)),
            took_back_changes,
            restored: Some(self.restore_result(&brought, head)?),
        })
    }
}
