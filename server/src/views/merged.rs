//! Mounts of workspaces that are merged: captured before, and updated after.

use amalgam_engine::{OperationContext, RootId, SnapshotId};
use amalgam_proto::v1;

use super::LockedView;
use super::Views;
use super::live::Secured;
use super::writer_rule::WriterRule;
use crate::context::HeldTree;
use crate::error::Result;

/// How often concurrent writes are merged in before the writers are overruled, or the mount is left behind.
const ROUNDS_MAX: u32 = 8;

impl Views {
    /// Commits the edits of a mount, if there are any. If the workspace's head moved without the mount, merges the edits with it.
    pub(crate) fn secure_view_before(
        &self,
        locked: &LockedView,
        reason: &str,
        act: &OperationContext,
    ) -> Result<Secured> {
        let (view, head) = (&locked.live.view, self.context.head(&locked.workspace)?);
        if head.is_none() || view.head() == head {
            return self.secure_view(locked, reason, act);
        }
        let _gate = locked.live.edits.write();
        let base = self.hold_base(locked)?;
        let before = base.root.expect("a base has a root");
        let (held, edited) = self.hold_edited(locked)?;
        let snapshot = self.states.merge_edits(&locked.workspace, before, edited, &format!("before {reason}"), act)?;
        let root = held.root.expect("a live tree has a root");
        let secured = Secured { snapshot, root, _held: held };
        self.update_view(locked, secured, WriterRule::Overrule, &mut v1::Merge::default(), act)?;
        Ok(Secured { snapshot, ..self.secure_view(locked, reason, act)? })
    }

    /// Updates a mount that was unlocked while its workspace moved on. Edits made meanwhile are merged with the head.
    pub(crate) fn catch_up_view(
        &self,
        locked: &LockedView,
        message: &str,
        act: &OperationContext,
    ) -> Result<v1::Merge> {
        let mut merge = v1::Merge::default();
        if locked.live.view.head() == self.context.head(&locked.workspace)? {
            return Ok(merge);
        }
        let Some(before) = self.context.known_root(locked.live.view.head())? else { return Ok(merge) };
        let (held, edited) = self.hold_edited(locked)?;
        let root = held.root.expect("a live tree has a root");
        let snapshot = match edited == before {
            true => None,
            false => self.states.merge_edits(&locked.workspace, before, edited, message, act)?,
        };
        self.update_view(locked, Secured { snapshot, root, _held: held }, WriterRule::LetWrite, &mut merge, act)?;
        Ok(merge)
    }

    /// Brings a mount to its workspace's head. Edits made since it was secured are merged with the head.
    pub(crate) fn update_view(
        &self,
        locked: &LockedView,
        mut secured: Secured,
        writers: WriterRule,
        merge: &mut v1::Merge,
        act: &OperationContext,
    ) -> Result<()> {
        if self.context.head(&locked.workspace)? == locked.live.view.head() {
            return Ok(());
        }
        let mut done = None;
        for _ in 0..ROUNDS_MAX {
            let moment = locked.live.view.version();
            let (held, edited) = self.hold_edited(locked)?;
            let root = held.root.expect("a live tree has a root");
            if root != secured.root {
                self.states.merge_edits(&locked.workspace, secured.root, edited, "written during a merge", act)?;
                secured = Secured { snapshot: secured.snapshot, root, _held: held };
            }
            done = self.follow_head_since(locked, &secured, Some(moment), act)?;
            if done.is_none() {
                done = self.take_head(locked, &secured, act)?;
            }
            if done.is_some() {
                break;
            }
        }
        let done = match (done, writers) {
            (Some(done), _) => done,
            (None, WriterRule::Overrule) => self.follow_head(locked, &secured, act)?,
            (None, WriterRule::LetWrite) => return Ok(()),
        };
        (merge.written, merge.removed) = (done.written, done.removed);
        Ok(())
    }

    /// Returns the tree of a mount as a commit would take it, without a commit. Refuses a mount that is not at the head.
    pub(crate) fn preview_in_view(&self, locked: &LockedView, head: Option<SnapshotId>) -> Result<(HeldTree, RootId)> {
        self.refuse_view_out_of_step(locked, head)?;
        self.hold_edited(locked)
    }

    /// Returns the current tree of a view, and its root with conflict entries in the place of the files that show conflicts.
    pub(crate) fn hold_edited(&self, locked: &LockedView) -> Result<(HeldTree, RootId)> {
        let tree = locked.live.view.fork();
        let held = self.hold_making_room(locked, &tree)?;
        let root = held.root.expect("a live tree has a root");
        Ok(match self.conflicts_in(&locked.workspace, &tree)? {
            Some(back) => (held, back.root),
            None => (held, root),
        })
    }
}
