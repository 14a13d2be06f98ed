//! Merges logs and other files to which lines are only added: keeps the insertions of both sides at one position, ours first.
//!
//! Lines that both insertions start or end with are kept once. A line that both sides changed is kept in both forms.

use crate::job::Job;
use crate::outcome::Outcome;
use crate::region::{RegionKind, regions};
use crate::three_texts::{BASE, OURS, THEIRS, ThreeTexts};

pub(crate) fn run(job: &Job<'_>) -> Outcome {
    if let Err(why) = job.check_text() {
        return Outcome::Unable(why);
    }
    let three = ThreeTexts::new([job.sides.base_or_empty(), job.sides.ours, job.sides.theirs]);
    let [_, ours, theirs] = &three.lines;
    let mut merged = Lines::default();
    let mut at = 0;
    for region in regions([BASE, OURS, THEIRS].map(|at| three.tokens(at)), three.count()) {
        merged.add(&ours[at..region.ours.start]);
        let (mine, other) = (&ours[region.ours.clone()], &theirs[region.theirs.clone()]);
        match region.kind {
            RegionKind::Ours => merged.add(mine),
            RegionKind::Theirs => merged.add(other),
            RegionKind::Conflict => {
                let start = mine.iter().zip(other).take_while(|(a, b)| a == b).count();
                let end = mine[start..].iter().rev().zip(other[start..].iter().rev()).take_while(|(a, b)| a == b);
                let end = end.count();
                merged.add(&mine[..mine.len() - end]);
                merged.add(&other[start..]);
            }
        }
        at = region.ours.end;
    }
    merged.add(&ours[at..]);
    Outcome::Merged(merged.bytes)
}

#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
}

impl Lines {
    /// Appends lines. A last line without a newline gets one when another line follows.
    fn add(&mut self, lines: &[&[u8]]) {
        for line in lines {
            if self.bytes.last().is_some_and(|last| *last != b'\n') {
                self.bytes.push(b'\n');
            }
            self.bytes.extend_from_slice(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::MergeSettings;
    use crate::sides::Sides;
    use crate::strategy::{MergeStrategy, merge};

    #[test]
    fn lines_that_both_added_are_all_there() {
        let check = |base: &str, ours: &str, theirs: &str, expected: &str| {
            let sides = Sides { base: Some(base.as_bytes()), ours: ours.as_bytes(), theirs: theirs.as_bytes() };
            let strategy = MergeStrategy::named("union").expect("a way");
            assert_eq!(
                merge(&strategy, &sides, &MergeSettings::default()),
                Outcome::Merged(expected.into()),
                "{ours:?} {theirs:?}"
            );
        };
        check("a\n", "a\nb\n", "a\nc\n", "a\nb\nc\n");
        check("a\n", "a\nb\nx\n", "a\nb\ny\n", "a\nb\nx\ny\n");
        check("a", "a\nb", "a\nc", "a\nb\nc");
        check("", "b\nz\n", "c\nz\n", "b\nc\nz\n");
        check("1\n2\n3\n", "0\n1\n2\n3\n", "1\n2\n3\n4\n", "0\n1\n2\n3\n4\n");
    }
}
