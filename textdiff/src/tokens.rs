//! Compares two lists of tokens: lines of a text, elements of a list, or characters.
//!
//! The algorithm is Git's histogram diff without indentation heuristics, so that merges agree with Git's. Large lists are split
//! at anchors. When the work budget is exhausted, a stretch counts as replaced. This may report a conflict where there is none,
//! but never loses a change.

use imara_diff::{Algorithm, Diff, NoSliderHeuristic, Token};

use crate::anchors::{WorkLimits, anchored_hunks};
use crate::hunk::Hunk;

/// Returns the hunks that turn one list into another, in ascending order. All tokens are below `count`.
pub fn token_hunks(before: &[Token], after: &[Token], count: u32) -> Vec<Hunk> {
    let limits = WorkLimits::MERGE;
    let start = before.iter().zip(after).take_while(|(ours, theirs)| ours == theirs).count();
    let (inner_before, inner_after) = (&before[start..], &after[start..]);
    let end = inner_before.iter().rev().zip(inner_after.iter().rev()).take_while(|(a, b)| a == b).count();
    let (inner_before, inner_after) =
        (&inner_before[..inner_before.len() - end], &inner_after[..inner_after.len() - end]);
    if !limits.is_small(inner_before.len(), inner_after.len()) {
        let found = anchored_hunks(inner_before, inner_after, count, &limits).into_iter();
        return found.map(|hunk| hunk.shifted(start, start)).collect();
    }
    let mut diff = Diff::default();
    diff.compute_with(Algorithm::Histogram, before, after, count);
    diff.postprocess_with(before, after, NoSliderHeuristic);
    Hunk::all_of(&diff).collect()
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
            prop_assert_eq!(&apply(&before, &after, &token_hunks(&old, &new, 12)), &after);
            prop_assert_eq!(&apply(&before, &after, &anchored_hunks(&old, &new, 12, &WorkLimits::MERGE)), &after);
        }
    }
}
