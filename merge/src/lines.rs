//! Compares two lists of tokens: lines of a text, elements of a list, or characters.
//!
//! The algorithm is Git's histogram diff without indentation heuristics, so that merges agree with Git's. Large lists are split
//! at the tokens that occur once on each side, and the total work is bounded. When the budget is exhausted, a stretch counts as
//! replaced. This may report a conflict where there is none, but never loses a change.

use std::ops::Range;

use imara_diff::{Algorithm, Diff, Interner, NoSliderHeuristic, Token};

/// Work is the product of the lengths of both lists.
const WORK_MAX: u64 = 1_000_000_000;
/// Above this amount of work, Myers replaces the histogram algorithm.
const HISTOGRAM_WORK_MAX: u64 = 40_000_000;
/// How much more expensive the histogram algorithm may be than Myers for the same work.
const HISTOGRAM_FACTOR: u64 = 8;

/// A range of differing tokens on both sides. One of the ranges may be empty, not both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hunk {
    pub(crate) before: Range<usize>,
    pub(crate) after: Range<usize>,
}

/// Three texts split into lines, with a token for each line. Equal lines have equal tokens.
pub(crate) struct Three<'a> {
    pub(crate) lines: [Vec<&'a [u8]>; 3],
    tokens: [Vec<Token>; 3],
    count: u32,
}

pub(crate) const BASE: usize = 0;
pub(crate) const OURS: usize = 1;
pub(crate) const THEIRS: usize = 2;

impl<'a> Three<'a> {
    pub(crate) fn new(texts: [&'a [u8]; 3]) -> Self {
        let lines = texts.map(split);
        let mut interner = Interner::new(lines[BASE].len() + lines[BASE].len() / 4);
        let tokens = [BASE, OURS, THEIRS].map(|at| lines[at].iter().map(|line| interner.intern(*line)).collect());
        Self { lines, tokens, count: interner.num_tokens() }
    }

    /// Returns the lines of a version as tokens below [`Self::count`].
    pub(crate) fn tokens(&self, version: usize) -> &[Token] {
        &self.tokens[version]
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }
}

/// Returns the lines of a text including their terminators; the last one may lack it.
pub(crate) fn split(text: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::with_capacity(text.len() / 24 + 1);
    let mut start = 0;
    for newline in memchr::memchr_iter(b'\n', text) {
        lines.push(&text[start..=newline]);
        start = newline + 1;
    }
    if start < text.len() {
        lines.push(&text[start..]);
    }
    lines
}

/// Returns the hunks that turn one list into another, in ascending order. All tokens are below `count`.
pub(crate) fn hunks(before: &[Token], after: &[Token], count: u32) -> Vec<Hunk> {
    let start = before.iter().zip(after).take_while(|(ours, theirs)| ours == theirs).count();
    let (inner_before, inner_after) = (&before[start..], &after[start..]);
    let end = inner_before.iter().rev().zip(inner_after.iter().rev()).take_while(|(a, b)| a == b).count();
    let work = work(inner_before.len() - end, inner_after.len() - end);
    if work > HISTOGRAM_WORK_MAX {
        let inside = |side: Range<usize>| side.start + start..side.end + start;
        let (before, after) = (&inner_before[..inner_before.len() - end], &inner_after[..inner_after.len() - end]);
        let found = between_anchors(before, after, count).into_iter();
        return found.map(|hunk| Hunk { before: inside(hunk.before), after: inside(hunk.after) }).collect();
    }
    let mut diff = Diff::default();
    diff.compute_with(Algorithm::Histogram, before, after, count);
    diff.postprocess_with(before, after, NoSliderHeuristic);
    let wide = |range: Range<u32>| range.start as usize..range.end as usize;
    diff.hunks().map(|hunk| Hunk { before: wide(hunk.before), after: wide(hunk.after) }).collect()
}

fn work(before: usize, after: usize) -> u64 {
    (before as u64).saturating_mul(after as u64)
}

fn between_anchors(before: &[Token], after: &[Token], count: u32) -> Vec<Hunk> {
    let mut found = Vec::new();
    let mut left = WORK_MAX;
    let (mut from, mut to) = (0, 0);
    for (anchor, there) in anchors(before, after, count).into_iter().chain([(before.len(), after.len())]) {
        stretch(before, after, Hunk { before: from..anchor, after: to..there }, &mut left, &mut found);
        (from, to) = (anchor + 1, there + 1);
    }
    found
}

/// Compares the tokens between two anchors, or counts them as replaced if that would be too expensive.
fn stretch(before: &[Token], after: &[Token], gap: Hunk, left: &mut u64, found: &mut Vec<Hunk>) {
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
    let mut numbers = Interner::new(gap.before.len());
    let mut local = |side: &[Token]| side.iter().map(|token| numbers.intern(token.0)).collect::<Vec<_>>();
    let (ours, theirs) = (local(&before[gap.before.clone()]), local(&after[gap.after.clone()]));
    let mut diff = Diff::default();
    diff.compute_with(algorithm, &ours, &theirs, numbers.num_tokens());
    let shift = |range: Range<u32>, by: usize| range.start as usize + by..range.end as usize + by;
    let moved = |hunk: imara_diff::Hunk| Hunk {
        before: shift(hunk.before, gap.before.start),
        after: shift(hunk.after, gap.after.start),
    };
    found.extend(diff.hunks().map(moved));
}

/// Returns the positions of tokens that occur once in each list: a longest list that ascends in both.
fn anchors(before: &[Token], after: &[Token], count: u32) -> Vec<(usize, usize)> {
    const NOWHERE: u32 = u32::MAX;
    const OFTEN: u32 = u32::MAX - 1;
    let places = |side: &[Token]| {
        let mut places = vec![NOWHERE; count as usize];
        for (at, token) in (0..).zip(side) {
            let place = &mut places[token.0 as usize];
            *place = if *place == NOWHERE { at } else { OFTEN };
        }
        places
    };
    let (old, new) = (places(before), places(after));
    let both = (0..count as usize).filter(|token| old[*token] < OFTEN && new[*token] < OFTEN);
    let mut pairs: Vec<_> = both.map(|token| (old[token] as usize, new[token] as usize)).collect();
    pairs.sort_unstable();
    ascending(&pairs)
}

/// Returns the longest subsequence of pairs, ascending in their first element, that also ascends in the second.
fn ascending(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
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

    fn tokens(numbers: &[u32]) -> Vec<Token> {
        numbers.iter().map(|number| Token(*number)).collect()
    }

    fn apply(before: &[u32], after: &[u32], hunks: &[Hunk]) -> Vec<u32> {
        let (mut at, mut made) = (0, Vec::new());
        for hunk in hunks {
            made.extend_from_slice(&before[at..hunk.before.start]);
            made.extend_from_slice(&after[hunk.after.clone()]);
            at = hunk.before.end;
        }
        made.extend_from_slice(&before[at..]);
        made
    }

    proptest! {
        #[test]
        fn hunks_make_one_list_of_the_other(
            before in prop::collection::vec(0..12_u32, 0..60),
            after in prop::collection::vec(0..12_u32, 0..60),
        ) {
            let (old, new) = (tokens(&before), tokens(&after));
            prop_assert_eq!(&apply(&before, &after, &hunks(&old, &new, 12)), &after);
            prop_assert_eq!(&apply(&before, &after, &between_anchors(&old, &new, 12)), &after);
        }
    }

    #[test]
    fn lines_keep_their_terminators() {
        assert_eq!(split(b"a\r\n\nb"), [&b"a\r\n"[..], b"\n", b"b"]);
        assert!(split(b"").is_empty());
    }
}
