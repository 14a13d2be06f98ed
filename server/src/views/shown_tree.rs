//! Moves a mounted view to another tree while programs use it: to the head of its workspace after a merge, or to the tree that a
//! restore, an undo or a redo asks for. What programs write meanwhile is recorded, merged in, or stays.

use amalgam_engine::workspace::Change;
use amalgam_engine::{
    DiffOptions, Entry, EntryKind, OperationContext, RootId, SnapshotId, TreePath, WorkingTree, diff_entries, entry_at,
};
use amalgam_proto::{Reason, v1};
use amalgam_view::{Captured, StateVersion, TreeEdit};

use super::live::Secured;
use super::writer_rule::WriterRule;
use super::{LockedView, MountedTree, Views};
use crate::context::{HeldTree, ShownNames};
use crate::error::{Error, Result};
use crate::states::{EDIT, GitScope};

/// About how many bytes of paths go into one record of the journal.
const TAKEN_PATHS_BYTES: usize = 64 << 10;

/// The tree of a mount before it is changed.
pub(super) struct CurrentTree {
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

impl CurrentTree {
    pub(super) fn root(&self) -> RootId {
        self.held.root.expect("a live tree has a root")
    }

    fn captured(&self) -> Option<Captured> {
        self.version.map(|version| Captured { version, root: self.root() })
    }
}

impl Views {
    /// Returns the current tree of a mount as a commit would take it.
    pub(super) fn current_tree(&self, locked: &LockedView) -> Result<CurrentTree> {
        let version = Some(locked.live.view.version());
        let (held, edited) = self.hold_edited(locked)?;
        Ok(CurrentTree { held, edited, version })
    }

    /// Returns a tree with every `.git` of another one, or unchanged if `.git` is in scope.
    pub(super) fn hold_with_git_of(&self, tree: RootId, other: RootId, git: GitScope) -> Result<HeldTree> {
        match self.states.with_git_of(tree, other, git)? {
            Some(tree) => self.hold_tree(&tree),
            None => {
                let pin = self.context.store.hold(tree)?;
                Ok(HeldTree { root: Some(tree), snapshot: None, lean: None, _pin: Some(pin) })
            }
        }
    }

    /// Lets a mount show a tree. The next commit follows the head of its workspace.
    pub(super) fn show_tree(
        &self,
        locked: &LockedView,
        root: RootId,
        live: &CurrentTree,
        act: &OperationContext,
    ) -> Result<v1::RestoreResult> {
        let shown = self.show_tree_unless(locked, root, live, WriterRule::Overrule, act)?;
        Ok(shown.expect("writers are overruled"))
    }

    /// Lets a mount show a tree that differs from its own at some paths. Files elsewhere that others write at this moment stay as they
    /// are.
    pub(super) fn show_paths(
        &self,
        locked: &LockedView,
        root: RootId,
        live: &CurrentTree,
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
        live: &CurrentTree,
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
        live: &CurrentTree,
        root: RootId,
        act: &OperationContext,
    ) -> Result<v1::RestoreResult> {
        if shown.is_aside {
            self.states.drop_aside(&locked.workspace, act)?;
        }
        self.wait_for_kernels(|shows| matches!(shows, MountedTree::Live(id) if *id == locked.id));
        let tally = self.states.tally(Some(live.edited), Some(root))?;
        Ok(v1::RestoreResult {
            snapshot: Some(self.context.snapshot_message(shown.head, &ShownNames::default())?),
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
        let live = CurrentTree { held, edited: secured.root, version: since };
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
        let live = CurrentTree { held, edited: secured.root, version: None };
        self.tell_shown(locked, shown, &live, root, act).map(Some)
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

pub(super) fn no_snapshot() -> Error {
    Error::new(Reason::NothingToRevert, "the workspace has no snapshot any more; the mount is left as it is")
}
