//! Compares two steps of an episode.

use super::record::Step;
use super::{EpisodeName, Episodes, StepId};
use crate::error::Result;
use crate::insight::{InsightOptions, Summary, insight};

/// A comparison of two steps of an episode.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The last common ancestor step; `None` if they have different roots.
    pub common: Option<Step>,
    /// The steps after the common one up to the first step, inclusive; empty if it is the common one.
    pub before: Vec<Step>,
    /// The steps after the common one up to the second step, inclusive; empty if it is the common one.
    pub after: Vec<Step>,
    /// The reward of the second step minus that of the first, if both have one.
    pub reward: Option<f64>,
    /// The change from the first tree to the second.
    pub change: Summary,
}

impl Episodes {
    /// Compares two steps: their common ancestor, the steps to each, and the difference of their states.
    pub fn compare(&self, episode: &EpisodeName, before: StepId, after: StepId) -> Result<Comparison> {
        let (mut one, mut other) = (self.path_to(episode, before)?, self.path_to(episode, after)?);
        let reward = match (one.last().and_then(|step| step.reward), other.last().and_then(|step| step.reward)) {
            (Some(before), Some(after)) => Some(after - before),
            _ => None,
        };
        let root = |path: &[Step]| match path.last() {
            Some(step) => self.store.snapshot(step.snapshot).map(|snapshot| Some(snapshot.root)),
            None => Ok(None),
        };
        let change = insight(&self.store, root(&one)?, root(&other)?, &InsightOptions::default())?.finish()?;
        let shared = one.iter().zip(&other).take_while(|(one, other)| one.id == other.id).count();
        let (before, after) = (one.split_off(shared), other.split_off(shared));
        Ok(Comparison { common: one.pop(), before, after, reward, change })
    }
}
