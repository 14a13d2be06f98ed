//! Moving a head: a tree becomes a snapshot on top of it.

use std::collections::BTreeMap;

use super::label::{LabelName, note_reference, note_value, reward_reference, reward_value};
use super::{WorkspaceName, Workspaces};
use crate::commit::{CommitDone, Landed, Words};
use crate::error::{Error, Result};
use crate::id::SnapshotId;
use crate::operation::{Act, Step, move_refs, recorded, snapshot_of};
use crate::reference::{RefName, RefValue};
use crate::store::RefMove;
use crate::work::WorkingTree;

/// What a commit says of itself, and what is set together with it.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Why, in words.
    pub message: String,
    /// Whatever else is to be kept with the snapshot, small.
    pub metadata: BTreeMap<String, String>,
    /// Parents beside the head, after a merge.
    pub other_parents: Vec<SnapshotId>,
    /// Labels that point at the new snapshot from now on.
    pub labels: Vec<LabelName>,
    /// A note about it.
    pub note: Option<String>,
    /// Its reward.
    pub reward: Option<f64>,
}

impl Change {
    /// A change with a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    /// The same with a label on its snapshot.
    #[must_use]
    pub fn label(mut self, label: LabelName) -> Self {
        self.labels.push(label);
        self
    }

    /// The same with a note about its snapshot.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// The same with a reward.
    #[must_use]
    pub fn reward(mut self, reward: f64) -> Self {
        self.reward = Some(reward);
        self
    }
}

/// What a commit came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The head afterwards.
    pub snapshot: SnapshotId,
    /// Its place in the operation log; nothing when there was nothing to do.
    pub operation: Option<u64>,
    /// Whether a snapshot was made: the tree differed from the head's.
    pub is_new: bool,
}

/// One try of a commit.
enum Attempt {
    Done(Committed),
    Landed(Box<Landed>),
}

impl Workspaces {
    /// Commits a tree whose base is the workspace's head. Afterwards its base is the new head.
    ///
    /// When the head is elsewhere, nothing changes and the error carries where it is. When the tree is the head's, times
    /// included, no snapshot is made and the head is returned; labels, note and reward are set on it all the same.
    pub fn commit(
        &self,
        name: &WorkspaceName,
        tree: &mut WorkingTree,
        change: &Change,
        act: &Act,
    ) -> Result<Committed> {
        self.commit_as(name, tree, change, act, "commit")
    }

    pub(super) fn commit_as(
        &self,
        name: &WorkspaceName,
        tree: &mut WorkingTree,
        change: &Change,
        act: &Act,
        action: &str,
    ) -> Result<Committed> {
        match self.trying(|| self.try_commit(name, tree, change, act, action))? {
            Attempt::Done(done) => Ok(done),
            Attempt::Landed(landed) => {
                let CommitDone { snapshot, operation, .. } = landed.done;
                tree.settle(*landed)?;
                Ok(Committed { snapshot, operation: Some(operation), is_new: true })
            }
        }
    }

    fn try_commit(
        &self,
        name: &WorkspaceName,
        tree: &WorkingTree,
        change: &Change,
        act: &Act,
        action: &str,
    ) -> Result<Attempt> {
        let workspace = self.get(name)?;
        let prepared = tree.freeze().prepare()?;
        // A request that was done before is recognised further down, wherever the head is by now.
        let is_retry =
            act.request.as_ref().map(|request| self.store.find_request(request)).transpose()?.flatten().is_some();
        if !is_retry {
            if workspace.head != tree.base() {
                return Err(stale(name, tree, workspace.head));
            }
            if let Some(head) = workspace.head
                && change.other_parents.is_empty()
                && self.store.snapshot(head)?.root == prepared.root()
            {
                return self.set_on_head(head, change, act).map(Attempt::Done);
            }
        }
        let mut parents: Vec<_> = tree.base().into_iter().collect();
        parents.extend(change.other_parents.iter().copied());
        let words = Words {
            author: act.actor.clone(),
            time: act.time,
            message: change.message.clone(),
            metadata: change.metadata.clone(),
        };
        let marks = self.marks(change)?;
        let landed = prepared.land(parents, words, |snapshot| {
            let mut refs = RefMove { operation: act.draft(action), durability: act.durability, ..RefMove::default() };
            let value = RefValue { target: Some(snapshot.object()), ..workspace.value().clone() };
            refs.expect.push((name.reference(), Some(workspace.value().clone())));
            refs.set.push((name.reference(), Some(value)));
            for mark in marks {
                let Step { name, before, after } = mark.on(snapshot);
                refs.expect.push((name.clone(), before));
                refs.set.push((name, after));
            }
            refs
        });
        match landed {
            Ok(landed) => Ok(Attempt::Landed(Box::new(landed))),
            // Somebody else was quicker; whether by a commit, the head tells.
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

    fn set_on_head(&self, head: SnapshotId, change: &Change, act: &Act) -> Result<Committed> {
        let steps: Vec<_> = self.marks(change)?.into_iter().map(|mark| mark.on(head)).collect();
        if steps.is_empty() {
            return Ok(Committed { snapshot: head, operation: None, is_new: false });
        }
        let operation = recorded(move_refs(&self.store, act, act.draft("label"), steps)?);
        Ok(Committed { snapshot: head, operation: Some(operation.sequence), is_new: false })
    }

    /// What is to be set on a snapshot together with its commit.
    fn marks(&self, change: &Change) -> Result<Vec<Mark>> {
        let mut marks = Vec::new();
        for label in &change.labels {
            marks.push(Mark::Label { name: label.reference(), before: self.store.read_ref(&label.reference())? });
        }
        marks.extend(change.note.as_ref().map(|note| note_value(note).map(Mark::Note)).transpose()?);
        marks.extend(change.reward.map(|reward| reward_value(reward).map(Mark::Reward)).transpose()?);
        Ok(marks)
    }
}

/// Something that is set on a snapshot.
enum Mark {
    Label { name: RefName, before: Option<RefValue> },
    Note(RefValue),
    Reward(RefValue),
}

impl Mark {
    /// A new snapshot has no note and no reward yet.
    fn on(self, snapshot: SnapshotId) -> Step {
        match self {
            Self::Label { name, before } => Step { name, before, after: Some(RefValue::to(snapshot)) },
            Self::Note(value) => Step { name: note_reference(snapshot), before: None, after: Some(value) },
            Self::Reward(value) => Step { name: reward_reference(snapshot), before: None, after: Some(value) },
        }
    }
}

fn stale(name: &WorkspaceName, tree: &WorkingTree, current: Option<SnapshotId>) -> Error {
    Error::StaleHead { workspace: name.to_string(), expected: tree.base(), current }
}
