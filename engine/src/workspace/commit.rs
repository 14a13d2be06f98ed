//! Commits to a workspace: adds a snapshot of a tree on top of its head.

use std::collections::{BTreeMap, BTreeSet};

use super::label::{
    LABEL_PREFIX, LabelName, NOTE_PREFIX, REWARD_PREFIX, note_reference, note_value, reward_reference, reward_value,
};
use super::{JournalPlace, WorkspaceName, Workspaces};
use crate::commit::{CommitDone, CommittedTree, SnapshotDetails};
use crate::conflict::NewResolution;
use crate::error::{Error, Result};
use crate::id::SnapshotId;
use crate::operation::{OperationContext, Step, move_refs, recorded, snapshot_of, trying};
use crate::reference::{Operation, RefChange, RefValue};
use crate::store::RefMove;
use crate::work::WorkingTree;

/// The action name in the log for labels, a note and a reward that a commit without changes sets on the head.
const SET_ON_HEAD: &str = "label";

/// The message and metadata of a commit, and the labels, note and reward to set with it.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// The commit message.
    pub message: String,
    /// Further small key-value pairs to store with the snapshot.
    pub metadata: BTreeMap<String, String>,
    /// Further parents in addition to the head, for a merge.
    pub other_parents: Vec<SnapshotId>,
    /// Labels to set on the new snapshot.
    pub labels: Vec<LabelName>,
    /// A note about the snapshot.
    pub note: Option<String>,
    /// The reward of the snapshot.
    pub reward: Option<f64>,
    /// The position in the journal of the live view that the tree was taken at.
    pub journaled: Option<JournalPlace>,
    /// Whether to create a snapshot even if the tree equals that of the head, because the metadata is the change.
    pub even_unchanged: bool,
    /// Resolutions of conflicts to remember. An undo of the commit forgets them.
    pub resolutions: Vec<NewResolution>,
}

impl Change {
    /// Creates a change with a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    /// Returns author, time, message and metadata of the snapshot of this change.
    pub(super) fn details(&self, context: &OperationContext) -> SnapshotDetails {
        let (message, metadata) = (self.message.clone(), self.metadata.clone());
        SnapshotDetails { author: context.actor.clone(), time: context.time, message, metadata }
    }

    /// Adds a label to set on the snapshot.
    #[must_use]
    pub fn label(mut self, label: LabelName) -> Self {
        self.labels.push(label);
        self
    }

    /// Sets a note about the snapshot.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Sets the reward.
    #[must_use]
    pub fn reward(mut self, reward: f64) -> Self {
        self.reward = Some(reward);
        self
    }
}

/// The result of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The head afterwards.
    pub snapshot: SnapshotId,
    /// The sequence number of the operation; `None` if there was nothing to do.
    pub operation: Option<u64>,
    /// Whether a snapshot was created, because the tree differed from that of the head.
    pub is_new: bool,
}

impl Committed {
    /// Returns the result of the commit to a workspace that an operation recorded, for a retry of its request; `None` if the
    /// operation neither moved the head of the workspace nor set a label, a note or a reward.
    pub fn of_operation(name: &WorkspaceName, done: &Operation) -> Option<Self> {
        let reference = name.reference();
        let head = |value: &Option<RefValue>| value.as_ref().and_then(|value| value.target).and_then(snapshot_of);
        let own = done.changes.iter().find(|change| change.name == reference);
        let (snapshot, is_new) = match own.and_then(|change| Some((head(&change.after)?, head(&change.before)))) {
            Some((after, before)) => (after, before != Some(after)),
            None => (done.changes.iter().find_map(annotated)?, false),
        };
        Some(Self { snapshot, operation: Some(done.sequence), is_new })
    }
}

/// Returns the snapshot that a change sets a label, a note or a reward of.
fn annotated(change: &RefChange) -> Option<SnapshotId> {
    let name = change.name.as_str();
    if name.starts_with(LABEL_PREFIX) {
        return change.after.as_ref()?.target.and_then(snapshot_of);
    }
    SnapshotId::from_hex(name.strip_prefix(NOTE_PREFIX).or_else(|| name.strip_prefix(REWARD_PREFIX))?)
}

/// One attempt of a commit.
enum Attempt {
    Done(Committed),
    Landed(Box<CommittedTree>),
}

impl Workspaces {
    /// Commits a tree whose base is the workspace's head. Afterwards its base is the new head.
    ///
    /// If the head has moved, nothing changes and the error contains the current head. If the tree equals that of the head,
    /// including times, no snapshot is created and the head is returned; labels, note and reward are still set on it.
    pub fn commit(
        &self,
        name: &WorkspaceName,
        tree: &mut WorkingTree,
        change: &Change,
        context: &OperationContext,
    ) -> Result<Committed> {
        self.commit_as(name, tree, change, context, "commit")
    }

    /// Commits a tree like [`commit`](Self::commit), with another action name in the operation log. For example `capture`.
    pub fn commit_as(
        &self,
        name: &WorkspaceName,
        tree: &mut WorkingTree,
        change: &Change,
        context: &OperationContext,
        action: &str,
    ) -> Result<Committed> {
        let (committed, landed) = self.commit_fork(name, tree, change, context, action)?;
        landed.map_or(Ok(()), |landed| tree.settle(landed))?;
        Ok(committed)
    }

    /// Commits a fork of a tree that is edited meanwhile. The caller settles that tree on the returned [`CommittedTree`], if there is
    /// one. Edits in between are allowed, a restore is not.
    pub fn commit_fork(
        &self,
        name: &WorkspaceName,
        fork: &WorkingTree,
        change: &Change,
        context: &OperationContext,
        action: &str,
    ) -> Result<(Committed, Option<CommittedTree>)> {
        match trying(|| self.try_commit(name, fork, change, context, action))? {
            Attempt::Done(done) => Ok((done, None)),
            Attempt::Landed(landed) => {
                let CommitDone { snapshot, operation, .. } = landed.done;
                Ok((Committed { snapshot, operation: Some(operation), is_new: true }, Some(*landed)))
            }
        }
    }

    fn try_commit(
        &self,
        name: &WorkspaceName,
        tree: &WorkingTree,
        change: &Change,
        context: &OperationContext,
        action: &str,
    ) -> Result<Attempt> {
        let workspace = self.get(name)?;
        let done_before = context.done_before(&self.store)?;
        if done_before.is_none() && workspace.head != tree.base() {
            return Err(stale(name, tree, workspace.head));
        }
        if let Some(done) = done_before.as_ref().filter(|done| done.draft.action == SET_ON_HEAD) {
            // Resolutions alone do not tell the snapshot.
            let of_base = |snapshot| Committed { snapshot, operation: Some(done.sequence), is_new: false };
            if let Some(done) = Committed::of_operation(name, done).or_else(|| tree.base().map(of_base)) {
                return Ok(Attempt::Done(done));
            }
        }
        let prepared = tree.freeze().prepare()?;
        // A commit that was already done is recognised below, regardless of the current head.
        if let (None, Some(head)) = (&done_before, workspace.head)
            && change.other_parents.is_empty()
            && !change.even_unchanged
            && self.store.snapshot(head)?.root == prepared.root()
        {
            return self.set_on_head(head, change, context).map(Attempt::Done);
        }
        let mut parents: Vec<_> = tree.base().into_iter().collect();
        parents.extend(change.other_parents.iter().copied());
        let landed = prepared.land(parents, change.details(context), |snapshot| {
            let mut refs =
                RefMove { operation: context.draft(action), durability: context.durability, ..RefMove::default() };
            let value = workspace.committed(snapshot, change.journaled)?;
            refs.expect.push((name.reference(), Some(workspace.value().clone())));
            refs.set.push((name.reference(), Some(value)));
            for Step { name, before, after } in self.extra_refs(snapshot, change)? {
                refs.expect.push((name.clone(), before));
                refs.set.push((name, after));
            }
            Ok(refs)
        });
        match landed {
            Ok(landed) => Ok(Attempt::Landed(Box::new(landed))),
            // Another writer was faster. The head tells whether it was a commit.
            Err(Error::Stale { moved }) => match moved.iter().find(|(moved, _)| *moved == name.reference()) {
                Some((_, None)) => Err(self.absent(name)?),
                Some((_, Some(value))) if value.target != workspace.value().target => {
                    Err(stale(name, tree, value.target.and_then(snapshot_of)))
                }
                _ => Err(Error::Stale { moved }),
            },
            Err(error) => Err(error),
        }
    }

    fn set_on_head(&self, head: SnapshotId, change: &Change, context: &OperationContext) -> Result<Committed> {
        let steps = self.extra_refs(head, change)?;
        if steps.is_empty() {
            return Ok(Committed { snapshot: head, operation: None, is_new: false });
        }
        let operation = recorded(move_refs(&self.store, context, context.draft(SET_ON_HEAD), steps)?);
        Ok(Committed { snapshot: head, operation: Some(operation.sequence), is_new: false })
    }

    /// Returns the references to set in the transaction of a commit: labels, note, reward and resolutions. They may
    /// exist already.
    fn extra_refs(&self, snapshot: SnapshotId, change: &Change) -> Result<Vec<Step>> {
        // A label may be listed twice, and a transaction sets each reference once.
        let labels: BTreeSet<_> = change.labels.iter().collect();
        let mut extra_refs: Vec<_> =
            labels.into_iter().map(|label| (label.reference(), RefValue::to(snapshot))).collect();
        if let Some(note) = &change.note {
            extra_refs.push((note_reference(snapshot), note_value(note)?));
        }
        if let Some(reward) = change.reward {
            extra_refs.push((reward_reference(snapshot), reward_value(reward)?));
        }
        for new in &change.resolutions {
            // The same conflict may be at several paths; the last resolution counts.
            extra_refs.retain(|(name, _)| *name != new.name);
            extra_refs.push((new.name.clone(), new.value.clone()));
        }
        let step = |(name, value)| Ok(Step { before: self.store.read_ref(&name)?, name, after: Some(value) });
        extra_refs.into_iter().map(step).collect()
    }
}

fn stale(name: &WorkspaceName, tree: &WorkingTree, current: Option<SnapshotId>) -> Error {
    Error::StaleHead { workspace: name.to_string(), expected: tree.base(), current }
}
