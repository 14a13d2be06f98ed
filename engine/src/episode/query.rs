//! Queries over the steps of an episode. They read pages and hold only the results in memory, plus a few numbers per step for the
//! best leaf.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashSet};

use super::record::Step;
use super::{EpisodeName, Episodes, PAGE, StepId};
use crate::error::Result;

/// The sort key of steps, best first. Steps without the value are omitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The reward of the step's own state.
    #[default]
    Reward,
    /// The mean reward of all visits.
    Mean,
}

impl Order {
    fn of(self, step: &Step) -> Option<f64> {
        match self {
            Self::Reward => step.reward,
            Self::Mean => step.mean(),
        }
    }
}

/// The rank of a step: by value; among equal ones, by fewer preceding steps, then by earlier recording. The greatest is best.
#[derive(Clone, Copy, Debug)]
struct Rank {
    value: f64,
    depth: Reverse<u64>,
    id: Reverse<StepId>,
}

impl Rank {
    fn of(step: &Step, order: Order) -> Option<Self> {
        Some(Self { value: order.of(step)?, depth: Reverse(step.depth), id: Reverse(step.id) })
    }
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        let value = self.value.total_cmp(&other.value);
        value.then_with(|| (self.depth, self.id).cmp(&(other.depth, other.id)))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Rank {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Rank {}

impl Episodes {
    /// Returns a step.
    pub fn step(&self, episode: &EpisodeName, id: StepId) -> Result<Step> {
        Step::read(episode, id, &self.stored_step(episode, id)?.1)
    }

    /// Lists up to `limit` steps after `after`, in recording order.
    pub fn steps(&self, episode: &EpisodeName, after: Option<StepId>, limit: usize) -> Result<Vec<Step>> {
        let start = after.map(|after| episode.step_reference(after));
        let page = self.store.list_refs(&episode.step_prefix(), start.as_ref(), limit)?;
        if page.is_empty() && after.is_none() {
            self.get(episode)?;
        }
        page.into_iter().map(|(name, value)| Step::read(episode, episode.step_of(&name)?, &value)).collect()
    }

    /// Returns the number of steps of an episode. Reads all of them.
    pub fn count(&self, episode: &EpisodeName) -> Result<u64> {
        let mut count = 0;
        self.each_step(episode, None, |_| {
            count += 1;
            Ok(true)
        })?;
        Ok(count)
    }

    /// Lists up to `limit` children of a step, or the roots, after `after`. Reads all steps that follow the parent.
    pub fn children(
        &self,
        episode: &EpisodeName,
        parent: Option<StepId>,
        after: Option<StepId>,
        limit: usize,
    ) -> Result<Vec<Step>> {
        if let Some(parent) = parent {
            self.stored_step(episode, parent)?;
        }
        let mut found = Vec::new();
        self.each_step(episode, parent.max(after), |step| {
            if step.parent == parent && found.len() < limit {
                found.push(step);
            }
            Ok(found.len() < limit)
        })?;
        Ok(found)
    }

    /// Returns the steps from a root to this one, inclusive.
    pub fn path_to(&self, episode: &EpisodeName, id: StepId) -> Result<Vec<Step>> {
        let mut path = vec![self.step(episode, id)?];
        // The number of a parent is below that of its child, so the loop terminates.
        while let Some(parent) = path.last().and_then(|step| step.parent) {
            path.push(self.step(episode, parent)?);
        }
        path.reverse();
        Ok(path)
    }

    /// Returns the leaf with the highest reward; among equal ones, the one with the fewest preceding steps, then the earliest.
    /// Returns `None` if no leaf has a reward.
    pub fn best_leaf(&self, episode: &EpisodeName) -> Result<Option<Step>> {
        let (mut parents, mut ranks) = (HashSet::new(), Vec::new());
        self.each_step(episode, None, |step| {
            parents.extend(step.parent);
            ranks.extend(Rank::of(&step, Order::Reward));
            Ok(true)
        })?;
        let best = ranks.into_iter().filter(|rank| !parents.contains(&rank.id.0)).max();
        best.map(|rank| self.step(episode, rank.id.0)).transpose()
    }

    /// Returns the best `k` steps, best first. Ties are broken as in [`best_leaf`](Self::best_leaf).
    pub fn top(&self, episode: &EpisodeName, k: usize, order: Order) -> Result<Vec<Step>> {
        let mut best = BinaryHeap::new();
        self.each_step(episode, None, |step| {
            best.extend(Rank::of(&step, order).map(Reverse));
            if best.len() > k {
                best.pop();
            }
            Ok(true)
        })?;
        best.into_sorted_vec().into_iter().map(|Reverse(rank)| self.step(episode, rank.id.0)).collect()
    }

    /// Calls `visit` for the steps after `after` until it returns false.
    pub(super) fn each_step(
        &self,
        episode: &EpisodeName,
        mut after: Option<StepId>,
        mut visit: impl FnMut(Step) -> Result<bool>,
    ) -> Result<()> {
        loop {
            let page = self.steps(episode, after, PAGE)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.id);
            let is_last = page.len() < PAGE;
            for step in page {
                if !visit(step)? {
                    return Ok(());
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }
}
