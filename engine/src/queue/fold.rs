//! Folds a queue: merges all waiting entries of a target one after another in memory and commits them in one transaction.

use std::collections::HashSet;

use super::ancestors::Ancestors;
use super::entry::{self, QueueEntry};
use super::line::TargetLine;
use super::outcome::Folded;
use super::{MergePolicy, Queue};
use crate::backend::FoldLeases;
use crate::error::{Error, Result};
use crate::id::{RootId, SnapshotId};
use crate::limit::without_cancellation;
use crate::operation::{OperationContext, Step, retry_while};
use crate::reference::{RefName, RefValue};
use crate::store::RefMove;
use crate::workspace::{Workspace, WorkspaceName};

/// The action name of a fold in the operation log.
const MERGE: &str = "merge";
/// Maximum number of entries in one transaction.
const BATCH_ENTRIES_MAX: usize = 512;
/// From this many entries on, a walk over the target's history pays off.
const WALK_ENTRIES_MIN: usize = 4;

/// The result of a fold.
#[derive(Clone, Debug, Default)]
pub struct Fold {
    /// The result of each entry, in the order of the queue.
    pub done: Vec<Folded>,
    /// The sequence number of the operation; `None` if there was nothing to do.
    pub operation: Option<u64>,
    /// Whether another process folds this target now, so that nothing was done here.
    pub is_elsewhere: bool,
}

/// The lease of a target in a store that several processes have open, given back when this is dropped.
struct Lease<'a> {
    leases: &'a dyn FoldLeases,
    target: &'a WorkspaceName,
}

impl Drop for Lease<'_> {
    /// Releases the lease. If that fails, the lease ends with the next fold of this process, or with the process.
    fn drop(&mut self) {
        self.leases.release_fold_lease(self.target.as_str()).ok();
    }
}

impl Queue {
    /// Folds the waiting entries of a target. If the target moves meanwhile, the fold starts again from the new head.
    ///
    /// The merged entries, the reviews and the remaining queue change in one transaction. An entry that fails for a reason of its
    /// own, for example a damaged snapshot, becomes a review, so that it does not block the others.
    ///
    /// In a store that several processes have open, one of them folds a target at a time: see [`Queue::with_leases`]. One thread of a
    /// process folds a target at a time.
    pub fn fold(&self, target: &WorkspaceName, policy: &dyn MergePolicy, context: &OperationContext) -> Result<Fold> {
        let _lease = match self.leases.as_deref() {
            Some(leases) if leases.take_fold_lease(target.as_str())? => Some(Lease { leases, target }),
            Some(_) => return Ok(Fold { is_elsewhere: true, ..Fold::default() }),
            None => None,
        };
        let is_stale = |error: &Error| matches!(error, Error::StaleHead { .. } | Error::Stale { .. });
        retry_while(is_stale, || self.try_fold(target, policy, context))
    }

    /// Computes the result of one entry without changing anything.
    pub fn preview(&self, entry: &QueueEntry, policy: &dyn MergePolicy, context: &OperationContext) -> Result<Folded> {
        let head = self.workspaces.get(&entry.target)?.head;
        self.preview_on(head, entry, policy, context)
    }

    /// Computes the result of one entry on a future head of the target, without changing anything.
    pub fn preview_on(
        &self,
        head: Option<SnapshotId>,
        entry: &QueueEntry,
        policy: &dyn MergePolicy,
        context: &OperationContext,
    ) -> Result<Folded> {
        let session = self.store().session();
        let mut line = TargetLine::begin(self, head, &session, None)?;
        let untested =
            QueueEntry { options: super::QueueOptions { test: Vec::new(), ..entry.options.clone() }, ..entry.clone() };
        line.merge_or_set_aside(&untested, policy, context)
    }

    fn try_fold(&self, target: &WorkspaceName, policy: &dyn MergePolicy, context: &OperationContext) -> Result<Fold> {
        let entries = self.batch(target)?;
        if entries.is_empty() {
            return Ok(Fold::default());
        }
        let workspace = self.workspaces.get(target)?;
        let session = self.store().session();
        let ancestors = self.ancestors_of(&workspace, entries.len())?;
        let mut line = TargetLine::begin(self, workspace.head, &session, ancestors)?;
        let mut done = Vec::with_capacity(entries.len());
        for entry in &entries {
            done.push(line.merge_or_set_aside(entry, policy, context)?);
        }
        let TargetLine { head, root, ancestors, pins, reviews, .. } = line;
        let committed = without_cancellation(|| {
            let refs = self.landing(&workspace, head, &mut done, reviews, context)?;
            let keep = root.map(RootId::object).or(workspace.head.map(SnapshotId::object));
            let keep = keep.unwrap_or_else(|| entries[0].snapshot.object());
            session.commit(keep, refs)
        })?;
        drop(pins);
        if let Some(ancestors) = ancestors.filter(Ancestors::is_small) {
            self.ancestors.lock().insert(target.clone(), ancestors);
        }
        Ok(Fold { done, operation: committed.operation.map(|operation| operation.sequence), is_elsewhere: false })
    }

    /// Returns the entries of the next transaction. An entry with a test is alone in its transaction, so that others do not wait
    /// for its test.
    pub(super) fn batch(&self, target: &WorkspaceName) -> Result<Vec<QueueEntry>> {
        let mut batch: Vec<QueueEntry> = Vec::new();
        for entry in self.read_all(entry::QUEUE_PREFIX, Some(target), usize::MAX)? {
            if self.is_held(&entry)? {
                continue;
            }
            let is_tested = !entry.options.test.is_empty();
            if batch.len() == BATCH_ENTRIES_MAX || (is_tested && !batch.is_empty()) {
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
    fn ancestors_of(&self, workspace: &Workspace, entries: usize) -> Result<Option<Ancestors>> {
        let Some(head) = workspace.head else { return Ok(None) };
        let cached = self.ancestors.lock().remove(&workspace.name);
        if let Some(mut ancestors) = cached
            && ancestors.catch_up(self.store(), head)?
        {
            return Ok(Some(ancestors));
        }
        if entries < WALK_ENTRIES_MIN { Ok(None) } else { Ancestors::walk(&self.history, head) }
    }

    /// Builds the reference updates that commit a fold.
    fn landing(
        &self,
        workspace: &Workspace,
        head: Option<SnapshotId>,
        done: &mut [Folded],
        reviews: Vec<(RefName, RefValue)>,
        context: &OperationContext,
    ) -> Result<RefMove> {
        let draft = context.draft(MERGE);
        // A fold has no request id: a processed entry is not in the queue any more.
        let draft = crate::reference::OperationDraft { request: None, ..draft };
        let mut refs = RefMove { operation: draft, durability: context.durability, ..RefMove::default() };
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
        let Folded { entry, outcome, refused, .. } = &done[at];
        if !entry.options.ends || outcome.is_left() || !refused.is_empty() || entry.source == entry.target {
            return Ok(false);
        }
        let is_set_aside = |other: &Folded| {
            other.entry.source == entry.source && (other.outcome.is_left() || !other.refused.is_empty())
        };
        if done.iter().any(is_set_aside) {
            return Ok(false);
        }
        Ok(self.workspaces.find(&entry.source)?.is_some_and(|source| source.head == Some(entry.snapshot)))
    }
}
