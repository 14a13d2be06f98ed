//! Captures of a directory, and the snapshots made of them.

use std::collections::{BTreeMap, BTreeSet};

use amalgam_conflicts::RenderedTree;
use amalgam_engine::conflict::CONFLICTS_KEY;
use amalgam_engine::operation::operation;
use amalgam_engine::reference::RefValue;
use amalgam_engine::workspace::{Change, LabelName, WorkspaceName};
use amalgam_engine::{
    DiffOptions, Error as EngineError, OperationContext, Pin, RootId, SnapshotId, TreePath, What, WorkingTree,
    diff_roots,
};
use amalgam_materializer::{
    CaptureOptions, Captured, Changes, Counts, Dirty, KnownContents, Progress, Scope, capture, detect_changes,
};
use amalgam_proto::{Reason, v1};
use bytes::Bytes;

use super::written_tree::WrittenTree;
use super::{Directories, LockedDirectory};
use crate::conflicts::CapturedConflicts;
use crate::context::{ExpectedHead, ShownNames};
use crate::error::{Error, Result};
use crate::messages::{notice, renamed_message};
use crate::states::{CAPTURE, is_directory, without_holders_of_git};

/// The scope of a capture of a watched directory without events.
static NOWHERE: &BTreeSet<TreePath> = &BTreeSet::new();

/// The most captures that are followed back to find the one in the record of a directory.
const UNNOTED_CAPTURES_MAX: usize = 10_000;

/// The action and the change of a commit to be made.
pub(crate) struct CommitDraft<'a> {
    pub(crate) action: &'a str,
    pub(crate) change: Change,
}

/// How much of a directory a capture reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CaptureScope {
    /// The directories with events, if the directory is watched; else everything.
    Dirty,
    /// Everything.
    All,
}

impl Directories {
    /// Captures a directory: all of it, or only the directories with events if it is watched.
    pub(super) fn capture(&self, locked: &mut LockedDirectory, progress: &Progress) -> Result<Captured> {
        self.capture_scope(locked, progress, CaptureScope::Dirty)
    }

    /// Captures all of a directory, watched or not, so that ignored files are counted in full.
    pub(super) fn capture_all(&self, locked: &mut LockedDirectory, progress: &Progress) -> Result<Captured> {
        self.capture_scope(locked, progress, CaptureScope::All)
    }

    fn capture_scope(
        &self,
        locked: &mut LockedDirectory,
        progress: &Progress,
        wanted: CaptureScope,
    ) -> Result<Captured> {
        let rules = self.rules(&locked.record)?;
        let dirty = locked.live.watch.as_ref().map(|watch| watch.take_dirty());
        let scope = match &dirty {
            _ if wanted == CaptureScope::All => Scope::All,
            Some(Dirty::Nothing) => Scope::Directories(NOWHERE),
            Some(Dirty::Directories(directories)) => Scope::Directories(directories),
            _ => Scope::All,
        };
        let known = KnownContents::default();
        let job = CaptureOptions { rules: &rules, scope, known: &known, now: self.context.now(), progress };
        let index = locked.live.index.as_mut().expect("it was made ready when the directory was locked");
        let captured = capture(&self.context.store, &locked.host, index, &job).map_err(Error::from);
        if captured.is_err()
            && let Some(watch) = &locked.live.watch
        {
            watch.mark_all_dirty();
        }
        let captured = self.without_unwritten(locked, captured?)?;
        self.with_conflicts(locked, captured)
    }

    /// Captures the directories that a checkout touched, without reading the files that it wrote.
    pub(super) fn recapture_touched(
        &self,
        locked: &mut LockedDirectory,
        done: &amalgam_materializer::CheckoutReport,
        written: &WrittenTree<'_>,
        progress: &Progress,
    ) -> Result<Captured> {
        let rules = self.rules(&locked.record)?;
        let scope = match locked.index().root() {
            Some(_) => Scope::Directories(&done.touched),
            None => Scope::All,
        };
        let job = CaptureOptions { rules: &rules, scope, known: &done.known, now: self.context.now(), progress };
        let index = locked.live.index.as_mut().expect("it was made ready when the directory was locked");
        let before = index.root();
        let captured = capture(&self.context.store, &locked.host, index, &job)?;
        let captured = self.without_unwritten_of(locked, written, before, captured)?;
        self.with_conflicts(locked, captured)
    }

    /// Commits a capture as the newest snapshot of the directory's workspace.
    pub(crate) fn commit_captured(
        &self,
        locked: &mut LockedDirectory,
        captured: &mut Captured,
        saying: &CommitDraft<'_>,
        act: &OperationContext,
    ) -> Result<(SnapshotId, bool)> {
        let head = self.context.head(&locked.workspace)?;
        captured.tree.rebase(head);
        self.add_states_of(&mut captured.tree, self.context.known_root(head)?)?;
        let (workspaces, name) = (&self.context.workspaces, &locked.workspace);
        let mut change = saying.change.clone();
        change.metadata.remove(CONFLICTS_KEY);
        if !locked.seen.conflicts.is_empty() {
            change.metadata.insert(CONFLICTS_KEY.to_owned(), locked.seen.conflicts.len().to_string());
        }
        change.resolutions.extend(self.conflicts.resolutions_of(&locked.seen.resolved, captured.root)?);
        let done = workspaces.commit_as(name, &mut captured.tree, &change, act, saying.action)?;
        locked.record.in_step(Some(done.snapshot), act.time);
        self.note_conflicts(locked)?;
        Ok((done.snapshot, done.is_new))
    }

    /// Returns the root of a capture with the state values of another tree, pinned in the store. Without them, a comparison with
    /// that tree would take its values for removed.
    pub(super) fn hold_with_states_of(&self, captured: &Captured, other: Option<RootId>) -> Result<(RootId, Pin)> {
        let mut tree = captured.tree.fork();
        if self.add_states_of(&mut tree, other)? {
            return Ok(tree.freeze().hold()?);
        }
        Ok((captured.root, self.context.store.hold(captured.root)?))
    }

    /// Adds the state values of a stored tree to the tree of a capture, because a directory has none. Returns whether there are
    /// any.
    fn add_states_of(&self, tree: &mut WorkingTree, other: Option<RootId>) -> Result<bool> {
        let store = &self.context.store;
        let has_states = |root: &RootId| store.root(*root).is_ok_and(|root| root.state.is_some());
        let Some(other) = other.filter(has_states) else { return Ok(false) };
        tree.add_states_of(&WorkingTree::open_root(store, other)?)?;
        Ok(true)
    }

    /// Records whether the tree that the directory is in step with has no conflicts.
    pub(super) fn note_conflicts(&self, locked: &mut LockedDirectory) -> Result<()> {
        let root = self.context.known_root(locked.record.snapshot())?;
        locked.record.whole = root.filter(|_| locked.seen.conflicts.is_empty());
        Ok(())
    }

    /// Returns whether a directory is in step with its workspace: its last snapshot is the head, or has the same tree, or only
    /// captures of this directory came after it.
    pub(super) fn is_in_step(&self, locked: &LockedDirectory, head: Option<SnapshotId>) -> Result<bool> {
        let known = locked.record.snapshot();
        // The first checkout is not complete, or its process died: no user removed the absent files.
        if known.is_none() && locked.record.aim.is_some() {
            return Ok(head.is_none());
        }
        Ok(head == known
            || self.is_own_capture(locked, head, known)?
            || self.states.is_same(self.context.head_root(head)?, self.context.known_root(known)?)?)
    }

    /// Takes the head as the snapshot of a directory that was attached to an existing workspace, if its files are those of the
    /// head, for example after the workspace was deleted and undeleted.
    pub(super) fn adopt_equal_head(
        &self,
        locked: &mut LockedDirectory,
        head: Option<SnapshotId>,
        progress: &Progress,
    ) -> Result<()> {
        let Some(id) = head.filter(|_| locked.record.snapshot().is_none() && locked.record.aim.is_none()) else {
            return Ok(());
        };
        let captured = self.capture(locked, progress)?;
        let (files, _pin) = self.hold_with_states_of(&captured, self.context.head_root(head)?)?;
        if self.states.is_same(self.context.head_root(head)?, Some(files))? {
            locked.record.snapshot = Some(id);
            locked.save(&self.context);
        }
        Ok(())
    }

    /// Refuses a commit of a directory whose workspace was moved elsewhere: the commit would silently revert that.
    pub(super) fn refuse_out_of_step(&self, locked: &LockedDirectory, head: Option<SnapshotId>) -> Result<()> {
        if self.is_in_step(locked, head)? {
            return Ok(());
        }
        let now = head.map_or_else(|| "nothing".to_owned(), |head| head.short());
        let why = match locked.record.snapshot() {
            None => format!(
                "the files of this directory are not those of workspace {}, to which it was attached, and a commit would remove or \
                 overwrite those",
                locked.workspace
            ),
            Some(_) => format!(
                "workspace {} was moved to {now} elsewhere, and a commit of this directory would undo that",
                locked.workspace
            ),
        };
        let message = format!(
            "{why}; `amalgam restore @` brings the directory to {now}, and `amalgam undo` brings its files back; to keep its files as \
             another workspace, run `amalgam ws detach`, then `amalgam init`"
        );
        Err(Error::new(Reason::StaleHead, message))
    }

    /// Returns whether only captures of this directory led from `known` to `head`. They are missing in its record if the process
    /// died before it was written, or the disk was full.
    fn is_own_capture(
        &self,
        locked: &LockedDirectory,
        head: Option<SnapshotId>,
        known: Option<SnapshotId>,
    ) -> Result<bool> {
        if head.is_none() {
            return Ok(false);
        }
        let (store, reference) = (&self.context.store, locked.workspace.reference());
        let target = |value: &Option<RefValue>| value.as_ref().and_then(|value| value.target);
        let known = known.map(|known| *known.as_bytes());
        let mut sequence = store.last_move(&reference)?;
        for _ in 0..UNNOTED_CAPTURES_MAX {
            // Captures from before it was attached are those of another directory.
            if sequence <= locked.record.since {
                return Ok(false);
            }
            let moved = match operation(store, sequence) {
                Ok(moved) => moved,
                // So long ago that the record has it by now, or never will.
                Err(EngineError::Trimmed { .. }) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            // A workspace has one directory, and nothing else captures into it.
            let Some(change) = moved.changes.iter().find(|change| change.name == reference) else { return Ok(false) };
            let moves_head = target(&change.before) != target(&change.after);
            if moves_head && moved.draft.action != CAPTURE {
                return Ok(false);
            }
            if moves_head && target(&change.before).map(|before| before.hash) == known {
                return Ok(true);
            }
            if change.previous == 0 {
                return Ok(false);
            }
            sequence = change.previous;
        }
        Ok(false)
    }

    /// Commits the files of a directory or of a live view as a snapshot.
    pub(crate) fn capture_directory(
        &self,
        request: &v1::CaptureDirectoryRequest,
        act: &OperationContext,
        progress: &Progress,
    ) -> Result<v1::CaptureResult> {
        if let Some(id) = self.live_named(&request.name)? {
            return self.views.capture_view(id, request, act);
        }
        let mut locked = self.lock(&request.name)?;
        let labels = request.labels.iter().map(LabelName::new).collect::<Result<Vec<_>, _>>()?;
        let metadata: BTreeMap<_, _> = request.metadata.clone().into_iter().collect();
        let change = Change { message: request.message.clone(), metadata, labels, ..Change::default() };
        self.states.check_etag(&locked.workspace, &request.etag)?;
        self.judge_commit(&mut locked, progress)?;
        let scope = if request.all { CaptureScope::All } else { CaptureScope::Dirty };
        self.snapshot_directory(&mut locked, &CommitDraft { action: CAPTURE, change }, scope, act, progress)
    }

    /// Commits the files of a workspace's directory on the expected head. Returns the head and whether it is new; `None` for a
    /// workspace without a directory.
    pub(crate) fn commit_directory_of(
        &self,
        workspace: &WorkspaceName,
        change: Change,
        expected: ExpectedHead,
        act: &OperationContext,
    ) -> Result<Option<(Option<SnapshotId>, bool)>> {
        let Some(mut locked) = self.lock_directory_of(workspace)? else { return Ok(None) };
        // Another call may have moved it while this one waited for the lock.
        self.context.expect_head(workspace, expected)?;
        self.judge_commit(&mut locked, &Progress::default())?;
        let draft = CommitDraft { action: CAPTURE, change };
        let captured = self.snapshot_directory(&mut locked, &draft, CaptureScope::Dirty, act, &Progress::default())?;
        Ok(Some((self.context.head(workspace)?, captured.changed)))
    }

    /// Refuses to commit changes that the policy does not permit to the agents of the workspace and of the call. A directory
    /// accepts every write, so its changes are judged here. Captures that only secure the files are not judged: a refusal would
    /// lose the files.
    fn judge_commit(&self, locked: &mut LockedDirectory, progress: &Progress) -> Result<()> {
        let guard = self.context.permissions.writing(&locked.workspace)?;
        if guard.is_unrestricted() {
            return Ok(());
        }
        let head = self.context.head(&locked.workspace)?;
        let captured = self.capture(locked, progress)?;
        let before = self.context.head_root(head)?;
        self.context.permissions.judge(&guard, before, Some(captured.root), "this commit")
    }

    /// Commits the files of a directory. The counts and notices of the result cover what a capture with this scope reads.
    pub(super) fn snapshot_directory(
        &self,
        locked: &mut LockedDirectory,
        saying: &CommitDraft<'_>,
        scope: CaptureScope,
        act: &OperationContext,
        progress: &Progress,
    ) -> Result<v1::CaptureResult> {
        let mut head = self.context.head(&locked.workspace)?;
        if self.is_left_behind(locked, head)? {
            self.catch_up(locked, &saying.change.message, act)?;
            head = self.context.head(&locked.workspace)?;
        }
        self.adopt_equal_head(locked, head, progress)?;
        self.refuse_out_of_step(locked, head)?;
        let mut warnings = match self.quota.check_space() {
            // A commit without changes needs no space: a directory is captured before it is removed.
            Err(full) if full.reason() == Reason::Full && self.is_unchanged(locked, head, progress)? => {
                vec![full.to_string()]
            }
            checked => checked?,
        };
        let mut captured = self.capture_scope(locked, progress, scope)?;
        warnings.extend(self.quota.check_quota(&locked.workspace, Some(captured.root))?);
        let tally = self.states.tally(self.context.head_root(head)?, Some(captured.root))?;
        let (snapshot, is_new) = self.commit_captured(locked, &mut captured, saying, act)?;
        let conflicts = self.conflict_summary(locked, Some(snapshot), captured.root);
        // The commit is made: a failure to read its history is no failure of it.
        let conflicts = conflicts.unwrap_or_else(|_| locked.seen.message());
        warnings.extend(locked.save(&self.context));
        Ok(v1::CaptureResult {
            snapshot: Some(self.context.snapshot_message(snapshot, &ShownNames::default())?),
            changed: is_new,
            counts: Some(counts(&captured.counts)),
            added: tally.added,
            modified: tally.modified,
            removed: tally.removed,
            stored_bytes: captured.counts.bytes_stored,
            notices: captured.notices.iter().map(notice).collect(),
            workspace: Some(self.views.workspace_message(&locked.workspace)?),
            warnings,
            conflicts: Some(conflicts),
            in_git: self.states.left_alone_by_undo(&locked.workspace, &tally)?,
        })
    }

    /// Returns whether a directory equals its workspace's head. Stores nothing, so it may return `false` for an unchanged
    /// directory.
    fn is_unchanged(
        &self,
        locked: &mut LockedDirectory,
        head: Option<SnapshotId>,
        progress: &Progress,
    ) -> Result<bool> {
        let Some(root) = self.context.head_root(head)? else { return Ok(false) };
        let faced = self.faced_in(locked, root)?;
        if !self.shows(locked, &faced)? {
            return Ok(false);
        }
        let changes = self.detect(locked, progress)?;
        Ok(changes.is_empty() && !changes.may_be_relinked)
    }

    /// Returns whether the directory had a tree's face at the last capture, and has it for this tree: a restored version of a
    /// conflict can have the same bytes as the face of the conflict.
    fn shows(&self, locked: &LockedDirectory, faced: &RenderedTree) -> Result<bool> {
        if faced.paths().next().is_some()
            && self.context.workspaces.find(&locked.workspace)?.is_some_and(|found| found.working.is_some())
        {
            return Ok(false);
        }
        self.is_index_of(locked, faced.rendered)
    }

    /// Compares a directory with its workspace's head. Stores nothing if the last capture equals the head.
    pub(crate) fn status(&self, name: &str, progress: &Progress) -> Result<v1::DirectoryStatus> {
        if let Some(id) = self.live_named(name)? {
            return self.views.view_status(id);
        }
        let mut locked = self.lock(name)?;
        let head = self.context.head(&locked.workspace)?;
        self.adopt_equal_head(&mut locked, head, progress)?;
        let head_root = self.context.head_root(head)?;
        let faced = head_root.map(|root| self.faced_in(&locked, root)).transpose()?;
        let mut changes = None;
        let is_known = match &faced {
            Some(faced) => self.shows(&locked, faced)?,
            None => false,
        };
        if let Some(faced) = faced.as_ref().filter(|_| is_known) {
            let found = self.detect(&mut locked, progress)?;
            // The meaning of an edit of a conflict, or of a path that could not be written, is known only after a capture.
            // An edit may also decide what a merge left open.
            let may_decide = || !found.is_empty() && self.conflicts.has_matters(head).unwrap_or(false);
            if !touches(&found, faced.paths()) && !touches(&found, locked.unwritten_paths().iter()) && !may_decide() {
                locked.seen = CapturedConflicts {
                    conflicts: self.conflicts.conflicts_of(faced.tree, None)?,
                    ..CapturedConflicts::default()
                };
                changes = Some(found);
            }
        }
        let (mut changes, root) = match changes {
            Some(found) if found.may_be_relinked => match self.compare(&mut locked, head_root, progress) {
                // A capture needs space; without it the status leaves hard links out.
                Err(failure) if failure.reason() == Reason::Full => (found, head_root),
                compared => compared?,
            },
            Some(found) => (found, head_root),
            None => self.compare(&mut locked, head_root, progress)?,
        };
        let mut warnings: Vec<_> =
            self.quota.room_warnings(&locked.workspace).into_iter().chain(locked.unlisted_warning()).collect();
        let conflicts = match root.map(|root| self.conflict_summary(&mut locked, head, root)).transpose() {
            Err(failure) if failure.reason() == Reason::Cancelled => return Err(failure),
            // Damage in the history must not hide the changes.
            Err(failure) => {
                warnings.push(format!("the conflicts that no file shows could not be counted: {failure}"));
                Some(locked.seen.message())
            }
            Ok(conflicts) => conflicts,
        };
        let uncovered = still_there(&locked, &mut changes.deleted);
        for list in [&mut changes.added, &mut changes.deleted] {
            without_holders_of_git(list);
        }
        locked.record.looked = self.context.now().0;
        locked.save(&self.context);
        let paths = |paths: Vec<TreePath>| paths.iter().map(|path| Bytes::copy_from_slice(path.as_bytes())).collect();
        Ok(v1::DirectoryStatus {
            directory: Some(self.directory_message(&locked.record)),
            workspace: Some(self.views.workspace_message(&locked.workspace)?),
            head: head.map(|head| self.context.snapshot_message(head, &ShownNames::default())).transpose()?,
            modified: paths(changes.modified),
            added: paths(changes.added),
            deleted: paths(changes.deleted),
            notices: changes.notices.iter().map(notice).collect(),
            warnings,
            counts: Some(counts(&changes.counts)),
            conflicts,
            uncovered: paths(uncovered),
            unwritten: locked.unwritten_messages(),
            renamed: changes.renamed.iter().map(renamed_message).collect(),
            attributes: paths(changes.attributes),
            directories: paths(changes.directories),
        })
    }

    fn detect(&self, locked: &mut LockedDirectory, progress: &Progress) -> Result<Changes> {
        let rules = self.rules(&locked.record)?;
        let dirty = locked.live.watch.as_ref().map(|watch| watch.look_dirty());
        let scope = match &dirty {
            Some(Dirty::Nothing) => Scope::Directories(NOWHERE),
            Some(Dirty::Directories(directories)) => Scope::Directories(directories),
            _ => Scope::All,
        };
        let known = KnownContents::default();
        let job = CaptureOptions { rules: &rules, scope, known: &known, now: self.context.now(), progress };
        let index = locked.live.index.as_mut().expect("it was made ready when the directory was locked");
        Ok(detect_changes(&self.context.store, &locked.host, index, &job)?)
    }

    /// Compares a directory with a tree by a capture, because the index describes another tree. Returns the captured tree, too.
    fn compare(
        &self,
        locked: &mut LockedDirectory,
        head: Option<RootId>,
        progress: &Progress,
    ) -> Result<(Changes, Option<RootId>)> {
        let captured = self.capture(locked, progress)?;
        let mut changes = Changes { notices: captured.notices, counts: captured.counts, ..Changes::default() };
        let diff = diff_roots(&self.context.store, head, Some(captured.root), DiffOptions::default())?;
        for change in diff {
            let change = change?;
            if is_directory(&change) {
                changes.directories.push(change.path.clone());
            }
            match change.what {
                What::Added => changes.added.push(change.path),
                What::Removed => changes.deleted.push(change.path),
                What::Metadata => {
                    changes.attributes.push(change.path.clone());
                    changes.modified.push(change.path);
                }
                _ => changes.modified.push(change.path),
            }
        }
        changes.renamed = self.states.renamed_files(head, Some(captured.root))?;
        Ok((changes, Some(captured.root)))
    }
}

/// Removes those paths from a sorted list of deletions that still exist on the disk, and returns them: ignore rules leave them out
/// by now.
fn still_there(locked: &LockedDirectory, deleted: &mut Vec<TreePath>) -> Vec<TreePath> {
    let mut uncovered = Vec::new();
    let mut gone: Option<TreePath> = None;
    deleted.retain(|path| {
        let is_below_gone = gone.as_ref().is_some_and(|gone| path.below(gone).is_some());
        if !is_below_gone && locked.host.stamp(path).ok().flatten().is_some() {
            uncovered.push(path.clone());
            return false;
        }
        if !is_below_gone {
            gone = Some(path.clone());
        }
        true
    });
    uncovered
}

/// Returns whether a changed path is, contains, or lies in one of these paths.
fn touches<'a>(changes: &Changes, mut paths: impl Iterator<Item = &'a TreePath>) -> bool {
    let changed: Vec<_> = changes.modified.iter().chain(&changes.added).chain(&changes.deleted).collect();
    let near = |path: &TreePath| changed.iter().any(|other| path.below(other).is_some() || other.below(path).is_some());
    !changed.is_empty() && paths.any(near)
}

/// Returns counts, for the wire.
pub(super) fn counts(counts: &Counts) -> v1::Counts {
    v1::Counts {
        files: counts.files,
        directories: counts.directories,
        symlinks: counts.symlinks,
        others: counts.others,
        bytes: counts.bytes,
        files_read: counts.files_read,
        bytes_read: counts.bytes_read,
        ignored: counts.ignored,
    }
}
