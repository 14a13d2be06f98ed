//! The conflict radar: which open workspaces changed the same paths, while agents still work in them.
//!
//! An index of paths is read once and then kept current from the operation log and from the live trees that are open. Lines, keys and trial
//! merges are computed for the overlaps that a caller asks for. While a subscriber listens for the events `overlap.began` and
//! `overlap.ended`, each path with several workspaces has a reference `overlap/HASH`, whose operations are the events.

mod detail;
mod events;
mod index;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::merge::{ConflictKind, MergeHeads, MergeRequest, PathConflict};
use amalgam_engine::reference::Operation;
use amalgam_engine::workspace::{Workspace, WorkspaceName};
use amalgam_engine::{EntryKind, OperationContext, OperationCursor, SnapshotId, Time, TreePath, WorkingTree};
use amalgam_merge::trees::RuleMerger;
use amalgam_policy::{Guard, Policy};
use amalgam_proto::{Reason, v1};
use parking_lot::{Condvar, Mutex};

use crate::call_log::warn_failure;
use crate::context::Context;
use crate::directory::{Directories, PreviewedHead};
use crate::error::{Error, Result};
use crate::files::{parse_path, show_path};
use crate::merge_rules::MergeRules;
use crate::permissions::is_visible_in;
use crate::views::Views;
use detail::Common;
use index::{Index, Reader, Side};

/// How long the thread waits for an operation before it looks at live trees.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// How long the thread sleeps while no subscriber listens.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// The most sides of an overlap in a response.
const SIDES_MAX: usize = 100;
/// The most pairs of an overlap in a response.
const PAIRS_MAX: usize = 10;
/// The most trial merges that are remembered.
const TRIALS_MAX: usize = 1_024;

/// Trial merges: the paths that conflict. They depend on the rules of the store and on the policy; the rules of a project are in
/// the head of the target.
#[derive(Default)]
struct Trials {
    rules: String,
    policy: Option<Arc<Policy>>,
    conflicts: HashMap<TrialKey, Arc<Vec<TreePath>>>,
}

/// The two sides of a trial merge.
#[derive(PartialEq, Eq, Hash)]
struct TrialKey {
    target: SnapshotId,
    source: SnapshotId,
    our_agent: String,
    their_agent: String,
}

impl Trials {
    /// Returns the trial merges with these rules of the store and this policy. Forgets those with others.
    fn with(&mut self, rules: &str, policy: Option<&Arc<Policy>>) -> &mut HashMap<TrialKey, Arc<Vec<TreePath>>> {
        let is_same_policy = match (&self.policy, policy) {
            (Some(known), Some(policy)) => Arc::ptr_eq(known, policy),
            (known, policy) => known.is_none() && policy.is_none(),
        };
        if self.rules != rules || !is_same_policy {
            *self = Self { rules: rules.to_owned(), policy: policy.cloned(), conflicts: HashMap::new() };
        }
        &mut self.conflicts
    }
}

/// The conflict radar of a store.
#[derive(Clone)]
pub(crate) struct Radar {
    context: Arc<Context>,
    rules: MergeRules,
    directories: Directories,
    views: Views,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    scan: Mutex<Scan>,
    trials: Mutex<Trials>,
    ending: Mutex<bool>,
    changed: Condvar,
}

/// The index, and how far it was read.
#[derive(Default)]
struct Scan {
    index: Index,
    cursor: Option<OperationCursor>,
}

impl Radar {
    pub(crate) fn new(context: &Arc<Context>, rules: &MergeRules, directories: &Directories, views: &Views) -> Self {
        Self {
            context: Arc::clone(context),
            rules: rules.clone(),
            directories: directories.clone(),
            views: views.clone(),
            inner: Arc::default(),
        }
    }

    /// Brings the index up to date: by the operations since the last time, and by the live trees that changed since.
    fn refresh(&self, scan: &mut Scan) -> Result<()> {
        let Context { store, workspaces, history, .. } = &*self.context;
        let reader = Reader { store, workspaces, history };
        if scan.cursor.is_none() {
            scan.index.clear();
            let cursor = OperationCursor::at_end(store)?;
            self.context.each_workspace("", |workspace| {
                apply(&mut scan.index, &reader, &workspace.name, Some(workspace), self.context.now())
            })?;
            scan.cursor = Some(cursor);
        }
        loop {
            let page = match scan.cursor.as_mut().map(OperationCursor::read) {
                Some(Ok(page)) => page,
                // The log was trimmed beyond the position: everything is read anew.
                Some(Err(amalgam_engine::Error::Trimmed { .. })) | None => {
                    scan.cursor = None;
                    return self.refresh(scan);
                }
                Some(Err(error)) => return Err(error.into()),
            };
            if page.is_empty() {
                break;
            }
            let applied = page.iter().try_for_each(|operation| apply_operation(&mut scan.index, &reader, operation));
            if applied.is_err() {
                // The cursor is behind the page: everything is read anew the next time.
                scan.cursor = None;
                return applied;
            }
        }
        self.refresh_live(&mut scan.index)
    }

    /// Reads the uncommitted changes of the live trees that changed since the last time.
    fn refresh_live(&self, index: &mut Index) -> Result<()> {
        let (open, now) = (self.views.open_trees(), self.context.now());
        for name in index.live_workspaces() {
            if !open.iter().any(|tree| tree.workspace == name) && !self.views.has_uncommitted(&name)? {
                index.set_live(&name, None, [], now);
            }
        }
        for tree in open {
            let version = tree.version();
            if !index.knows_live(&tree.workspace, version) {
                let changes = self.views.uncommitted_paths(&tree)?;
                index.set_live(&tree.workspace, Some(version), changes, now);
            }
        }
        Ok(())
    }

    /// Returns the overlaps that a request asks for, at most `limit`.
    pub(crate) fn get(
        &self,
        request: &v1::GetRadarRequest,
        limit: usize,
        act: &OperationContext,
    ) -> Result<v1::GetRadarResponse> {
        let workspace = self.context.here(&request.workspace)?;
        let after = match request.page_token.as_str() {
            "" => None,
            token => {
                Some(parse_path(token).map_err(|_| Error::new(Reason::Invalid, "page_token: not one of this call's"))?)
            }
        };
        let guard = self.context.permissions.reading(workspace.as_ref())?;
        let is_wanted = |path: &TreePath| {
            path.as_bytes().starts_with(request.path_prefix.as_bytes()) && guard.is_visible(path.as_bytes(), false)
        };
        let (found, incomplete) = {
            let mut scan = self.inner.scan.lock();
            self.refresh(&mut scan)?;
            let paths = scan.index.overlaps(workspace.as_ref(), is_wanted, after.as_ref(), limit + 1);
            let found: Vec<_> = paths.into_iter().map(|path| (scan.index.sides(&path), path)).collect();
            (found, scan.index.incomplete())
        };
        let next_page_token = match found.len() > limit {
            true => show_path(&found[limit - 1].1),
            false => String::new(),
        };
        let mut overlaps = Vec::new();
        for (sides, path) in found.into_iter().take(limit) {
            if !self.is_shown(&guard, &path, &sides)? {
                continue;
            }
            let mut overlap = overlap_message(&path, &sides);
            if !request.paths_only {
                overlap.pairs = self.pairs(&path, &sides, workspace.as_ref(), act)?;
            }
            overlaps.push(overlap);
        }
        let incomplete = incomplete.iter().map(amalgam_proto::workspace_name).collect();
        Ok(v1::GetRadarResponse { overlaps, next_page_token, incomplete })
    }

    /// Returns whether the agents of a guard can see a path in each workspace that changed it, under all names of its file.
    fn is_shown(&self, guard: &Guard, path: &TreePath, sides: &[Side]) -> Result<bool> {
        for side in sides.iter().filter(|_| guard.hides()) {
            let Some(workspace) = self.context.workspaces.find(&side.workspace)? else { continue };
            let now = self.tree_of(&workspace)?;
            // A base whose tree was dropped tells nothing.
            let base = workspace.base.and_then(|base| WorkingTree::open(&self.context.store, base).ok());
            let trees: Vec<&WorkingTree> = std::iter::once(&now).chain(&base).collect();
            if !is_visible_in(guard, &trees, path)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Compares pairs of workspaces that changed a path.
    fn pairs(
        &self,
        path: &TreePath,
        sides: &[Side],
        of: Option<&WorkspaceName>,
        act: &OperationContext,
    ) -> Result<Vec<v1::OverlapPair>> {
        let mut pairs = Vec::new();
        for (at, left) in sides.iter().enumerate() {
            for right in &sides[at + 1..] {
                let is_wanted = of.is_none_or(|of| left.workspace == *of || right.workspace == *of);
                if is_wanted && pairs.len() < PAIRS_MAX {
                    pairs.extend(self.pair(path, &left.workspace, &right.workspace, act)?);
                }
            }
        }
        Ok(pairs)
    }

    fn pair(
        &self,
        path: &TreePath,
        left: &WorkspaceName,
        right: &WorkspaceName,
        act: &OperationContext,
    ) -> Result<Option<v1::OverlapPair>> {
        let workspaces = &self.context.workspaces;
        let (Some(one), Some(other)) = (workspaces.find(left)?, workspaces.find(right)?) else { return Ok(None) };
        let base = match (one.head, other.head) {
            (Some(one), Some(other)) => self.context.history.merge_bases(one, other)?.first().copied(),
            _ => None,
        };
        let base = base.map(|base| WorkingTree::open(&self.context.store, base)).transpose()?;
        let common = compare(path, base.as_ref(), &self.tree_of(&one)?, &self.tree_of(&other)?)?;
        let merge = match common {
            Common::Same => "clean",
            _ => self.trial(path, &one, &other, act),
        };
        let mut pair = v1::OverlapPair {
            left: amalgam_proto::workspace_name(left),
            right: amalgam_proto::workspace_name(right),
            merge: merge.to_owned(),
            ..v1::OverlapPair::default()
        };
        pair.kind = match common {
            Common::Same => "same",
            Common::File => "file",
            Common::Lines(ranges) => {
                let line = |line: usize| u32::try_from(line).unwrap_or(u32::MAX);
                let range = |range: &std::ops::Range<usize>| v1::LineRange {
                    first: line(range.start + 1),
                    last: line(range.end),
                };
                pair.lines = ranges.iter().map(range).collect();
                "lines"
            }
            Common::Keys(keys) => {
                pair.keys = keys;
                "keys"
            }
        }
        .to_owned();
        Ok(Some(pair))
    }

    /// Returns the current tree of a workspace: its open live tree, or else the tree of its head.
    fn tree_of(&self, workspace: &Workspace) -> Result<WorkingTree> {
        if let Some(tree) = self.views.open_tree(&workspace.name) {
            return Ok(tree.fork());
        }
        match workspace.head {
            Some(head) => Ok(WorkingTree::open(&self.context.store, head)?),
            None => Ok(WorkingTree::new(&self.context.store)),
        }
    }

    /// Merges two workspaces in memory, and returns the word for the outcome at a path.
    fn trial(&self, path: &TreePath, ours: &Workspace, theirs: &Workspace, act: &OperationContext) -> &'static str {
        match self.try_merge(ours, theirs, act) {
            Ok(conflicts) if conflicts.contains(path) => "conflict",
            Ok(_) => "clean",
            Err(failure) => {
                warn_failure(&failure, "a trial merge of the radar failed");
                "unknown"
            }
        }
    }

    fn try_merge(&self, ours: &Workspace, theirs: &Workspace, act: &OperationContext) -> Result<Arc<Vec<TreePath>>> {
        // Held until the end: no reference keeps a snapshot of a live tree.
        let (our_head, their_head) = (self.present_head(ours, act)?, self.present_head(theirs, act)?);
        let (Some(target), Some(source)) = (our_head.head, their_head.head) else { return Ok(Arc::default()) };
        let (rules_text, policy) = (self.rules.rules_text()?, self.context.permissions.policy()?);
        let (our_agent, their_agent) = (ours.agent.clone(), theirs.agent.clone());
        let key = TrialKey { target, source, our_agent, their_agent };
        let known = self.inner.trials.lock().with(&rules_text, policy.as_ref()).get(&key).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let rules = self.rules.merge_rules(Some(&ours.name), None)?;
        let contents = RuleMerger::new(&rules, &ours.agent, &theirs.agent);
        let sources = [theirs.name.clone()];
        let heads = MergeHeads { target: Some(target), sources: vec![(theirs.name.clone(), source)] };
        let mut merge = MergeRequest::new(&ours.name, &sources, &contents);
        merge.options = self.rules.merge_options(&heads, &rules, &contents, act)?;
        let done = self.context.workspaces.preview_merge(&self.context.history, &merge, &heads, act)?;
        let conflicts: Arc<Vec<_>> = Arc::new(done.conflicts.into_iter().flat_map(conflict_paths).collect());
        let mut trials = self.inner.trials.lock();
        let trials = trials.with(&rules_text, policy.as_ref());
        if trials.len() >= TRIALS_MAX {
            trials.clear();
        }
        trials.insert(key, Arc::clone(&conflicts));
        Ok(conflicts)
    }

    /// Returns the head of a workspace, with the uncommitted changes of its live tree if that is open. Directories are not read.
    fn present_head(&self, workspace: &Workspace, act: &OperationContext) -> Result<PreviewedHead> {
        if self.views.open_tree(&workspace.name).is_some() {
            match self.directories.preview_capture(&workspace.name, act) {
                Err(failure) if failure.reason() == Reason::StaleHead => {}
                previewed => return previewed,
            }
        }
        Ok(PreviewedHead::at(workspace.head))
    }
}

/// Applies the workspaces that an operation moved.
fn apply_operation(index: &mut Index, reader: &Reader<'_>, operation: &Operation) -> Result<()> {
    for change in &operation.changes {
        let Ok(name) = WorkspaceName::of_reference(&change.name) else { continue };
        let record = change.after.clone().map(|value| Workspace::read(name.clone(), value)).transpose()?;
        apply(index, reader, &name, record.as_ref(), operation.draft.time)?;
    }
    Ok(())
}

/// Applies the record of a workspace. One whose trees retention dropped is left out.
fn apply(
    index: &mut Index,
    reader: &Reader<'_>,
    name: &WorkspaceName,
    record: Option<&Workspace>,
    time: Time,
) -> Result<()> {
    match index.apply(reader, name, record, time) {
        Err(failure) if index::is_dropped(&failure) => {
            index.mark_incomplete(name);
            Ok(())
        }
        done => done,
    }
}

/// Returns the paths of a conflict: all paths of a group that is merged as a whole, or else one path.
fn conflict_paths(conflict: PathConflict) -> impl Iterator<Item = TreePath> {
    let others = match conflict.kind {
        ConflictKind::Unit(_) => conflict.others,
        _ => Vec::new(),
    };
    std::iter::once(conflict.path).chain(others)
}

/// Compares the versions of a path in two trees with the version from which both started.
fn compare(path: &TreePath, base: Option<&WorkingTree>, ours: &WorkingTree, theirs: &WorkingTree) -> Result<Common> {
    let (left, right) = (contents(ours, path)?, contents(theirs, path)?);
    if left.is_none() && right.is_none() {
        return Ok(if is_same_entry(path, ours, theirs)? { Common::Same } else { Common::File });
    }
    let base = base.map(|base| contents(base, path)).transpose()?.flatten();
    let is_json = path.as_bytes().ends_with(b".json");
    Ok(detail::common(base.as_deref(), left.as_deref(), right.as_deref(), is_json))
}

/// Returns whether a path is absent in two trees, or the same entry in both. Large files with uncommitted changes are not compared
/// and count as different.
fn is_same_entry(path: &TreePath, ours: &WorkingTree, theirs: &WorkingTree) -> Result<bool> {
    let (left, right) = match (ours.stat(path)?, theirs.stat(path)?) {
        (Some(left), Some(right)) => (left, right),
        (left, right) => return Ok(left.is_none() && right.is_none()),
    };
    if left.kind == EntryKind::Symlink && right.kind == EntryKind::Symlink {
        return Ok(ours.read_link(path)? == theirs.read_link(path)?);
    }
    Ok(left.entry.zip(right.entry).is_some_and(|(left, right)| left.node == right.node))
}

/// Reads a file. Returns `None` if it is absent, no regular file, or larger than `COMPARED_BYTES_MAX`.
fn contents(tree: &WorkingTree, path: &TreePath) -> Result<Option<Vec<u8>>> {
    match tree.stat(path)? {
        Some(stat) if stat.kind == EntryKind::File && stat.size <= detail::COMPARED_BYTES_MAX as u64 => {
            Ok(Some(tree.read(path)?))
        }
        _ => Ok(None),
    }
}

fn overlap_message(path: &TreePath, sides: &[Side]) -> v1::Overlap {
    let side = |side: &Side| v1::OverlapSide {
        workspace: amalgam_proto::workspace_name(&side.workspace),
        agent: side.agent.clone(),
        since: Some(amalgam_proto::timestamp(side.since)),
        uncommitted: side.is_uncommitted,
    };
    v1::Overlap {
        path: show_path(path),
        sides: sides.iter().take(SIDES_MAX).map(side).collect(),
        since: sides.get(1).map(|second| amalgam_proto::timestamp(second.since)),
        pairs: Vec::new(),
    }
}
