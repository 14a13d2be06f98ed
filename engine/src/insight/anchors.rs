//! Compares large texts in bounded time: splits them at the lines that occur exactly once on each side.
//!
//! Such lines, in an order common to both sides, are anchors (as in patience diff). The stretches between two anchors are
//! compared separately. The total work of all comparisons is bounded. When the budget is exhausted, a stretch is replaced as a
//! whole: the result has more lines than necessary but is still correct.

use std::ops::Range;

use imara_diff::{Algorithm, Diff, Token};

use super::lines::Hunk;

/// Work is the product of the line counts of both sides. The time of either algorithm is at most proportional to it.
const WORK_MAX: u64 = 2_500_000_000;
/// Above this amount of work, Myers replaces the histogram algorithm.
const HISTOGRAM_WORK_MAX: u64 = 100_000_000;
/// How much more expensive the histogram algorithm may be than Myers for the same work.
const HISTOGRAM_FACTOR: u64 = 8;

/// Returns whether two texts with this many lines can be compared without anchors.
pub(super) fn is_small(before: usize, after: usize) -> bool {
    work(before, after) <= HISTOGRAM_WORK_MAX
}

fn work(before: usize, after: usize) -> u64 {
    (before as u64).saturating_mul(after as u64)
}

/// Returns the hunks that turn one list of lines into another.
pub(super) fn hunks(before: &[Token], after: &[Token], tokens: u32) -> Vec<Hunk> {
    let mut found = Vec::new();
    let mut local = Local { ids: vec![u32::MAX; tokens as usize] };
    let mut left = WORK_MAX;
    let (mut from, mut to) = (0, 0);
    let anchors = anchors(before, after, tokens);
    for (anchor_before, anchor_after) in anchors.into_iter().chain([(before.len(), after.len())]) {
        let gap = Hunk { before: from..anchor_before, after: to..anchor_after };
        between(before, after, gap, &mut local, &mut left, &mut found);
        (from, to) = (anchor_before + 1, anchor_after + 1);
    }
    found
}

fn between(before: &[Token], after: &[Token], gap: Hunk, local: &mut Local, left: &mut u64, found: &mut Vec<Hunk>) {
    if gap.before.is_empty() && gap.after.is_empty() {
        return;
    }
    let work = work(gap.before.len(), gap.after.len());
    let (algorithm, cost) = match work {
        ..=HISTOGRAM_WORK_MAX => (Algorithm::Histogram, work * HISTOGRAM_FACTOR),
        _ => (Algorithm::Myers, work),
    };
    if work == 0 || cost > *left {
        found.push(gap);
        return;
    }
    *left -= cost;
    let (before, after) = (&before[gap.before.clone()], &after[gap.after.clone()]);
    let mut diff = Diff::default();
    let (ours, theirs, count) = local.renumber(before, after);
    diff.compute_with(algorithm, &ours, &theirs, count);
    local.forget(before, after);
    let shift = |range: Range<u32>, by: usize| range.start as usize + by..range.end as usize + by;
    found.extend(
        diff.hunks().map(|hunk| Hunk {
            before: shift(hunk.before, gap.before.start),
            after: shift(hunk.after, gap.after.start),
        }),
    );
}

/// Renumbers the lines of one stretch, so that the cost of its comparison does not depend on lines outside it.
struct Local {
    ids: Vec<u32>,
}

impl Local {
    fn renumber(&mut self, before: &[Token], after: &[Token]) -> (Vec<Token>, Vec<Token>, u32) {
        let mut count = 0;
        let mut side = |tokens: &[Token]| -> Vec<Token> {
            let number = |token: &Token| {
                let id = &mut self.ids[token.0 as usize];
                if *id == u32::MAX {
                    *id = count;
                    count += 1;
                }
                Token(*id)
            };
            tokens.iter().map(number).collect()
        };
        let (before, after) = (side(before), side(after));
        (before, after, count)
    }

    fn forget(&mut self, before: &[Token], after: &[Token]) {
        before.iter().chain(after).for_each(|token| self.ids[token.0 as usize] = u32::MAX);
    }
}

/// Returns the positions of lines that occur once on each side: a longest list that ascends on both.
fn anchors(before: &[Token], after: &[Token], tokens: u32) -> Vec<(usize, usize)> {
    let (old, new) = (places(before, tokens), places(after, tokens));
    let common = before.iter().enumerate().filter_map(|(at, token)| {
        let token = token.0 as usize;
        (old[token] == Place::Once(at as u32)).then_some(())?;
        match new[token] {
            Place::Once(there) => Some((at, there as usize)),
            _ => None,
        }
    });
    ascending(&common.collect::<Vec<_>>())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    Once(u32),
    Often,
}

fn places(side: &[Token], tokens: u32) -> Vec<Place> {
    let mut places = vec![Place::Nowhere; tokens as usize];
    for (at, token) in (0..).zip(side) {
        let place = &mut places[token.0 as usize];
        *place = if *place == Place::Nowhere { Place::Once(at) } else { Place::Often };
    }
    places
}

/// Returns the longest subsequence of pairs, ascending in their first element, that also ascends in the second.
fn ascending(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // For each length, the pair with the smallest second element that ends such a subsequence; for each pair, its predecessor.
    let mut ends: Vec<usize> = Vec::new();
    let mut previous: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    for (at, pair) in pairs.iter().enumerate() {
        let length = ends.partition_point(|end| pairs[*end].1 < pair.1);
        previous.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        match ends.get_mut(length) {
            Some(end) => *end = at,
            None => ends.push(at),
        }
    }
    let last = ends.last().copied();
    let mut longest: Vec<_> = std::iter::successors(last, |at| previous[*at]).map(|at| pairs[at]).collect();
    longest.reverse();
    longest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hunks_make_one_list_of_the_other(
            before in prop::collection::vec(0..20_u32, 0..60),
            after in prop::collection::vec(0..20_u32, 0..60),
        ) {
            let tokens = |numbers: &[u32]| numbers.iter().map(|number| Token(*number)).collect::<Vec<_>>();
            let (mut at, mut made) = (0, Vec::new());
            for hunk in hunks(&tokens(&before), &tokens(&after), 20) {
                made.extend_from_slice(&before[at..hunk.before.start]);
                made.extend_from_slice(&after[hunk.after]);
                at = hunk.before.end;
            }
            made.extend_from_slice(&before[at..]);
            prop_assert_eq!(made, after);
        }
    }

    #[test]
    fn the_longest_ascending_part_is_found() {
        assert_eq!(ascending(&[(0, 5), (1, 0), (2, 1), (3, 7), (4, 2)]), [(1, 0), (2, 1), (4, 2)]);
        assert_eq!(ascending(&[]), []);
    }
}
