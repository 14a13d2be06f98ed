//! Restoring, undoing and redoing a workspace that is mounted: first its edits are recorded, then the workspace moves, then the
//! view goes to it while it is in use.

use amalgam_engine::workspace::{Change, Taken, WorkspaceName, with_paths_of};
use amalgam_engine::{OperationContext, RootId, SnapshotId, TreePath, WorkingTree, entry_at};
use amalgam_policy::Guard;
use amalgam_proto::{Reason, v1};
use amalgam_view::{Difference, differences};

use super::shown_tree::{CurrentTree, no_snapshot};
use super::{LockedView, MountedTree, Views};
use crate::context::{HeldTree, ShownNames};
use crate::error::{Error, Result};
use crate::messages::words_of;
use crate::states::{Direction, EDIT, GitScope, Renaming, Reverted, cleared_action, restore_action};

/// How many changes of a plan go into one message.
const PLAN_PART: usize = 500;

/// The result of an undo or a redo in a mounted workspace.
pub(crate) enum ViewRevert {
    Done(Box<v1::RevertResult>),
    /// A renaming, which the caller reverts: it concerns more than the view.
    Renaming(Box<Renaming>),
}

impl Views {
    /// Restores a live view, or some paths of it, to a snapshot.
    pub(crate) fn restore_view(
        &self,
        id: u64,
        request: &v1::RestoreDirectoryRequest,
        act: &OperationContext,
        mut part: impl FnMut(v1::Plan) -> Result<()>,
    ) -> Result<v1::RestoreResult> {
        let locked = self.lock_view(id)?;
        let paths = request.paths.iter().map(TreePath::new).collect::<Result<Vec<_>, _>>();
        let paths = paths?;
        let wanted = self.context.hold_revision(&request.revision, Some(&locked.workspace))?;
        let snapshot = wanted.snapshot.expect("a revision is a snapshot");
        let wanted_root = wanted.root.expect("a revision has a tree");
        if self.states.is_replayed(act)? {
            return Ok(v1::RestoreResult::default());
        }
        let live = self.current_tree(&locked)?;
        self.check_view_paths(&locked, wanted_root, &paths)?;
        let git = self.states.git_scope(&locked.workspace, request.with_git)?;
        // A `.git` that is named is in scope.
        let scope = if paths.iter().any(TreePath::is_in_git) { GitScope::Include } else { git };
        let (wanted_root, _contents) = self.states.with_contents(wanted_root, &request.contents)?;
        let made = self.restored_tree(wanted_root, live.edited, &paths, scope, act)?;
        let root = made.root.expect("it was written");
        let left_alone = match paths.is_empty() {
            true => self.states.count_left_alone(wanted_root, root, git)?,
            false => self.states.count_left_alone_below(&paths, wanted_root, root, git)?,
        };
        if request.dry_run {
            let (changes, _) = self.plan_of(Some(live.edited), Some(root))?;
            for changes in changes.chunks(PLAN_PART) {
                part(v1::Plan { changes: changes.to_vec() })?;
            }
            return Ok(v1::RestoreResult { left_alone, ..v1::RestoreResult::default() });
        }
        let words = match paths.is_empty() {
            true => format!("restore {}", snapshot.short()),
            false => format!("restore {} from {}", words_of(&paths), snapshot.short()),
        };
        self.states.refuse_git_locks(live.edited, scope)?;
        let safety = self.record_view_edits(&locked, &live, &words, scope, act)?;
        let is_new = self.record_restored_view(&locked, root, &paths, &words, scope, act)?;
        let mut result = match paths.is_empty() {
            true => self.show_tree(&locked, root, &live, act)?,
            false => self.show_paths(&locked, root, &live, act)?,
        };
        result.safety =
            safety.map(|safety| self.context.snapshot_message(safety, &ShownNames::default())).transpose()?;
        result.changed |= is_new;
        result.conflicts = self.shown_conflicts(&locked);
        result.left_alone = left_alone;
        result.notices.extend(wanted.notices());
        Ok(result)
    }

    /// Returns the tree that a mount shows after a restore of some paths, or of all if there are none.
    fn restored_tree(
        &self,
        wanted: RootId,
        live: RootId,
        paths: &[TreePath],
        git: GitScope,
        act: &OperationContext,
    ) -> Result<HeldTree> {
        let store = &self.context.store;
        if paths.is_empty() {
            return self.hold_with_git_of(wanted, live, git);
        }
        let tree = with_paths_of(store, live, wanted, paths, Taken::At(act.time))?;
        let made = self.hold_tree(&tree)?;
        self.hold_with_git_of(made.root.expect("it was written"), live, git)
    }

    /// Records what a mount holds as the state of its workspace's files, if it is not recorded yet. The head stays where it is.
    fn record_view_edits(
        &self,
        locked: &LockedView,
        live: &CurrentTree,
        reason: &str,
        git: GitScope,
        act: &OperationContext,
    ) -> Result<Option<SnapshotId>> {
        let state = self.states.state_root(&locked.workspace)?;
        if !self.states.differs_with_states(state, Some(live.edited), git)? {
            return Ok(None);
        }
        // The request belongs to what comes after it.
        let act = OperationContext { request: None, ..act.clone() };
        let tree = WorkingTree::open_root(&self.context.store, live.edited)?;
        let change = Change::new(format!("before {reason}"));
        let recorded = self.context.workspaces.record_working(&locked.workspace, &tree, &change, &act, EDIT);
        Ok(recorded.map(Some)?)
    }

    /// Records what a restore makes of a mount. Returns whether anything was recorded.
    fn record_restored_view(
        &self,
        locked: &LockedView,
        root: RootId,
        paths: &[TreePath],
        words: &str,
        git: GitScope,
        act: &OperationContext,
    ) -> Result<bool> {
        let (workspaces, name, action) = (&self.context.workspaces, &locked.workspace, restore_action(git));
        let head = self.context.head(name)?;
        let is_changed = self.states.differs_with_states(self.states.state_root(name)?, Some(root), git)?;
        if !self.states.differs_with_states(self.context.head_root(head)?, Some(root), git)? {
            // The user's own edits may have made the mount equal to the head: then the restore is no step for an undo.
            return Ok(match is_changed {
                true => workspaces.set_working(name, None, act, &cleared_action(git, words))?.is_some(),
                false => false,
            });
        }
        let change = Change::new(words);
        let mut tree = WorkingTree::open_root(&self.context.store, root)?;
        if paths.is_empty() {
            tree.rebase(head);
            return Ok(workspaces.commit_as(name, &mut tree, &change, act, action)?.is_new);
        }
        if !is_changed {
            return Ok(false);
        }
        workspaces.record_working(name, &tree, &change, act, action)?;
        Ok(true)
    }

    /// Refuses a path that is in neither tree: it is probably mistyped.
    fn check_view_paths(&self, locked: &LockedView, root: RootId, paths: &[TreePath]) -> Result<()> {
        let wanted = self.context.store.root(root)?;
        let live = locked.live.view.fork();
        for path in paths {
            let there = entry_at(&self.context.store, &wanted, path)?.is_some();
            if !there && live.stat(path.as_bytes())?.is_none() {
                return Err(amalgam_engine::Error::NotFound { path: path.clone() }.into());
            }
        }
        Ok(())
    }

    /// Undoes the changes that are in no snapshot yet, or, without such changes, the last operation of the workspace.
    pub(crate) fn undo_view(&self, id: u64, with_git: bool, act: &OperationContext) -> Result<ViewRevert> {
        let locked = self.lock_view(id)?;
        if self.states.is_replayed(act)? {
            return Ok(ViewRevert::Done(Box::default()));
        }
        let git = self.states.git_scope(&locked.workspace, with_git)?;
        let looked = self.current_tree(&locked).and_then(|live| {
            self.states.refuse_git_locks(live.edited, git)?;
            let recorded = self.record_view_edits(&locked, &live, "undo", git, act)?;
            Ok((live, recorded))
        });
        let (live, recorded) = match looked {
            Err(failure) if failure.reason() == Reason::Full => {
                return self.undo_without_room(&locked, git, failure).map(|result| ViewRevert::Done(Box::new(result)));
            }
            looked => looked?,
        };
        let next = self.states.next_to_revert(&locked.workspace, Direction::Undo)?;
        if let Some(renaming) = Renaming::of(&next, Direction::Undo) {
            return Ok(ViewRevert::Renaming(Box::new(renaming)));
        }
        let reverted = self.states.revert_visibly(&locked.workspace, next, live.edited, git, Direction::Undo, act)?;
        let mut result = self.view_reverted(&locked, &reverted, &live, act)?;
        result.took_back_changes = recorded.is_some();
        Ok(ViewRevert::Done(Box::new(result)))
    }

    /// Returns whether an undo takes back uncommitted changes instead of an operation. Refuses it if the agents of a guard may not
    /// do that.
    pub(crate) fn judge_undo_of_edits(&self, id: u64, guard: &Guard) -> Result<bool> {
        let locked = self.lock_view(id)?;
        let live = match self.current_tree(&locked) {
            // Without space to keep them, uncommitted changes are all that is taken back.
            Err(failure) if failure.reason() == Reason::Full && guard.is_open() => return Ok(true),
            looked => looked?,
        };
        let (state, git) =
            (self.states.state_root(&locked.workspace)?, self.states.default_git_scope(&locked.workspace)?);
        if !self.states.differs_with_states(state, Some(live.edited), git)? {
            return Ok(false);
        }
        self.context.permissions.judge(guard, Some(live.edited), state, "this")?;
        Ok(true)
    }

    /// Takes back uncommitted changes where there is no space to keep them: the journal frees their bytes, and they
    /// cannot be done again. `full` is why they could not be kept, for when nothing is taken back.
    fn undo_without_room(&self, locked: &LockedView, git: GitScope, full: Error) -> Result<v1::RevertResult> {
        let view = &locked.live.view;
        let workspace = self.context.workspaces.get(&locked.workspace)?;
        let (Some(head), Some(state)) = (workspace.head, workspace.state()) else { return Err(full) };
        let found = differences(&self.working_tree(Some(state))?, &view.fork())?;
        // A tree with the `.git` of another one would have to be written.
        if found.is_empty() || (!git.includes() && found.iter().any(|(path, _)| path.is_in_git())) {
            return Err(full);
        }
        view.restore(state, Some(head))?;
        // What there is no room for is done by the next commit or checkpoint.
        let unless_full = |done: Result<()>| match done {
            Err(failure) if failure.reason() == Reason::Full => Ok(()),
            done => done,
        };
        if state == head {
            unless_full(view.finish_restore(head).map_err(Error::from))?;
            unless_full(self.drop_checkpoint(locked.id))?;
        } else {
            unless_full(self.checkpoint(locked))?;
        }
        self.wait_for_kernels(|shows| matches!(shows, MountedTree::Live(id) if *id == locked.id));
        let removed = found.iter().filter(|(_, difference)| *difference == Difference::Added).count() as u64;
        let restored = v1::RestoreResult {
            snapshot: Some(self.context.snapshot_message(head, &ShownNames::default())?),
            written: found.len() as u64 - removed,
            removed,
            changed: true,
            ..v1::RestoreResult::default()
        };
        Ok(v1::RevertResult {
            took_back_changes: true,
            cannot_redo: true,
            restored: Some(restored),
            description: "changes that were in no snapshot".to_owned(),
            ..v1::RevertResult::default()
        })
    }

    /// Redoes the operation that was undone last. Changes made since prevent it.
    pub(crate) fn redo_view(&self, id: u64, with_git: bool, act: &OperationContext) -> Result<ViewRevert> {
        let locked = self.lock_view(id)?;
        if self.states.is_replayed(act)? {
            return Ok(ViewRevert::Done(Box::default()));
        }
        let git = self.states.git_scope(&locked.workspace, with_git)?;
        let live = self.current_tree(&locked)?;
        self.states.refuse_git_locks(live.edited, git)?;
        let next = self.states.next_to_redo_with_states(&locked.workspace, live.edited)?;
        if let Some(renaming) = Renaming::of(&next, Direction::Redo) {
            return Ok(ViewRevert::Renaming(Box::new(renaming)));
        }
        let mut safety = None;
        if git.includes() && self.states.differs(self.states.state_root(&locked.workspace)?, Some(live.edited), git)? {
            let tree = WorkingTree::open_root(&self.context.store, live.edited)?;
            let aside = self.context.workspaces.keep_aside(&locked.workspace, &tree, "before redo", act);
            safety = Some(aside?);
        }
        let reverted = self.states.revert_visibly(&locked.workspace, next, live.edited, git, Direction::Redo, act)?;
        let mut result = self.view_reverted(&locked, &reverted, &live, act)?;
        if let (Some(safety), Some(restored)) = (safety, &mut result.restored) {
            restored.safety = Some(self.context.snapshot_message(safety, &ShownNames::default())?);
            self.states.drop_aside(&locked.workspace, act)?;
        }
        Ok(ViewRevert::Done(Box::new(result)))
    }

    /// Brings a mount to the state that its workspace has after an undo or a redo.
    fn view_reverted(
        &self,
        locked: &LockedView,
        reverted: &Reverted,
        live: &CurrentTree,
        act: &OperationContext,
    ) -> Result<v1::RevertResult> {
        let Some(wanted) = self.states.state_root(&locked.workspace)? else { return Err(no_snapshot()) };
        let made = self.hold_with_git_of(wanted, live.edited, reverted.git)?;
        let root = made.root.expect("it was written");
        let mut restored = self.show_tree(locked, root, live, act)?;
        restored.left_alone = self.states.count_left_alone(wanted, root, reverted.git)?;
        restored.conflicts = self.shown_conflicts(locked);
        self.states.revert_result(reverted, restored)
    }

    /// Moves the head of a workspace that may be mounted: what the mount holds is recorded first, and afterwards it shows the new head.
    /// If only some paths move, the edits of the mount are committed first, because those at other paths stay.
    pub(crate) fn move_head<T>(
        &self,
        workspace: &WorkspaceName,
        paths: &[TreePath],
        reason: &str,
        act: &OperationContext,
        go: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(locked) = self.lock_view_of(workspace)? else { return go() };
        if !paths.is_empty() {
            self.secure_view_before(&locked, reason, act)?;
        }
        let live = self.current_tree(&locked)?;
        self.record_view_edits(&locked, &live, reason, GitScope::Include, act)?;
        let done = go()?;
        let Some(head) = self.context.head_root(self.context.head(workspace)?)? else { return Err(no_snapshot()) };
        self.show_tree(&locked, head, &live, act)?;
        Ok(done)
    }
}
