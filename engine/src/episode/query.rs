//! What is asked of the steps of an episode. Everything reads pages; only what is returned, and for a leaf a few numbers of
//! each step, is held.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashSet};

use super::record::Step;
use super::{EpisodeName, Episodes, PAGE, StepId};
use crate::error::Result;

/// By what steps are put in order, the best first. Steps without it are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// What the step's own state was found to be worth.
    #[default]
    Reward,
    /// The mean of the rewards of all visits.
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

/// How good a step is: by value; of equal ones, that with fewer steps before it, then the earlier one. The greatest is best.
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
    /// A step.
    pub fn step(&self, episode: &EpisodeName, id: StepId) -> Result<Step> {
        Step::read(episode, id, &self.stored_step(episode, id)?.1)
    }

    /// Up to `limit` steps that follow `after`, in the order of recording.
    pub fn steps(&self, episode: &EpisodeName, after: Option<StepId>, limit: usize) -> Result<Vec<Step>> {
        let start = after.map(|after| episode.step_reference(after));
        let page = self.store.list_refs(&episode.step_prefix(), start.as_ref(), limit)?;
        if page.is_empty() && after.is_none() {
            self.get(episode)?;
        }
        page.into_iter().map(|(name, value)| Step::read(episode, episode.step_of(&name)?, &value)).collect()
    }

    /// How many steps an episode has. Reads all of them.
    pub fn count(&self, episode: &EpisodeName) -> Result<u64> {
        let mut count = 0;
        self.each_step(episode, None, |_| {
            count += 1;
            Ok(true)
        })?;
        Ok(count)
    }

    /// Up to `limit` steps that began at this one, or of the roots, and that follow `after`. Reads the steps behind it.
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

    /// The steps from a root to this one, both included.
    pub fn path_to(&self, episode: &EpisodeName, id: StepId) -> Result<Vec<Step>> {
        let mut path = vec![self.step(episode, id)?];
        // A parent's number is below its child's, so this comes to an end.
        while let Some(parent) = path.last().and_then(|step| step.parent) {
            path.push(self.step(episode, parent)?);
        }
        path.reverse();
        Ok(path)
    }

    /// The step without children that has the highest reward; of equal ones, that with the fewest steps before it, then the
    /// earliest. None when no leaf has a reward.
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

    /// The best `k` steps, the best first; ties as for the best leaf.
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

    /// Calls `visit` with the steps that follow `after`, as long as it says so.
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
