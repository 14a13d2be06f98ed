//! Merging workspaces: find the base, merge, and commit it all as one operation.

use std::collections::{BTreeMap, BTreeSet};

use super::base::{merge_base, write};
use super::record::{MERGE_RECORD_KEY, MergeRecord, RecordedPath};
use super::remedy::{Regenerate, Unlanded, count_conflicts, have_conflicts};
use super::{MergeContents, MergeOptions, MergeReport, PathConflict, merge_trees};
use crate::conflict::CONFLICTS_KEY;
use crate::diff::{DiffOptions, diff_roots};
use crate::error::{Error, Result};
use crate::history::History;
use crate::id::SnapshotId;
use crate::object::{Entry, Node};
use crate::operation::{Act, Step, hold_snapshot, move_refs, recorded, snapshot_of, trying_while};
use crate::store::{Pin, Store};
use crate::work::WorkingTree;
use crate::workspace::{Change, Workspace, WorkspaceName, Workspaces};

/// The word of a merge in the operation log.
const MERGE: &str = "merge";

/// What is to be merged, and how.
pub struct MergeRequest<'a> {
    /// The workspace that gets it all.
    pub target: &'a WorkspaceName,
    /// Those that are merged into it, one after another. They stay as they are.
    pub sources: &'a [WorkspaceName],
    /// How contents are merged.
    pub contents: &'a dyn MergeContents,
    /// How trees are merged. The time is that of the act.
    pub options: MergeOptions,
    /// Whether the target's head just moves to the source's when it has nothing of its own.
    pub fast_forward: bool,
    /// Whether a merge with conflicts is committed, with the conflicts in the tree.
    pub keep_conflicts: bool,
    /// The message of the snapshot; one that names the sources, if it is empty.
    pub message: String,
    /// What else is to be kept with the snapshot, beside the record of the merge.
    pub metadata: BTreeMap<String, String>,
    /// Makes files anew that conflict, where a rule says so.
    pub regenerate: Option<&'a dyn Regenerate>,
    /// Whether conflicts that were resolved before are resolved in the same way.
    pub use_remembered: bool,
}

/// What a merge of workspaces came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeDone {
    /// How it went.
    pub how: MergeHow,
    /// The head of the target afterwards.
    pub head: Option<SnapshotId>,
    /// Its place in the operation log; nothing when nothing was done.
    pub operation: Option<u64>,
    /// What could not be merged.
    pub conflicts: Vec<PathConflict>,
    /// What else there is to say.
    pub report: MergeReport,
    /// Why files that a command makes were not made; mostly empty.
    pub reason: String,
}

/// How a merge went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeHow {
    /// The target had everything.
    Already,
    /// The target's head moved to the source's.
    Forward,
    /// A snapshot was made.
    Merged,
    /// There were conflicts, and none were wanted: nothing was changed.
    Refused,
    /// The request had been done before.
    Replayed,
}

impl<'a> MergeRequest<'a> {
    /// A merge that moves the head where it can, and keeps conflicts.
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

/// The snapshots that a merge is about.
#[derive(Clone, Debug, Default)]
pub struct MergeHeads {
    /// That of the target; nothing for one without any.
    pub target: Option<SnapshotId>,
    /// Those of the sources that have one.
    pub sources: Vec<(WorkspaceName, SnapshotId)>,
}

/// What a merge comes to before anything is changed.
enum Unchanged {
    Already,
    Forward(SnapshotId),
    Folded(Box<Fold>),
}

/// Heads that are one in a tree under way.
struct Fold {
    tree: WorkingTree,
    /// What is merged.
    sources: Vec<(WorkspaceName, SnapshotId)>,
    heads: Vec<SnapshotId>,
    conflicts: Vec<PathConflict>,
    report: MergeReport,
    record: MergeRecord,
    reason: String,
    pins: Vec<Pin>,
}

impl Workspaces {
    /// Merges workspaces into another: one snapshot with all of them as parents, one operation, or nothing at all. When the
    /// target moves meanwhile, the merge is made again of where it is then.
    pub fn merge(&self, history: &History, request: &MergeRequest<'_>, act: &Act) -> Result<MergeDone> {
        if let Some(id) = &act.request
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
        trying_while(is_stale, || self.try_merge(history, request, act))
    }

    fn try_merge(&self, history: &History, request: &MergeRequest<'_>, act: &Act) -> Result<MergeDone> {
        let target = self.get(request.target)?;
        let mut heads = MergeHeads { target: target.head, sources: Vec::new() };
        for name in request.sources {
            heads.sources.extend(self.get(name)?.head.map(|head| (name.clone(), head)));
        }
        let fold = match self.fold(history, request, &heads, act)? {
            Unchanged::Already => return Ok(MergeDone::without_change(MergeHow::Already, target.head)),
            Unchanged::Forward(source) => return self.forward(&target, source, act),
            Unchanged::Folded(fold) => *fold,
        };
        if !fold.conflicts.is_empty() && !request.keep_conflicts {
            let Fold { conflicts, report, reason, .. } = fold;
            return Ok(MergeDone {
                conflicts,
                report,
                reason,
                ..MergeDone::without_change(MergeHow::Refused, target.head)
            });
        }
        self.land(request, fold, target.head, act)
    }

    /// What a merge of some snapshots would come to: nothing is changed. They are the heads of the workspaces, or what those are
    /// about to be.
    pub fn preview_merge(
        &self,
        history: &History,
        request: &MergeRequest<'_>,
        heads: &MergeHeads,
        act: &Act,
    ) -> Result<MergeDone> {
        match self.fold(history, request, heads, act)? {
            Unchanged::Already => Ok(MergeDone::without_change(MergeHow::Already, heads.target)),
            Unchanged::Forward(_) => Ok(MergeDone::without_change(MergeHow::Forward, heads.target)),
            Unchanged::Folded(fold) => {
                let Fold { conflicts, report, reason, .. } = *fold;
                let done = MergeDone::without_change(MergeHow::Merged, heads.target);
                Ok(MergeDone { conflicts, report, reason, ..done })
            }
        }
    }

    fn fold(&self, history: &History, request: &MergeRequest<'_>, heads: &MergeHeads, act: &Act) -> Result<Unchanged> {
        let sources = new_sources(history, heads)?;
        let _pins = sources.iter().map(|(_, head)| hold_snapshot(self.store(), *head)).collect::<Result<Vec<_>>>()?;
        let Some((_, first)) = sources.first() else { return Ok(Unchanged::Already) };
        if let [(_, source)] = sources[..] {
            let is_behind = heads.target.map(|head| history.is_ancestor(head, source)).transpose()?;
            if is_behind.unwrap_or(true) && (request.fast_forward || heads.target.is_none()) {
                return Ok(Unchanged::Forward(source));
            }
        }
        let mut fold = match heads.target {
            Some(head) => self.begin(request, head, Some(head))?,
            None => self.begin(request, *first, None)?,
        };
        for (name, head) in &sources {
            fold.record.sources.push((name.to_string(), head.to_string()));
            if !fold.heads.contains(head) {
                fold.take(history, request, *head, act)?;
            }
        }
        if sources.len() > 1 {
            fold.report_once()?;
            heads.target.map_or(Ok(()), |head| fold.count_once(self.store(), head))?;
        }
        fold.sources = sources;
        Ok(Unchanged::Folded(Box::new(fold)))
    }
    fn begin(&self, request: &MergeRequest<'_>, head: SnapshotId, base: Option<SnapshotId>) -> Result<Fold> {
        let mut tree = WorkingTree::open(self.store(), head)?;
        tree.rebase(base);
        let record = MergeRecord { target: request.target.to_string(), ..MergeRecord::default() };
        let (conflicts, report, reason) = (Vec::new(), MergeReport::default(), String::new());
        let (heads, sources, pins) = (vec![head], Vec::new(), Vec::new());
        Ok(Fold { tree, sources, heads, conflicts, report, record, reason, pins })
    }

    /// Moves the head of a workspace to a snapshot that continues it. Returns nothing, and moves nothing, when it does not.
    pub fn fast_forward(
        &self,
        history: &History,
        name: &WorkspaceName,
        to: SnapshotId,
        act: &Act,
    ) -> Result<Option<MergeDone>> {
        let is_stale = |error: &Error| matches!(error, Error::StaleHead { .. } | Error::Stale { .. });
        trying_while(is_stale, || {
            let target = self.get(name)?;
            match target.head {
                Some(head) if head == to => Ok(Some(MergeDone::without_change(MergeHow::Already, Some(head)))),
                Some(head) if !history.is_ancestor(head, to)? => Ok(None),
                _ => self.forward(&target, to, act).map(Some),
            }
        })
    }

    fn forward(&self, target: &Workspace, to: SnapshotId, act: &Act) -> Result<MergeDone> {
        let after = target.at_head(Some(to))?;
        let step = Step { name: target.name.reference(), before: Some(target.value().clone()), after: Some(after) };
        let operation = recorded(move_refs(self.store(), act, act.draft(MERGE), vec![step])?);
        Ok(MergeDone { operation: Some(operation.sequence), ..MergeDone::without_change(MergeHow::Forward, Some(to)) })
    }

    fn land(
        &self,
        request: &MergeRequest<'_>,
        mut fold: Fold,
        head: Option<SnapshotId>,
        act: &Act,
    ) -> Result<MergeDone> {
        let sources = &fold.sources;
        let names = sources.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>().join(", ");
        let message = match request.message.is_empty() {
            true => format!("merge {names}"),
            false => request.message.clone(),
        };
        let mut change = Change::new(message);
        change.other_parents = sources.iter().map(|(_, head)| *head).collect();
        change.metadata = request.metadata.clone();
        change.metadata.insert(MERGE_RECORD_KEY.to_owned(), fold.record.to_json());
        let mut tree = fold.tree;
        if let Some(head) = head
            && (!fold.conflicts.is_empty() || have_conflicts(self.store(), &fold.heads)?)
        {
            let (root, pin) = write(self.store(), &tree)?;
            fold.pins.push(pin);
            let conflicts = count_conflicts(self.store(), head, root)?;
            change.metadata.insert(CONFLICTS_KEY.to_owned(), conflicts.to_string());
        }
        tree.rebase(head);
        let done = self.commit_as(request.target, &mut tree, &change, act, MERGE)?;
        Ok(MergeDone {
            how: MergeHow::Merged,
            head: Some(done.snapshot),
            operation: done.operation,
            conflicts: fold.conflicts,
            report: fold.report,
            reason: fold.reason,
        })
    }
}

/// The sources that the target does not have, none of which another one has.
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

impl Fold {
    /// Counts what several sources changed: a path that two of them did is one.
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

    /// Reports each path once, as it is after the last source: a file that five of them dispute is one conflict, and what one of
    /// them brought and a later one settled is none.
    fn report_once(&mut self) -> Result<()> {
        let mut paths = BTreeSet::new();
        let mut files: Vec<_> = std::mem::take(&mut self.report.files).into_iter().rev().collect();
        files.retain(|file| paths.insert(file.path.clone()));
        self.report.files = files.into_iter().rev().collect();
        paths.clear();
        let mut kept = Vec::new();
        for conflict in std::mem::take(&mut self.conflicts).into_iter().rev() {
            if conflict.is_entry {
                let entry = self.tree.stat(conflict.path.as_bytes())?.and_then(|stat| stat.entry);
                let is_open = matches!(entry, Some(Entry { node: Node::Conflict(_), .. }));
                if !is_open || !paths.insert(conflict.path.clone()) {
                    continue;
                }
            }
            kept.push(conflict);
        }
        self.conflicts = kept.into_iter().rev().collect();
        let is_told = |one: &RecordedPath| self.conflicts.iter().any(|conflict| conflict.path.to_string() == one.path);
        let mut told = BTreeSet::new();
        self.record.conflicts.retain(|one| is_told(one) && told.insert((one.path.clone(), one.way.clone())));
        Ok(())
    }

    /// Merges one more snapshot.
    fn take(&mut self, history: &History, request: &MergeRequest<'_>, theirs: SnapshotId, act: &Act) -> Result<()> {
        let store = history.store();
        let options = MergeOptions { time: act.time, ..request.options.clone() };
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
        let mut unlanded = Unlanded {
            tree: &mut outcome.tree,
            conflicts: &mut outcome.conflicts,
            files: &mut outcome.report.files,
            pins: &mut self.pins,
        };
        let met = unlanded.conflicts.len();
        if request.use_remembered {
            unlanded.replay(store, act.time)?;
        }
        if let Some(maker) = request.regenerate {
            self.reason = unlanded.make_anew(store, ours, maker)?;
        }
        if outcome.conflicts.len() < met {
            // What a conflict became may be what ours was.
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
