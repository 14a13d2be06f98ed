//! Undo and redo of the operations of a workspace, as far as they concern its recorded states.

use std::collections::HashSet;

use amalgam_engine::reference::{Operation, RefChange, RefName};
use amalgam_engine::workspace::{Workspace, WorkspaceName};
use amalgam_engine::{
    Change, DiffOptions, Entry, EntryKind, OperationContext, RootId, SnapshotId, What, diff_roots, operation,
};
use amalgam_gc::retention::AUTOMATIC_KEY;
use amalgam_proto::{Reason, v1};

use super::{CAPTURE, GitScope, States, wrote_git};
use crate::error::{Error, Result};
use crate::messages::operation_message;

/// The most paths that a redo compares; with more edits it is refused.
const EDITED_PATHS_MAX: usize = 100_000;
/// The action in the operation log for a rename of a workspace.
const RENAME: &str = "rename";

/// The direction through the operations of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Undo,
    Redo,
}

/// Returns whether a change to a tree is only the absence of a path that the tree's ignore rules exclude: such a path is not
/// captured, and stays on the disk.
pub(crate) type IsIgnored = Box<dyn Fn(&Change) -> Result<bool>>;

/// The result of an undo or a redo.
pub(crate) struct Reverted {
    /// The operation that did so.
    pub(crate) by: Operation,
    /// The operation that was undone or redone.
    pub(crate) of: Operation,
    /// The numbers of all operations that were undone or redone, in that order.
    pub(crate) steps: Vec<u64>,
    pub(crate) direction: Direction,
    /// Whether `.git` is written, too.
    pub(crate) git: GitScope,
    /// Whether files get set-ID bits, capabilities and devices of foreign trees, too.
    pub(crate) set_id: bool,
}

impl States {
    /// Removes the reference to a tree that was kept aside; collections keep the tree for the grace time.
    pub(crate) fn drop_aside(&self, workspace: &WorkspaceName, act: &OperationContext) -> Result<()> {
        let (store, name) = (&self.context.store, workspace.aside_reference());
        let act = OperationContext { request: None, ..act.clone() };
        Ok(operation::remove_reference(store, &name, &act, "drop what was kept aside").map(drop)?)
    }

    /// Returns the next operation that an undo or a redo reverts. Fails if there is none.
    pub(crate) fn next_to_revert(&self, workspace: &WorkspaceName, direction: Direction) -> Result<Operation> {
        let (store, reference) = (&self.context.store, workspace.reference());
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
                let is_new = next.changes.iter().any(|change| change.name == reference && change.before.is_none());
                nothing(match is_new {
                    true => format!("nothing to undo in {workspace}: nothing changed since it was created"),
                    false => format!("nothing to undo in {workspace}: it is at its first snapshot"),
                })
            }
            (Some(next), _) => Ok(next),
            (None, _) if self.context.workspaces.find(workspace)?.is_none() => {
                Err(Error::new(Reason::NotFound, format!("there is no workspace {workspace}")))
            }
            (None, Direction::Undo) => nothing(format!("nothing to undo in {workspace}")),
            (None, Direction::Redo) => {
                nothing(format!("nothing to redo in {workspace}: nothing was undone since the last change"))
            }
        }
    }

    /// Returns the operation that a redo does again. Refuses it if the redo would overwrite files that changed since the undo.
    pub(crate) fn next_to_redo(
        &self,
        workspace: &WorkspaceName,
        there: RootId,
        ignored_in: impl Fn(RootId) -> Result<IsIgnored>,
    ) -> Result<Operation> {
        let next = self.next_to_revert(workspace, Direction::Redo)?;
        let (setting, state) = (self.default_git_scope(workspace)?, self.state_root(workspace)?);
        let is_ignored = ignored_in(there)?;
        if !self.differs_except(state, Some(there), setting, &is_ignored)? {
            return Ok(next);
        }
        let redone = state_after(workspace, &next)?;
        // An undo that skipped a path left it as the redo makes it.
        if let Some(root) = redone.and_then(|id| self.context.store.snapshot(id).ok()).map(|snapshot| snapshot.root)
            && !self.overwrites([state, Some(there), Some(root)], setting, [&is_ignored, &ignored_in(root)?])?
        {
            return Ok(next);
        }
        Err(would_overwrite("files", redone))
    }

    /// Returns the operation that a redo does again in a live tree. Refuses it also if the redo would overwrite state values that
    /// changed since the undo.
    pub(crate) fn next_to_redo_with_states(&self, workspace: &WorkspaceName, there: RootId) -> Result<Operation> {
        // A live tree has no ignore rules.
        let next = self.next_to_redo(workspace, there, |_| Ok(Box::new(|_| Ok(false))))?;
        if self.has_same_states(self.state_root(workspace)?, Some(there))? {
            return Ok(next);
        }
        let redone = state_after(workspace, &next)?;
        let root = redone.and_then(|id| self.context.store.snapshot(id).ok()).map(|snapshot| snapshot.root);
        if root.is_some() && self.has_same_states(root, Some(there))? {
            return Ok(next);
        }
        Err(would_overwrite("state values", redone))
    }

    /// Returns whether going from the second tree, which the files have, to the third overwrites a path that differs from the first,
    /// the recorded state. Times of directories do not count, and neither do paths that the second or the third tree ignores.
    fn overwrites(
        &self,
        [state, there, target]: [Option<RootId>; 3],
        git: GitScope,
        [is_ignored_there, is_ignored_in_target]: [&IsIgnored; 2],
    ) -> Result<bool> {
        let store = &self.context.store;
        let is_edit = |change: &Change| {
            let is_directory =
                |entry: &Option<Entry>| entry.as_ref().is_some_and(|entry| entry.kind() == EntryKind::Directory);
            let is_time = change.what == What::Metadata && is_directory(&change.before) && is_directory(&change.after);
            !is_time && git.covers(&change.path)
        };
        let mut edited = HashSet::new();
        for change in diff_roots(store, state, there, DiffOptions::default())? {
            let change = change?;
            if is_edit(&change) && !is_ignored_there(&change)? {
                edited.insert(change.path);
            }
            if edited.len() > EDITED_PATHS_MAX {
                return Ok(true);
            }
        }
        for change in diff_roots(store, there, target, DiffOptions::default())? {
            let change = change?;
            if is_edit(&change) && edited.contains(&change.path) && !is_ignored_in_target(&change)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reverts an undo or a redo whose files could not be written.
    pub(crate) fn take_back(&self, reverted: &Reverted, act: &OperationContext) -> Result<()> {
        let (store, act) = (&self.context.store, OperationContext { request: None, ..act.clone() });
        for sequence in reverted.steps.iter().rev() {
            match reverted.direction {
                Direction::Undo => operation::redo_operation(store, *sequence, &act)?,
                Direction::Redo => operation::undo_operation(store, *sequence, &act)?,
            };
        }
        Ok(())
    }

    /// Undoes or redoes an operation. Continues with the next one after an automatic snapshot that changed only `.git`, because
    /// its revert would not be visible. Under a policy that applies to the caller it does not: only the first one was judged.
    pub(crate) fn revert_visibly(
        &self,
        workspace: &WorkspaceName,
        next: Operation,
        there: RootId,
        git: GitScope,
        direction: Direction,
        act: &OperationContext,
    ) -> Result<Reverted> {
        let (store, mut next, mut act) = (&self.context.store, next, act.clone());
        let (mut steps, is_judged) = (Vec::new(), !self.context.permissions.reading(None)?.is_open());
        loop {
            steps.push(next.sequence);
            let is_automatic = self.is_automatic(workspace, &next)?;
            let before = if is_automatic { self.state_root(workspace)? } else { None };
            let by = match direction {
                Direction::Undo => operation::undo_operation(store, next.sequence, &act),
                Direction::Redo => operation::redo_operation(store, next.sequence, &act),
            };
            let by = by?;
            let git = if wrote_git(&next.draft.action) { GitScope::Include } else { git };
            let is_seen = !is_automatic || {
                let now = self.state_root(workspace)?;
                !self.has_same_states(before, now)? || self.differs(now, Some(there), git)?
            };
            match self.next_to_revert(workspace, direction) {
                Ok(further) if !is_seen && !is_judged && further.draft.action != RENAME => next = further,
                _ => return Ok(Reverted { by, of: next, steps, direction, git, set_id: false }),
            }
            // The request belongs to the first operation.
            act.request = None;
        }
    }

    /// Returns whether an operation was an automatic snapshot.
    pub(crate) fn is_automatic(&self, workspace: &WorkspaceName, found: &Operation) -> Result<bool> {
        let change = found.changes.iter().find(|change| change.name == workspace.reference());
        let target = change.and_then(|change| change.after.as_ref()).and_then(|value| value.target);
        let Some(target) = target.filter(|_| found.draft.action == CAPTURE) else { return Ok(false) };
        let snapshot = self.context.store.snapshot(SnapshotId::from_bytes(target.hash))?;
        Ok(snapshot.metadata.contains_key(AUTOMATIC_KEY))
    }

    /// Converts the result of an undo or a redo to its message.
    pub(crate) fn revert_result(
        &self,
        reverted: &Reverted,
        mut restored: v1::RestoreResult,
    ) -> Result<v1::RevertResult> {
        let done: HashSet<&RefName> = reverted.by.changes.iter().map(|change| &change.name).collect();
        let left = reverted.of.changes.iter().map(|change| &change.name).filter(|name| !done.contains(name));
        let left = left.filter_map(|name| WorkspaceName::of_reference(name).ok());
        restored.warnings.extend(
            left.map(|workspace| format!("workspace {workspace} was changed or made again since, and stays as it is")),
        );
        Ok(v1::RevertResult {
            reverted: Some(operation_message(&reverted.of)),
            operation: Some(operation_message(&reverted.by)),
            took_back_changes: false,
            cannot_redo: false,
            restored: Some(restored),
            description: self.describe_operation(&reverted.of)?,
        })
    }
}

/// Returns the state of a workspace's files after an operation; `None` if the operation removed the workspace.
fn state_after(workspace: &WorkspaceName, found: &Operation) -> Result<Option<SnapshotId>> {
    let change = found.changes.iter().find(|change| change.name == workspace.reference());
    Ok(match change.and_then(|change| change.after.clone()) {
        Some(value) => Workspace::read(workspace.clone(), value)?.state(),
        None => None,
    })
}

/// Returns the error for a redo that would overwrite changes. `redone` is the state that the redo leads to.
fn would_overwrite(what: &str, redone: Option<SnapshotId>) -> Error {
    let id = redone.map(|id| id.short()).unwrap_or_default();
    let message = format!(
        "{what} were changed since the undo, and a redo would overwrite them; `amalgam restore {id}` overwrites them, and `amalgam \
         undo` then brings them back"
    );
    Error::new(Reason::UncommittedChanges, message)
}

/// An undo or a redo of the renaming of a workspace.
pub(crate) struct Renaming {
    /// The operation that renamed it.
    pub(crate) operation: Operation,
    /// The name that the workspace has.
    pub(crate) from: WorkspaceName,
    /// The name that it gets.
    pub(crate) to: WorkspaceName,
    pub(crate) direction: Direction,
}

impl Renaming {
    /// Returns the renaming that an undo or a redo of an operation is, or `None` for other operations.
    pub(crate) fn of(found: &Operation, direction: Direction) -> Option<Self> {
        if found.draft.action != RENAME {
            return None;
        }
        let name = |change: &RefChange| WorkspaceName::of_reference(&change.name).ok();
        let old = found.changes.iter().find(|change| change.after.is_none()).and_then(name)?;
        let new = found.changes.iter().find(|change| change.before.is_none()).and_then(name)?;
        let (from, to) = match direction {
            Direction::Undo => (new, old),
            Direction::Redo => (old, new),
        };
        Some(Self { operation: found.clone(), from, to, direction })
    }
}
