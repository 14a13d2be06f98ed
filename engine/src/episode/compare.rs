//! Two steps side by side.

use super::record::Step;
use super::{EpisodeName, Episodes, StepId};
use crate::error::Result;
use crate::insight::{InsightOptions, Summary, insight};

/// Two steps of an episode, compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The last step on the way to both; none when they come from two roots.
    pub common: Option<Step>,
    /// The steps below that to the first one, itself the last; none when it is the common one.
    pub before: Vec<Step>,
    /// The same for the second one.
    pub after: Vec<Step>,
    /// The second one's reward less the first one's, when both have one.
    pub reward: Option<f64>,
    /// What makes the second one's tree of the first one's.
    pub change: Summary,
}

impl Episodes {
    /// Compares two steps: where they parted, what led to each, and how their states differ.
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
