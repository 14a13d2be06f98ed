//! Finds the first broken snapshot by bisection.

use std::collections::{HashMap, HashSet};

use super::History;
use super::graph::{Graph, GraphIndex};
use crate::error::{Error, Result};
use crate::id::SnapshotId;

/// Up to this many candidates the best one to try is computed exactly, including merges.
const EXACT_MAX: usize = 4_096;

/// The verdict on a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It works.
    Good,
    /// It is broken.
    Bad,
    /// It cannot be tested.
    Skip,
}

/// The result of a bisection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bisected {
    /// The first broken snapshot; several if the ones before it could not be tested.
    pub first_bad: Vec<SnapshotId>,
    /// Number of tested snapshots.
    pub tried: usize,
}

/// The state of a bisection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BisectStep {
    /// The snapshot to test next; `None` when the bisection is complete.
    pub next: Option<SnapshotId>,
    /// The snapshots that may be the first broken one.
    pub candidates: Vec<SnapshotId>,
}

impl History {
    /// Performs one step of [`History::bisect`], for callers that store the verdicts.
    pub fn bisect_step(&self, good: &[SnapshotId], bad: SnapshotId, skipped: &[SnapshotId]) -> Result<BisectStep> {
        self.check_range(good, bad)?;
        let candidates = self.range(bad, good)?;
        let told = skipped.iter().copied().chain([bad]).collect();
        Ok(BisectStep { next: self.middle(&candidates, &told)?, candidates })
    }

    fn check_range(&self, good: &[SnapshotId], bad: SnapshotId) -> Result<()> {
        for good in good {
            if self.is_ancestor(bad, *good)? {
                let why = format!("the broken {} came before the good {}", bad.short(), good.short());
                return Err(Error::Invalid { what: "range", why });
            }
        }
        Ok(())
    }

    /// Finds the first broken snapshot among the ancestors of a broken one, without the ancestors of the good ones. The number of
    /// tests is about the logarithm of their number.
    pub fn bisect(
        &self,
        good: &[SnapshotId],
        bad: SnapshotId,
        mut check: impl FnMut(SnapshotId) -> Result<Verdict>,
    ) -> Result<Bisected> {
        self.check_range(good, bad)?;
        let (mut good, mut bad) = (good.to_vec(), bad);
        let mut candidates = self.range(bad, &good)?;
        let mut told = HashSet::from([bad]);
        let mut tried = 0;
        while let Some(next) = self.middle(&candidates, &told)? {
            tried += 1;
            told.insert(next);
            match check(next)? {
                Verdict::Skip => continue,
                Verdict::Bad => bad = next,
                Verdict::Good => good.push(next),
            }
            candidates = self.range(bad, &good)?;
        }
        // Untested snapshots may be the first broken one as well.
        Ok(Bisected { first_bad: candidates, tried })
    }

    /// Returns the untested candidate that best halves the candidates.
    fn middle(&self, candidates: &[SnapshotId], told: &HashSet<SnapshotId>) -> Result<Option<SnapshotId>> {
        let mut graph = self.graph.lock();
        let places = candidates.iter().map(|id| graph.need(&self.store, *id)).collect::<Result<Vec<_>>>()?;
        let below = if places.len() <= EXACT_MAX {
            self.counts_below(&mut graph, &places)?
        } else {
            // Candidates come with children before parents, so this approximates the number of ancestors.
            (0..places.len()).map(|at| places.len() - at).collect()
        };
        let gain = |at: usize| below[at].min(candidates.len() - below[at]);
        let untold = candidates.iter().enumerate().filter(|(_, id)| !told.contains(id));
        Ok(untold.max_by_key(|(at, _)| gain(*at)).map(|(_, id)| *id))
    }

    /// Returns for each candidate the number of candidates that are itself or its ancestors. Children come before parents.
    fn counts_below(&self, graph: &mut Graph, places: &[GraphIndex]) -> Result<Vec<usize>> {
        let words = places.len().div_ceil(64);
        let index: HashMap<_, _> = places.iter().enumerate().map(|(at, place)| (*place, at)).collect();
        let mut sets = vec![Vec::new(); places.len()];
        for at in (0..places.len()).rev() {
            let mut set = vec![0_u64; words];
            set[at / 64] |= 1 << (at % 64);
            for parent in graph.parents(&self.store, places[at])? {
                if let Some(parent) = index.get(&parent) {
                    let below: &Vec<u64> = &sets[*parent];
                    set.iter_mut().zip(below).for_each(|(all, below)| *all |= below);
                }
            }
            sets[at] = set;
        }
        Ok(sets.iter().map(|set| set.iter().map(|word| word.count_ones() as usize).sum()).collect())
    }
}
