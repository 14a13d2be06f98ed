//! Compares two texts line by line.
//!
//! A line ends with `\n`, which belongs to it. The last line may lack it and then differs from the same line with it. The
//! encoding does not matter. The algorithm is Git's histogram diff; anchors bound the time for large texts.

use std::ops::Range;

use imara_diff::{Algorithm, Diff, InternedInput};
use memchr::{memchr_iter, memrchr};

use crate::anchors::{WorkLimits, anchored_hunks};
use crate::hunk::Hunk;

/// Returns the hunks that turn one text into another, in ascending order, with at least one common line between two hunks. Where
/// a hunk could be placed in several positions, it is placed where a reader expects it, unless the texts are large.
pub fn line_hunks(before: &[u8], after: &[u8]) -> Vec<Hunk> {
    let input = InternedInput::new(before, after);
    if !WorkLimits::DISPLAY.is_small(input.before.len(), input.after.len()) {
        return rough_line_hunks(before, after);
    }
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_lines(&input);
    Hunk::all_of(&diff).collect()
}

/// Returns the hunks without optimising their position: the same number of lines, but faster.
pub fn rough_line_hunks(before: &[u8], after: &[u8]) -> Vec<Hunk> {
    let start = common_start(before, after);
    let (before, after, above) = (&before[start..], &after[start..], count_newlines(&before[..start]));
    let end = common_end(before, after);
    let (before, after) = (&before[..before.len() - end], &after[..after.len() - end]);
    if before.is_empty() && after.is_empty() {
        return Vec::new();
    }
    if before.is_empty() || after.is_empty() {
        let whole = |side| above..above + count_lines(side) as usize;
        return vec![Hunk { before: whole(before), after: whole(after) }];
    }
    let input = InternedInput::new(before, after);
    if WorkLimits::DISPLAY.is_small(input.before.len(), input.after.len()) {
        let diff = Diff::compute(Algorithm::Histogram, &input);
        return Hunk::all_of(&diff).map(|hunk| hunk.shifted(above, above)).collect();
    }
    let hunks = anchored_hunks(&input.before, &input.after, input.interner.num_tokens(), &WorkLimits::DISPLAY);
    hunks.into_iter().map(|hunk| hunk.shifted(above, above)).collect()
}

/// Returns the number of lines in a text.
pub fn count_lines(text: &[u8]) -> u64 {
    let unfinished = !text.is_empty() && !text.ends_with(b"\n");
    count_newlines(text) as u64 + u64::from(unfinished)
}

/// Returns the lines of a text including their terminators; the last one may lack it.
pub fn split_lines(text: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::with_capacity(text.len() / 24 + 1);
    let mut start = 0;
    for newline in memchr_iter(b'\n', text) {
        lines.push(&text[start..=newline]);
        start = newline + 1;
    }
    if start < text.len() {
        lines.push(&text[start..]);
    }
    lines
}

/// Returns the byte ranges of these ranges of lines, which ascend.
pub fn byte_ranges(text: &[u8], lines: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut starts = std::iter::once(0).chain(memchr_iter(b'\n', text).map(|at| at + 1)).enumerate();
    let mut start_of = |line: usize| starts.find(|(number, _)| *number == line).map_or(text.len(), |(_, start)| start);
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for lines in lines.filter(|lines| !lines.is_empty()) {
        let start = start_of(lines.start);
        ranges.push(start..start_of(lines.end));
    }
    ranges
}

fn count_newlines(text: &[u8]) -> usize {
    memchr_iter(b'\n', text).count()
}

/// Returns the length in bytes of the common leading whole lines.
fn common_start(before: &[u8], after: &[u8]) -> usize {
    const STEP: usize = 64;
    let steps = before.chunks_exact(STEP).zip(after.chunks_exact(STEP)).take_while(|(ours, theirs)| ours == theirs);
    let mut common = steps.count() * STEP;
    common += before[common..].iter().zip(&after[common..]).take_while(|(ours, theirs)| ours == theirs).count();
    if common == before.len() && common == after.len() {
        return common;
    }
    memrchr(b'\n', &before[..common]).map_or(0, |newline| newline + 1)
}

/// Returns the length in bytes of the common trailing whole lines.
fn common_end(before: &[u8], after: &[u8]) -> usize {
    const STEP: usize = 64;
    let steps = before.rchunks_exact(STEP).zip(after.rchunks_exact(STEP)).take_while(|(ours, theirs)| ours == theirs);
    let mut common = steps.count() * STEP;
    let rest = |side: &[u8]| side.len() - common;
    let (ours, theirs) = (&before[..rest(before)], &after[..rest(after)]);
    common += ours.iter().rev().zip(theirs.iter().rev()).take_while(|(ours, theirs)| ours == theirs).count();
    let tail = &before[before.len() - common..];
    memchr::memchr(b'\n', tail).map_or(0, |newline| tail.len() - newline - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(before: &str, after: &str, expected: &[(Range<usize>, Range<usize>)]) {
        let expected: Vec<_> =
            expected.iter().map(|(before, after)| Hunk { before: before.clone(), after: after.clone() }).collect();
        assert_eq!(line_hunks(before.as_bytes(), after.as_bytes()), expected, "{before:?} {after:?}");
        assert_eq!(rough_line_hunks(before.as_bytes(), after.as_bytes()), expected, "{before:?} {after:?}");
    }

    #[test]
    fn hunks_are_ranges_of_lines() {
        check("", "", &[]);
        check("a\nb\n", "a\nb\n", &[]);
        check("", "a\nb\n", &[(0..0, 0..2)]);
        check("a\nb\n", "", &[(0..2, 0..0)]);
        check("a\nb\nc\n", "a\nx\nc\n", &[(1..2, 1..2)]);
        check("a\nb\nc\nd\n", "x\na\nb\nc\n", &[(0..0, 0..1), (3..4, 4..4)]);
    }

    #[test]
    fn a_last_line_without_newline_differs_from_one_with_it() {
        check("a\nb", "a\nb\n", &[(1..2, 1..2)]);
        check("a\nb", "a\nb", &[]);
        check("a", "a\r\n", &[(0..1, 0..1)]);
        check("b\na", "a", &[(0..1, 0..0)]);
    }

    #[test]
    fn counts_and_places_lines() {
        assert_eq!([b"".as_slice(), b"\n", b"a", b"a\nb", b"a\nb\n"].map(count_lines), [0, 1, 1, 2, 2]);
        assert_eq!(byte_ranges(b"ab\nc\n\nd", [0..1, 1..1, 2..4].into_iter()), [0..3, 5..7]);
        assert_eq!(byte_ranges(b"ab\nc\n", [0..0, 1..2].into_iter()), vec![3..5]);
    }

    #[test]
    fn lines_keep_their_terminators() {
        assert_eq!(split_lines(b"a\r\n\nb"), [&b"a\r\n"[..], b"\n", b"b"]);
        assert!(split_lines(b"").is_empty());
    }

    #[test]
    fn hostile_texts_take_bounded_work() {
        let text = |odd: &str, of: usize| -> Vec<u8> {
            (0..60_000).flat_map(|line| format!("{}\n{odd}{line}\n", line % of).into_bytes()).collect()
        };
        for of in [usize::MAX, 70, 3] {
            let (before, after) = (text("a", of), text("b", of));
            let hunks = rough_line_hunks(&before, &after);
            assert_eq!(apply(&before, &after, &hunks), after);
            // With anchors every other line is common; without them the stretch is too long to compare.
            assert_eq!(hunks.len(), if of == usize::MAX { 60_000 } else { 1 });
        }
    }

    /// Applies the hunks.
    fn apply(before: &[u8], after: &[u8], hunks: &[Hunk]) -> Vec<u8> {
        let (old, new) = (split_lines(before), split_lines(after));
        let mut out = Vec::new();
        let mut at = 0;
        for hunk in hunks {
            assert!(!hunk.before.is_empty() || !hunk.after.is_empty());
            out.extend_from_slice(&old[at..hunk.before.start]);
            out.extend_from_slice(&new[hunk.after.clone()]);
            at = hunk.before.end;
        }
        out.extend_from_slice(&old[at..]);
        out.concat()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn hunks_make_one_text_of_the_other(
            before in prop::collection::vec(0..6_u8, 0..40),
            after in prop::collection::vec(0..6_u8, 0..40),
            cut in any::<bool>(),
        ) {
            let text = |lines: &[u8]| -> Vec<u8> {
                lines.iter().flat_map(|line| [&b"  {}\n"[..], b"\n", b"a\n", b"\tb\n", b"c\r\n", b"dd\n"][*line as usize].to_vec()).collect()
            };
            let (before, mut after) = (text(&before), text(&after));
            if cut {
                after.pop();
            }
            let (fine, rough) = (line_hunks(&before, &after), rough_line_hunks(&before, &after));
            prop_assert_eq!(&apply(&before, &after, &fine), &after);
            prop_assert_eq!(&apply(&before, &after, &rough), &after);
            let lines = |hunks: &[Hunk]| hunks.iter().fold((0, 0), |(old, new), hunk| (old + hunk.before.len(), new + hunk.after.len()));
            prop_assert_eq!(lines(&fine), lines(&rough));
            prop_assert!(fine.windows(2).all(|pair| pair[0].before.end < pair[1].before.start && pair[0].after.end < pair[1].after.start));
        }
    }
}
