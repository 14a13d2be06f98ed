//! Finding the snapshot at which something broke.

use std::collections::{HashMap, HashSet};

use super::History;
use super::graph::{Graph, Place};
use crate::error::{Error, Result};
use crate::id::SnapshotId;

/// Up to this many candidates the best one to try is computed exactly, merges considered.
const EXACT_MAX: usize = 4_096;

/// What was found out about a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It works.
    Good,
    /// It is broken.
    Bad,
    /// It cannot be told.
    Skip,
}

/// What a search came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bisected {
    /// The first broken one; several when those before it could not be told.
    pub first_bad: Vec<SnapshotId>,
    /// How many were tried.
    pub tried: usize,
}

/// Where a search stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BisectStep {
    /// The one to try next; nothing when the search is over.
    pub next: Option<SnapshotId>,
    /// What may be the first broken one.
    pub candidates: Vec<SnapshotId>,
}

impl History {
    /// One step of [`History::bisect`], for whoever remembers the verdicts.
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

    /// Finds the first broken snapshot among the ancestors of a broken one that are no ancestors of the good ones. Tries about
    /// as many as the logarithm of their number.
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
        // What could not be told may be the first one as well.
        Ok(Bisected { first_bad: candidates, tried })
    }

    /// The one that halves the candidates best, of those of which nothing is known yet.
    fn middle(&self, candidates: &[SnapshotId], told: &HashSet<SnapshotId>) -> Result<Option<SnapshotId>> {
        let mut graph = self.graph.lock();
        let places = candidates.iter().map(|id| graph.need(&self.store, *id)).collect::<Result<Vec<_>>>()?;
        let below = if places.len() <= EXACT_MAX {
            self.counts_below(&mut graph, &places)?
        } else {
            // Children first: so many come after each.
            (0..places.len()).map(|at| places.len() - at).collect()
        };
        let gain = |at: usize| below[at].min(candidates.len() - below[at]);
        let untold = candidates.iter().enumerate().filter(|(_, id)| !told.contains(id));
        Ok(untold.max_by_key(|(at, _)| gain(*at)).map(|(_, id)| *id))
    }

    /// How many candidates each one has at or below it. They come with children before parents.
    fn counts_below(&self, graph: &mut Graph, places: &[Place]) -> Result<Vec<usize>> {
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
