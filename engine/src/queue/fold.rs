//! Folds a queue: merges all waiting entries of a target one after another in memory and commits them in one transaction.

use std::collections::{BTreeMap, HashSet};

use super::entry::{self, QueueEntry};
use super::known::{Known, Met};
use super::{About, Judge, Queue, TestVerdict, quick, review, take};
use crate::commit::{generation_above, touched_since};
use crate::conflict::CONFLICTS_KEY;
use crate::diff::{Change, DiffOptions, diff_roots};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{RootId, SnapshotId};
use crate::merge::{
    FileMerged, MERGE_RECORD_KEY, MergeOptions, MergeRecord, PathConflict, Unlanded, count_conflicts, have_conflicts,
    merge_base, merge_trees,
};
use crate::object::Snapshot;
use crate::operation::{Act, Step, hold_snapshot, trying_while};
use crate::reference::{RefName, RefValue};
use crate::store::{Pin, RefMove, WriteSession};
use crate::work::WorkingTree;
use crate::workspace::{Workspace, WorkspaceName};

/// The action name of a fold in the operation log.
const MERGE: &str = "merge";
/// The metadata key of a merge snapshot with the id of its entry.
const ENTRY_KEY: &str = "queue";
/// Maximum number of entries in one transaction.
const BATCH_MAX: usize = 512;
/// From this many entries on, a walk over the target's history pays off.
const WALK_FROM: usize = 4;
/// Maximum number of refusals that a reason lists.
const LISTED: usize = 10;

/// The result of a fold.
#[derive(Clone, Debug, Default)]
pub struct Fold {
    /// The result of each entry, in the order of the queue.
    pub done: Vec<Folded>,
    /// The sequence number of the operation; `None` if there was nothing to do.
    pub operation: Option<u64>,
}

/// An entry that a fold has processed.
#[derive(Clone, Debug)]
pub struct Folded {
    /// The entry.
    pub entry: QueueEntry,
    /// The result.
    pub fate: Fate,
    /// The files whose bytes both sides changed, and the strategy that decided each.
    pub files: Vec<FileMerged>,
    /// The conflicts.
    pub conflicts: Vec<PathConflict>,
    /// Number of changed paths of the target.
    pub changed: u64,
    /// Whether the source workspace was removed.
    pub is_ended: bool,
}

/// The result of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was merged into the target in this snapshot.
    Landed(SnapshotId),
    /// The target already contained it.
    Already,
    /// It became a review. Besides its conflicts, this is the reason.
    Review(String),
    /// Its test could not be started, for this reason. It left the queue, and nothing was changed.
    Refused(String),
}

impl Queue {
    /// Folds the waiting entries of a target. If the target moves meanwhile, the fold starts again from the new head.
    ///
    /// The merged entries, the reviews and the remaining queue change in one transaction. An entry that cannot be read becomes a
    /// review, so that it does not block the others.
    pub fn fold(&self, target: &WorkspaceName, judge: &dyn Judge, act: &Act) -> Result<Fold> {
        let is_stale = |error: &Error| matches!(error, Error::StaleHead { .. } | Error::Stale { .. });
        trying_while(is_stale, || self.try_fold(target, judge, act))
    }

    /// Computes the result of one entry without changing anything.
    pub fn preview(&self, entry: &QueueEntry, judge: &dyn Judge, act: &Act) -> Result<Folded> {
        let head = self.workspaces.get(&entry.target)?.head;
        self.preview_on(head, entry, judge, act)
    }

    /// Computes the result of one entry on a future head of the target, without changing anything.
    pub fn preview_on(
        &self,
        head: Option<SnapshotId>,
        entry: &QueueEntry,
        judge: &dyn Judge,
        act: &Act,
    ) -> Result<Folded> {
        let session = self.store().session();
        let mut line = Line::begin(self, head, &session, None)?;
        let untested = QueueEntry { wish: super::Wish { test: Vec::new(), ..entry.wish.clone() }, ..entry.clone() };
        line.take_or_put_aside(&untested, judge, act)
    }

    fn try_fold(&self, target: &WorkspaceName, judge: &dyn Judge, act: &Act) -> Result<Fold> {
        let entries = self.batch(target)?;
        if entries.is_empty() {
            return Ok(Fold::default());
        }
        let workspace = self.workspaces.get(target)?;
        let session = self.store().session();
        let known = self.known_of(&workspace, entries.len())?;
        let mut line = Line::begin(self, workspace.head, &session, known)?;
        let mut done = Vec::with_capacity(entries.len());
        for entry in &entries {
            done.push(line.take_or_put_aside(entry, judge, act)?);
        }
        let Line { head, root, known, _pins: pins, reviews, .. } = line;
        let refs = self.landing(&workspace, head, &mut done, reviews, act)?;
        let keep = root.map(RootId::object).or(workspace.head.map(SnapshotId::object));
        let keep = keep.unwrap_or_else(|| entries[0].snapshot.object());
        let committed = session.commit(keep, refs)?;
        drop(pins);
        if let Some(known) = known.filter(Known::is_small) {
            self.known.lock().insert(target.clone(), known);
        }
        Ok(Fold { done, operation: committed.operation.map(|operation| operation.sequence) })
    }

    /// Returns the entries of the next transaction. An entry with a test is alone in its transaction, so that others do not wait
    /// for its test.
    fn batch(&self, target: &WorkspaceName) -> Result<Vec<QueueEntry>> {
        let mut batch: Vec<QueueEntry> = Vec::new();
        for entry in self.read_all(entry::QUEUE_PREFIX, Some(target), usize::MAX)? {
            if self.is_held(&entry)? {
                continue;
            }
            let is_tested = !entry.wish.test.is_empty();
            if batch.len() == BATCH_MAX || (is_tested && !batch.is_empty()) {
                break;
            }
            batch.push(entry);
            if is_tested {
                break;
            }
        }
        Ok(batch)
    }

    /// Returns the ancestors of the target's head, if they are cached or worth a walk.
    fn known_of(&self, workspace: &Workspace, entries: usize) -> Result<Option<Known>> {
        let Some(head) = workspace.head else { return Ok(None) };
        let known = self.known.lock().remove(&workspace.name);
        if let Some(mut known) = known
            && known.catch_up(self.store(), head)?
        {
            return Ok(Some(known));
        }
        if entries < WALK_FROM { Ok(None) } else { Known::walk(&self.history, head) }
    }

    /// Builds the reference updates that commit a fold.
    fn landing(
        &self,
        workspace: &Workspace,
        head: Option<SnapshotId>,
        done: &mut [Folded],
        reviews: Vec<(RefName, RefValue)>,
        act: &Act,
    ) -> Result<RefMove> {
        let draft = act.draft(MERGE);
        // A fold has no request id: a processed entry is not in the queue any more.
        let draft = crate::reference::OperationDraft { request: None, ..draft };
        let mut refs = RefMove { operation: draft, durability: act.durability, ..RefMove::default() };
        let after = workspace.at_head(head)?;
        // The decisions are valid for this head only, even if it does not move.
        refs.expect.push((workspace.name.reference(), Some(workspace.value().clone())));
        if after != *workspace.value() {
            refs.set.push((workspace.name.reference(), Some(after)));
        }
        let mut set = |name: RefName, before: Option<RefValue>, after: Option<RefValue>| {
            refs.expect.push((name.clone(), before));
            refs.set.push((name, after));
        };
        for folded in done.iter() {
            set(folded.entry.name.clone(), Some(folded.entry.value.clone()), None);
        }
        for (name, value) in reviews {
            let before = self.value_of(&name)?;
            set(name, before, Some(value));
        }
        let mut ended = HashSet::new();
        for at in 0..done.len() {
            if !self.may_end(done, at)? || !ended.insert(done[at].entry.source.clone()) {
                continue;
            }
            for Step { name, before, after } in self.workspaces.ending(&done[at].entry.source)? {
                set(name, before, after);
            }
            done[at].is_ended = true;
        }
        Ok(refs)
    }

    /// Returns whether a workspace that should end has been merged completely.
    fn may_end(&self, done: &[Folded], at: usize) -> Result<bool> {
        let Folded { entry, fate, .. } = &done[at];
        if !entry.wish.ends || is_left(fate) || entry.source == entry.target {
            return Ok(false);
        }
        let is_put_aside = |other: &Folded| other.entry.source == entry.source && is_left(&other.fate);
        if done.iter().any(is_put_aside) {
            return Ok(false);
        }
        Ok(self.workspaces.find(&entry.source)?.is_some_and(|source| source.head == Some(entry.snapshot)))
    }
}

/// The snapshots of a target during a fold.
struct Line<'a> {
    queue: &'a Queue,
    session: &'a WriteSession,
    head: Option<SnapshotId>,
    root: Option<RootId>,
    known: Option<Known>,
    reviews: Vec<(RefName, RefValue)>,
    _pins: Vec<Pin>,
}

/// The start of a merge: its base.
struct Start {
    met: Option<Met>,
    snapshots: Vec<SnapshotId>,
    root: Option<RootId>,
    _pin: Option<Pin>,
    /// Held for its pin.
    _base: Option<crate::merge::MergeBase>,
}

/// A merged tree that is not committed yet.
struct Made {
    tree: WorkingTree,
    files: Vec<FileMerged>,
    conflicts: Vec<PathConflict>,
    changed: u64,
    /// Whether conflicts were resolved after the changes were counted: the result may equal ours.
    is_settled: bool,
}

impl<'a> Line<'a> {
    fn begin(
        queue: &'a Queue,
        head: Option<SnapshotId>,
        session: &'a WriteSession,
        known: Option<Known>,
    ) -> Result<Self> {
        let mut pins = Vec::new();
        let root = match head {
            Some(head) => {
                pins.extend(hold_snapshot(queue.store(), head)?);
                Some(queue.store().snapshot(head)?.root)
            }
            None => None,
        };
        Ok(Self { queue, session, head, root, known, reviews: Vec::new(), _pins: pins })
    }

    /// Merges an entry. If that fails because of the entry itself, the entry becomes a review.
    fn take_or_put_aside(&mut self, entry: &QueueEntry, judge: &dyn Judge, act: &Act) -> Result<Folded> {
        match self.take(entry, judge, act) {
            Err(error) if is_its_own(&error) => {
                let (made, reason) = (Vec::new(), error.to_string());
                self.put_aside(entry, &[], made, reason)
            }
            other => other,
        }
    }

    fn take(&mut self, entry: &QueueEntry, judge: &dyn Judge, act: &Act) -> Result<Folded> {
        let store = self.queue.store();
        self._pins.extend(hold_snapshot(store, entry.snapshot)?);
        let theirs = store.snapshot(entry.snapshot)?.root;
        let (Some(head), Some(ours)) = (self.head, self.root) else {
            (self.head, self.root) = (Some(entry.snapshot), Some(theirs));
            return Ok(folded(entry, Fate::Landed(entry.snapshot), Vec::new()));
        };
        let contents = judge.contents(entry)?;
        let options = MergeOptions { time: act.time, ..MergeOptions::default() };
        let Some(start) = self.start(head, entry.snapshot, &*contents, &options)? else {
            return Ok(folded(entry, Fate::Already, Vec::new()));
        };
        let changes = diff_roots(store, start.root, Some(theirs), DiffOptions::default())?.into_changes()?;
        if let Some(reason) = refusals(entry, &changes, judge)? {
            return self.put_aside(entry, &start.snapshots, Vec::new(), reason);
        }
        let mut reason = String::new();
        let made = match self.try_quick(&start, [ours, theirs], &changes, judge, act)? {
            Some(made) => made,
            None => {
                let units = judge.units(start.root, ours, theirs)?;
                let options = MergeOptions { units, ..options };
                let outcome = merge_trees(store, start.root, ours, theirs, &*contents, &options)?;
                let mut tree = outcome.tree;
                let met = outcome.conflicts.len();
                let conflicts =
                    take::settle(store, &mut tree, outcome.conflicts, start.root, [ours, theirs], entry, act.time)?;
                let mut made = Made {
                    tree,
                    files: outcome.report.files,
                    conflicts,
                    changed: outcome.report.changed,
                    is_settled: false,
                };
                let Made { tree, files, conflicts, .. } = &mut made;
                take::tell(files, conflicts, entry);
                let mut unlanded = Unlanded { tree, conflicts, files, pins: &mut self._pins };
                unlanded.replay(store, act.time)?;
                reason = unlanded.make_anew(store, ours, &About { judge, entry })?;
                made.is_settled = made.conflicts.len() < met;
                made
            }
        };
        if !made.conflicts.is_empty() && !entry.wish.keep_conflicts {
            let mut put = self.put_aside(entry, &start.snapshots, made.conflicts, reason)?;
            put.files = made.files;
            return Ok(put);
        }
        self.put_snapshot(entry, head, &start, made, judge, act)
    }

    /// Returns the base for merging a snapshot, or `None` if the head already contains it.
    fn start(
        &self,
        head: SnapshotId,
        from: SnapshotId,
        contents: &dyn crate::merge::MergeContents,
        options: &MergeOptions,
    ) -> Result<Option<Start>> {
        let store = self.queue.store();
        let met = self.known.as_ref().map(|known| known.meet(store, from)).transpose()?;
        if let Some(met) = met {
            if met.new.is_empty() {
                return Ok(None);
            }
            if let [base] = met.edge[..]
                && let root = store.snapshot(base)?.root
                && let Ok(pin) = store.hold(root)
            {
                let start =
                    Start { met: Some(met), snapshots: vec![base], root: Some(root), _pin: Some(pin), _base: None };
                return Ok(Some(start));
            }
            return self.walk(head, from, contents, options, Some(met)).map(Some);
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
        contents: &dyn crate::merge::MergeContents,
        options: &MergeOptions,
        met: Option<Met>,
    ) -> Result<Start> {
        let base = merge_base(&self.queue.history, &[head], from, contents, options)?;
        Ok(Start { met, snapshots: base.snapshots.clone(), root: base.root, _pin: None, _base: Some(base) })
    }

    /// Tries the fast path, for changes that do not overlap with those of the target.
    fn try_quick(
        &self,
        start: &Start,
        [ours, theirs]: [RootId; 2],
        changes: &[Change],
        judge: &dyn Judge,
        act: &Act,
    ) -> Result<Option<Made>> {
        let Some(base) = start.root else { return Ok(None) };
        if changes.iter().any(|change| judge.is_grouped(&change.path)) {
            return Ok(None);
        }
        let store = self.queue.store();
        let roots = [&*store.root(base)?, &*store.root(ours)?, &*store.root(theirs)?];
        let mut tree = WorkingTree::open_root(store, ours)?;
        tree.set_now(act.time);
        tree.keep(theirs)?;
        let is_done = quick::apply(store, roots, changes, &mut tree, act.time)?;
        let changed = changes.len() as u64;
        Ok(is_done.then(|| Made { tree, files: Vec::new(), conflicts: Vec::new(), changed, is_settled: false }))
    }

    /// Creates the snapshot of a merged tree on top of the head.
    fn put_snapshot(
        &mut self,
        entry: &QueueEntry,
        head: SnapshotId,
        start: &Start,
        made: Made,
        judge: &dyn Judge,
        act: &Act,
    ) -> Result<Folded> {
        let store = self.queue.store();
        let mut written = made.tree.freeze().write_root(self.session)?;
        let mut changed = made.changed;
        if made.is_settled {
            self.session.write_all_ahead()?;
            let ours = store.snapshot(head)?.root;
            changed = diff_roots(store, Some(ours), Some(written.id), DiffOptions::default())?.count() as u64;
        }
        if !entry.wish.test.is_empty() {
            self.session.write_all_ahead()?;
            let _pin = store.hold(written.id)?;
            match judge.test(entry, written.id)? {
                TestVerdict::Passed => {}
                TestVerdict::Failed(reason) => {
                    let mut put = self.put_aside(entry, &start.snapshots, made.conflicts, reason)?;
                    put.files = made.files;
                    return Ok(put);
                }
                TestVerdict::NotStarted(reason) => return Ok(folded(entry, Fate::Refused(reason), Vec::new())),
            }
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
        let message = match entry.wish.message.is_empty() {
            true => format!("merge {}", entry.source),
            false => entry.wish.message.clone(),
        };
        let parents = vec![head, entry.snapshot];
        let touched = touched_since(store, head, &mut written);
        let snapshot = Snapshot {
            root: written.id,
            generation: generation_above(store, &parents)?,
            parents,
            author: entry.actor.clone(),
            time: act.time,
            message,
            metadata,
        };
        let id = self.session.put_snapshot_touching(snapshot, touched)?;
        self.session.write_all_ahead()?;
        (self.head, self.root) = (Some(id), Some(written.id));
        match (&mut self.known, &start.met) {
            (Some(known), Some(met)) => known.advance(met, id),
            (known, _) => *known = None,
        }
        let Made { files, conflicts, .. } = made;
        Ok(Folded { files, changed, ..folded(entry, Fate::Landed(id), conflicts) })
    }

    /// Turns an entry into a review.
    fn put_aside(
        &mut self,
        entry: &QueueEntry,
        bases: &[SnapshotId],
        conflicts: Vec<PathConflict>,
        reason: String,
    ) -> Result<Folded> {
        self.reviews.push(review::reference(entry, self.head, bases, &conflicts, &reason)?);
        Ok(folded(entry, Fate::Review(reason), conflicts))
    }
}

fn folded(entry: &QueueEntry, fate: Fate, conflicts: Vec<PathConflict>) -> Folded {
    Folded { entry: entry.clone(), fate, files: Vec::new(), conflicts, changed: 0, is_ended: false }
}

/// Returns whether the target does not contain the entry.
fn is_left(fate: &Fate) -> bool {
    matches!(fate, Fate::Review(_) | Fate::Refused(_))
}

/// Returns whether an error concerns the entry and not the store, so that other entries can still be merged.
fn is_its_own(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::Corrupt | ErrorKind::Exists)
}

/// Returns the reasons why an entry must not be merged, if there are any.
fn refusals(entry: &QueueEntry, changes: &[Change], judge: &dyn Judge) -> Result<Option<String>> {
    let (mut listed, mut more) = (Vec::new(), 0);
    for change in changes {
        match judge.admit(entry, &change.path)? {
            Some(why) if listed.len() < LISTED => listed.push(format!("{}: {why}", change.path)),
            Some(_) => more += 1,
            None => {}
        }
    }
    if more > 0 {
        listed.push(format!("and {more} more"));
    }
    Ok((!listed.is_empty()).then(|| listed.join("; ")))
}
