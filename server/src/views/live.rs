//! Operations on a live view as a whole: capture it, commit it, bring it to its workspace's head. All in time
//! proportional to what changed.

use std::collections::BTreeMap;

use amalgam_engine::conflict::CONFLICTS_KEY;
use amalgam_engine::workspace::{Change, LabelName, WorkspaceName};
use amalgam_engine::{
    DiffOptions, EntryKind, OperationContext, RootId, SnapshotId, TreePath, What, WorkingTree, diff_roots, operation,
};
use amalgam_proto::{Reason, v1};
use amalgam_view::{Captured, CommitRequest, ConflictFiles, Difference, differences, holds_same};
use bytes::Bytes;

use super::writer_rule::WriterRule;
use super::{KEEPER, LockedView, MountedTree, Views, checkpoint_reference, view_name};
use crate::conflicts::CapturedConflicts;
use crate::context::{ExpectedHead, HeldTree, ShownNames};
use crate::error::{Error, Result};
use crate::messages::{path_bytes, renamed_message};
use crate::states::{CAPTURE, Tally, is_directory, without_holders_of_git};

/// How often a commit is tried anew because another writer moved the head.
const COMMIT_ATTEMPTS_MAX: usize = 16;

/// The tree of a view, stored.
pub(crate) struct Secured {
    /// The snapshot that was taken of the tree; `None` if the head had the same tree already.
    pub(crate) snapshot: Option<SnapshotId>,
    /// The tree that is safe.
    pub(super) root: RootId,
    pub(super) _held: HeldTree,
}

/// The result of a commit of a live tree.
#[derive(Default)]
pub(crate) struct CommittedView {
    /// The head afterwards; `None` for a workspace without a snapshot.
    pub(crate) snapshot: Option<SnapshotId>,
    /// Whether a snapshot was made.
    pub(crate) is_new: bool,
    /// Whether the head had moved, so that the changes were merged with it.
    pub(crate) is_merged: bool,
}

/// The result of a commit of a view by itself.
struct ViewCommit {
    snapshot: SnapshotId,
    /// Whether a snapshot was made.
    is_new: bool,
    /// The conflicts of the snapshot; `None` if they were not searched.
    conflicts: Option<CapturedConflicts>,
}

/// The differences between a live tree and the snapshot that it follows.
pub(crate) struct ViewChanges {
    /// The snapshot that the tree follows.
    pub(crate) base: Option<SnapshotId>,
    /// The paths that differ.
    pub(crate) paths: Vec<(TreePath, Difference)>,
    /// The tree of that snapshot, and the live tree.
    pub(crate) trees: [WorkingTree; 2],
    /// Whether state values differ.
    pub(crate) has_changed_states: bool,
}

impl Views {
    /// Writes the current tree of a view to the store and pins it, without a snapshot. Files that show conflicts are conflicts in
    /// it, as in the capture of a directory and as a commit would store them.
    pub(crate) fn hold_view(&self, id: u64) -> Result<HeldTree> {
        let locked = self.lock_view(id)?;
        let tree = locked.live.view.fork();
        let held = self.hold_making_room(&locked, &tree)?;
        match self.conflicts_in(&locked.workspace, &tree)? {
            Some(back) => self.hold_making_room(&locked, &back.tree),
            None => Ok(held),
        }
    }

    pub(super) fn hold_live(&self, locked: &LockedView) -> Result<HeldTree> {
        self.hold_making_room(locked, &locked.live.view.fork())
    }

    /// Writes a tree of a view to the store and pins it. On a full disk, frees the journal's preallocated space and tries again.
    pub(super) fn hold_making_room(&self, locked: &LockedView, tree: &WorkingTree) -> Result<HeldTree> {
        match self.hold_tree(tree) {
            Err(failure) if failure.reason() == Reason::Full && locked.live.view.release_preallocated() => {
                self.hold_tree(tree)
            }
            held => held,
        }
    }

    pub(super) fn hold_tree(&self, tree: &WorkingTree) -> Result<HeldTree> {
        let (root, pin) = tree.freeze().hold()?;
        Ok(HeldTree { root: Some(root), snapshot: None, lean: None, _pin: Some(pin) })
    }

    /// Returns the tree of the snapshot that a view follows. It is empty if the view is older than the first snapshot of its workspace,
    /// or if the snapshot is gone.
    pub(super) fn hold_base(&self, locked: &LockedView) -> Result<HeldTree> {
        match self.context.known_root(locked.live.view.head())? {
            Some(root) => Ok(HeldTree { root: Some(root), snapshot: None, lean: None, _pin: None }),
            None => self.hold_tree(&WorkingTree::new(&self.context.store)),
        }
    }

    /// Returns the head of a view's workspace; the snapshot that the view follows if the workspace was deleted.
    pub(super) fn head_behind_view(&self, locked: &LockedView) -> Result<Option<SnapshotId>> {
        let found = self.context.workspaces.find(&locked.workspace)?;
        Ok(found.map_or(locked.live.view.head(), |found| found.head))
    }

    /// Returns whether a view differs from its workspace's head, except for times. Writes nothing, so that it works on a full
    /// disk.
    pub(super) fn is_uncommitted(&self, locked: &LockedView) -> Result<bool> {
        self.differs_from(locked, self.head_behind_view(locked)?)
    }

    /// Returns whether a view differs from a snapshot, except for times. A snapshot that cannot be read differs.
    fn differs_from(&self, locked: &LockedView, snapshot: Option<SnapshotId>) -> Result<bool> {
        let view = &locked.live.view;
        if view.head() == snapshot && view.is_clean() {
            return Ok(false);
        }
        let other = match self.working_tree(snapshot) {
            // A corrupt snapshot counts as different.
            Err(failure) if failure.reason() == Reason::Corrupt => return Ok(true),
            other => other?,
        };
        Ok(!holds_same(&other, &view.fork())?)
    }

    pub(super) fn working_tree(&self, snapshot: Option<SnapshotId>) -> Result<WorkingTree> {
        let opened = snapshot.map(|snapshot| WorkingTree::open(&self.context.store, snapshot)).transpose();
        Ok(opened?.unwrap_or_else(|| WorkingTree::new(&self.context.store)))
    }

    /// Moves a view without uncommitted changes to its workspace's head. A view with changes stays; `behind` records the head.
    pub(super) fn bring_in_step(&self, locked: &LockedView) -> Result<()> {
        let (view, head) = (&locked.live.view, self.head_behind_view(locked)?);
        let Some(head) = head.filter(|head| view.head() != Some(*head)) else { return Ok(()) };
        let moment = view.version();
        // Compared with what the view follows: then nothing of its own would be lost.
        if self.differs_from(locked, view.head())? {
            *locked.live.behind.lock() = Some(head);
            return Ok(());
        }
        let held = self.hold_live(locked)?;
        let secured = held.root.expect("a live tree has a root");
        // A write at this moment is a new change; the next capture finds it.
        let gone = view.restore_if_unchanged(Captured { version: moment, root: secured }, head, Some(head))?;
        let Some((before, _)) = gone else { return Ok(()) };
        self.record_late_edits(locked, &before, secured, &OperationContext::new(KEEPER, self.context.now()))?;
        view.finish_restore(head)?;
        self.wait_for_kernels(|shows| matches!(shows, MountedTree::Live(id) if *id == locked.id));
        Ok(())
    }

    /// Refuses to commit a view that does not follow the head: the head moved while the view had changes, and a commit on top of it
    /// would silently revert that move.
    pub(super) fn refuse_view_out_of_step(&self, locked: &LockedView, head: Option<SnapshotId>) -> Result<()> {
        if locked.live.view.head() == head {
            return Ok(());
        }
        let now = head.map_or_else(|| "nothing".to_owned(), |head| head.short());
        let message = format!(
            "workspace {} has moved on to {now} since this mount was last in step with it; `amalgam restore @` takes that over (what is \
             here is captured first)",
            locked.workspace
        );
        Err(Error::new(Reason::StaleHead, message))
    }

    /// Takes a snapshot of a live view, for a request.
    pub(crate) fn capture_view(
        &self,
        id: u64,
        request: &v1::CaptureDirectoryRequest,
        act: &OperationContext,
    ) -> Result<v1::CaptureResult> {
        let locked = self.lock_view(id)?;
        let labels = request.labels.iter().map(LabelName::new).collect::<Result<Vec<_>, _>>()?;
        let metadata: BTreeMap<_, _> = request.metadata.clone().into_iter().collect();
        let change = Change { message: request.message.clone(), metadata, labels, ..Change::default() };
        self.states.check_etag(&locked.workspace, &request.etag)?;
        let head = self.context.head(&locked.workspace)?;
        if self.states.is_replayed(act)? {
            // Later writes belong to the next commit.
            return self.nothing_captured(&locked, head);
        }
        self.refuse_view_out_of_step(&locked, head)?;
        let mut warnings = self.quota.check_space()?;
        // Only for a quota its tree is written before it is committed.
        if self.quota.quota_of(&locked.workspace)?.is_some() {
            let held = self.hold_live(&locked)?;
            warnings.extend(self.quota.check_quota(&locked.workspace, held.root)?);
        }
        self.judge_commit(&locked, head)?;
        let ViewCommit { snapshot, is_new, conflicts } = self.commit_view(&locked, &change, act)?;
        let root = self.context.store.snapshot(snapshot)?.root;
        let tally = self.states.tally(self.context.head_root(head)?, Some(root))?;
        let conflicts = conflicts.unwrap_or_default();
        // The commit is made: a failure to read its history is no failure of it.
        let summary = self.conflicts.summary(&conflicts, Some(snapshot), root);
        let conflicts = summary.unwrap_or_else(|_| conflicts.message());
        Ok(v1::CaptureResult {
            snapshot: Some(self.context.snapshot_message(snapshot, &ShownNames::default())?),
            changed: is_new,
            // Counting all files would take a walk.
            counts: None,
            added: tally.added,
            modified: tally.modified,
            removed: tally.removed,
            stored_bytes: 0,
            notices: Vec::new(),
            workspace: Some(self.workspace_message(&locked.workspace)?),
            warnings,
            conflicts: Some(conflicts),
            in_git: self.states.left_alone_by_undo(&locked.workspace, &tally)?,
        })
    }

    fn nothing_captured(&self, locked: &LockedView, head: Option<SnapshotId>) -> Result<v1::CaptureResult> {
        Ok(v1::CaptureResult {
            snapshot: head.map(|head| self.context.snapshot_message(head, &ShownNames::default())).transpose()?,
            workspace: Some(self.workspace_message(&locked.workspace)?),
            ..v1::CaptureResult::default()
        })
    }

    /// Commits the changes of a workspace's live tree, if it has one. Where the workspace moved on without it, the changes are merged with
    /// the head, or refused if a head is expected.
    pub(crate) fn commit_live(
        &self,
        workspace: &WorkspaceName,
        change: &Change,
        expected: ExpectedHead,
        act: &OperationContext,
    ) -> Result<CommittedView> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.try_commit_live(workspace, change, expected, act) {
                // Another writer moved the head meanwhile.
                Err(failure)
                    if failure.reason() == Reason::StaleHead
                        && expected == ExpectedHead::Any
                        && attempts < COMMIT_ATTEMPTS_MAX => {}
                done => return done,
            }
        }
    }

    fn try_commit_live(
        &self,
        workspace: &WorkspaceName,
        change: &Change,
        expected: ExpectedHead,
        act: &OperationContext,
    ) -> Result<CommittedView> {
        let locked = self.lock_view_of(workspace)?;
        // Another call may have moved the head while this one waited for the lock.
        let head = self.context.expect_head(workspace, expected)?;
        let Some(locked) = locked else {
            if head.is_none() {
                return Ok(CommittedView::default());
            }
            // Sets labels, note and reward on the head.
            let mut tree = self.working_tree(head)?;
            let done = self.context.workspaces.commit_as(workspace, &mut tree, change, act, CAPTURE)?;
            return Ok(CommittedView { snapshot: Some(done.snapshot), is_new: done.is_new, is_merged: false });
        };
        self.quota.check_space()?;
        if self.quota.quota_of(workspace)?.is_some() {
            let (_held, root) = self.hold_edited(&locked)?;
            self.quota.check_quota(workspace, Some(root))?;
        }
        self.judge_commit(&locked, locked.live.view.head())?;
        if locked.live.view.head() == head {
            let ViewCommit { snapshot, is_new, .. } = self.commit_view(&locked, change, act)?;
            return Ok(CommittedView { snapshot: Some(snapshot), is_new, is_merged: false });
        }
        if expected != ExpectedHead::Any {
            self.refuse_view_out_of_step(&locked, head)?;
        }
        let _gate = locked.live.edits.write();
        let (held, edited) = self.hold_edited(&locked)?;
        let base = self.hold_base(&locked)?;
        let before = base.root.expect("a base has a root");
        let guard = self.context.permissions.writing(workspace)?;
        let merged = self.states.merge_files(workspace, before, edited, change.clone(), &guard, act)?;
        let root = held.root.expect("a live tree has a root");
        let secured = Secured { snapshot: merged, root, _held: held };
        self.update_view(&locked, secured, WriterRule::Overrule, &mut v1::Merge::default(), act)?;
        Ok(CommittedView { snapshot: merged.or(head), is_new: merged.is_some(), is_merged: true })
    }

    /// Refuses to commit changes that the policy does not permit to the agents of the workspace and of the call. Writes were judged when
    /// they were made; the policy may have changed since.
    fn judge_commit(&self, locked: &LockedView, before: Option<SnapshotId>) -> Result<()> {
        let guard = self.context.permissions.writing(&locked.workspace)?;
        if guard.is_unrestricted() {
            return Ok(());
        }
        let held = self.hold_live(locked)?;
        self.context.permissions.judge(&guard, self.context.known_root(before)?, held.root, "this commit")
    }

    /// Compares the live tree of a workspace with the snapshot that it follows. Returns nothing for a workspace without a live tree.
    pub(crate) fn changes_of(&self, workspace: &WorkspaceName) -> Result<Option<ViewChanges>> {
        let Some(locked) = self.lock_view_of(workspace)? else { return Ok(None) };
        let (tree, base) = (locked.live.view.fork(), locked.live.view.head());
        let before = self.working_tree(base)?;
        let has_changed_states = !before.has_same_states(&tree)?;
        let paths = differences(&before, &tree)?;
        Ok(Some(ViewChanges { base, paths, trees: [before, tree], has_changed_states }))
    }

    /// Commits a live view. Files that show conflicts are stored as conflicts again, and resolutions are remembered.
    fn commit_view(&self, locked: &LockedView, change: &Change, act: &OperationContext) -> Result<ViewCommit> {
        let view = &locked.live.view;
        let seen = view.fork();
        let before = seen.base();
        let edited = self.edited_conflicts(&locked.workspace, &seen)?;
        let expected = self.expected_conflicts(before, &edited);
        let mut change = change.clone();
        change.metadata.remove(CONFLICTS_KEY);
        if let Some(count) =
            expected.as_ref().map(|expected| edited.count_to_commit(&seen, expected)).filter(|count| *count > 0)
        {
            change.metadata.insert(CONFLICTS_KEY.to_owned(), count.to_string());
        }
        let conflict_files = match edited.back {
            Some(back) => {
                change.resolutions = self.conflicts.resolutions_of(&back.resolved, back.root)?;
                let paths = back.conflicts.iter().map(|placed| placed.path.clone()).collect();
                Some(ConflictFiles { seen, root: back.root, paths })
            }
            None => None,
        };
        let (workspaces, name) = (&self.context.workspaces, &locked.workspace);
        let (change, conflict_files) = (&change, conflict_files.as_ref());
        let request = CommitRequest { workspaces, name, change, act, action: CAPTURE, conflict_files };
        let done = view.commit_request(&request)?;
        self.drop_checkpoint(locked.id)?;
        let conflicts = expected.and_then(|expected| self.committed_conflicts(before, done.snapshot, expected));
        Ok(ViewCommit { snapshot: done.snapshot, is_new: done.is_new, conflicts })
    }

    /// Commits the tree of a view, unless the head has the same tree. `reason` names the following operation, for the message.
    pub(super) fn secure_view(&self, locked: &LockedView, reason: &str, act: &OperationContext) -> Result<Secured> {
        let (view, head) = (&locked.live.view, self.context.head(&locked.workspace)?);
        let held = self.hold_live(locked)?;
        let root = held.root.expect("a live tree has a root");
        if self.states.is_same_with_states(self.context.head_root(head)?, held.root)? {
            return Ok(Secured { snapshot: None, root, _held: held });
        }
        // The request belongs to what comes after it.
        let act = OperationContext { request: None, ..act.clone() };
        let change = Change::new(format!("before {reason}"));
        let snapshot = if view.head() == head {
            self.commit_view(locked, &change, &act)?.snapshot
        } else {
            let mut tree = view.fork();
            if let Some(back) = self.conflicts_in(&locked.workspace, &tree)? {
                tree = back.tree;
            }
            tree.rebase(head);
            let done = self.context.workspaces.commit_as(&locked.workspace, &mut tree, &change, &act, CAPTURE);
            done?.snapshot
        };
        let root = self.context.store.snapshot(snapshot)?.root;
        Ok(Secured { snapshot: Some(snapshot), root, _held: held })
    }

    /// Secures the view of a workspace, if it has one: a fork begins with the files that the mount shows. If the head moved without the
    /// view, the fork begins with both.
    pub(crate) fn secure_live(&self, workspace: &WorkspaceName, reason: &str, act: &OperationContext) -> Result<()> {
        // The request belongs to what comes after it.
        let act = OperationContext { request: None, ..act.clone() };
        match self.lock_view_of(workspace)? {
            Some(locked) => self.secure_view_before(&locked, reason, &act).map(drop),
            None => Ok(()),
        }
    }

    /// Writes a view's tree to the store without committing it, so that its journal begins anew. One whose journal has failed is left
    /// to the next view, which reads it from the disk.
    pub(super) fn checkpoint(&self, locked: &LockedView) -> Result<()> {
        if locked.live.view.has_failed() {
            return Ok(());
        }
        let act = OperationContext::new(KEEPER, self.context.now());
        Ok(locked.live.view.checkpoint(&checkpoint_reference(locked.id), &act)?)
    }

    /// Removes the checkpoint reference of a view.
    pub(super) fn drop_checkpoint(&self, id: u64) -> Result<()> {
        let act = OperationContext::new(KEEPER, self.context.now()).buffered();
        let name = checkpoint_reference(id);
        Ok(operation::remove_reference(&self.context.store, &name, &act, "drop a checkpoint").map(drop)?)
    }

    /// Compares a live view with its workspace's head.
    pub(crate) fn view_status(&self, id: u64) -> Result<v1::DirectoryStatus> {
        let locked = self.lock_view(id)?;
        let head = self.context.head(&locked.workspace)?;
        let held = match self.hold_tree(&locked.live.view.fork()) {
            // On a full disk nothing is written, and the status is less detailed.
            Err(failure) if failure.reason() == Reason::Full => None,
            held => Some(held?),
        };
        let mut status = v1::DirectoryStatus {
            directory: Some(self.view_message(id)?),
            workspace: Some(self.workspace_message(&locked.workspace)?),
            head: head.map(|head| self.context.snapshot_message(head, &ShownNames::default())).transpose()?,
            warnings: locked
                .live
                .recovered
                .warning()
                .into_iter()
                .chain(self.quota.room_warnings(&locked.workspace))
                .collect(),
            ..v1::DirectoryStatus::default()
        };
        let Some(held) = held else {
            let found = differences(&self.working_tree(head)?, &locked.live.view.fork())?;
            for (path, difference) in found {
                let path = Bytes::copy_from_slice(path.as_bytes());
                match difference {
                    Difference::Added => status.added.push(path),
                    Difference::Removed => status.deleted.push(path),
                    Difference::Modified => status.modified.push(path),
                }
            }
            return Ok(status);
        };
        let diff = diff_roots(&self.context.store, self.context.head_root(head)?, held.root, DiffOptions::default());
        let (mut modified, mut added, mut deleted) = (Vec::new(), Vec::new(), Vec::new());
        for change in diff? {
            let change = change?;
            if is_directory(&change) {
                status.directories.push(Bytes::copy_from_slice(change.path.as_bytes()));
            }
            match change.what {
                What::Added => added.push(change.path),
                What::Removed => deleted.push(change.path),
                what => {
                    if matches!(what, What::Metadata) {
                        status.attributes.push(Bytes::copy_from_slice(change.path.as_bytes()));
                    }
                    modified.push(change.path);
                }
            }
        }
        without_holders_of_git(&mut added);
        without_holders_of_git(&mut deleted);
        let bytes = |paths: &[TreePath]| paths.iter().map(|path| Bytes::copy_from_slice(path.as_bytes())).collect();
        (status.modified, status.added, status.deleted) = (bytes(&modified), bytes(&added), bytes(&deleted));
        let renamed = self.states.renamed_files(self.context.head_root(head)?, held.root)?;
        status.renamed = renamed.iter().map(renamed_message).collect();
        let root = held.root.or(self.context.head_root(head)?);
        let found = self.conflicts_of_view(&locked.workspace, &locked.live.view.fork());
        match found.and_then(|found| root.map(|root| self.conflicts.summary(&found, head, root)).transpose()) {
            Err(failure) if failure.reason() == Reason::Cancelled => return Err(failure),
            // Damage elsewhere in the tree, for example, must not hide the changes.
            Err(failure) => status.warnings.push(format!("the conflicts could not be counted: {failure}")),
            Ok(conflicts) => status.conflicts = conflicts,
        }
        Ok(status)
    }

    /// Returns the message of a live view, as a directory.
    pub(super) fn view_message(&self, id: u64) -> Result<v1::Directory> {
        let workspace = self.view_workspace(id)?;
        let path = self.mounts_of_view(id).into_iter().next();
        let state = self.inner.state.lock();
        let base = state.open.get(&id).and_then(|live| live.view.head());
        Ok(v1::Directory {
            name: view_name(id),
            path: path.map(|path| path_bytes(&path)).unwrap_or_default(),
            workspace: amalgam_proto::workspace_name(&workspace),
            snapshot: base.map(amalgam_proto::snapshot_name).unwrap_or_default(),
            mounted: true,
            ..v1::Directory::default()
        })
    }

    /// Returns the changes between two trees, for the plan of a restore, and their number by kind.
    pub(super) fn plan_of(
        &self,
        before: Option<RootId>,
        after: Option<RootId>,
    ) -> Result<(Vec<v1::PlannedChange>, Tally)> {
        let (mut changes, mut tally) = (Vec::new(), Tally::default());
        for change in diff_roots(&self.context.store, before, after, DiffOptions::default())? {
            let change = change?;
            let kind = match change.what {
                What::Added => v1::ChangeKind::Added,
                What::Removed => v1::ChangeKind::Removed,
                _ => v1::ChangeKind::Modified,
            };
            match kind {
                v1::ChangeKind::Added => tally.added += 1,
                v1::ChangeKind::Removed => tally.removed += 1,
                _ => tally.modified += 1,
            }
            let path = Bytes::copy_from_slice(change.path.as_bytes());
            let entries = change.before.iter().chain(&change.after);
            let directory = entries.clone().all(|entry| entry.kind() == EntryKind::Directory);
            changes.push(v1::PlannedChange { path, kind: kind.into(), bytes: 0, directory });
        }
        Ok((changes, tally))
    }
}
