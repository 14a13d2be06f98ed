//! Directories of workspaces that are merged: captured before, brought along after.

use amalgam_engine::object::Snapshot;
use amalgam_engine::workspace::{Change, WorkspaceName};
use amalgam_engine::{Act, SnapshotId, WriteSession};
use amalgam_materializer::{Progress, Times};
use amalgam_proto::v1;

use super::capture::{CAPTURE, Saying};
use super::restore::Target;
use super::{Grasp, notice};
use crate::failure::{Result, of_engine};
use crate::service::Service;

/// What a workspace's head would be after a capture.
pub(crate) struct Ahead {
    pub(crate) head: Option<SnapshotId>,
    /// What would be captured; nothing when a snapshot has it all.
    pub(crate) capture: Option<v1::MergeCapture>,
    /// Keeps what no name points at.
    _session: Option<WriteSession>,
}

impl Service {
    /// Looks at a workspace's directory, if it has one, as a capture would, and changes nothing: the snapshot has no name, and goes
    /// with the next collection.
    pub(crate) fn look_ahead(&self, workspace: &WorkspaceName, act: &Act) -> Result<Ahead> {
        let head = self.head(workspace)?;
        let unchanged = Ahead { head, capture: None, _session: None };
        let Some(mut grasp) = self.grasp_of(workspace)? else { return Ok(unchanged) };
        self.refuse_out_of_step(&grasp, head)?;
        let store = &self.inner.store;
        let session = store.session();
        let captured = self.look(&mut grasp, &Progress::default())?;
        let root = captured.root;
        let _pin = store.hold(root).map_err(of_engine)?;
        grasp.save(self)?;
        let before = self.head_root(head)?;
        if self.is_same(before, Some(root))? {
            return Ok(unchanged);
        }
        let tally = self.tally(before, Some(root))?;
        let generation = match head {
            Some(head) => store.snapshot(head).map_err(of_engine)?.generation + 1,
            None => 0,
        };
        let (parents, author, time) = (head.into_iter().collect(), act.actor.clone(), act.time);
        let (message, metadata) = (String::new(), std::collections::BTreeMap::new());
        let snapshot = Snapshot { root, parents, author, time, message, metadata, generation };
        let snapshot = session.put_snapshot(snapshot).map_err(of_engine)?;
        session.write_all_ahead().map_err(of_engine)?;
        let capture = v1::MergeCapture {
            workspace: amalgam_proto::workspace_name(workspace),
            added: tally.added,
            modified: tally.modified,
            removed: tally.removed,
        };
        Ok(Ahead { head: Some(snapshot), capture: Some(capture), _session: Some(session) })
    }

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
