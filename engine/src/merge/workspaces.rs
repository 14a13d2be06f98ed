//! Merges workspaces: finds the base, merges the trees, and commits the result as one operation.

use std::collections::{BTreeMap, BTreeSet};

use super::auto_resolve::{Regenerate, UncommittedMerge, conflict_entries, count_conflicts, have_conflicts};
use super::base::{merge_base, write};
use super::record::{MERGE_RECORD_KEY, MergeRecord, RecordedPath};
use super::{MergeContents, MergeOptions, MergeReport, PathConflict, merge_trees};
use crate::conflict::CONFLICTS_KEY;
use crate::diff::{DiffOptions, diff_roots};
use crate::error::{Error, Result};
use crate::history::History;
use crate::id::SnapshotId;
use crate::limit::without_cancellation;
use crate::operation::{OperationContext, Step, hold_snapshot, move_refs, recorded, retry_while, snapshot_of};
use crate::store::{Pin, Store};
use crate::work::WorkingTree;
use crate::workspace::{Change, Workspace, WorkspaceName, Workspaces};

/// The action name of a merge in the operation log.
const MERGE: &str = "merge";

/// The parameters of a merge of workspaces.
pub struct MergeRequest<'a> {
    /// The target workspace.
    pub target: &'a WorkspaceName,
    /// The source workspaces, merged one after another. They are not changed.
    pub sources: &'a [WorkspaceName],
    /// Merges the contents of contested files.
    pub contents: &'a dyn MergeContents,
    /// Options of the tree merge. The time comes from the context.
    pub options: MergeOptions,
    /// Whether the target's head may move to the source's head if the target has no changes of its own.
    pub fast_forward: bool,
    /// Whether to commit a merge with conflicts, with the conflicts in the tree.
    pub keep_conflicts: bool,
    /// The message of the snapshot; if empty, a default that names the sources.
    pub message: String,
    /// Further metadata of the snapshot, in addition to the record of the merge.
    pub metadata: BTreeMap<String, String>,
    /// Regenerates conflicting files for which a rule exists.
    pub regenerate: Option<&'a dyn Regenerate>,
    /// Whether to apply remembered resolutions.
    pub use_remembered: bool,
    /// Decides which sources may be merged; all of them without it.
    pub admit: Option<&'a dyn AdmitSource>,
}

/// Decides which sources of a merge may be merged.
pub trait AdmitSource {
    /// Returns why the changes of a source's head since the target's head may not be merged, or `None` if they may.
    fn refusal(&self, source: &WorkspaceName, head: SnapshotId, target: Option<SnapshotId>) -> Result<Option<String>>;
}

/// The result of a merge of workspaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeDone {
    /// The kind of result.
    pub how: MergeHow,
    /// The head of the target afterwards.
    pub head: Option<SnapshotId>,
    /// The sequence number of the operation; `None` if nothing was changed.
    pub operation: Option<u64>,
    /// The conflicts.
    pub conflicts: Vec<PathConflict>,
    /// Further information about the merge.
    pub report: MergeReport,
    /// Why the merge was refused, or why files were not regenerated; usually empty.
    pub reason: String,
}

/// The kind of result of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeHow {
    /// The target already contained the sources.
    Already,
    /// Fast-forward: the target's head moved to the source's head.
    Forward,
    /// A merge snapshot was created.
    Merged,
    /// Nothing was changed: a source may not be merged, or there were conflicts and [`MergeRequest::keep_conflicts`] was false.
    Refused,
    /// The request had already been executed.
    Replayed,
}

impl<'a> MergeRequest<'a> {
    /// Creates a request that fast-forwards if possible and keeps conflicts.
    pub fn new(target: &'a WorkspaceName, sources: &'a [WorkspaceName], contents: &'a dyn MergeContents) -> Self {
        Self {
            target,
            sources,
            contents,
            options: MergeOptions::default(),
            fast_forward: true,
            keep_conflicts: true,
            message: String::new(),
            metadata: BTreeMap::new(),
            regenerate: None,
            use_remembered: true,
            admit: None,
        }
    }
}

impl MergeDone {
    fn without_change(how: MergeHow, head: Option<SnapshotId>) -> Self {
        Self {
            how,
            head,
            operation: None,
            conflicts: Vec::new(),
            report: MergeReport::default(),
            reason: String::new(),
        }
    }
}

/// The snapshots to merge.
#[derive(Clone, Debug, Default)]
pub struct MergeHeads {
    /// The head of the target; `None` if it has none.
    pub target: Option<SnapshotId>,
    /// The heads of the sources that have one.
    pub sources: Vec<(WorkspaceName, SnapshotId)>,
}

/// The result of a merge that is not committed yet.
enum ComputedMerge {
    Already,
    /// A source may not be merged, for this reason.
    Refused(String),
    Forward(SnapshotId),
    Merged(Box<MergeInProgress>),
}

/// A merge of several heads in progress.
struct MergeInProgress {
    tree: WorkingTree,
    /// The sources to merge.
    sources: Vec<(WorkspaceName, SnapshotId)>,
    heads: Vec<SnapshotId>,
    conflicts: Vec<PathConflict>,
    report: MergeReport,
    record: MergeRecord,
    reason: String,
    pins: Vec<Pin>,
}

impl Workspaces {
    /// Merges workspaces into another: one snapshot with all of them as parents in one operation, or no change at all. If the
    /// target moves meanwhile, the merge is repeated with its new head.
    pub fn merge(
        &self,
        history: &History,
        request: &MergeRequest<'_>,
        context: &OperationContext,
    ) -> Result<MergeDone> {
        if let Some(id) = &context.request
            && let Some(done) = self.store().find_request(id)?
        {
            let after = done.changes.first().and_then(|change| change.after.as_ref());
            let head = after.and_then(|value| value.target).and_then(snapshot_of);
            return Ok(MergeDone {
                operation: Some(done.sequence),
                ..MergeDone::without_change(MergeHow::Replayed, head)
            });
        }
        let is_stale = |error: &Error| matches!(error, Error::StaleHead { .. } | Error::Stale { .. });
        retry_while(is_stale, || self.try_merge(history, request, context))
    }

    fn try_merge(
        &self,
        history: &History,
        request: &MergeRequest<'_>,
        context: &OperationContext,
    ) -> Result<MergeDone> {
        let target = self.get(request.target)?;
        let mut heads = MergeHeads { target: target.head, sources: Vec::new() };
        for name in request.sources {
            heads.sources.extend(self.get(name)?.head.map(|head| (name.clone(), head)));
        }
        let merge = match self.compute_merge(history, request, &heads, context)? {
            ComputedMerge::Already => return Ok(MergeDone::without_change(MergeHow::Already, target.head)),
            ComputedMerge::Refused(reason) => {
                return Ok(MergeDone { reason, ..MergeDone::without_change(MergeHow::Refused, target.head) });
            }
            ComputedMerge::Forward(source) => return self.forward(&target, source, context, MERGE),
            ComputedMerge::Merged(merge) => *merge,
        };
        if !merge.conflicts.is_empty() && !request.keep_conflicts {
            let MergeInProgress { conflicts, report, reason, .. } = merge;
            return Ok(MergeDone {
                conflicts,
                report,
                reason,
                ..MergeDone::without_change(MergeHow::Refused, target.head)
            });
        }
        self.land(request, merge, target.head, context)
    }

    /// Computes the result of a merge without changing anything. `heads` are the heads of the workspaces, or their intended
    /// future heads.
    pub fn preview_merge(
        &self,
        history: &History,
        request: &MergeRequest<'_>,
        heads: &MergeHeads,
        context: &OperationContext,
    ) -> Result<MergeDone> {
        match self.compute_merge(history, request, heads, context)? {
            ComputedMerge::Already => Ok(MergeDone::without_change(MergeHow::Already, heads.target)),
            ComputedMerge::Refused(reason) => {
                Ok(MergeDone { reason, ..MergeDone::without_change(MergeHow::Refused, heads.target) })
            }
            ComputedMerge::Forward(_) => Ok(MergeDone::without_change(MergeHow::Forward, heads.target)),
            ComputedMerge::Merged(merge) => {
                let MergeInProgress { conflicts, report, reason, .. } = *merge;
                let done = MergeDone::without_change(MergeHow::Merged, heads.target);
                Ok(MergeDone { conflicts, report, reason, ..done })
            }
        }
    }

    /// Merges the trees of the heads in memory: finds the base, applies the rules, and changes no reference.
    fn compute_merge(
        &self,
        history: &History,
        request: &MergeRequest<'_>,
        heads: &MergeHeads,
        context: &OperationContext,
    ) -> Result<ComputedMerge> {
        let sources = new_sources(history, heads)?;
        let _pins = sources.iter().map(|(_, head)| hold_snapshot(self.store(), *head)).collect::<Result<Vec<_>>>()?;
        let Some((_, first)) = sources.first() else { return Ok(ComputedMerge::Already) };
        for (name, head) in &sources {
            let refusal = request.admit.map(|admit| admit.refusal(name, *head, heads.target)).transpose()?;
            if let Some(reason) = refusal.flatten() {
                return Ok(ComputedMerge::Refused(reason));
            }
        }
        if let [(_, source)] = sources[..] {
            let is_behind = heads.target.map(|head| history.is_ancestor(head, source)).transpose()?;
            if is_behind.unwrap_or(true) && (request.fast_forward || heads.target.is_none()) {
                return Ok(ComputedMerge::Forward(source));
            }
        }
        let mut merge = match heads.target {
            Some(head) => self.begin(request, head, Some(head))?,
            None => self.begin(request, *first, None)?,
        };
        for (name, head) in &sources {
            merge.record.sources.push((name.to_string(), head.to_string()));
            if !merge.heads.contains(head) {
                merge.take(history, request, *head, context)?;
            }
        }
        if sources.len() > 1 {
            merge.report_once()?;
            heads.target.map_or(Ok(()), |head| merge.count_once(self.store(), head))?;
        }
        merge.sources = sources;
        Ok(ComputedMerge::Merged(Box::new(merge)))
    }

    /// Begins a merge on the tree of `head`. The merge commit follows `base`.
    fn begin(&self, request: &MergeRequest<'_>, head: SnapshotId, base: Option<SnapshotId>) -> Result<MergeInProgress> {
        let mut tree = WorkingTree::open(self.store(), head)?;
        tree.rebase(base);
        let record = MergeRecord { target: request.target.to_string(), ..MergeRecord::default() };
        let (conflicts, report, reason) = (Vec::new(), MergeReport::default(), String::new());
        let (heads, sources, pins) = (vec![head], Vec::new(), Vec::new());
        Ok(MergeInProgress { tree, sources, heads, conflicts, report, record, reason, pins })
    }

    /// Moves the head of a workspace to a snapshot that continues it. Returns nothing, and moves nothing, when it does not. `action`
    /// goes into the operation log.
    pub fn fast_forward(
        &self,
        history: &History,
        name: &WorkspaceName,
        to: SnapshotId,
        context: &OperationContext,
        action: &str,
    ) -> Result<Option<MergeDone>> {
        let is_stale = |error: &Error| matches!(error, Error::StaleHead { .. } | Error::Stale { .. });
        retry_while(is_stale, || {
            let target = self.get(name)?;
            match target.head {
                Some(head) if head == to => Ok(Some(MergeDone::without_change(MergeHow::Already, Some(head)))),
                Some(head) if !history.is_ancestor(head, to)? => Ok(None),
                _ => self.forward(&target, to, context, action).map(Some),
            }
        })
    }

    /// Moves the head of a workspace to `to` in one operation.
    fn forward(
        &self,
        target: &Workspace,
        to: SnapshotId,
        context: &OperationContext,
        action: &str,
    ) -> Result<MergeDone> {
        let after = target.at_head(Some(to))?;
        let step = Step { name: target.name.reference(), before: Some(target.value().clone()), after: Some(after) };
        let operation = recorded(move_refs(self.store(), context, context.draft(action), vec![step])?);
        Ok(MergeDone { operation: Some(operation.sequence), ..MergeDone::without_change(MergeHow::Forward, Some(to)) })
    }

    /// Commits a merge: one snapshot with all heads as parents.
    fn land(
        &self,
        request: &MergeRequest<'_>,
        mut merge: MergeInProgress,
        head: Option<SnapshotId>,
        context: &OperationContext,
    ) -> Result<MergeDone> {
        let sources = &merge.sources;
        let names = sources.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>().join(", ");
        let message = match request.message.is_empty() {
            true => format!("merge {names}"),
            false => request.message.clone(),
        };
        let mut change = Change::new(message);
        change.other_parents = sources.iter().map(|(_, head)| *head).collect();
        change.metadata = request.metadata.clone();
        change.metadata.insert(MERGE_RECORD_KEY.to_owned(), merge.record.to_json());
        let mut tree = merge.tree;
        if !merge.conflicts.is_empty() || have_conflicts(self.store(), &merge.heads)? {
            let (root, pin) = write(self.store(), &tree)?;
            merge.pins.push(pin);
            // The merge began with the tree of the first head, which is that of the target if it has one.
            let conflicts = count_conflicts(self.store(), merge.heads[0], root)?;
            change.metadata.insert(CONFLICTS_KEY.to_owned(), conflicts.to_string());
        }
        tree.rebase(head);
        let done = without_cancellation(|| self.commit_as(request.target, &mut tree, &change, context, MERGE))?;
        Ok(MergeDone {
            how: MergeHow::Merged,
            head: Some(done.snapshot),
            operation: done.operation,
            conflicts: merge.conflicts,
            report: merge.report,
            reason: merge.reason,
        })
    }
}

/// Returns the sources that neither the target nor another source contains.
fn new_sources(history: &History, heads: &MergeHeads) -> Result<Vec<(WorkspaceName, SnapshotId)>> {
    let mut sources: Vec<(WorkspaceName, SnapshotId)> = Vec::new();
    for (at, (name, head)) in heads.sources.iter().enumerate() {
        let mut is_known = heads.target.map_or(Ok(false), |target| history.is_ancestor(*head, target))?;
        for (other_at, (_, other)) in heads.sources.iter().enumerate() {
            is_known |= match head == other {
                true => other_at < at,
                false => history.is_ancestor(*head, *other)?,
            };
        }
        if !is_known {
            sources.push((name.clone(), *head));
        }
    }
    Ok(sources)
}

impl MergeInProgress {
    /// Counts a path that several sources changed only once.
    fn count_once(&mut self, store: &Store, head: SnapshotId) -> Result<()> {
        let (root, pin) = write(store, &self.tree)?;
        self.pins.push(pin);
        let mut changed = 0;
        for change in diff_roots(store, Some(store.snapshot(head)?.root), Some(root), DiffOptions::default())? {
            change?;
            changed += 1;
        }
        self.report.changed = changed;
        Ok(())
    }

    /// Reports each path once, with its state after the last source. A file that five sources contest is one conflict; a conflict
    /// that one source introduced and a later one resolved is not reported.
    fn report_once(&mut self) -> Result<()> {
        let mut paths = BTreeSet::new();
        let mut files: Vec<_> = std::mem::take(&mut self.report.files).into_iter().rev().collect();
        files.retain(|file| paths.insert(file.path.clone()));
        self.report.files = files.into_iter().rev().collect();
        paths.clear();
        let mut kept = Vec::new();
        for conflict in std::mem::take(&mut self.conflicts).into_iter().rev() {
            if conflict.is_entry {
                let is_open = !conflict_entries(&self.tree, &conflict)?.is_empty();
                if !is_open || !paths.insert(conflict.path.clone()) {
                    continue;
                }
            }
            kept.push(conflict);
        }
        self.conflicts = kept.into_iter().rev().collect();
        let is_told = |one: &RecordedPath| self.conflicts.iter().any(|conflict| conflict.path.to_string() == one.path);
        let mut told = BTreeSet::new();
        self.record.conflicts.retain(|one| is_told(one) && told.insert((one.path.clone(), one.strategy.clone())));
        Ok(())
    }

    /// Merges one more snapshot.
    fn take(
        &mut self,
        history: &History,
        request: &MergeRequest<'_>,
        theirs: SnapshotId,
        context: &OperationContext,
    ) -> Result<()> {
        let store = history.store();
        let options = MergeOptions { time: context.time, ..request.options.clone() };
        let base = merge_base(history, &self.heads, theirs, request.contents, &options)?;
        let ours = match self.heads[..] {
            [only] => store.snapshot(only)?.root,
            _ => {
                let (root, pin) = write(store, &self.tree)?;
                self.pins.push(pin);
                root
            }
        };
        let theirs_root = store.snapshot(theirs)?.root;
        let mut outcome = merge_trees(store, base.root, ours, theirs_root, request.contents, &options)?;
        let mut uncommitted = UncommittedMerge {
            tree: &mut outcome.tree,
            conflicts: &mut outcome.conflicts,
            files: &mut outcome.report.files,
            pins: &mut self.pins,
        };
        let met = uncommitted.conflicts.len();
        if request.use_remembered {
            uncommitted.replay(store, context.time)?;
        }
        if let Some(maker) = request.regenerate {
            self.reason = uncommitted.regenerate_conflicts(store, ours, maker)?;
        }
        if outcome.conflicts.len() < met {
            // The resolution of a conflict may equal ours.
            let (root, pin) = write(store, &outcome.tree)?;
            self.pins.push(pin);
            outcome.report.changed = diff_roots(store, Some(ours), Some(root), DiffOptions::default())?.count() as u64;
        }
        self.record.add(&base.snapshots, &outcome.report.files, &outcome.conflicts);
        self.tree = outcome.tree;
        self.heads.push(theirs);
        self.conflicts.extend(outcome.conflicts);
        self.report.files.extend(outcome.report.files);
        self.report.changed += outcome.report.changed;
        self.report.searches = outcome.report.searches;
        Ok(())
    }
}
