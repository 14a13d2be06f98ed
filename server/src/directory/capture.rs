//! Looking at a directory, and making a snapshot of what is there.

use std::collections::BTreeMap;

use amalgam_conflicts::Faced;
use amalgam_engine::conflict::CONFLICTS_KEY;
use amalgam_engine::operation::operation;
use amalgam_engine::reference::RefValue;
use amalgam_engine::workspace::{Change, LabelName, WorkspaceName};
use amalgam_engine::{Act, DiffOptions, Error as EngineError, RootId, SnapshotId, TreePath, What, diff_roots};
use amalgam_materializer::{
    Capture, Captured, Changes, Counts, Dirty, Known, Progress, Scope, capture, detect_changes,
};
use amalgam_proto::{Reason, v1};
use bytes::Bytes;

use super::renames::{is_directory, renamed_message};
use super::{Grasp, notice};
use crate::conflicts::Seen;
use crate::error::{Error, Result};
use crate::left_alone::without_holders_of_git;
use crate::service::{Marks, Service};

/// What the log calls a snapshot of a directory.
pub(crate) const CAPTURE: &str = "capture";

/// How many captures that are not in the record of a directory are followed back.
const UNNOTED_CAPTURES_MAX: usize = 10_000;

/// How many paths of each sort differ.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) added: u64,
    pub(crate) modified: u64,
    pub(crate) removed: u64,
    /// How many of all these are in `.git`.
    pub(crate) in_git: u64,
}

/// What a snapshot of a directory is to say.
pub(crate) struct Saying<'a> {
    pub(crate) action: &'a str,
    pub(crate) change: Change,
}

impl Service {
    /// Captures a directory: all of it, or only where something happened if it is watched.
    pub(super) fn look(&self, grasp: &mut Grasp, progress: &Progress) -> Result<Captured> {
        self.look_as(grasp, progress, false)
    }

    /// Captures a directory as [`Self::look`] does, everywhere if `whole`: then what is left out by rules is counted in full.
    pub(crate) fn look_as(&self, grasp: &mut Grasp, progress: &Progress, whole: bool) -> Result<Captured> {
        let rules = self.rules(&grasp.record)?;
        let dirty = grasp.live.watch.as_ref().map(|watch| watch.take_dirty());
        let scope = match &dirty {
            _ if whole => Scope::All,
            Some(Dirty::Nothing) => Scope::Directories(super::watch::NOWHERE),
            Some(Dirty::Directories(directories)) => Scope::Directories(directories),
            _ => Scope::All,
        };
        let known = Known::default();
        let job = Capture { rules: &rules, scope, known: &known, now: self.now(), progress };
        let index = grasp.live.index.as_mut().expect("it was made ready when the directory was grasped");
        let captured = capture(&self.inner.store, &grasp.host, index, &job).map_err(Error::from);
        if captured.is_err()
            && let Some(watch) = &grasp.live.watch
        {
            watch.doubt();
        }
        self.with_conflicts(grasp, captured?)
    }

    /// Captures the directories that a checkout has touched; what it wrote need not be read.
    pub(super) fn look_where(
        &self,
        grasp: &mut Grasp,
        done: &amalgam_materializer::CheckedOut,
        progress: &Progress,
    ) -> Result<Captured> {
        let rules = self.rules(&grasp.record)?;
        let scope = match grasp.index().root() {
            Some(_) => Scope::Directories(&done.touched),
            None => Scope::All,
        };
        let job = Capture { rules: &rules, scope, known: &done.known, now: self.now(), progress };
        let index = grasp.live.index.as_mut().expect("it was made ready when the directory was grasped");
        let captured = capture(&self.inner.store, &grasp.host, index, &job)?;
        self.with_conflicts(grasp, captured)
    }

    /// What differs between two trees, times not considered.
    pub(crate) fn tally(&self, before: Option<RootId>, after: Option<RootId>) -> Result<Tally> {
        let mut tally = Tally::default();
        for change in diff_roots(&self.inner.store, before, after, DiffOptions::default())? {
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

    /// Whether two trees are the same but for times.
    pub(crate) fn is_same(&self, before: Option<RootId>, after: Option<RootId>) -> Result<bool> {
        if before == after {
            return Ok(true);
        }
        let mut diff = diff_roots(&self.inner.store, before, after, DiffOptions::default())?;
        Ok(diff.next().transpose()?.is_none())
    }

    /// Makes what was captured the newest snapshot of the directory's workspace.
    pub(crate) fn commit_captured(
        &self,
        grasp: &mut Grasp,
        captured: &mut Captured,
        saying: &Saying<'_>,
        act: &Act,
    ) -> Result<(SnapshotId, bool)> {
        let head = self.head(&grasp.workspace)?;
        captured.tree.rebase(head);
        let (workspaces, name) = (&self.inner.workspaces, &grasp.workspace);
        let mut change = saying.change.clone();
        change.metadata.remove(CONFLICTS_KEY);
        if !grasp.seen.conflicts.is_empty() {
            change.metadata.insert(CONFLICTS_KEY.to_owned(), grasp.seen.conflicts.len().to_string());
        }
        change.resolutions.extend(self.resolutions_of(&grasp.seen.resolved, captured.root)?);
        let done = workspaces.commit_as(name, &mut captured.tree, &change, act, saying.action)?;
        grasp.record.in_step(Some(done.snapshot), act.time);
        self.note_conflicts(grasp)?;
        Ok((done.snapshot, done.is_new))
    }

    /// Notes in the record whether the tree that the directory is in step with has conflicts.
    pub(super) fn note_conflicts(&self, grasp: &mut Grasp) -> Result<()> {
        let root = self.known_root(grasp.record.snapshot())?;
        grasp.record.whole = root.filter(|_| grasp.seen.conflicts.is_empty()).map(|root| root.to_string());
        Ok(())
    }

    /// Whether a directory came of its workspace's head.
    pub(super) fn is_in_step(&self, grasp: &Grasp, head: Option<SnapshotId>) -> Result<bool> {
        let known = grasp.record.snapshot();
        // Being written for the first time, or left so by a process that died: what is absent was not removed by a user.
        if known.is_none() && grasp.record.aim.is_some() {
            return Ok(head.is_none());
        }
        Ok(head == known
            || self.is_own_capture(grasp, head, known)?
            || self.is_same(self.head_root(head)?, self.known_root(known)?)?)
    }

    /// A workspace may have been moved behind its directory's back. A commit on top of that would silently take it back.
    pub(super) fn refuse_out_of_step(&self, grasp: &Grasp, head: Option<SnapshotId>) -> Result<()> {
        if self.is_in_step(grasp, head)? {
            return Ok(());
        }
        let now = head.map_or_else(|| "nothing".to_owned(), |head| head.short());
        let message = format!(
            "workspace {} was moved to {now} elsewhere, and a commit of this directory would undo that; `amalgam restore @` brings the \
             directory to {now} (its files are captured first), `amalgam fork` keeps its files as another workspace",
            grasp.workspace
        );
        Err(Error::new(Reason::StaleHead, message))
    }

    /// Whether a head came of captures of this very directory alone that are not in its record: the process died before it could note
    /// them, or the disk was full.
    fn is_own_capture(&self, grasp: &Grasp, head: Option<SnapshotId>, known: Option<SnapshotId>) -> Result<bool> {
        if head.is_none() {
            return Ok(false);
        }
        let (store, reference) = (&self.inner.store, grasp.workspace.reference());
        let target = |value: &Option<RefValue>| value.as_ref().and_then(|value| value.target);
        let known = known.map(|known| *known.as_bytes());
        let mut sequence = store.last_move(&reference)?;
        for _ in 0..UNNOTED_CAPTURES_MAX {
            let moved = match operation(store, sequence) {
                Ok(moved) => moved,
                // So long ago that it was noted since, or never will be.
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

    pub(crate) fn known_root(&self, known: Option<SnapshotId>) -> Result<Option<RootId>> {
        match self.head_root(known) {
            // What it was in step with is gone; then the head decides.
            Err(failure) if failure.reason() == Reason::Corrupt => Ok(None),
            other => other,
        }
    }

    /// Takes a snapshot of a directory.
    pub(crate) fn capture_directory(
        &self,
        request: &v1::CaptureDirectoryRequest,
        act: &Act,
        progress: &Progress,
    ) -> Result<v1::CaptureResult> {
        if let Some(id) = self.live_named(&request.name)? {
            return self.capture_view(id, request, act);
        }
        let mut grasp = self.grasp(&request.name)?;
        let labels = request.labels.iter().map(LabelName::new).collect::<Result<Vec<_>, _>>()?;
        let metadata: BTreeMap<_, _> = request.metadata.clone().into_iter().collect();
        let change = Change { message: request.message.clone(), metadata, labels, ..Change::default() };
        self.check_etag(&grasp.workspace, &request.etag)?;
        self.snapshot_directory(&mut grasp, &Saying { action: CAPTURE, change }, act, progress)
    }

    pub(super) fn snapshot_directory(
        &self,
        grasp: &mut Grasp,
        saying: &Saying<'_>,
        act: &Act,
        progress: &Progress,
    ) -> Result<v1::CaptureResult> {
        let mut head = self.head(&grasp.workspace)?;
        if self.is_left_behind(grasp, head)? {
            self.catch_up(grasp, &saying.change.message, act)?;
            head = self.head(&grasp.workspace)?;
        }
        self.refuse_out_of_step(grasp, head)?;
        let mut warnings = match self.check_room() {
            // What changes nothing needs no room: a directory that is to be removed is looked at first.
            Err(full) if full.reason() == Reason::Full && self.is_unchanged(grasp, head, progress)? => {
                vec![full.to_string()]
            }
            checked => checked?,
        };
        let mut captured = self.look(grasp, progress)?;
        warnings.extend(self.check_quota(&grasp.workspace, Some(captured.root))?);
        let tally = self.tally(self.head_root(head)?, Some(captured.root))?;
        let (snapshot, is_new) = self.commit_captured(grasp, &mut captured, saying, act)?;
        warnings.extend(grasp.save(self));
        Ok(v1::CaptureResult {
            snapshot: Some(self.snapshot_message(snapshot, &Marks::default())?),
            changed: is_new,
            counts: Some(counts(&captured.counts)),
            added: tally.added,
            modified: tally.modified,
            removed: tally.removed,
            stored_bytes: captured.counts.bytes_stored,
            notices: captured.notices.iter().map(notice).collect(),
            workspace: Some(self.workspace_message(&grasp.workspace)?),
            warnings,
            conflicts: Some(grasp.seen.message()),
            in_git: self.left_alone_by_undo(&grasp.workspace, &tally)?,
        })
    }

    /// How many changes an undo leaves alone unless it is told otherwise.
    pub(crate) fn left_alone_by_undo(&self, workspace: &WorkspaceName, tally: &Tally) -> Result<u64> {
        Ok(if self.git_scope(workspace, false)?.includes() { 0 } else { tally.in_git })
    }

    /// Whether a directory is what its workspace's head holds, as far as that can be told without storing anything.
    fn is_unchanged(&self, grasp: &mut Grasp, head: Option<SnapshotId>, progress: &Progress) -> Result<bool> {
        let Some(root) = self.head_root(head)? else { return Ok(false) };
        if grasp.index().root() != Some(self.faced_in(grasp, root)?.face) {
            return Ok(false);
        }
        let changes = self.detect(grasp, progress)?;
        Ok(changes.modified.is_empty() && changes.added.is_empty() && changes.deleted.is_empty())
    }

    pub(crate) fn check_etag(&self, workspace: &amalgam_engine::WorkspaceName, etag: &str) -> Result<()> {
        if etag.is_empty() {
            return Ok(());
        }
        let now = self.inner.store.last_move(&workspace.reference())?.to_string();
        if now == etag {
            return Ok(());
        }
        let message =
            format!("workspace {workspace} was changed since it was read; look at what it has now, then try again");
        Err(Error::new(Reason::StaleHead, message).with("etag", now))
    }

    /// What differs between a directory and its workspace's head. Stores nothing if the head is what was last seen there.
    pub(crate) fn status(&self, name: &str, progress: &Progress) -> Result<v1::DirectoryStatus> {
        if let Some(id) = self.live_named(name)? {
            return self.view_status(id);
        }
        let mut grasp = self.grasp(name)?;
        let head = self.head(&grasp.workspace)?;
        let head_root = self.head_root(head)?;
        let faced = head_root.map(|root| self.faced_in(&grasp, root)).transpose()?;
        let mut changes = None;
        if let Some(faced) = faced.as_ref().filter(|faced| grasp.index().root() == Some(faced.face)) {
            let found = self.detect(&mut grasp, progress)?;
            // What an edit of a conflict means is known only when it is read.
            if !touches(&found, faced) {
                grasp.seen = Seen { conflicts: self.conflicts_of(faced.tree, None)?, ..Seen::default() };
                changes = Some(found);
            }
        }
        let mut changes = match changes {
            Some(changes) => changes,
            None => self.compare(&mut grasp, head_root, progress)?,
        };
        let uncovered = still_there(&grasp, &mut changes.deleted);
        for list in [&mut changes.added, &mut changes.deleted] {
            without_holders_of_git(list);
        }
        grasp.record.looked = self.now().0;
        grasp.save(self);
        let paths = |paths: Vec<TreePath>| paths.iter().map(|path| Bytes::copy_from_slice(path.as_bytes())).collect();
        Ok(v1::DirectoryStatus {
            directory: Some(self.directory_message(&grasp.record)),
            workspace: Some(self.workspace_message(&grasp.workspace)?),
            head: head.map(|head| self.snapshot_message(head, &Marks::default())).transpose()?,
            modified: paths(changes.modified),
            added: paths(changes.added),
            deleted: paths(changes.deleted),
            notices: changes.notices.iter().map(notice).collect(),
            warnings: self.room_warnings(&grasp.workspace),
            counts: Some(counts(&changes.counts)),
            conflicts: Some(grasp.seen.message()),
            uncovered: paths(uncovered),
            renamed: changes.renamed.iter().map(renamed_message).collect(),
            attributes: paths(changes.attributes),
            directories: paths(changes.directories),
        })
    }

    fn detect(&self, grasp: &mut Grasp, progress: &Progress) -> Result<Changes> {
        let rules = self.rules(&grasp.record)?;
        let dirty = grasp.live.watch.as_ref().map(|watch| watch.look_dirty());
        let scope = match &dirty {
            Some(Dirty::Nothing) => Scope::Directories(super::watch::NOWHERE),
            Some(Dirty::Directories(directories)) => Scope::Directories(directories),
            _ => Scope::All,
        };
        let known = Known::default();
        let job = Capture { rules: &rules, scope, known: &known, now: self.now(), progress };
        let index = grasp.live.index.as_mut().expect("it was made ready when the directory was grasped");
        Ok(detect_changes(&self.inner.store, &grasp.host, index, &job)?)
    }

    /// The same by a capture, when the index is at another tree than the head.
    fn compare(&self, grasp: &mut Grasp, head: Option<RootId>, progress: &Progress) -> Result<Changes> {
        let captured = self.look(grasp, progress)?;
        let mut changes = Changes { notices: captured.notices, counts: captured.counts, ..Changes::default() };
        let diff = diff_roots(&self.inner.store, head, Some(captured.root), DiffOptions::default())?;
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
        changes.renamed = self.renamed_files(head, Some(captured.root))?;
        Ok(changes)
    }
}

/// Takes those paths out of a sorted list that are still on the disk: rules leave them out by now.
fn still_there(grasp: &Grasp, deleted: &mut Vec<TreePath>) -> Vec<TreePath> {
    let mut uncovered = Vec::new();
    let mut gone: Option<TreePath> = None;
    deleted.retain(|path| {
        let is_below_gone = gone.as_ref().is_some_and(|gone| path.below(gone).is_some());
        if !is_below_gone && grasp.host.stamp(path).ok().flatten().is_some() {
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

/// Whether something that changed is, holds, or lies in what stands for a conflict.
fn touches(changes: &Changes, faced: &Faced) -> bool {
    let changed: Vec<_> = changes.modified.iter().chain(&changes.added).chain(&changes.deleted).collect();
    let near = |path: &TreePath| changed.iter().any(|other| path.below(other).is_some() || other.below(path).is_some());
    faced.paths().any(near)
}

/// Counts for the wire.
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
