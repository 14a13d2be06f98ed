//! The recorded states of workspaces' files: comparison, edits recorded beside the head, undo and redo.
//!
//! A state is a tree in the store. Directories and live views bring real files to a state; this part does not know them.

mod contents;
mod description;
mod git_scope;
mod renames;
mod revert;

pub(crate) use git_scope::{GitScope, git_locked, without_holders_of_git};
pub(crate) use renames::is_directory;
pub(crate) use revert::{Direction, IsIgnored, Renaming, Reverted};

use std::sync::Arc;

use amalgam_engine::conflict::CONFLICTS_KEY;
use amalgam_engine::merge::{
    ConflictKind, ContestedFile, FileResult, NoContents, Outcome, PathConflict, Verdict, WholeSide, merge_trees,
};
use amalgam_engine::workspace::{Change, WorkspaceName};
use amalgam_engine::{
    DiffOptions, MergeContents, MergeOptions, OperationContext, RootId, SnapshotId, TreePath, What, WorkingTree,
    diff_roots,
};
use amalgam_merge::trees::RuleMerger;
use amalgam_policy::Guard;
use amalgam_proto::Reason;

use crate::conflicts::Conflicts;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::merge_rules::MergeRules;

/// The action in the operation log for a snapshot of a directory.
pub(crate) const CAPTURE: &str = "capture";
/// The action in the operation log for a commit of edits.
pub(crate) const COMMIT: &str = "commit";
/// The action in the operation log for edits that are recorded because a restore or an undo is about to replace them.
pub(crate) const EDIT: &str = "edit";
/// The action in the operation log for a restore.
const RESTORE: &str = "restore";
/// The action in the operation log for a restore that wrote into `.git`. Undoing it writes there, too.
const RESTORE_WITH_GIT: &str = "restore with .git";

/// Returns the action in the operation log for a restore of this scope.
pub(crate) fn restore_action(git: GitScope) -> &'static str {
    if git.includes() { RESTORE_WITH_GIT } else { RESTORE }
}

/// Returns the action in the operation log for a restore that led back to the head, so that no snapshot describes it.
pub(crate) fn cleared_action(git: GitScope, words: &str) -> String {
    if git.includes() { format!("{RESTORE_WITH_GIT}: {words}") } else { words.to_owned() }
}

/// Returns whether an operation with this action wrote into `.git`.
pub(crate) fn wrote_git(action: &str) -> bool {
    action.starts_with(RESTORE_WITH_GIT)
}

/// The number of paths that differ, by kind of change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) added: u64,
    pub(crate) modified: u64,
    pub(crate) removed: u64,
    /// How many of all these are in `.git`.
    pub(crate) in_git: u64,
}

/// The treatment of edits that a merge drops in favour of the head: a rule took the head's version of a file, or the head's value
/// of an attribute or of a state value stayed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DroppedEdits {
    /// Records them beside the head, because the caller replaces the files that have them.
    Record,
    /// Leaves them to the caller.
    Ignore,
}

/// How a merge with the head of a workspace treats dropped edits, and whose permissions it checks.
#[derive(Clone, Copy)]
struct Landing<'a> {
    dropped: DroppedEdits,
    /// The agents that must be permitted to make each change of the head. `None` if the merge only secures files.
    guard: Option<&'a Guard>,
}

/// Merges contents like another merger, but keeps our version of a file of which that one takes theirs.
struct KeepOurs<'a>(&'a dyn MergeContents);

impl MergeContents for KeepOurs<'_> {
    fn merge(&self, contested: &ContestedFile<'_>) -> amalgam_engine::Result<Verdict> {
        Ok(match self.0.merge(contested)? {
            Verdict::Theirs { strategy } => Verdict::Ours { strategy },
            verdict => verdict,
        })
    }

    fn side_without_contents(&self, path: &TreePath) -> Option<WholeSide> {
        self.0.side_without_contents(path).map(|_| WholeSide::Ours)
    }
}

/// Compares and records the states of workspaces' files.
#[derive(Clone)]
pub(crate) struct States {
    context: Arc<Context>,
    rules: MergeRules,
    conflicts: Conflicts,
}

impl States {
    pub(crate) fn new(context: &Arc<Context>, rules: &MergeRules, conflicts: &Conflicts) -> Self {
        Self { context: Arc::clone(context), rules: rules.clone(), conflicts: conflicts.clone() }
    }

    /// Counts the differences between two trees, without times.
    pub(crate) fn tally(&self, before: Option<RootId>, after: Option<RootId>) -> Result<Tally> {
        let mut tally = Tally::default();
        for change in diff_roots(&self.context.store, before, after, DiffOptions::default())? {
            let change = change?;
            tally.in_git += u64::from(change.path.is_in_git());
            match change.what {
                What::Added => tally.added += 1,
                What::Removed => tally.removed += 1,
                _ => tally.modified += 1,
            }
        }
        Ok(tally)
    }

    /// Returns whether two trees are equal, except for times.
    pub(crate) fn is_same(&self, before: Option<RootId>, after: Option<RootId>) -> Result<bool> {
        if before == after {
            return Ok(true);
        }
        let mut diff = diff_roots(&self.context.store, before, after, DiffOptions::default())?;
        Ok(diff.next().transpose()?.is_none())
    }

    /// Returns whether two trees and their state values are equal, except for times.
    pub(crate) fn is_same_with_states(&self, before: Option<RootId>, after: Option<RootId>) -> Result<bool> {
        Ok(before == after || self.has_same_states(before, after)? && self.is_same(before, after)?)
    }

    /// Returns whether two trees have the same state values.
    fn has_same_states(&self, before: Option<RootId>, after: Option<RootId>) -> Result<bool> {
        let state = |root: Option<RootId>| -> Result<_> {
            Ok(root.map(|root| self.context.store.root(root)).transpose()?.and_then(|root| root.state))
        };
        Ok(state(before)? == state(after)?)
    }

    /// Returns whether two trees differ in this scope or in their state values, except for times. For live trees: a directory holds
    /// no state values.
    pub(crate) fn differs_with_states(
        &self,
        before: Option<RootId>,
        after: Option<RootId>,
        git: GitScope,
    ) -> Result<bool> {
        Ok(!self.has_same_states(before, after)? || self.differs(before, after, git)?)
    }

    /// Returns how many changes an undo leaves alone by default: those in `.git`, unless the workspace's setting includes it.
    pub(crate) fn left_alone_by_undo(&self, workspace: &WorkspaceName, tally: &Tally) -> Result<u64> {
        Ok(if self.default_git_scope(workspace)?.includes() { 0 } else { tally.in_git })
    }

    pub(crate) fn check_etag(&self, workspace: &amalgam_engine::WorkspaceName, etag: &str) -> Result<()> {
        if etag.is_empty() {
            return Ok(());
        }
        let now = self.context.store.last_move(&workspace.reference())?.to_string();
        if now == etag {
            return Ok(());
        }
        let message =
            format!("workspace {workspace} was changed since it was read; look at what it has now, then try again");
        Err(Error::new(Reason::StaleHead, message).with("etag", now))
    }

    /// Returns the tree of a workspace's files after the last recorded operation, or `None` without a snapshot.
    pub(crate) fn state_root(&self, workspace: &WorkspaceName) -> Result<Option<RootId>> {
        self.context.head_root(self.context.workspaces.get(workspace)?.state())
    }

    /// Returns whether a request was carried out before. A second time would undo later changes.
    pub(crate) fn is_replayed(&self, act: &OperationContext) -> Result<bool> {
        Ok(self.context.done_before(act)?.is_some())
    }

    /// Secures the edits of files since a tree like [`merge_files`](Self::merge_files), with a message. No agent is asked for its
    /// rights.
    pub(crate) fn merge_edits(
        &self,
        workspace: &WorkspaceName,
        before: RootId,
        edited: RootId,
        message: &str,
        act: &OperationContext,
    ) -> Result<Option<SnapshotId>> {
        let act = &OperationContext { request: None, ..act.clone() };
        let Some(head) = self.context.head(workspace)? else { return Ok(None) };
        let landing = Landing { dropped: DroppedEdits::Record, guard: None };
        self.merge_with_head(workspace, head, [before, edited], Change::new(message), landing, act)
    }

    /// Commits the changed files of a directory or a mount, merged with the workspace's head. The caller then brings the files to
    /// the head. So edits that the merge drops are recorded first, and an undo brings them back. Returns nothing if the head has
    /// all other edits. Refuses changes of the head that the agents of the guard may not make.
    pub(crate) fn merge_files(
        &self,
        workspace: &WorkspaceName,
        before: RootId,
        edited: RootId,
        change: Change,
        guard: &Guard,
        act: &OperationContext,
    ) -> Result<Option<SnapshotId>> {
        let Some(head) = self.context.head(workspace)? else { return Ok(None) };
        let landing = Landing { dropped: DroppedEdits::Record, guard: Some(guard) };
        self.merge_with_head(workspace, head, [before, edited], change, landing, act)
    }

    /// Commits a changed tree, merged with the workspace's head. Returns nothing if the head has the whole change, and an error if the
    /// workspace has another head than the given one. Refuses changes of the head that the agents of the guard may not make.
    pub(crate) fn merge_change(
        &self,
        workspace: &WorkspaceName,
        head: SnapshotId,
        [before, edited]: [RootId; 2],
        change: Change,
        guard: &Guard,
        act: &OperationContext,
    ) -> Result<Option<SnapshotId>> {
        let landing = Landing { dropped: DroppedEdits::Ignore, guard: Some(guard) };
        self.merge_with_head(workspace, head, [before, edited], change, landing, act)
    }

    fn merge_with_head(
        &self,
        workspace: &WorkspaceName,
        head: SnapshotId,
        [before, edited]: [RootId; 2],
        mut change: Change,
        landing: Landing<'_>,
        act: &OperationContext,
    ) -> Result<Option<SnapshotId>> {
        let store = &self.context.store;
        let now = store.snapshot(head)?.root;
        let rules = self.rules.merge_rules(Some(workspace), None);
        let by_rules = rules.as_ref().ok().map(|rules| RuleMerger::new(rules, "", ""));
        let contents = by_rules.as_ref().map_or(&NoContents as &dyn MergeContents, |by_rules| by_rules);
        let moves = self.context.permissions.moves()?;
        let options = MergeOptions { time: act.time, moves, ..MergeOptions::default() };
        let merged = merge_trees(store, Some(before), now, edited, contents, &options)?;
        let is_recorded = landing.dropped == DroppedEdits::Record && drops_theirs(&merged);
        let mut tree = merged.tree;
        let session = store.session();
        let root = tree.freeze().write(&session)?;
        session.write_all_ahead()?;
        let _pin = store.hold(root)?;
        // The merge may have moved the changes.
        if let Some(guard) = landing.guard.filter(|guard| !guard.is_unrestricted()) {
            self.context.permissions.judge(guard, Some(now), Some(root), "this commit")?;
        }
        let workspaces = &self.context.workspaces;
        // The request id belongs to the commit.
        let aside = &OperationContext { request: None, ..act.clone() };
        if is_recorded {
            // Merged in the other direction, the tree has the dropped edits and the other changes of the head.
            let kept = merge_trees(store, Some(before), edited, now, &KeepOurs(contents), &options)?.tree;
            workspaces.record_working(workspace, &kept, &Change::new(change.message.as_str()), aside, EDIT)?;
        }
        if self.is_same_with_states(Some(root), Some(now))? {
            if is_recorded {
                workspaces.set_working(workspace, None, aside, EDIT)?;
            }
            if !change.labels.is_empty() || change.note.is_some() || change.reward.is_some() {
                // They belong to the head, which has the change.
                let mut tree = WorkingTree::open(store, head)?;
                workspaces.commit_as(workspace, &mut tree, &change, act, CAPTURE)?;
            }
            return Ok(None);
        }
        tree.rebase(Some(head));
        let conflicts = self.conflicts.conflicts_of(root, Some(now))?.len();
        if conflicts > 0 {
            change.metadata.insert(CONFLICTS_KEY.to_owned(), conflicts.to_string());
        }
        // A directory that misses edits by a call must not take them for a capture of its own.
        let action = match landing.dropped {
            DroppedEdits::Record => CAPTURE,
            DroppedEdits::Ignore => COMMIT,
        };
        let done = workspaces.commit_as(workspace, &mut tree, &change, act, action);
        Ok(Some(done?.snapshot))
    }
}

/// Returns whether a merge dropped changes of theirs in favour of ours.
fn drops_theirs(merged: &Outcome) -> bool {
    let keeps_ours =
        |conflict: &PathConflict| matches!(conflict.kind, ConflictKind::State { .. } | ConflictKind::Attribute(_));
    merged.conflicts.iter().any(keeps_ours) || merged.report.files.iter().any(|file| file.result == FileResult::Ours)
}
