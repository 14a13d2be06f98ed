//! Directories of workspaces that are merged: captured before, brought along after.

use amalgam_engine::conflict::CONFLICTS_KEY;
use amalgam_engine::merge::{NoContents, merge_trees};
use amalgam_engine::object::Snapshot;
use amalgam_engine::operation::operation;
use amalgam_engine::workspace::{Change, WorkspaceName};
use amalgam_engine::{Act, MergeContents, MergeOptions, SnapshotId, WriteSession};
use amalgam_materializer::{Progress, Times};
use amalgam_merge::trees::ByRules;
use amalgam_proto::v1;

use super::capture::{CAPTURE, Saying};
use super::restore::Target;
use super::{Grasp, notice};
use crate::failure::{Result, of_engine};
use crate::service::Service;

/// What the log calls a merge.
const MERGE: &str = "merge";

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

    /// Takes what is in a directory into a snapshot, if no snapshot has it yet. One whose workspace moved on without it is brought
    /// along first.
    pub(crate) fn secure_before(&self, grasp: &mut Grasp, what: &str, act: &Act) -> Result<Option<SnapshotId>> {
        let head = self.head(&grasp.workspace)?;
        match self.is_in_step(grasp, head)? {
            true => self.secure(grasp, what, act, &Progress::default()).map(|(safety, _)| safety),
            false => self.catch_up(grasp, &format!("before {what}"), act),
        }
    }

    /// Whether a merge landed in a directory's workspace and the process died before the directory was brought along.
    pub(super) fn is_left_behind(&self, grasp: &Grasp, head: Option<SnapshotId>) -> Result<bool> {
        let (Some(known), Some(now)) = (grasp.record.snapshot(), head) else { return Ok(false) };
        if self.is_in_step(grasp, head)? {
            return Ok(false);
        }
        let store = &self.inner.store;
        let moved = store.last_move(&grasp.workspace.reference()).map_err(of_engine)?;
        let is_merge = operation(store, moved).is_ok_and(|found| found.draft.action == MERGE);
        Ok(is_merge && self.inner.history.is_ancestor(known, now).map_err(of_engine)?)
    }

    /// Brings a directory along whose workspace moved on without it. Each file there is as it was, or as the head has it if a
    /// process died while it brought them along; what is neither is somebody's edit, and is merged with what the head has. A capture
    /// on top of the head would take back what landed. Returns the snapshot of the edits, if there are any.
    pub(super) fn catch_up(&self, grasp: &mut Grasp, message: &str, act: &Act) -> Result<Option<SnapshotId>> {
        let (store, progress) = (&self.inner.store, Progress::default());
        // The request belongs to what comes after it.
        let act = &Act { request: None, ..act.clone() };
        let head = self.head(&grasp.workspace)?;
        let (Some(before), Some(now)) = (self.known_root(grasp.record.snapshot())?, self.head_root(head)?) else {
            return self.secure(grasp, message, act, &progress).map(|(safety, _)| safety);
        };
        let captured = self.look_as(grasp, &progress, true)?;
        let _pin = store.hold(captured.root).map_err(of_engine)?;
        let mut safety = None;
        if ![before, now].contains(&captured.root) {
            let rules = self.merge_rules(Some(&grasp.workspace), None);
            let by_rules = rules.as_ref().ok().map(|rules| ByRules::new(rules, "", ""));
            let contents = by_rules.as_ref().map_or(&NoContents as &dyn MergeContents, |by_rules| by_rules);
            let options = MergeOptions { time: act.time, ..MergeOptions::default() };
            let merged = merge_trees(store, Some(before), now, captured.root, contents, &options);
            let mut tree = merged.map_err(of_engine)?.tree;
            let session = store.session();
            let root = tree.freeze().write(&session).map_err(of_engine)?;
            session.write_all_ahead().map_err(of_engine)?;
            let _pin = store.hold(root).map_err(of_engine)?;
            if !self.is_same(Some(root), Some(now))? {
                tree.rebase(head);
                let mut change = Change::new(message);
                let conflicts = self.conflicts_of(root, Some(now))?.len();
                if conflicts > 0 {
                    change.metadata.insert(CONFLICTS_KEY.to_owned(), conflicts.to_string());
                }
                let done = self.inner.workspaces.commit_as(&grasp.workspace, &mut tree, &change, act, CAPTURE);
                safety = Some(done.map_err(of_engine)?.snapshot);
            }
        }
        self.bring_along(grasp, &mut v1::Merge::default(), act)?;
        Ok(safety)
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
