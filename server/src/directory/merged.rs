//! Directories of workspaces that are merged: captured before, brought along after.

use amalgam_engine::workspace::{Change, WorkspaceName};
use amalgam_engine::{Act, SnapshotId};
use amalgam_materializer::{Progress, Times};
use amalgam_proto::v1;

use super::capture::{CAPTURE, Saying};
use super::restore::Target;
use super::{Grasp, notice};
use crate::failure::Result;
use crate::service::Service;

impl Service {
    /// Takes hold of a workspace's directory, if it has one.
    pub(crate) fn grasp_of(&self, workspace: &WorkspaceName) -> Result<Option<Grasp>> {
        let record = self.inner.registry.all().into_iter().find(|record| record.workspace == workspace.as_str());
        record.map(|record| self.grasp(&amalgam_proto::directory_name(&record.id))).transpose()
    }

    /// Takes a snapshot of a workspace's directory, if it has one and that changed.
    pub(crate) fn capture_of(&self, workspace: &WorkspaceName, message: &str, act: &Act) -> Result<()> {
        let Some(mut grasp) = self.grasp_of(workspace)? else { return Ok(()) };
        let saying = Saying { action: CAPTURE, change: Change::new(message) };
        // The request belongs to what comes after it.
        let act = Act { request: None, ..act.clone() };
        self.snapshot_directory(&mut grasp, &saying, &act, &Progress::default()).map(drop)
    }

    /// Takes what is in a directory into a snapshot, if no snapshot has it yet.
    pub(crate) fn secure_before(&self, grasp: &mut Grasp, what: &str, act: &Act) -> Result<Option<SnapshotId>> {
        self.secure(grasp, what, act, &Progress::default()).map(|(safety, _)| safety)
    }

    /// Brings a directory to where its workspace's head is now.
    pub(crate) fn bring_along(&self, grasp: &mut Grasp, merge: &mut v1::Merge, act: &Act) -> Result<()> {
        let head = self.head(&grasp.workspace)?;
        let Some(root) = self.head_root(head)? else { return Ok(()) };
        if grasp.record.snapshot() == head {
            return Ok(());
        }
        let target = Target { root, paths: None, with_git: false };
        // What the merge wrote has its time already, and all else is there.
        let (brought, _) = self.bring_to(grasp, &target, Times::OfBytes(act.time), &Progress::default())?;
        grasp.record.in_step(head, act.time);
        grasp.save(self)?;
        (merge.written, merge.removed) = (brought.written, brought.removed);
        merge.notices = brought.notices.iter().map(notice).collect();
        Ok(())
    }
}
