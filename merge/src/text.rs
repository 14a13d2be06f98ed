//! Merges texts by lines: diff3 with Git's definition of adjacent changes.
//!
//! Changes of both sides that overlap or are adjacent form one region. A region that only one side changed, or both in the same
//! way, is clean. Regions are not split further: a clean result never depends on heuristics, and a rendered conflict shows all
//! lines that belong together.

use std::ops::Range;

use amalgam_textdiff::{Hunk, token_hunks};

use crate::job::Job;
use crate::markers::{self, Labels, MarkerStyle, Part, Rendered, Section};
use crate::outcome::{Clash, Conflicted, Outcome};
use crate::region::{Region, RegionKind, regions};
use crate::sides::Sides;
use crate::three_texts::{BASE, OURS, THEIRS, ThreeTexts};

pub(crate) fn run(job: &Job<'_>) -> Outcome {
    match job.check_text() {
        Ok(()) => merge(&job.sides, &job.setting.labels),
        Err(why) => Outcome::Unable(why),
    }
}

/// Renders the whole differing range as one conflict, for versions that disagree in a way that lines do not show.
pub(crate) fn whole(sides: &Sides<'_>, labels: &Labels, marks: &MarkerStyle) -> Rendered {
    let three = ThreeTexts::new([sides.base_or_empty(), sides.ours, sides.theirs]);
    let [base, ours, theirs] = &three.lines;
    let shortest = base.len().min(ours.len()).min(theirs.len());
    let is_common = |base: &&[u8], ours: &&[u8], theirs: &&[u8]| base == ours && base == theirs;
    let start = (0..shortest).take_while(|at| is_common(&base[*at], &ours[*at], &theirs[*at])).count();
    let last = |side: &[&[u8]], at: usize| side.len() - 1 - at;
    let from_end = |at: &usize| is_common(&base[last(base, *at)], &ours[last(ours, *at)], &theirs[last(theirs, *at)]);
    let end = (0..shortest - start).take_while(from_end).count();
    let [base, ours, theirs] = three.lines.each_ref().map(|side| start..side.len() - end);
    let region = Region { kind: RegionKind::Conflict, base, ours, theirs };
    markers::render(&parts(&three, &[region], labels), marks)
}

/// Merges by lines, regardless of the content.
pub(crate) fn merge(sides: &Sides<'_>, labels: &Labels) -> Outcome {
    merge_marked(sides, labels, &MarkerStyle::of_sides(sides, labels))
}

/// Merges texts that represent the versions of a conflict with these marks, by lines.
pub(crate) fn merge_marked(sides: &Sides<'_>, labels: &Labels, marks: &MarkerStyle) -> Outcome {
    let three = ThreeTexts::new([sides.base_or_empty(), sides.ours, sides.theirs]);
    let regions = match sides.base {
        Some(_) => regions([BASE, OURS, THEIRS].map(|at| three.tokens(at)), three.count()),
        None => added(&three),
    };
    if regions.iter().all(|region| region.kind != RegionKind::Conflict) {
        let mut merged = Vec::with_capacity(sides.ours.len() + sides.theirs.len() / 8);
        for part in parts(&three, &regions, labels) {
            let Part::Clean(lines) = part else { unreachable!("no region is in conflict") };
            lines.iter().for_each(|line| merged.extend_from_slice(line));
        }
        return Outcome::Merged(merged);
    }
    let conflicts = regions.iter().filter(|region| region.kind == RegionKind::Conflict);
    let place = |range: &Range<usize>| (range.start, range.len());
    let clash = |region: &Region| Clash::Lines {
        base: place(&region.base),
        ours: place(&region.ours),
        theirs: place(&region.theirs),
    };
    let clashes = conflicts.map(clash).collect();
    let rendered = markers::render(&parts(&three, &regions, labels), marks);
    Outcome::Conflicted(Conflicted { clashes, rendered })
}

/// Splits the three versions into clean and conflicting parts.
fn parts<'a>(three: &'a ThreeTexts<'a>, regions: &[Region], labels: &'a Labels) -> Vec<Part<'a>> {
    let [base, ours, theirs] = &three.lines;
    let mut parts = Vec::with_capacity(regions.len() * 2 + 1);
    let mut at = 0;
    for region in regions {
        parts.push(Part::Clean(&ours[at..region.ours.start]));
        parts.push(match region.kind {
            RegionKind::Ours => Part::Clean(&ours[region.ours.clone()]),
            RegionKind::Theirs => Part::Clean(&theirs[region.theirs.clone()]),
            RegionKind::Conflict => Part::Conflict {
                sections: vec![
                    Section::new(b'<', labels.ours.as_str(), &ours[region.ours.clone()]),
                    Section::new(b'|', labels.base.as_str(), &base[region.base.clone()]),
                    Section::bare(b'=', &theirs[region.theirs.clone()]),
                    Section::new(b'>', labels.theirs.as_str(), &[]),
                ],
                cr: markers::ends_with_cr([base, ours, theirs], region),
            },
        });
        at = region.ours.end;
    }
    parts.push(Part::Clean(&ours[at..]));
    parts
}

/// Returns the regions without a base: equal lines are common, and all others are a conflict.
fn added(three: &ThreeTexts<'_>) -> Vec<Region> {
    let hunks = token_hunks(three.tokens(OURS), three.tokens(THEIRS), three.count()).into_iter();
    let region = |hunk: Hunk| Region { kind: RegionKind::Conflict, base: 0..0, ours: hunk.before, theirs: hunk.after };
    hunks.map(region).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Options;
    use crate::outcome::MergeSettings;
    use crate::strategy::MergeStrategy;

    fn merged(base: &str, ours: &str, theirs: &str) -> String {
        let sides = Sides { base: Some(base.as_bytes()), ours: ours.as_bytes(), theirs: theirs.as_bytes() };
        match merge(&sides, &Labels::plain("ours", "base", "theirs")) {
            Outcome::Merged(bytes) => String::from_utf8(bytes).expect("text"),
            Outcome::Conflicted(conflicted) => String::from_utf8(conflicted.rendered.bytes).expect("text"),
            Outcome::Unable(why) => panic!("{why}"),
        }
    }

    #[test]
    fn changes_apart_from_each_other_are_both_there() {
        assert_eq!(merged("a\nb\nc\n", "A\nb\nc\n", "a\nb\nC\n"), "A\nb\nC\n");
        assert_eq!(merged("a\nb\nc\n", "b\nc\n", "a\nb\nc\nd\n"), "b\nc\nd\n");
        assert_eq!(merged("a\r\nb\r\nc\r\n", "A\r\nb\r\nc\r\n", "a\r\nb\r\nC"), "A\r\nb\r\nC");
    }

    #[test]
    fn changes_that_touch_each_other_are_a_conflict() {
        let conflict = "<<<<<<< ours\nA\nb\n||||||| base\na\nb\n=======\na\nB\n>>>>>>> theirs\nc\n";
        assert_eq!(merged("a\nb\nc\n", "A\nb\nc\n", "a\nB\nc\n"), conflict);
    }

    #[test]
    fn the_same_change_on_both_sides_is_made_once() {
        assert_eq!(merged("a\nb\nc\nd\n", "a\nX\nc\nd\n", "a\nX\nc\nD\n"), "a\nX\nc\nD\n");
        assert_eq!(merged("a\nb\n", "a\nn\nb\nx\n", "a\nn\nb\n"), "a\nn\nb\nx\n");
    }

    #[test]
    fn a_missing_newline_at_the_end_stays_missing_but_not_before_a_marker() {
        assert_eq!(merged("a\nb\nc", "A\nb\nc", "a\nb\nC"), "A\nb\nC");
        let conflict = "<<<<<<< ours\nx\n||||||| base\na\n=======\ny\n>>>>>>> theirs\n";
        assert_eq!(merged("a", "x", "y"), conflict);
        assert_eq!(merged("a\r\nb", "a\r\nx", "a\r\ny").matches("\r\n").count(), 8);
    }

    #[test]
    fn files_that_both_added_conflict_where_they_differ() {
        let sides = Sides { base: None, ours: b"a\nb\nc\n", theirs: b"a\nx\nc\n" };
        let Outcome::Conflicted(conflicted) = merge(&sides, &Labels::plain("o", "b", "t")) else {
            panic!("a conflict")
        };
        assert_eq!(conflicted.rendered.bytes, b"a\n<<<<<<< o\nb\n||||||| b\n=======\nx\n>>>>>>> t\nc\n");
        assert_eq!(conflicted.clashes, [Clash::Lines { base: (0, 0), ours: (1, 1), theirs: (1, 1) }]);
    }

    #[test]
    fn what_is_no_text_or_too_large_is_left_to_others() {
        let (setting, mut options) = (MergeSettings::default(), Options::default());
        let sides = Sides { base: Some(b"a"), ours: b"a\0b", theirs: b"c" };
        let why = |options: &Options| match run(&Job { sides, setting: &setting, options }) {
            Outcome::Unable(why) => why.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(why(&options), "ours is binary");
        options.bytes_max = Some(2);
        assert_eq!(why(&options), "3 bytes are more than the limit of 2");
        assert_eq!(MergeStrategy::named("text").map(|strategy| strategy.option_names().len()), Some(0));
    }
}
