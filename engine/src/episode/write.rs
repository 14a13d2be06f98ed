//! Records steps and updates their statistics.

use std::collections::HashSet;

use super::record::{EpisodeState, Step, StepDraft, StepUpdate};
use super::{CACHED_EPISODES_MAX, CachedEpisode, Episode, EpisodeName, Episodes, StepId, half_dropped};
use crate::backend::Transaction;
use crate::commit::{CommittedTree, SnapshotDetails};
use crate::error::{Error, Result};
use crate::id::SnapshotId;
use crate::operation::{OperationContext, hold_snapshot, recorded, trying};
use crate::reference::{Operation, REFS_PER_TRANSACTION_MAX, RefName, RefValue};
use crate::store::RefMove;
use crate::work::WorkingTree;

/// Maximum number of steps in one update: all of them and the episode's record are compared in one transaction.
pub const STEPS_PER_UPDATE_MAX: usize = REFS_PER_TRANSACTION_MAX - 1;

/// A committed and recorded step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommittedStep {
    /// The number of the step.
    pub step: StepId,
    /// The new snapshot.
    pub snapshot: SnapshotId,
    /// The sequence number of the operation.
    pub operation: u64,
}

impl Episodes {
    /// Records a step with an existing snapshot.
    pub fn record(
        &self,
        episode: &EpisodeName,
        snapshot: SnapshotId,
        draft: &StepDraft,
        context: &OperationContext,
    ) -> Result<StepId> {
        draft.check()?;
        let _pins = hold_snapshot(&self.store, snapshot)?;
        self.placing(episode, |known, id| {
            let step = self.step_at(episode, id, snapshot, draft, context)?;
            let reference = episode.step_reference(id);
            let transaction = Transaction {
                expect: vec![(reference.clone(), None), (episode.reference(), Some(known.clone()))],
                set: vec![(reference, Some(step.value()))],
                operation: Some(context.draft("record")),
                durability: context.durability,
                ..Transaction::default()
            };
            recorded_step(episode, &recorded(self.store.transact(transaction)?))
        })
    }

    /// Commits a tree and records it as a step, in one transaction. The parent of the new snapshot is the tree's base, and the
    /// tree's base becomes the new snapshot. A snapshot is created even if the tree equals that of its base.
    pub fn commit_step(
        &self,
        episode: &EpisodeName,
        tree: &mut WorkingTree,
        message: &str,
        draft: &StepDraft,
        context: &OperationContext,
    ) -> Result<CommittedStep> {
        let (done, landed) = self.land_step(episode, tree, message, draft, context)?;
        tree.settle(landed)?;
        Ok(done)
    }

    /// Commits a tree and records it as a step. The caller settles the tree afterwards or discards it.
    pub(crate) fn land_step(
        &self,
        episode: &EpisodeName,
        tree: &WorkingTree,
        message: &str,
        draft: &StepDraft,
        context: &OperationContext,
    ) -> Result<(CommittedStep, CommittedTree)> {
        draft.check()?;
        let (landed, step) = self.placing(episode, |known, id| {
            // Complete except for the snapshot, which does not exist yet.
            let mut step = self.step_at(episode, id, SnapshotId::from_bytes([0; 32]), draft, context)?;
            let words = SnapshotDetails {
                author: context.actor.clone(),
                time: context.time,
                message: message.to_owned(),
                metadata: Default::default(),
            };
            let parents = tree.base().into_iter().collect();
            let landed = tree.freeze().prepare()?.land(parents, words, |snapshot| {
                step.snapshot = snapshot;
                let reference = episode.step_reference(id);
                Ok(RefMove {
                    expect: vec![(reference.clone(), None), (episode.reference(), Some(known.clone()))],
                    set: vec![(reference, Some(step.value()))],
                    operation: context.draft("record"),
                    durability: context.durability,
                })
            })?;
            let step = match landed.done.replayed {
                false => id,
                true => recorded_step(episode, &crate::operation::operation(&self.store, landed.done.operation)?)?,
            };
            Ok((landed, step))
        })?;
        let done = CommittedStep { step, snapshot: landed.done.snapshot, operation: landed.done.operation };
        Ok((done, landed))
    }

    /// Updates the statistics of at most [`STEPS_PER_UPDATE_MAX`] steps, all or none.
    pub fn update(
        &self,
        episode: &EpisodeName,
        updates: &[StepUpdate],
        context: &OperationContext,
    ) -> Result<Operation> {
        if updates.len() > STEPS_PER_UPDATE_MAX {
            let (value, max) = (updates.len() as u64, STEPS_PER_UPDATE_MAX as u64);
            return Err(Error::TooLarge { what: "steps in an update", value, max });
        }
        if updates.is_empty() {
            return Err(Error::Invalid { what: "update", why: "it names no step".to_owned() });
        }
        let mut seen = HashSet::with_capacity(updates.len());
        for update in updates {
            update.check()?;
            if !seen.insert(update.step) {
                return Err(Error::Invalid { what: "update", why: format!("it names step {} twice", update.step) });
            }
        }
        trying(|| {
            let open = self.open(episode)?;
            let mut transaction = Transaction {
                expect: vec![(episode.reference(), Some(open.value().clone()))],
                operation: Some(context.draft("update")),
                durability: context.durability,
                ..Transaction::default()
            };
            for StepUpdate { step: id, reward, visits, total } in updates {
                let (reference, before) = self.stored_step(episode, *id)?;
                let mut step = Step::read(episode, *id, &before)?;
                (step.reward, step.visits, step.total) = (*reward, *visits, *total);
                transaction.expect.push((reference.clone(), Some(before)));
                transaction.set.push((reference, Some(step.value())));
            }
            self.store.transact(transaction).map(recorded)
        })
    }

    /// Returns the reference of a step and its value, or an error if the step does not exist.
    pub(super) fn stored_step(&self, episode: &EpisodeName, id: StepId) -> Result<(RefName, RefValue)> {
        let reference = episode.step_reference(id);
        match self.store.read_ref(&reference)? {
            Some(value) => Ok((reference, value)),
            None => Err(self.absent_step(episode, id)?),
        }
    }

    fn absent_step(&self, episode: &EpisodeName, id: StepId) -> Result<Error> {
        self.get(episode)?;
        let hint = match self.last_step(episode)? {
            0 => "it has no steps yet".to_owned(),
            last => format!("its last one is {last}"),
        };
        Ok(Error::Absent { what: format!("step {id} in episode {episode}"), hint })
    }

    /// Returns an episode that accepts steps, or an error.
    fn open(&self, name: &EpisodeName) -> Result<Episode> {
        let episode = self.get(name)?;
        match episode.state {
            EpisodeState::Dropping => Err(half_dropped(name)),
            EpisodeState::Open | EpisodeState::Kept => Ok(episode),
        }
    }

    /// Builds the record of a new step. Its parent must exist.
    fn step_at(
        &self,
        episode: &EpisodeName,
        id: StepId,
        snapshot: SnapshotId,
        draft: &StepDraft,
        context: &OperationContext,
    ) -> Result<Step> {
        let depth = match draft.parent {
            None => 0,
            // Every transaction compares the episode's record, so the parent exists until its end.
            Some(parent) => Step::read(episode, parent, &self.stored_step(episode, parent)?.1)?.depth + 1,
        };
        let StepDraft { parent, reward, visits, total, metadata } = draft.clone();
        Ok(Step { id, snapshot, parent, depth, time: context.time, reward, visits, total, metadata })
    }

    /// Calls `attempt` with the episode's record and the next step number. Retries if either was stale.
    fn placing<T>(&self, episode: &EpisodeName, mut attempt: impl FnMut(&RefValue, StepId) -> Result<T>) -> Result<T> {
        let mut is_stale = false;
        trying(|| {
            if is_stale || !self.known.lock().contains_key(episode) {
                self.refresh(episode)?;
            }
            let (value, id) = self.next_place(episode)?;
            let done = attempt(&value, id);
            is_stale = matches!(done, Err(Error::Stale { .. }));
            done
        })
    }

    fn next_place(&self, episode: &EpisodeName) -> Result<(RefValue, StepId)> {
        let mut known = self.known.lock();
        let Some(known) = known.get_mut(episode) else {
            // Another thread has just removed it from the cache.
            return Err(Error::Stale { moved: vec![(episode.reference(), None)] });
        };
        let id = StepId(known.next);
        known.next = known.next.checked_add(1).ok_or(Error::TooLarge {
            what: "steps in an episode",
            value: u64::MAX,
            max: u64::MAX - 1,
        })?;
        Ok((known.value.clone(), id))
    }

    /// Reloads the record of an episode and the number of its last step.
    fn refresh(&self, episode: &EpisodeName) -> Result<()> {
        let open = match self.open(episode) {
            Ok(open) => open,
            Err(error) => {
                self.known.lock().remove(episode);
                return Err(error);
            }
        };
        let next = self.last_step(episode)?.saturating_add(1);
        let mut known = self.known.lock();
        if known.len() >= CACHED_EPISODES_MAX {
            known.clear();
        }
        let fresh = CachedEpisode { value: open.value().clone(), next };
        match known.get_mut(episode) {
            // Other threads are using numbers that are not in the store yet.
            Some(known) if known.value == fresh.value => known.next = known.next.max(next),
            _ => drop(known.insert(episode.clone(), fresh)),
        }
        Ok(())
    }

    /// Returns the number of the last step; 0 without steps. Undone steps leave gaps, so it is found by an exponential and binary
    /// search for a number that no step follows.
    pub(super) fn last_step(&self, episode: &EpisodeName) -> Result<u64> {
        let prefix = episode.step_prefix();
        let follows = |number: u64| -> Result<Option<u64>> {
            let page = self.store.list_refs(&prefix, Some(&episode.step_reference(StepId(number))), 1)?;
            page.first().map(|(name, _)| Ok(episode.step_of(name)?.0)).transpose()
        };
        let (mut low, mut stride) = (0_u64, 1_u64);
        let mut high = loop {
            let ahead = low.saturating_add(stride);
            match follows(ahead)? {
                Some(found) => (low, stride) = (found, stride.saturating_mul(2)),
                None => break ahead,
            }
        };
        while low < high {
            let middle = low + (high - low) / 2;
            match follows(middle)? {
                Some(found) => low = found,
                None => high = middle,
            }
        }
        Ok(low)
    }
}

/// Returns the step that an operation recorded. In a replayed request the number differs from the requested one.
fn recorded_step(episode: &EpisodeName, operation: &Operation) -> Result<StepId> {
    let name = operation.changes.first().map(|change| &change.name);
    name.and_then(|name| episode.step_of(name).ok())
        .ok_or_else(|| Error::Invalid { what: "request id", why: "it belongs to another kind of request".to_owned() })
}
