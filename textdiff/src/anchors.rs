//! Compares large lists in bounded time: splits them at the tokens that occur exactly once on each side.
//!
//! Such tokens, in an order common to both sides, are anchors (as in patience diff). The stretches between two anchors are
//! compared separately. The total work of all comparisons is bounded. When the budget is exhausted, a stretch is replaced as a
//! whole: the result is larger than necessary but still correct.

use imara_diff::{Algorithm, Diff, Token};

use crate::hunk::Hunk;

/// How much more expensive the histogram algorithm may be than Myers for the same work.
const HISTOGRAM_FACTOR: u64 = 8;

/// Bounds of the time of one comparison. Work is the product of the lengths of both sides; the time of either algorithm is at
/// most proportional to it.
#[derive(Clone, Copy, Debug)]
pub struct WorkLimits {
    /// The most work of all stretches together.
    pub work_max: u64,
    /// Above this amount of work, Myers replaces the histogram algorithm.
    pub histogram_work_max: u64,
}

impl WorkLimits {
    /// For diffs that are shown.
    pub const DISPLAY: Self = Self { work_max: 2_500_000_000, histogram_work_max: 100_000_000 };
    /// For merges, which compare two pairs of versions. The result of a merge depends on these numbers.
    pub const MERGE: Self = Self { work_max: 1_000_000_000, histogram_work_max: 40_000_000 };

    /// Returns whether two lists of these lengths are compared without anchors.
    pub(crate) fn is_small(&self, before: usize, after: usize) -> bool {
        work(before, after) <= self.histogram_work_max
    }
}

fn work(before: usize, after: usize) -> u64 {
    (before as u64).saturating_mul(after as u64)
}

/// Returns the hunks that turn one list into another. All tokens are below `count`.
pub(crate) fn anchored_hunks(before: &[Token], after: &[Token], count: u32, limits: &WorkLimits) -> Vec<Hunk> {
    let mut found = Vec::new();
    let mut numbers = LocalNumbers { ids: vec![u32::MAX; count as usize] };
    let mut work_left = limits.work_max;
    let (mut from, mut to) = (0, 0);
    let anchors = anchors(before, after, count);
    for (anchor_before, anchor_after) in anchors.into_iter().chain([(before.len(), after.len())]) {
        let gap = Hunk { before: from..anchor_before, after: to..anchor_after };
        compare_gap(before, after, gap, limits, &mut numbers, &mut work_left, &mut found);
        (from, to) = (anchor_before + 1, anchor_after + 1);
    }
    found
}

/// Compares the tokens between two anchors, or counts them as replaced if that would be too expensive.
fn compare_gap(
    before: &[Token],
    after: &[Token],
    gap: Hunk,
    limits: &WorkLimits,
    numbers: &mut LocalNumbers,
    work_left: &mut u64,
    found: &mut Vec<Hunk>,
) {
    if gap.before.is_empty() && gap.after.is_empty() {
        return;
    }
    let work = work(gap.before.len(), gap.after.len());
    let (algorithm, cost) = match work <= limits.histogram_work_max {
        true => (Algorithm::Histogram, work * HISTOGRAM_FACTOR),
        false => (Algorithm::Myers, work),
    };
    if work == 0 || cost > *work_left {
        found.push(gap);
        return;
    }
    *work_left -= cost;
    let (before, after) = (&before[gap.before.clone()], &after[gap.after.clone()]);
    let mut diff = Diff::default();
    let (local_before, local_after, count) = numbers.renumber(before, after);
    diff.compute_with(algorithm, &local_before, &local_after, count);
    numbers.forget(before, after);
    found.extend(Hunk::all_of(&diff).map(|hunk| hunk.shifted(gap.before.start, gap.after.start)));
}

/// Renumbers the tokens of one stretch, so that the cost of its comparison does not depend on tokens outside it.
struct LocalNumbers {
    ids: Vec<u32>,
}

impl LocalNumbers {
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

/// Returns the positions of tokens that occur once on each side: a longest list that ascends on both.
fn anchors(before: &[Token], after: &[Token], count: u32) -> Vec<(usize, usize)> {
    let (old, new) = (occurrences(before, count), occurrences(after, count));
    let common = before.iter().enumerate().filter_map(|(at, token)| {
        let token = token.0 as usize;
        (old[token] == Occurrence::Once(at as u32)).then_some(())?;
        match new[token] {
            Occurrence::Once(there) => Some((at, there as usize)),
            _ => None,
        }
    });
    longest_ascending(&common.collect::<Vec<_>>())
}

/// How often a token occurs in a list; a token that occurs once, with its position.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Occurrence {
    Never,
    Once(u32),
    Often,
}

fn occurrences(side: &[Token], count: u32) -> Vec<Occurrence> {
    let mut occurrences = vec![Occurrence::Never; count as usize];
    for (at, token) in (0..).zip(side) {
        let seen = &mut occurrences[token.0 as usize];
        *seen = if *seen == Occurrence::Never { Occurrence::Once(at) } else { Occurrence::Often };
    }
    occurrences
}

/// Returns the longest subsequence of pairs, ascending in their first element, that also ascends in the second.
fn longest_ascending(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
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
            for limits in [WorkLimits::DISPLAY, WorkLimits::MERGE, WorkLimits { work_max: 2_000, histogram_work_max: 50 }] {
                let (mut at, mut made) = (0, Vec::new());
                for hunk in anchored_hunks(&tokens(&before), &tokens(&after), 20, &limits) {
                    made.extend_from_slice(&before[at..hunk.before.start]);
                    made.extend_from_slice(&after[hunk.after]);
                    at = hunk.before.end;
                }
                made.extend_from_slice(&before[at..]);
                prop_assert_eq!(&made, &after);
            }
        }
    }

    #[test]
    fn the_longest_ascending_part_is_found() {
        assert_eq!(longest_ascending(&[(0, 5), (1, 0), (2, 1), (3, 7), (4, 2)]), [(1, 0), (2, 1), (4, 2)]);
        assert_eq!(longest_ascending(&[]), []);
    }
}
