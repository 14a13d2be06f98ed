//! The working snapshot: the recorded state of a workspace's files outside of its history.
//!
//! A restore of some paths, and an undo of uncommitted edits, leave files that differ from the head. The state before and after
//! such an operation is recorded as a snapshot that the workspace's reference keeps alive, so that it can be undone and redone.
//! The head does not move: the difference from it is still an uncommitted change.

use super::{Change, WorkspaceName, Workspaces};
use crate::error::Result;
use crate::id::SnapshotId;
use crate::operation::{OperationContext, Step, hold_snapshot, trying};
use crate::reference::{Operation, OperationDraft, RefValue};
use crate::store::RefMove;
use crate::work::WorkingTree;

impl Workspaces {
    /// Records a tree as the state of the workspace's files, with an action name in the operation log. The head does not move and
    /// becomes the parent of the new snapshot, which is returned.
    pub fn record_working(
        &self,
        name: &WorkspaceName,
        tree: &WorkingTree,
        change: &Change,
        context: &OperationContext,
        action: &str,
    ) -> Result<SnapshotId> {
        trying(|| {
            let workspace = self.get(name)?;
            let parents = workspace.head.into_iter().collect();
            let landed = tree.freeze().prepare()?.land(parents, change.details(context), |snapshot| {
                let value = workspace.working_at(Some(snapshot))?;
                Ok(RefMove {
                    expect: vec![(name.reference(), Some(workspace.value().clone()))],
                    set: vec![(name.reference(), Some(value))],
                    operation: context.draft(action),
                    durability: context.durability,
                })
            })?;
            Ok(landed.done.snapshot)
        })
    }

    /// Records that the workspace's files are those of an earlier recorded snapshot or, with `None`, of the head. Returns `None`
    /// if that is already recorded.
    pub fn set_working(
        &self,
        name: &WorkspaceName,
        working: Option<SnapshotId>,
        context: &OperationContext,
        action: &str,
    ) -> Result<Option<Operation>> {
        let _pins = working.map(|working| hold_snapshot(&self.store, working)).transpose()?;
        trying(|| {
            let workspace = self.get(name)?;
            if workspace.working == working {
                return Ok(None);
            }
            let after = workspace.working_at(working)?;
            let step = Step { name: name.reference(), before: Some(workspace.into_value()), after: Some(after) };
            self.move_by(context, action, vec![step]).map(Some)
        })
    }

    /// Keeps a tree as a snapshot under a separate reference, replacing the previous one: files that are about to be replaced, or
    /// that a live view is about to show. Undo and redo of the workspace ignore it. The caller removes
    /// [`aside_reference`](WorkspaceName::aside_reference) when it is not needed any more; collections keep it for the grace
    /// period.
    pub fn keep_aside(
        &self,
        name: &WorkspaceName,
        tree: &WorkingTree,
        message: &str,
        context: &OperationContext,
    ) -> Result<SnapshotId> {
        let reference = name.aside_reference();
        trying(|| {
            let before = self.store.read_ref(&reference)?;
            let details = Change::new(message).details(context);
            let parents = self.get(name)?.head.into_iter().collect();
            let landed = tree.freeze().prepare()?.land(parents, details, |snapshot| {
                Ok(RefMove {
                    expect: vec![(reference.clone(), before)],
                    set: vec![(reference.clone(), Some(RefValue::to(snapshot)))],
                    operation: OperationDraft { request: None, ..context.draft("keep aside") },
                    durability: context.durability,
                })
            })?;
            Ok(landed.done.snapshot)
        })
    }
}
