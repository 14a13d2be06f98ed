//! Plans an octopus merge: which of many snapshots merge cleanly together, in which order, and which conflicts exclude the
//! others.
//!
//! It first compares the sets of changed paths; only snapshots that overlap are merged in pairs to see whether they conflict. It
//! commits nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::base::{MergeBase, merge_base, write};
use super::side::ancestors;
use super::units::Units;
use super::{MergeContents, MergeOptions, merge_trees};
use crate::diff::{DiffOptions, diff_roots};
use crate::error::{Error, Result};
use crate::history::History;
use crate::id::{RootId, SnapshotId};
use crate::name::TreePath;

/// Up to this many sources the largest conflict-free subset is found; for more sources, a large one.
const EXACT_MAX: usize = 24;
/// Maximum number of sources of a plan.
const SOURCES_MAX: usize = 1_024;

/// The snapshots that can be merged together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OctopusPlan {
    /// Indices of the sources that merge cleanly, in merge order.
    pub order: Vec<usize>,
    /// The other sources.
    pub left: Vec<UnmergedSource>,
    /// Number of pairs that had to be merged to find out.
    pub pairs_merged: u64,
}

/// A source that cannot be merged, and its conflicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmergedSource {
    /// The index of the source.
    pub source: usize,
    /// Its conflicts with the target or with other sources, whether those are merged or not.
    pub clashes: Vec<Clash>,
}

/// A conflict between two snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    /// The index of the other source; `None` for the target or for the result of the previous merges.
    pub with: Option<usize>,
    /// The conflicting paths.
    pub paths: Vec<TreePath>,
}

/// Plans the merge of many snapshots into one.
pub fn plan_octopus(
    history: &History,
    target: SnapshotId,
    sources: &[SnapshotId],
    contents: &dyn MergeContents,
    options: &MergeOptions,
) -> Result<OctopusPlan> {
    if sources.len() > SOURCES_MAX {
        let (value, max) = (sources.len() as u64, SOURCES_MAX as u64);
        return Err(Error::TooLarge { what: "sources of a merge", value, max });
    }
    let units = Units::new(&options.units);
    let mut planner = Planner { history, contents, options, units, changed: BTreeMap::new(), pairs_merged: 0 };
    let mut overlaps: BTreeSet<usize> = BTreeSet::new();
    let mut clashes: Vec<Vec<Clash>> = vec![Vec::new(); sources.len()];
    for (at, source) in sources.iter().enumerate() {
        match planner.try_pair(target, *source)? {
            Pair::Apart => {}
            Pair::Merges => drop(overlaps.insert(at)),
            Pair::Conflicts(paths) => clashes[at].push(Clash { with: None, paths }),
        }
    }
    let is_free: Vec<bool> = clashes.iter().map(Vec::is_empty).collect();
    let mut edges: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); sources.len()];
    for left in 0..sources.len() {
        for right in left + 1..sources.len() {
            match planner.try_pair(sources[left], sources[right])? {
                Pair::Apart => {}
                Pair::Merges => overlaps.extend([left, right]),
                Pair::Conflicts(paths) => {
                    clashes[left].push(Clash { with: Some(right), paths: paths.clone() });
                    clashes[right].push(Clash { with: Some(left), paths });
                    edges[left].insert(right);
                    edges[right].insert(left);
                }
            }
        }
    }
    let candidates: BTreeSet<usize> = (0..sources.len()).filter(|at| is_free[*at]).collect();
    let chosen = choose(&candidates, &edges);
    let order = planner.try_all(target, sources, &chosen, &overlaps, &mut clashes)?;
    let is_left = |at: &usize| !order.contains(at);
    let left = (0..sources.len())
        .filter(is_left)
        .map(|source| UnmergedSource { source, clashes: std::mem::take(&mut clashes[source]) });
    Ok(OctopusPlan { left: left.collect(), order, pairs_merged: planner.pairs_merged })
}

/// The relation between two snapshots.
enum Pair {
    /// They changed different paths.
    Apart,
    /// They overlap and merge cleanly.
    Merges,
    /// They conflict on these paths.
    Conflicts(Vec<TreePath>),
}

struct Planner<'a> {
    history: &'a History,
    contents: &'a dyn MergeContents,
    options: &'a MergeOptions,
    units: Units<'a>,
    /// Cached paths that differ between two trees.
    changed: BTreeMap<(Option<RootId>, RootId), Rc<BTreeSet<TreePath>>>,
    pairs_merged: u64,
}

impl Planner<'_> {
    fn root(&self, snapshot: SnapshotId) -> Result<RootId> {
        Ok(self.history.store().snapshot(snapshot)?.root)
    }

    fn changed(&mut self, before: Option<RootId>, after: RootId) -> Result<Rc<BTreeSet<TreePath>>> {
        if let Some(known) = self.changed.get(&(before, after)) {
            return Ok(Rc::clone(known));
        }
        let changes = diff_roots(self.history.store(), before, Some(after), DiffOptions::default())?;
        let paths = Rc::new(changes.into_changes()?.into_iter().map(|change| change.path).collect::<BTreeSet<_>>());
        self.changed.insert((before, after), Rc::clone(&paths));
        Ok(paths)
    }

    fn try_pair(&mut self, left: SnapshotId, right: SnapshotId) -> Result<Pair> {
        let MergeBase { root: base, .. } = &merge_base(self.history, &[left], right, self.contents, self.options)?;
        let (ours, theirs) = (self.root(left)?, self.root(right)?);
        let (our_paths, their_paths) = (self.changed(*base, ours)?, self.changed(*base, theirs)?);
        // State values are not paths: two trees that both changed some must be merged.
        let state = |root: RootId| -> Result<_> { Ok(self.history.store().root(root)?.state) };
        let base_state = base.map(state).transpose()?.flatten();
        let both_set = state(ours)? != base_state && state(theirs)? != base_state;
        if !both_set && !overlap(&our_paths, &their_paths) && !self.share_a_unit(&our_paths, &their_paths) {
            return Ok(Pair::Apart);
        }
        self.pairs_merged += 1;
        let outcome = merge_trees(self.history.store(), *base, ours, theirs, self.contents, self.options)?;
        match outcome.conflicts.is_empty() {
            true => Ok(Pair::Merges),
            false => Ok(Pair::Conflicts(outcome.conflicts.into_iter().map(|conflict| conflict.path).collect())),
        }
    }

    fn share_a_unit(&self, ours: &BTreeSet<TreePath>, theirs: &BTreeSet<TreePath>) -> bool {
        !self.units.touched_by(ours.iter()).is_disjoint(&self.units.touched_by(theirs.iter()))
    }

    /// Merges overlapping sources one after another: snapshots that merge in pairs may still conflict together.
    fn try_all(
        &mut self,
        target: SnapshotId,
        sources: &[SnapshotId],
        chosen: &BTreeSet<usize>,
        overlaps: &BTreeSet<usize>,
        clashes: &mut [Vec<Clash>],
    ) -> Result<Vec<usize>> {
        let store = self.history.store();
        let mut order = Vec::new();
        let mut heads = vec![target];
        let (mut root, mut pin) = (self.root(target)?, None);
        for at in chosen {
            if !overlaps.contains(at) {
                order.push(*at);
                continue;
            }
            let base = merge_base(self.history, &heads, sources[*at], self.contents, self.options)?;
            let theirs = self.root(sources[*at])?;
            let outcome = merge_trees(store, base.root, root, theirs, self.contents, self.options)?;
            if !outcome.conflicts.is_empty() {
                let paths = outcome.conflicts.into_iter().map(|conflict| conflict.path).collect();
                clashes[*at].push(Clash { with: None, paths });
                continue;
            }
            let (merged, held) = write(store, &outcome.tree)?;
            root = merged;
            pin.replace(held);
            heads.push(sources[*at]);
            order.push(*at);
        }
        drop(pin);
        Ok(order)
    }
}

/// Returns whether a path of one set equals a path of the other, or is above or below one.
fn overlap(left: &BTreeSet<TreePath>, right: &BTreeSet<TreePath>) -> bool {
    let meets = |paths: &BTreeSet<TreePath>, others: &BTreeSet<TreePath>| {
        paths.iter().any(|path| others.contains(path) || ancestors(path).any(|above| others.contains(&above)))
    };
    meets(left, right) || meets(right, left)
}

/// Returns the largest set without internal edges; of equal ones, the one with the smallest indices.
fn choose(candidates: &BTreeSet<usize>, edges: &[BTreeSet<usize>]) -> BTreeSet<usize> {
    let degree = |at: &usize| edges[*at].intersection(candidates).count();
    let Some(busiest) = candidates.iter().max_by_key(|at| (degree(at), std::cmp::Reverse(**at))).copied() else {
        return BTreeSet::new();
    };
    if degree(&busiest) == 0 {
        return candidates.clone();
    }
    let without: BTreeSet<_> = candidates.iter().copied().filter(|at| *at != busiest).collect();
    if candidates.len() > EXACT_MAX {
        return choose(&without, edges);
    }
    let mut with = choose(&without.difference(&edges[busiest]).copied().collect(), edges);
    with.insert(busiest);
    let without = choose(&without, edges);
    match with.len().cmp(&without.len()).then_with(|| without.iter().cmp(&with)) {
        std::cmp::Ordering::Less => without,
        _ => with,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(sources: usize, pairs: &[(usize, usize)]) -> Vec<usize> {
        let mut edges = vec![BTreeSet::new(); sources];
        for (left, right) in pairs {
            edges[*left].insert(*right);
            edges[*right].insert(*left);
        }
        choose(&(0..sources).collect(), &edges).into_iter().collect()
    }

    #[test]
    fn the_largest_set_without_a_conflict_is_chosen() {
        assert_eq!(chosen(3, &[]), [0, 1, 2]);
        assert_eq!(chosen(2, &[(0, 1)]), [0]);
        assert_eq!(chosen(4, &[(0, 1), (0, 2), (0, 3)]), [1, 2, 3]);
        assert_eq!(chosen(4, &[(0, 1), (1, 2), (2, 3)]), [0, 2]);
        assert_eq!(chosen(30, &[(0, 1), (0, 2), (0, 3)]).len(), 29);
    }
}
