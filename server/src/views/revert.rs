//! Restoring, undoing and redoing a workspace that is mounted: first its edits are recorded, then the workspace moves, then the
//! view goes to it while it is in use.

use amalgam_engine::workspace::{Change, Taken, WorkspaceName, with_paths_of};
use amalgam_engine::{
    DiffOptions, Entry, EntryKind, OperationContext, RootId, SnapshotId, TreePath, WorkingTree, diff_entries, entry_at,
};
use amalgam_policy::Guard;
use amalgam_proto::{Reason, v1};
use amalgam_view::{Captured, Difference, StateVersion, TreeEdit, differences};

use super::live::Secured;
use super::writer_rule::WriterRule;
use super::{LockedView, MountedTree, Views};
use crate::context::{HeldTree, Marks};
use crate::error::{Error, Result};
use crate::messages::words_of;
use crate::states::{Direction, EDIT, GitScope, Renaming, Reverted, cleared_action, restore_action};

/// How many changes of a plan go into one message.
const PLAN_PART: usize = 500;

/// About how many bytes of paths go into one record of the journal.
const TAKEN_PATHS_BYTES: usize = 64 << 10;

/// The result of an undo or a redo in a mounted workspace.
pub(crate) enum ViewRevert {
    Done(Box<v1::RevertResult>),
    /// A renaming, which the caller reverts: it concerns more than the view.
    Renaming(Box<Renaming>),
}

/// The tree of a mount before it is changed.
pub(super) struct Live {
    /// The tree, pinned in the store.
    pub(super) held: HeldTree,
    /// The tree with conflict entries in the place of their files.
    pub(super) edited: RootId,
    /// The version of the view before its tree was read, if it is known.
    version: Option<StateVersion>,
}

/// A snapshot that a mount is going to show.
#[derive(Clone, Copy)]
struct ShownSnapshot {
    snapshot: SnapshotId,
    /// The head of the workspace.
    head: SnapshotId,
    /// Whether it was made for this, and nothing else refers to it.
    is_aside: bool,
}

impl Live {
    fn root(&self) -> RootId {
        self.held.root.expect("a live tree has a root")
    }

    fn captured(&self) -> Option<Captured> {
        self.version.map(|version| Captured { version, root: self.root() })
    }
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
        let live = self.look_at(&locked)?;
        self.check_view_paths(&locked, wanted_root, &paths)?;
        let git = self.states.git_scope(&locked.workspace, request.with_git)?;
        // A `.git` that is named is in scope.
        let scope = if paths.iter().any(TreePath::is_in_git) { GitScope::Include } else { git };
        let (wanted_root, _contents) = self.states.with_contents(wanted_root, &request.contents)?;
        let made = self.restored_tree(wanted_root, live.edited, &paths, scope, act)?;
        let root = made.root.expect("it was written");
        let left_alone = if paths.is_empty() { self.states.count_left_alone(wanted_root, root, git)? } else { 0 };
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
        result.safety = safety.map(|safety| self.context.snapshot_message(safety, &Marks::default())).transpose()?;
        result.changed |= is_new;
        result.left_alone = left_alone;
        result.notices.extend(wanted.notices());
        Ok(result)
    }

    /// Returns the current tree of a mount as a commit would take it.
    pub(super) fn look_at(&self, locked: &LockedView) -> Result<Live> {
        let version = Some(locked.live.view.version());
        let (held, edited) = self.hold_edited(locked)?;
        Ok(Live { held, edited, version })
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

    /// Returns a tree with every `.git` of another one, or unchanged if `.git` is in scope.
    fn hold_with_git_of(&self, tree: RootId, other: RootId, git: GitScope) -> Result<HeldTree> {
        match self.states.with_git_of(tree, other, git)? {
            Some(tree) => self.hold_tree(&tree),
            None => {
                let pin = self.context.store.hold(tree)?;
                Ok(HeldTree { root: Some(tree), snapshot: None, lean: None, _pin: Some(pin) })
            }
        }
    }

    /// Records what a mount holds as the state of its workspace's files, if it is not recorded yet. The head stays where it is.
    fn record_view_edits(
        &self,
        locked: &LockedView,
        live: &Live,
        before: &str,
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
        let change = Change::new(format!("before {before}"));
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
        if !self.states.differs_with_states(self.context.head_root(head)?, Some(root), git)? {
            let action = cleared_action(git, words);
            return Ok(workspaces.set_working(name, None, act, &action)?.is_some());
        }
        let change = Change::new(words);
        let mut tree = WorkingTree::open_root(&self.context.store, root)?;
        if paths.is_empty() {
            tree.rebase(head);
            return Ok(workspaces.commit_as(name, &mut tree, &change, act, action)?.is_new);
        }
        if !self.states.differs_with_states(self.states.state_root(name)?, Some(root), git)? {
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
        let looked = self.look_at(&locked).and_then(|live| {
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
        let live = match self.look_at(&locked) {
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
            snapshot: Some(self.context.snapshot_message(head, &Marks::default())?),
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
        let live = self.look_at(&locked)?;
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
            restored.safety = Some(self.context.snapshot_message(safety, &Marks::default())?);
            self.states.drop_aside(&locked.workspace, act)?;
        }
        Ok(ViewRevert::Done(Box::new(result)))
    }

    /// Brings a mount to the state that its workspace has after an undo or a redo.
    fn view_reverted(
        &self,
        locked: &LockedView,
        reverted: &Reverted,
        live: &Live,
        act: &OperationContext,
    ) -> Result<v1::RevertResult> {
        let Some(wanted) = self.states.state_root(&locked.workspace)? else { return Err(no_snapshot()) };
        let made = self.hold_with_git_of(wanted, live.edited, reverted.git)?;
        let root = made.root.expect("it was written");
        let mut restored = self.show_tree(locked, root, live, act)?;
        restored.left_alone = self.states.count_left_alone(wanted, root, reverted.git)?;
        self.states.revert_result(reverted, restored)
    }

    /// Lets a mount show a tree. The next commit follows the head of its workspace.
    fn show_tree(
        &self,
        locked: &LockedView,
        root: RootId,
        live: &Live,
        act: &OperationContext,
    ) -> Result<v1::RestoreResult> {
        let shown = self.show_tree_unless(locked, root, live, WriterRule::Overrule, act)?;
        Ok(shown.expect("writers are overruled"))
    }

    /// Lets a mount show a tree that differs from its own at some paths. Files elsewhere that others write at this moment stay as they
    /// are.
    fn show_paths(
        &self,
        locked: &LockedView,
        root: RootId,
        live: &Live,
        act: &OperationContext,
    ) -> Result<v1::RestoreResult> {
        if let Some(shown) = self.show_tree_unless(locked, root, live, WriterRule::LetWrite, act)? {
            return Ok(shown);
        }
        let shown = self.snapshot_to_show(locked, root, act)?;
        let edits = self.entries_to_take(
            live.edited,
            root,
            shown.snapshot,
            None,
            DiffOptions { times: true, ..DiffOptions::default() },
        )?;
        let before = locked.live.view.edit_group(&mut [], |mut tree, _| {
            let before = tree.fork();
            edits.iter().try_for_each(|edit| edit.apply(&mut tree))?;
            Ok::<_, Error>((edits, before))
        })?;
        self.record_late_edits(locked, &before, live.root(), act)?;
        // The journal has a reference of its own, independent of the workspace.
        self.checkpoint(locked)?;
        self.tell_shown(locked, shown, live, root, act)
    }

    /// Returns the edits that take the entries at which two trees differ from a snapshot of the second one.
    fn entries_to_take(
        &self,
        before: RootId,
        after: RootId,
        snapshot: SnapshotId,
        head: Option<SnapshotId>,
        options: DiffOptions,
    ) -> Result<Vec<TreeEdit>> {
        let store = &self.context.store;
        let [before, after] = [store.root(before)?, store.root(after)?].map(|root| Some(root.directory.clone()));
        let (mut edits, mut paths, mut bytes) = (Vec::new(), Vec::new(), 0);
        for change in diff_entries(store, TreePath::root(), before, after, options)? {
            let path = change?.path;
            bytes += path.as_bytes().len();
            paths.push(path);
            if bytes >= TAKEN_PATHS_BYTES {
                bytes = 0;
                edits.push(TreeEdit::TakeEntries { snapshot, head, paths: std::mem::take(&mut paths) });
            }
        }
        if !paths.is_empty() || edits.is_empty() {
            edits.push(TreeEdit::TakeEntries { snapshot, head, paths });
        }
        Ok(edits)
    }

    /// Finds the snapshot of the workspace that has a tree, or makes one aside.
    fn snapshot_to_show(&self, locked: &LockedView, root: RootId, act: &OperationContext) -> Result<ShownSnapshot> {
        let (workspaces, name) = (&self.context.workspaces, &locked.workspace);
        let workspace = workspaces.get(name)?;
        let Some(head) = workspace.head else { return Err(no_snapshot()) };
        for snapshot in [Some(head), workspace.working].into_iter().flatten() {
            if self.context.store.snapshot(snapshot)?.root == root {
                return Ok(ShownSnapshot { snapshot, head, is_aside: false });
            }
        }
        let tree = WorkingTree::open_root(&self.context.store, root)?;
        let snapshot = workspaces.keep_aside(name, &tree, "shown by a mount", act)?;
        Ok(ShownSnapshot { snapshot, head, is_aside: true })
    }

    /// Lets a mount show a tree. If the mount was written since the live tree was read, `writers` decides: the writes are
    /// overruled, or nothing is done and `None` is returned.
    fn show_tree_unless(
        &self,
        locked: &LockedView,
        root: RootId,
        live: &Live,
        writers: WriterRule,
        act: &OperationContext,
    ) -> Result<Option<v1::RestoreResult>> {
        let view = &locked.live.view;
        let shown = self.snapshot_to_show(locked, root, act)?;
        let (state, head) = (shown.snapshot, shown.head);
        let restored = match (live.captured(), writers) {
            (Some(captured), WriterRule::LetWrite) => view.restore_if_unchanged(captured, state, Some(head))?,
            (Some(captured), WriterRule::Overrule) => Some(view.restore_captured(captured, state, Some(head))?),
            (None, _) => Some(view.restore(state, Some(head))?),
        };
        let Some((before, _)) = restored else {
            if shown.is_aside {
                self.states.drop_aside(&locked.workspace, act)?;
            }
            return Ok(None);
        };
        self.record_late_edits(locked, &before, live.root(), act)?;
        if state == head {
            view.finish_restore(head)?;
            self.drop_checkpoint(locked.id)?;
        } else {
            // The journal has a reference of its own, independent of the workspace.
            self.checkpoint(locked)?;
        }
        self.tell_shown(locked, shown, live, root, act).map(Some)
    }

    /// Waits until all mounts show a tree, and returns the result of showing it.
    fn tell_shown(
        &self,
        locked: &LockedView,
        shown: ShownSnapshot,
        live: &Live,
        root: RootId,
        act: &OperationContext,
    ) -> Result<v1::RestoreResult> {
        if shown.is_aside {
            self.states.drop_aside(&locked.workspace, act)?;
        }
        self.wait_for_kernels(|shows| matches!(shows, MountedTree::Live(id) if *id == locked.id));
        let tally = self.states.tally(Some(live.edited), Some(root))?;
        Ok(v1::RestoreResult {
            snapshot: Some(self.context.snapshot_message(shown.head, &Marks::default())?),
            written: tally.added + tally.modified,
            removed: tally.removed,
            changed: tally.added + tally.modified + tally.removed > 0,
            ..v1::RestoreResult::default()
        })
    }

    /// Records the writes between the last capture and the moment a view went to another tree, and then the state that the
    /// workspace had: an undo brings the late edits back.
    pub(super) fn record_late_edits(
        &self,
        locked: &LockedView,
        before: &WorkingTree,
        secured: RootId,
        act: &OperationContext,
    ) -> Result<()> {
        let late = self.hold_tree(before)?;
        if late.root == Some(secured) {
            return Ok(());
        }
        let act = OperationContext { request: None, ..act.clone() };
        let (workspaces, name) = (&self.context.workspaces, &locked.workspace);
        let working = workspaces.get(name)?.working;
        let change = Change::new("written while the workspace was moved");
        workspaces.record_working(name, before, &change, &act, EDIT)?;
        Ok(workspaces.set_working(name, working, &act, EDIT).map(drop)?)
    }

    /// Brings a view to its workspace's head. Edits written since the view was secured are recorded. `.git` stays as it is,
    /// unless the workspace's setting includes it.
    pub(super) fn follow_head(
        &self,
        locked: &LockedView,
        secured: &Secured,
        act: &OperationContext,
    ) -> Result<v1::RestoreResult> {
        let shown = self.follow_head_since(locked, secured, None, act)?;
        Ok(shown.expect("without a version writers are overruled"))
    }

    /// Brings a view to its workspace's head, unless it was changed since a version: then returns `None`.
    pub(super) fn follow_head_since(
        &self,
        locked: &LockedView,
        secured: &Secured,
        since: Option<StateVersion>,
        act: &OperationContext,
    ) -> Result<Option<v1::RestoreResult>> {
        let Some(head) = self.context.head_root(self.context.head(&locked.workspace)?)? else {
            return Err(no_snapshot());
        };
        let git = self.states.default_git_scope(&locked.workspace)?;
        let made = self.hold_with_git_of(head, secured.root, git)?;
        let pin = self.context.store.hold(secured.root)?;
        let held = HeldTree { root: Some(secured.root), snapshot: None, lean: None, _pin: Some(pin) };
        let live = Live { held, edited: secured.root, version: since };
        let writers = if since.is_some() { WriterRule::LetWrite } else { WriterRule::Overrule };
        self.show_tree_unless(locked, made.root.expect("it was written"), &live, writers, act)
    }

    /// Brings a view to its workspace's head by taking the entries that the head has changed, while others write elsewhere. Returns `None`
    /// if one of these entries has edits that are not secured, and for changes that cannot be taken entry by entry: of state values and of
    /// hard links.
    pub(super) fn take_head(
        &self,
        locked: &LockedView,
        secured: &Secured,
        act: &OperationContext,
    ) -> Result<Option<v1::RestoreResult>> {
        let Some(wanted) = self.context.head_root(self.context.head(&locked.workspace)?)? else {
            return Err(no_snapshot());
        };
        let git = self.states.default_git_scope(&locked.workspace)?;
        let made = self.hold_with_git_of(wanted, secured.root, git)?;
        let root = made.root.expect("it was written");
        let store = &self.context.store;
        let (before, after) = (store.root(secured.root)?, store.root(root)?);
        if before.state != after.state {
            return Ok(None);
        }
        let shown = self.snapshot_to_show(locked, root, act)?;
        // A merge gives its files other times; files that differ in nothing else stay.
        let edits =
            self.entries_to_take(secured.root, root, shown.snapshot, Some(shown.head), DiffOptions::default())?;
        let taken = locked.live.view.edit_group(&mut [], |mut tree, _| {
            let edited = tree.edited();
            for path in edits.iter().flat_map(TreeEdit::taken_paths) {
                let (old, new) = (entry_at(store, &before, path)?, entry_at(store, &after, path)?);
                let is_directory =
                    |entry: &Option<Entry>| entry.as_ref().map(Entry::kind) == Some(EntryKind::Directory);
                let goes = is_directory(&old) && !is_directory(&new);
                let is_linked = [&old, &new].into_iter().flatten().any(|entry| entry.link().is_some());
                if is_linked
                    || !is_stored_as(&tree, path, old.as_ref())?
                    || goes && edited.iter().any(|edited| edited.below(path).is_some())
                {
                    return Ok((Vec::new(), false));
                }
            }
            edits.iter().try_for_each(|edit| edit.apply(&mut tree))?;
            Ok::<_, Error>((edits, true))
        })?;
        if !taken {
            if shown.is_aside {
                self.states.drop_aside(&locked.workspace, act)?;
            }
            return Ok(None);
        }
        self.checkpoint(locked)?;
        let pin = self.context.store.hold(secured.root)?;
        let held = HeldTree { root: Some(secured.root), snapshot: None, lean: None, _pin: Some(pin) };
        let live = Live { held, edited: secured.root, version: None };
        self.tell_shown(locked, shown, &live, root, act).map(Some)
    }

    /// Moves the head of a workspace that may be mounted: what the mount holds is recorded first, and afterwards it shows the new head.
    /// If only some paths move, the edits of the mount are committed first, because those at other paths stay.
    pub(crate) fn move_head<T>(
        &self,
        workspace: &WorkspaceName,
        paths: &[TreePath],
        before: &str,
        act: &OperationContext,
        go: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(locked) = self.lock_view_of(workspace)? else { return go() };
        if !paths.is_empty() {
            self.secure_view_before(&locked, before, act)?;
        }
        let live = self.look_at(&locked)?;
        self.record_view_edits(&locked, &live, before, GitScope::Include, act)?;
        let done = go()?;
        let Some(head) = self.context.head_root(self.context.head(workspace)?)? else { return Err(no_snapshot()) };
        self.show_tree(&locked, head, &live, act)?;
        Ok(done)
    }
}

/// Returns whether a tree has a stored entry at a path, without edits. The contents of directories are not compared.
fn is_stored_as(tree: &WorkingTree, path: &TreePath, entry: Option<&Entry>) -> Result<bool> {
    let found = match tree.stat(path) {
        Err(amalgam_engine::Error::NotADirectory { .. }) => None,
        found => found?,
    };
    Ok(match (found, entry) {
        (None, None) => true,
        (Some(found), Some(entry)) if entry.kind() == EntryKind::Directory => found.kind == EntryKind::Directory,
        (Some(found), Some(entry)) => found.entry.as_ref() == Some(entry),
        _ => false,
    })
}

fn no_snapshot() -> Error {
    Error::new(Reason::NothingToRevert, "the workspace has no snapshot any more; the mount is left as it is")
}
