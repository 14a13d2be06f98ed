//! Restores a directory, or some of its paths, from a snapshot.

use std::collections::BTreeSet;

use amalgam_engine::workspace::Change;
use amalgam_engine::{
    Change as TreeChange, EntryKind, OperationContext, RootId, SnapshotId, TreePath, What, WorkspaceName,
};
use amalgam_materializer::{
    Captured, CheckoutOptions, CheckoutReport, Error as MaterializerError, Notice, PlannedKind, Progress, Rules,
    Staging, Times, TreeRules, checkout_staged, grant_withheld, plan,
};
use amalgam_proto::v1;
use bytes::Bytes;

use super::capture::CommitDraft;
use super::uncovered::uncovered_warning;
use super::written_tree::WrittenTree;
use super::{Directories, LockedDirectory};
use crate::conflicts::CapturedConflicts;
use crate::context::{HeldTree, ShownNames};
use crate::error::{Error, PARTLY, Result};
use crate::messages::{notice, words_of};
use crate::states::{CAPTURE, EDIT, GitScope, IsIgnored, cleared_action, restore_action};

/// An undo or a redo with at least this number of changes, or of bytes, is noted on the disk before it writes files.
const NOTED_CHANGES: usize = 500;
const NOTED_BYTES: u64 = 64 << 20;
/// The most changes of a plan in one message.
const PLAN_PART: usize = 500;

/// The tree that a directory is to be brought to.
pub(crate) struct Target<'a> {
    pub(crate) root: RootId,
    pub(crate) paths: Option<&'a [TreePath]>,
    pub(crate) with_git: bool,
    /// Whether files of foreign trees get set-ID bits, capabilities and devices, too.
    pub(crate) set_id: bool,
}

/// The result of bringing a directory to a tree.
#[derive(Default)]
pub(crate) struct Brought {
    pub(super) written: u64,
    pub(super) removed: u64,
    pub(super) bytes: u64,
    pub(crate) notices: Vec<Notice>,
    conflicts: CapturedConflicts,
    /// The tree of the directory afterwards.
    root: Option<RootId>,
}

impl Directories {
    /// Records a capture as the state of a workspace's files, unless it is recorded. The head stays.
    pub(super) fn record_edits(
        &self,
        locked: &LockedDirectory,
        captured: &Captured,
        reason: &str,
        git: GitScope,
        act: &OperationContext,
    ) -> Result<Option<SnapshotId>> {
        if !self.differs_from(locked, self.states.state_root(&locked.workspace)?, captured, git)? {
            return Ok(None);
        }
        // The request id belongs to the operation that follows.
        let act = OperationContext { request: None, ..act.clone() };
        let change = Change::new(format!("before {reason}"));
        let workspaces = &self.context.workspaces;
        let recorded = workspaces.record_working(&locked.workspace, &captured.tree, &change, &act, EDIT);
        Ok(recorded.map(Some)?)
    }

    /// Commits the edits of a directory, if there are any. Returns the snapshot and the number of ignored files.
    pub(crate) fn secure(
        &self,
        locked: &mut LockedDirectory,
        reason: &str,
        act: &OperationContext,
        progress: &Progress,
    ) -> Result<(Option<SnapshotId>, u64)> {
        let head = self.context.head(&locked.workspace)?;
        let mut captured = self.capture_all(locked, progress)?;
        let ignored = captured.counts.ignored;
        if self.states.is_same(self.context.head_root(head)?, Some(captured.root))? {
            return Ok((None, ignored));
        }
        let saying = CommitDraft { action: CAPTURE, change: Change::new(format!("before {reason}")) };
        // The request id belongs to the operation that follows.
        let act = OperationContext { request: None, ..act.clone() };
        let (snapshot, _) = self.commit_captured(locked, &mut captured, &saying, &act)?;
        locked.save(&self.context);
        Ok((Some(snapshot), ignored))
    }

    /// Makes a directory that was just captured into another tree, and captures the result.
    pub(crate) fn bring_to(
        &self,
        locked: &mut LockedDirectory,
        target: &Target<'_>,
        times: Times,
        progress: &Progress,
    ) -> Result<(Brought, Captured)> {
        let rules = self.rules(&locked.record)?;
        let job = CheckoutOptions {
            withholds: self.withholds(locked, target)?,
            ..checkout_job(target, &rules, times, progress)
        };
        let faced = self.faced_in(locked, target.root)?;
        self.aim_at(locked, target.root, target.paths)?;
        let planned = plan(&self.context.store, locked.index(), faced.rendered, &job)?;
        let parents = planned.changes.iter().filter_map(|change| Some(change.path.split_last()?.0));
        let directories: BTreeSet<TreePath> = parents.collect();
        let staging = Staging::new();
        if let Some(reverting) = &mut locked.record.reverting {
            reverting.token = staging.token();
            // The process may die in the middle. A short write is not worth another fsync.
            let bytes: u64 = planned.changes.iter().map(|change| change.bytes).sum();
            if planned.changes.len() >= NOTED_CHANGES || bytes >= NOTED_BYTES {
                self.context.registry.put(locked.record.clone())?;
            }
        }
        let _writing = self.writing(&locked.record.id, &staging, &directories)?;
        let git = self.lock_repositories(locked, &planned, faced.rendered, &staging)?;
        let done = checkout_staged(&self.context.store, &locked.host, locked.index(), faced.rendered, &job, &staging);
        drop(git);
        let mut done = done?;
        // The files are written: a cancellation comes too late.
        let progress = &Progress::default();
        if target.set_id {
            let (store, index) = (&self.context.store, locked.index());
            let granted = grant_withheld(store, &locked.host, index, faced.rendered, target.paths, progress, &mut done);
            granted.map_err(|error| after_checkout(error.into(), &done))?;
        }
        let written = WrittenTree { rendered: faced.rendered, paths: target.paths, notices: &done.notices };
        let captured = self.recapture_touched(locked, &done, &written, progress);
        let captured = captured.map_err(|error| after_checkout(error, &done))?;
        let brought = Brought {
            written: done.written,
            removed: done.removed,
            bytes: done.bytes,
            notices: done.notices,
            conflicts: locked.seen.clone(),
            root: Some(captured.root),
        };
        Ok((brought, captured))
    }

    /// Restores a directory, or some paths of it, from a snapshot. `part` gets the plan of a dry run, piece by piece.
    ///
    /// A whole restore is a new snapshot on top of the head. A restore of paths changes only these, and leaves the head where it
    /// is: they are changes like any others. The state before is recorded, so that an undo brings it back.
    pub(crate) fn restore_directory(
        &self,
        request: &v1::RestoreDirectoryRequest,
        act: &OperationContext,
        progress: &Progress,
        part: impl FnMut(v1::Plan) -> Result<()>,
    ) -> Result<v1::RestoreResult> {
        if let Some(id) = self.live_named(&request.name)? {
            return self.views.restore_view(id, request, act, part);
        }
        let mut locked = self.lock(&request.name)?;
        let paths = request.paths.iter().map(TreePath::new).collect::<Result<Vec<_>, _>>();
        let paths = paths?;
        let wanted = self.context.hold_revision(&request.revision, Some(&locked.workspace))?;
        let (root, snapshot) =
            (wanted.root.expect("a revision has a tree"), wanted.snapshot.expect("and is a snapshot"));
        if self.states.is_replayed(act)? {
            return self.restore_result(&Brought::default(), self.context.head(&locked.workspace)?);
        }
        self.check_paths(&locked, &wanted, &paths)?;
        let (root, _contents) = self.states.with_contents(root, &request.contents)?;
        let words = match paths.is_empty() {
            true => format!("restore {}", snapshot.short()),
            false => format!("restore {} from {}", words_of(&paths), snapshot.short()),
        };
        let git = self.states.git_scope(&locked.workspace, request.with_git)?;
        // A `.git` that the request names is in scope.
        let scope = if paths.iter().any(TreePath::is_in_git) { GitScope::Include } else { git };
        if !request.dry_run {
            self.refuse_git_at_work(&locked, scope)?;
        }
        let captured = self.capture_all(&mut locked, progress)?;
        let target = Target {
            root,
            paths: (!paths.is_empty()).then_some(&paths[..]),
            with_git: git.includes(),
            set_id: request.set_id,
        };
        // Old times are right only if all files are replaced: next to a newer build output that stays, they would prevent a
        // rebuild.
        let times = match paths.is_empty() && captured.counts.ignored == 0 {
            true => Times::Exact,
            false => Times::OfBytes(act.time),
        };
        if request.dry_run {
            self.show_plan(&locked, &target, times, progress, part)?;
            let left_alone = self.count_left_alone_of(&target, captured.root, git)?;
            return Ok(v1::RestoreResult { left_alone, ..v1::RestoreResult::default() });
        }
        let safety = self.record_edits(&locked, &captured, &words, scope, act)?;
        let hint = "what was there before is recorded: `amalgam undo` brings it back";
        let brought = self.bring_to(&mut locked, &target, times, progress);
        let (brought, restored) = brought.map_err(|error| error.with_hint_if_partly(hint))?;
        let left_alone = self.count_left_alone_of(&target, restored.root, git)?;
        let uncovered = match target.paths {
            None => self.uncovered(captured.root, target.root, restored.root)?,
            Some(_) => Vec::new(),
        };
        let is_new = self.record_restored(&mut locked, restored, &target, &words, scope, act)?;
        let warnings = locked.save(&self.context);
        let mut result = self.restore_result(&brought, self.context.head(&locked.workspace)?)?;
        add_skipped(&mut result.notices, &captured);
        result.warnings = warnings;
        result.warnings.extend(uncovered_warning(&uncovered, "part of the new snapshot"));
        result.notices.extend(wanted.notices());
        result.safety =
            safety.map(|safety| self.context.snapshot_message(safety, &ShownNames::default())).transpose()?;
        result.changed |= is_new;
        result.left_alone = left_alone;
        Ok(result)
    }

    /// Counts the paths in `.git` that a restore leaves as they are. A `.git` that the request names is restored.
    fn count_left_alone_of(&self, target: &Target<'_>, there: RootId, git: GitScope) -> Result<u64> {
        match target.paths {
            None => self.states.count_left_alone(target.root, there, git),
            Some(paths) => self.states.count_left_alone_below(paths, target.root, there, git),
        }
    }

    /// Records the result of a restore: the directory equals the head, some paths differ, or the whole tree is another one, which
    /// becomes the head. Returns whether anything was recorded.
    fn record_restored(
        &self,
        locked: &mut LockedDirectory,
        mut captured: Captured,
        target: &Target<'_>,
        words: &str,
        git: GitScope,
        act: &OperationContext,
    ) -> Result<bool> {
        let (workspaces, name) = (&self.context.workspaces, locked.workspace.clone());
        let (head, action) = (self.context.head(&name)?, restore_action(git));
        let head_root = self.context.head_root(head)?;
        let is_changed = self.differs_from(locked, self.states.state_root(&name)?, &captured, git)?;
        // A restore of another tree takes also those paths from the head that the directory ignores, and so does not have.
        let is_elsewhere = target.paths.is_none() && self.states.differs(head_root, Some(target.root), git)?;
        let differs_from_head = match is_elsewhere {
            true => self.states.differs(head_root, Some(captured.root), git)?,
            false => self.differs_from(locked, head_root, &captured, git)?,
        };
        if !differs_from_head {
            // The user's own edits may have made the directory equal to the head: then the restore is no step for an undo.
            let done = match is_changed {
                true => workspaces.set_working(&name, None, act, &cleared_action(git, words))?,
                false => None,
            };
            locked.record.in_step(head, act.time);
            self.note_conflicts(locked)?;
            return Ok(done.is_some());
        }
        let change = Change::new(words);
        if target.paths.is_none() {
            return Ok(self.commit_captured(locked, &mut captured, &CommitDraft { action, change }, act)?.1);
        }
        locked.record.in_step(head, act.time);
        if !is_changed {
            return Ok(false);
        }
        workspaces.record_working(&name, &captured.tree, &change, act, action)?;
        Ok(true)
    }

    pub(super) fn restore_result(&self, brought: &Brought, head: Option<SnapshotId>) -> Result<v1::RestoreResult> {
        let summary = brought.root.map(|root| self.conflicts.summary(&brought.conflicts, head, root));
        let conflicts = summary.transpose().ok().flatten().unwrap_or_else(|| brought.conflicts.message());
        Ok(v1::RestoreResult {
            safety: None,
            snapshot: head.map(|head| self.context.snapshot_message(head, &ShownNames::default())).transpose()?,
            written: brought.written,
            removed: brought.removed,
            bytes: brought.bytes,
            notices: brought.notices.iter().map(notice).collect(),
            changed: brought.written + brought.removed > 0,
            conflicts: Some(conflicts),
            left_alone: 0,
            warnings: Vec::new(),
        })
    }

    /// Returns whether a checkout must withhold set-ID bits, capabilities and devices: the tree, or the history of the workspace,
    /// came from another store.
    fn withholds(&self, locked: &LockedDirectory, target: &Target<'_>) -> Result<bool> {
        if target.set_id {
            return Ok(false);
        }
        let head = WorkspaceName::new(locked.record.workspace.clone())?;
        let head = self.context.workspaces.find(&head)?.and_then(|workspace| workspace.head);
        let known: Vec<_> = head.into_iter().chain(locked.record.snapshot()).collect();
        self.is_foreign(&known, Some(target.root))
    }

    /// Returns whether one of these snapshots, or a tree, came from another store.
    pub(crate) fn is_foreign(&self, snapshots: &[SnapshotId], root: Option<RootId>) -> Result<bool> {
        Ok(self.context.history.is_foreign(snapshots, root)?)
    }

    /// Refuses a path that neither the snapshot nor the directory has: it is probably a typing error.
    fn check_paths(&self, locked: &LockedDirectory, held: &HeldTree, paths: &[TreePath]) -> Result<()> {
        let wanted = self.context.store.root(held.root.expect("a revision has a tree"))?;
        for path in paths {
            let there = amalgam_engine::entry_at(&self.context.store, &wanted, path)?.is_some();
            if !there && locked.host.stamp(path).ok().flatten().is_none() {
                return Err(held.not_found(path));
            }
        }
        Ok(())
    }

    /// Returns whether the captured files of a directory differ from a tree. Paths that the directory's ignore rules exclude do not
    /// count: the capture lacks them, and no user removed them. Such a path can come with a merge, for example from a mount, where
    /// the rules do not apply.
    pub(super) fn differs_from(
        &self,
        locked: &LockedDirectory,
        tree: Option<RootId>,
        captured: &Captured,
        git: GitScope,
    ) -> Result<bool> {
        let is_ignored = self.ignored_in(locked, captured.root)?;
        self.states.differs_except(tree, Some(captured.root), git, is_ignored)
    }

    /// Returns whether a change to a tree is only the absence of a path that the tree's ignore rules exclude.
    pub(super) fn ignored_in(&self, locked: &LockedDirectory, tree: RootId) -> Result<IsIgnored> {
        let rules = TreeRules::new(&self.context.store, tree, &self.rules(&locked.record)?)?;
        Ok(Box::new(move |change: &TreeChange| {
            let is_directory = change.before.as_ref().is_some_and(|entry| entry.kind() == EntryKind::Directory);
            Ok(change.what == What::Removed && rules.excludes_at_any_depth(&change.path, is_directory)?)
        }))
    }

    fn show_plan(
        &self,
        locked: &LockedDirectory,
        target: &Target<'_>,
        times: Times,
        progress: &Progress,
        mut part: impl FnMut(v1::Plan) -> Result<()>,
    ) -> Result<()> {
        let rules = self.rules(&locked.record)?;
        let job = CheckoutOptions {
            withholds: self.withholds(locked, target)?,
            ..checkout_job(target, &rules, times, progress)
        };
        let face = self.faced_in(locked, target.root)?.rendered;
        let planned = plan(&self.context.store, locked.index(), face, &job)?;
        for changes in planned.changes.chunks(PLAN_PART) {
            let changes = changes.iter().map(|change| v1::PlannedChange {
                path: Bytes::copy_from_slice(change.path.as_bytes()),
                kind: match change.kind {
                    PlannedKind::Add => v1::ChangeKind::Added,
                    PlannedKind::Replace => v1::ChangeKind::Modified,
                    PlannedKind::Attributes => v1::ChangeKind::Metadata,
                    PlannedKind::Remove => v1::ChangeKind::Removed,
                }
                .into(),
                bytes: change.bytes,
                directory: change.from.into_iter().chain(change.to).all(|kind| kind == EntryKind::Directory),
            });
            part(v1::Plan { changes: changes.collect() })?;
        }
        Ok(())
    }
}

/// Adds to a failure after a complete checkout how many paths the checkout changed, if it changed any.
fn after_checkout(error: Error, done: &CheckoutReport) -> Error {
    if done.touched.is_empty() {
        return error;
    }
    let (written, removed) = (done.written, done.removed);
    let partial = |source| MaterializerError::Partial { written, removed, source: Box::new(source) };
    let source: Error = match error {
        Error::Materializer(source) => partial(source).into(),
        Error::Engine(source) => partial(source.into()).into(),
        other => Error::new(other.reason(), other.to_string()).with(PARTLY, (written + removed).to_string()),
    };
    Error::Hinted { hint: "no path is left to change".to_owned(), source: Box::new(source) }
}

fn checkout_job<'a>(
    target: &Target<'a>,
    rules: &'a Rules,
    times: Times,
    progress: &'a Progress,
) -> CheckoutOptions<'a> {
    CheckoutOptions {
        keep_git: !target.with_git,
        rules: Some(rules),
        leave_git_file: false,
        withholds: false,
        paths: target.paths,
        times,
        source: None,
        pool: None,
        progress,
    }
}

/// Adds notices for the paths that the capture before an operation could not read completely. An undo cannot bring these back.
pub(super) fn add_skipped(notices: &mut Vec<v1::Notice>, captured: &Captured) {
    for skipped in captured.notices.iter().filter(|skipped| skipped.why.is_failure()) {
        let skipped = notice(skipped);
        if !notices.contains(&skipped) {
            notices.push(skipped);
        }
    }
}

#[cfg(test)]
mod tests {
    use amalgam_proto::Reason;

    use super::*;

    #[test]
    fn a_failure_after_a_checkout_names_the_changed_paths() {
        let cancelled = || Error::from(MaterializerError::Cancelled);
        let nothing = after_checkout(cancelled(), &CheckoutReport::default());
        assert!(!nothing.details().contains_key(PARTLY), "the checkout changed no path");
        let touched = BTreeSet::from([TreePath::root()]);
        let done = CheckoutReport { touched, written: 2, removed: 1, ..CheckoutReport::default() };
        let refused = Error::new(Reason::Busy, "busy");
        for (error, reason) in [(cancelled(), Reason::Cancelled), (refused, Reason::Busy)] {
            let partly = after_checkout(error, &done);
            assert_eq!(partly.details().get(PARTLY).map(String::as_str), Some("3"));
            assert_eq!(partly.reason(), reason);
            assert!(partly.to_string().ends_with("; no path is left to change"), "{partly}");
        }
    }
}
