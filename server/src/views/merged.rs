//! Mounts of workspaces that are merged: what is in one is captured before, and it is brought along after.

use amalgam_engine::{Act, RootId, SnapshotId};
use amalgam_proto::v1;

use super::ViewGrasp;
use super::live::Secured;
use crate::error::Result;
use crate::service::{Held, Service};

/// How often what was written meanwhile is taken along before whoever writes has to give way.
const ROUNDS_MAX: u32 = 8;

impl Service {
    /// Takes what is in a mount into a snapshot, if none has it yet. Where the workspace moved on without the mount, what was changed
    /// there is merged with that.
    pub(crate) fn secure_view_before(&self, grasp: &ViewGrasp, what: &str, act: &Act) -> Result<Secured> {
        let (view, head) = (&grasp.live.view, self.head(&grasp.workspace)?);
        let (Some(before), Some(_)) = (self.known_root(view.base())?, head.filter(|head| view.base() != Some(*head)))
        else {
            return self.secure_view(grasp, what, act);
        };
        let (held, edited) = self.hold_edited(grasp)?;
        let snapshot = self.merge_edits(&grasp.workspace, before, edited, &format!("before {what}"), act)?;
        let root = held.root.expect("a live tree has a root");
        self.follow_head(grasp, &Secured { snapshot, root, _held: held }, act)?;
        Ok(Secured { snapshot, ..self.secure_view(grasp, what, act)? })
    }

    /// Brings a mount along that was free while its workspace moved on. What was changed there meanwhile is merged with that.
    pub(crate) fn catch_view_up(&self, grasp: &ViewGrasp, message: &str, act: &Act) -> Result<v1::Merge> {
        let mut merge = v1::Merge::default();
        if grasp.live.view.base() == self.head(&grasp.workspace)? {
            return Ok(merge);
        }
        let Some(before) = self.known_root(grasp.live.view.base())? else { return Ok(merge) };
        let (held, edited) = self.hold_edited(grasp)?;
        let root = held.root.expect("a live tree has a root");
        let snapshot = match edited == before {
            true => None,
            false => self.merge_edits(&grasp.workspace, before, edited, message, act)?,
        };
        self.bring_view_along(grasp, Secured { snapshot, root, _held: held }, &mut merge, act)?;
        Ok(merge)
    }

    /// Brings a mount to where its workspace's head is now. What was written there since it was secured is merged with that.
    pub(crate) fn bring_view_along(
        &self,
        grasp: &ViewGrasp,
        mut secured: Secured,
        merge: &mut v1::Merge,
        act: &Act,
    ) -> Result<()> {
        if self.head(&grasp.workspace)? == grasp.live.view.base() {
            return Ok(());
        }
        for _ in 0..ROUNDS_MAX {
            let (held, edited) = self.hold_edited(grasp)?;
            let root = held.root.expect("a live tree has a root");
            if root == secured.root {
                break;
            }
            self.merge_edits(&grasp.workspace, secured.root, edited, "written during a merge", act)?;
            secured = Secured { snapshot: secured.snapshot, root, _held: held };
        }
        let done = self.follow_head(grasp, &secured, act)?;
        (merge.written, merge.removed) = (done.written, done.removed);
        Ok(())
    }

    /// What is in a mount, as a commit would take it. Nothing is changed.
    pub(crate) fn look_ahead_in_view(&self, grasp: &ViewGrasp, head: Option<SnapshotId>) -> Result<(Held, RootId)> {
        self.refuse_view_out_of_step(grasp, head)?;
        self.hold_edited(grasp)
    }

    /// What a view holds, and the same with conflicts for what they are.
    pub(crate) fn hold_edited(&self, grasp: &ViewGrasp) -> Result<(Held, RootId)> {
        let tree = grasp.live.view.fork();
        let held = self.hold_pressed(grasp, &tree)?;
        let root = held.root.expect("a live tree has a root");
        Ok(match self.conflicts_in(&tree)? {
            Some(back) => (held, back.root),
            None => (held, root),
        })
    }
}
