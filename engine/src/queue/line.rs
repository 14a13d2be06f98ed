//! The line of snapshots that a fold builds on a target: merges one entry after another on top of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ancestors::{Ancestors, HistoryBoundary};
use super::entry::QueueEntry;
use super::outcome::{EntryOutcome, Folded};
use super::{
    EntryPolicy, MergePolicy, Queue, RefusedChange, Regenerated, TestVerdict, admission, fast_path, review,
    side_choices,
};
use crate::commit::{changed_paths_since, generation_above};
use crate::conflict::CONFLICTS_KEY;
use crate::diff::{Change, DiffOptions, diff_roots};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{RootId, SnapshotId};
use crate::merge::{
    AdmitMove, FileMerged, MERGE_RECORD_KEY, MergeBase, MergeContents, MergeOptions, MergeRecord, PathConflict,
    UncommittedMerge, count_conflicts, have_conflicts, merge_base, merge_trees,
};
use crate::name::TreePath;
use crate::object::Snapshot;
use crate::operation::{OperationContext, hold_snapshot};
use crate::reference::{RefName, RefValue};
use crate::store::{Pin, WriteSession};
use crate::work::WorkingTree;

/// The metadata key of a merge snapshot with the id of its entry.
const ENTRY_KEY: &str = "queue";

/// The metadata key of a permitted part with the snapshot that it is a part of.
const PERMITTED_KEY: &str = "permitted-of";
/// Maximum number of snapshots of the target that are searched for an earlier part.
const EARLIER_PARTS_SEARCH_MAX: usize = 10_000;

/// The snapshots of a target during a fold.
pub(super) struct TargetLine<'a> {
    queue: &'a Queue,
    session: &'a WriteSession,
    pub(super) head: Option<SnapshotId>,
    pub(super) root: Option<RootId>,
    pub(super) ancestors: Option<Ancestors>,
    pub(super) reviews: Vec<(RefName, RefValue)>,
    pub(super) pins: Vec<Pin>,
}

/// The merge base of an entry and its target.
struct MergeStart {
    boundary: Option<HistoryBoundary>,
    snapshots: Vec<SnapshotId>,
    root: Option<RootId>,
    _pin: Option<Pin>,
    /// Held for its pin.
    _base: Option<MergeBase>,
}

/// A merged tree that is not committed yet.
struct MergedTree {
    tree: WorkingTree,
    files: Vec<FileMerged>,
    conflicts: Vec<PathConflict>,
    changed: u64,
    /// Whether conflicts were resolved after the changes were counted: the result may equal ours.
    is_settled: bool,
}

impl<'a> TargetLine<'a> {
    pub(super) fn begin(
        queue: &'a Queue,
        head: Option<SnapshotId>,
        session: &'a WriteSession,
        ancestors: Option<Ancestors>,
    ) -> Result<Self> {
        let mut pins = Vec::new();
        let root = match head {
            Some(head) => {
                pins.extend(hold_snapshot(queue.store(), head)?);
                Some(queue.store().snapshot(head)?.root)
            }
            None => None,
        };
        Ok(Self { queue, session, head, root, ancestors, reviews: Vec::new(), pins })
    }

    /// Merges an entry. If that fails because of the entry itself, the entry becomes a review.
    pub(super) fn merge_or_set_aside(
        &mut self,
        entry: &QueueEntry,
        policy: &dyn MergePolicy,
        context: &OperationContext,
    ) -> Result<Folded> {
        match self.merge(entry, policy, context) {
            Err(error) if concerns_entry_only(&error) => {
                let (made, reason) = (Vec::new(), error.to_string());
                self.set_aside(entry, &[], made, reason)
            }
            other => other,
        }
    }

    fn merge(&mut self, entry: &QueueEntry, policy: &dyn MergePolicy, context: &OperationContext) -> Result<Folded> {
        let store = self.queue.store();
        self.pins.extend(hold_snapshot(store, entry.snapshot)?);
        let theirs = store.snapshot(entry.snapshot)?.root;
        let (Some(head), Some(ours)) = (self.head, self.root) else {
            let changes = diff_roots(store, None, Some(theirs), DiffOptions::default())?.into_changes()?;
            let refused = admission::refusals(entry, &changes, policy)?;
            if !refused.is_empty() {
                return self.set_refused_aside(entry, &[], refused);
            }
            if let Some(put) = self.failed_test(entry, theirs, &[], &[], policy)? {
                return Ok(put);
            }
            (self.head, self.root) = (Some(entry.snapshot), Some(theirs));
            return Ok(Folded::new(entry, EntryOutcome::Landed(entry.snapshot), Vec::new()));
        };
        let contents = policy.contents(entry)?;
        let options = MergeOptions { time: context.time, ..MergeOptions::default() };
        let Some(start) = self.start(head, entry.snapshot, &*contents, &options)? else {
            return Ok(Folded::new(entry, EntryOutcome::Already, Vec::new()));
        };
        let changes = diff_roots(store, start.root, Some(theirs), DiffOptions::default())?.into_changes()?;
        let refused = admission::refusals(entry, &changes, policy)?;
        if !refused.is_empty() {
            if !policy.takes_rest(entry) {
                return self.set_refused_aside(entry, &start.snapshots, refused);
            }
            return self.merge_permitted(entry, &start, theirs, &changes, refused, policy, context);
        }
        self.merge_changes(entry, head, &start, [ours, theirs], changes, policy, context)
    }

    /// Merges the changes of an entry, which may all be merged.
    #[expect(clippy::too_many_arguments, reason = "the state of one merge, passed on once")]
    fn merge_changes(
        &mut self,
        entry: &QueueEntry,
        head: SnapshotId,
        start: &MergeStart,
        [ours, mut theirs]: [RootId; 2],
        mut changes: Vec<Change>,
        policy: &dyn MergePolicy,
        context: &OperationContext,
    ) -> Result<Folded> {
        let store = self.queue.store();
        let contents = policy.contents(entry)?;
        let options = MergeOptions { time: context.time, ..MergeOptions::default() };
        if let Some((renamed, pin)) = admission::keep_both(store, [ours, theirs], entry, &changes, policy)? {
            self.pins.push(pin);
            theirs = renamed;
            changes = diff_roots(store, start.root, Some(theirs), DiffOptions::default())?.into_changes()?;
        }
        let (made, reason) = match self.try_fast_path(start, [ours, theirs], &changes, policy, context)? {
            Some(made) => (made, String::new()),
            None => self.merge_in_full(entry, start, [ours, theirs], &*contents, &options, policy)?,
        };
        if !made.conflicts.is_empty() && !entry.options.keep_conflicts {
            let mut put = self.set_aside(entry, &start.snapshots, made.conflicts, reason)?;
            put.files = made.files;
            return Ok(put);
        }
        self.put_snapshot(entry, head, start, made, policy, context)
    }

    /// Merges an entry without its refused changes. The snapshot that is merged has only the permitted ones and follows the base, so
    /// that the next merge of the source tries the others again.
    #[expect(clippy::too_many_arguments, reason = "the state of one merge, passed on once")]
    fn merge_permitted(
        &mut self,
        entry: &QueueEntry,
        start: &MergeStart,
        theirs: RootId,
        changes: &[Change],
        refused: Vec<RefusedChange>,
        policy: &dyn MergePolicy,
        context: &OperationContext,
    ) -> Result<Folded> {
        let store = self.queue.store();
        let (part, pins) = admission::permitted_part(store, start.root, theirs, changes, &refused)?;
        self.pins.extend(pins);
        let id = match self.earlier_part(entry, start)? {
            Some(earlier) if store.snapshot(earlier)?.root == part => earlier,
            Some(earlier) => self.put_part(entry, part, vec![earlier])?,
            None => self.put_part(entry, part, start.snapshots.clone())?,
        };
        // The cached ancestors belong to the history of the entry, not to that of this snapshot.
        self.ancestors = None;
        let permitted = QueueEntry { snapshot: id, ..entry.clone() };
        let folded = self.merge(&permitted, &Permitted(policy), context)?;
        Ok(Folded { entry: entry.clone(), refused, ..folded })
    }

    /// Creates the snapshot of the permitted part of an entry.
    fn put_part(&self, entry: &QueueEntry, root: RootId, parents: Vec<SnapshotId>) -> Result<SnapshotId> {
        let store = self.queue.store();
        let snapshot = Snapshot {
            root,
            generation: generation_above(store, &parents)?,
            parents,
            author: entry.actor.clone(),
            time: store.snapshot(entry.snapshot)?.time,
            message: format!("permitted changes of {}", entry.source),
            metadata: BTreeMap::from([(PERMITTED_KEY.to_owned(), entry.snapshot.to_string())]),
        };
        let id = self.session.put_snapshot(snapshot)?;
        self.session.write_all_ahead()?;
        Ok(id)
    }

    /// Returns the permitted part of the source that the target merged last, since the base. The next part follows it.
    fn earlier_part(&self, entry: &QueueEntry, start: &MergeStart) -> Result<Option<SnapshotId>> {
        let (store, mut here) = (self.queue.store(), self.head);
        for _ in 0..EARLIER_PARTS_SEARCH_MAX {
            let Some(snapshot) = here.filter(|here| !start.snapshots.contains(here)) else { return Ok(None) };
            let snapshot = store.snapshot(snapshot)?;
            for merged in snapshot.parents.iter().skip(1) {
                let metadata = &store.snapshot(*merged)?.metadata;
                let of = metadata.get(PERMITTED_KEY).and_then(|of| SnapshotId::from_hex(of));
                if let Some(of) = of
                    && store.has(of.object())?
                    && self.queue.history.is_ancestor(of, entry.snapshot)?
                {
                    return Ok(Some(*merged));
                }
            }
            here = snapshot.parents.first().copied();
        }
        Ok(None)
    }

    /// Turns an entry with refused changes into a review.
    fn set_refused_aside(
        &mut self,
        entry: &QueueEntry,
        bases: &[SnapshotId],
        refused: Vec<RefusedChange>,
    ) -> Result<Folded> {
        let put = self.set_aside(entry, bases, Vec::new(), admission::reason(&refused))?;
        Ok(Folded { refused, ..put })
    }

    /// Merges the trees, and resolves conflicts by the entry's choices, by remembered resolutions and by commands. Also returns
    /// the reason why a command did not regenerate a file; empty if none failed.
    fn merge_in_full(
        &mut self,
        entry: &QueueEntry,
        start: &MergeStart,
        [ours, theirs]: [RootId; 2],
        contents: &dyn MergeContents,
        options: &MergeOptions,
        policy: &dyn MergePolicy,
    ) -> Result<(MergedTree, String)> {
        let (store, time) = (self.queue.store(), options.time);
        let units = policy.units(start.root, ours, theirs)?;
        let options = MergeOptions { units, moves: policy.moves(), ..options.clone() };
        let outcome = merge_trees(store, start.root, ours, theirs, contents, &options)?;
        let mut tree = outcome.tree;
        let (mut files, changed) = (outcome.report.files, outcome.report.changed);
        let found = outcome.conflicts.len();
        let mut conflicts =
            side_choices::settle(store, &mut tree, outcome.conflicts, start.root, [ours, theirs], entry, time)?;
        side_choices::tell(&mut files, &conflicts, entry);
        let mut uncommitted =
            UncommittedMerge { tree: &mut tree, conflicts: &mut conflicts, files: &mut files, pins: &mut self.pins };
        uncommitted.replay(store, time)?;
        let reason = uncommitted.regenerate_conflicts(store, ours, &EntryPolicy { policy, entry })?;
        let is_settled = conflicts.len() < found;
        Ok((MergedTree { tree, files, conflicts, changed, is_settled }, reason))
    }

    /// Returns the base for merging a snapshot, or `None` if the head already contains it.
    fn start(
        &self,
        head: SnapshotId,
        from: SnapshotId,
        contents: &dyn MergeContents,
        options: &MergeOptions,
    ) -> Result<Option<MergeStart>> {
        let store = self.queue.store();
        let boundary = self.ancestors.as_ref().map(|ancestors| ancestors.meet(store, from)).transpose()?;
        if let Some(boundary) = boundary {
            if boundary.new.is_empty() {
                return Ok(None);
            }
            if let [base] = boundary.edge[..]
                && let root = store.snapshot(base)?.root
                && let Ok(pin) = store.hold(root)
            {
                let start = MergeStart {
                    boundary: Some(boundary),
                    snapshots: vec![base],
                    root: Some(root),
                    _pin: Some(pin),
                    _base: None,
                };
                return Ok(Some(start));
            }
            return self.walk(head, from, contents, options, Some(boundary)).map(Some);
        }
        if self.queue.history.is_ancestor(from, head)? {
            return Ok(None);
        }
        self.walk(head, from, contents, options, None).map(Some)
    }

    fn walk(
        &self,
        head: SnapshotId,
        from: SnapshotId,
        contents: &dyn MergeContents,
        options: &MergeOptions,
        boundary: Option<HistoryBoundary>,
    ) -> Result<MergeStart> {
        let base = merge_base(&self.queue.history, &[head], from, contents, options)?;
        Ok(MergeStart { boundary, snapshots: base.snapshots.clone(), root: base.root, _pin: None, _base: Some(base) })
    }

    /// Tries the fast path, for changes that do not overlap with those of the target.
    fn try_fast_path(
        &self,
        start: &MergeStart,
        [ours, theirs]: [RootId; 2],
        changes: &[Change],
        policy: &dyn MergePolicy,
        context: &OperationContext,
    ) -> Result<Option<MergedTree>> {
        let Some(base) = start.root else { return Ok(None) };
        if changes.iter().any(|change| policy.is_grouped(&change.path)) {
            return Ok(None);
        }
        let store = self.queue.store();
        let roots = [&*store.root(base)?, &*store.root(ours)?, &*store.root(theirs)?];
        let mut tree = WorkingTree::open_root(store, ours)?;
        tree.set_now(context.time);
        tree.keep(theirs)?;
        let is_done = fast_path::apply(store, roots, changes, &mut tree, context.time)?;
        let changed = changes.len() as u64;
        Ok(is_done.then(|| MergedTree { tree, files: Vec::new(), conflicts: Vec::new(), changed, is_settled: false }))
    }

    /// Creates the snapshot of a merged tree on top of the head.
    fn put_snapshot(
        &mut self,
        entry: &QueueEntry,
        head: SnapshotId,
        start: &MergeStart,
        made: MergedTree,
        policy: &dyn MergePolicy,
        context: &OperationContext,
    ) -> Result<Folded> {
        let store = self.queue.store();
        let mut written = made.tree.freeze().write_root(self.session)?;
        let mut changed = made.changed;
        if made.is_settled {
            self.session.write_all_ahead()?;
            let ours = store.snapshot(head)?.root;
            changed = diff_roots(store, Some(ours), Some(written.id), DiffOptions::default())?.count() as u64;
        }
        if let Some(put) = self.failed_test(entry, written.id, &start.snapshots, &made.conflicts, policy)? {
            return Ok(Folded { files: made.files, ..put });
        }
        let mut record = MergeRecord { target: entry.target.to_string(), ..MergeRecord::default() };
        record.sources.push((entry.source.to_string(), entry.snapshot.to_string()));
        record.add(&start.snapshots, &made.files, &made.conflicts);
        let metadata = [(MERGE_RECORD_KEY, record.to_json()), (ENTRY_KEY, entry.id.clone())];
        let mut metadata: BTreeMap<_, _> = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        if !made.conflicts.is_empty() || have_conflicts(store, &[head, entry.snapshot])? {
            self.session.write_all_ahead()?;
            let conflicts = count_conflicts(store, head, written.id)?;
            metadata.insert(CONFLICTS_KEY.to_owned(), conflicts.to_string());
        }
        let message = match entry.options.message.is_empty() {
            true => format!("merge {}", entry.source),
            false => entry.options.message.clone(),
        };
        let parents = vec![head, entry.snapshot];
        let touched = changed_paths_since(store, head, &mut written);
        let snapshot = Snapshot {
            root: written.id,
            generation: generation_above(store, &parents)?,
            parents,
            author: entry.actor.clone(),
            time: context.time,
            message,
            metadata,
        };
        let id = self.session.put_snapshot_with_changes(snapshot, touched)?;
        self.session.write_all_ahead()?;
        (self.head, self.root) = (Some(id), Some(written.id));
        match (&mut self.ancestors, &start.boundary) {
            (Some(ancestors), Some(boundary)) => ancestors.advance(boundary, id),
            (ancestors, _) => *ancestors = None,
        }
        let MergedTree { files, conflicts, .. } = made;
        Ok(Folded { files, changed, ..Folded::new(entry, EntryOutcome::Landed(id), conflicts) })
    }

    /// Runs the test of an entry on a merged tree. Returns the result of the entry if it may not be merged; `None` if the test passed,
    /// or there is none.
    fn failed_test(
        &mut self,
        entry: &QueueEntry,
        tree: RootId,
        bases: &[SnapshotId],
        conflicts: &[PathConflict],
        policy: &dyn MergePolicy,
    ) -> Result<Option<Folded>> {
        if entry.options.test.is_empty() {
            return Ok(None);
        }
        self.session.write_all_ahead()?;
        let _pin = self.queue.store().hold(tree)?;
        match policy.test(entry, tree)? {
            TestVerdict::Passed => Ok(None),
            TestVerdict::Failed(reason) => self.set_aside(entry, bases, conflicts.to_vec(), reason).map(Some),
            TestVerdict::NotStarted(reason) => Ok(Some(Folded::new(entry, EntryOutcome::Refused(reason), Vec::new()))),
        }
    }

    /// Turns an entry into a review.
    fn set_aside(
        &mut self,
        entry: &QueueEntry,
        bases: &[SnapshotId],
        conflicts: Vec<PathConflict>,
        reason: String,
    ) -> Result<Folded> {
        self.reviews.push(review::reference(entry, self.head, bases, &conflicts, &reason)?);
        Ok(Folded::new(entry, EntryOutcome::Review(reason), conflicts))
    }
}

/// Returns whether an error concerns the entry and not the store, so that other entries can still be merged.
fn concerns_entry_only(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::Corrupt | ErrorKind::Exists)
}

/// A policy for the permitted part of an entry: it refuses nothing more.
struct Permitted<'a>(&'a dyn MergePolicy);

impl MergePolicy for Permitted<'_> {
    fn contents(&self, entry: &QueueEntry) -> Result<Box<dyn MergeContents + '_>> {
        self.0.contents(entry)
    }

    fn is_grouped(&self, path: &TreePath) -> bool {
        self.0.is_grouped(path)
    }

    fn units(&self, base: Option<RootId>, ours: RootId, theirs: RootId) -> Result<Vec<Vec<TreePath>>> {
        self.0.units(base, ours, theirs)
    }

    fn moves(&self) -> Option<Arc<dyn AdmitMove>> {
        self.0.moves()
    }

    fn keeps_both(&self, entry: &QueueEntry, path: &TreePath) -> bool {
        self.0.keeps_both(entry, path)
    }

    fn is_regenerated(&self, path: &TreePath) -> bool {
        self.0.is_regenerated(path)
    }

    fn regenerate(&self, entry: &QueueEntry, tree: RootId, paths: &[TreePath]) -> Result<Regenerated> {
        self.0.regenerate(entry, tree, paths)
    }

    fn test(&self, entry: &QueueEntry, tree: RootId) -> Result<TestVerdict> {
        self.0.test(entry, tree)
    }
}
