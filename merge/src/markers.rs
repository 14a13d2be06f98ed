//! Conflict markers in a file, in Git's diff3 style, and the interpretation of edits of such a file.
//!
//! Each marker line carries a tag, which is a hash of all versions, and the number of its region: `<<<<<<< ours [amalgam 1f0c9a24
//! 1/2]`. If a region has more than two sides, each side after the base starts with a `=======` line that names it. If a file
//! contains lines that look like markers, the markers are longer than those, so that the file is never mistaken for a conflict.
//! Labels are not part of the conflict: a file that differs only in labels is the same conflict.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use amalgam_textdiff::split_lines;

use crate::region::Region;
use crate::sides::Sides;

const MARKER_LENGTH_MIN: usize = 7;
const LABEL_BYTES_MAX: usize = 200;
/// Runs of one character longer than this do not make markers longer.
const MARKER_LENGTH_MAX: usize = 200;
const TAG_NAME: &str = "amalgam";
const SIGNS: [u8; 4] = *b"<|=>";
/// The start of the label of the last line in a region with more than two versions.
pub(crate) const END_PREFIX: &str = "end of ";
/// The suffix of the label of a side that removed the file.
pub(crate) const REMOVED_SUFFIX: &str = " removed the file";

/// The labels of the versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels {
    /// The label of ours.
    pub ours: String,
    /// The label of the base.
    pub base: String,
    /// The label of theirs.
    pub theirs: String,
    /// Whether marker lines carry a tag. Without tags, the parser only checks the marker's length.
    pub tagged: bool,
}

impl Labels {
    /// Creates labels with tags.
    pub fn new(ours: &str, base: &str, theirs: &str) -> Self {
        Self { tagged: true, ..Self::plain(ours, base, theirs) }
    }

    /// Creates labels as in Git, without tags.
    pub fn plain(ours: &str, base: &str, theirs: &str) -> Self {
        Self { ours: sanitise_label(ours), base: sanitise_label(base), theirs: sanitise_label(theirs), tagged: false }
    }
}

impl Default for Labels {
    fn default() -> Self {
        Self::new("ours", "base", "theirs")
    }
}

/// Sanitises a label: one line of limited length.
pub(crate) fn sanitise_label(label: &str) -> String {
    let mut plain: String = label.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    plain.truncate(plain.floor_char_boundary(LABEL_BYTES_MAX));
    plain
}

/// The tag and the length of the marker lines of a conflict. They depend only on the versions, not on the rendering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkerStyle {
    /// The tag; empty for lines without one.
    pub tag: String,
    /// The number of characters in a marker.
    pub length: usize,
}

impl MarkerStyle {
    /// Computes the marks of a conflict from its removed and added versions; an absent version is `None`.
    pub fn of(removed: &[Option<&[u8]>], added: &[Option<&[u8]>]) -> Self {
        let versions = || removed.iter().chain(added).copied();
        Self { tag: tag(versions()), length: length(versions()) }
    }

    pub(crate) fn of_sides(sides: &Sides<'_>, labels: &Labels) -> Self {
        let marks = Self::of(&[sides.base], &[Some(sides.ours), Some(sides.theirs)]);
        if labels.tagged { marks } else { Self { tag: String::new(), ..marks } }
    }

    /// Returns whether a text contains a marker line with the tag of this conflict.
    pub fn is_in(&self, bytes: &[u8]) -> bool {
        split_lines(bytes).into_iter().any(|line| our_marker(line, self).flatten().is_some())
    }

    /// Returns the number of regions of a text with marker lines of this conflict. If only bare lines are left, they count as one
    /// region.
    pub fn regions_in(&self, bytes: &[u8]) -> usize {
        let mut left = BTreeSet::new();
        let mut bare = false;
        for line in split_lines(bytes) {
            match our_marker(line, self) {
                Some(Some(number)) => drop(left.insert(number)),
                Some(None) => bare = true,
                None => {}
            }
        }
        if left.is_empty() { usize::from(bare) } else { left.len() }
    }
}

/// A conflict rendered as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// All bytes of the file.
    pub bytes: Vec<u8>,
    /// The tag of its marker lines; empty for lines without one.
    pub tag: String,
    /// The number of characters in a marker.
    pub length: usize,
    /// The number of marked regions.
    pub regions: usize,
}

impl Rendered {
    /// Returns the tag and the length of its marker lines.
    pub fn marks(&self) -> MarkerStyle {
        MarkerStyle { tag: self.tag.clone(), length: self.length }
    }
}

/// The interpretation of an edit of a rendered conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditState {
    /// Unchanged: the same conflict.
    Untouched,
    /// No marker line of ours is left.
    Resolved,
    /// Marker lines of this many regions are left.
    StillHas(usize),
}

/// A range of lines to render.
pub(crate) enum Part<'a> {
    Clean(&'a [&'a [u8]]),
    Conflict { sections: Vec<Section<'a>>, cr: bool },
}

/// One version in a region: its marker line and the lines after it. The last section of a region has no lines.
pub(crate) struct Section<'a> {
    pub(crate) sign: u8,
    /// `None` for a bare line, which carries no tag either.
    pub(crate) label: Option<Cow<'a, str>>,
    pub(crate) lines: &'a [&'a [u8]],
}

impl<'a> Section<'a> {
    pub(crate) fn new(sign: u8, label: impl Into<Cow<'a, str>>, lines: &'a [&'a [u8]]) -> Self {
        Self { sign, label: Some(label.into()), lines }
    }

    pub(crate) fn bare(sign: u8, lines: &'a [&'a [u8]]) -> Self {
        Self { sign, label: None, lines }
    }
}

/// Writes clean parts verbatim and conflicts between markers.
pub(crate) fn render(parts: &[Part<'_>], marks: &MarkerStyle) -> Rendered {
    let MarkerStyle { tag, length } = marks;
    let regions = parts.iter().filter(|part| matches!(part, Part::Conflict { .. })).count();
    let mut out = Vec::new();
    let mut number = 0;
    for part in parts {
        match part {
            Part::Clean(lines) => lines.iter().for_each(|line| out.extend_from_slice(line)),
            Part::Conflict { sections, cr } => {
                number += 1;
                let newline: &[u8] = if *cr { b"\r\n" } else { b"\n" };
                for Section { sign, label, lines } in sections {
                    out.resize(out.len() + length, *sign);
                    if let Some(label) = label.as_ref().filter(|label| !label.is_empty() || !tag.is_empty()) {
                        out.push(b' ');
                        out.extend_from_slice(label.as_bytes());
                        if !tag.is_empty() {
                            out.extend_from_slice(format!(" [{TAG_NAME} {tag} {number}/{regions}]").as_bytes());
                        }
                    }
                    out.extend_from_slice(newline);
                    lines.iter().for_each(|line| out.extend_from_slice(line));
                    if lines.last().is_some_and(|line| !line.ends_with(b"\n")) {
                        out.extend_from_slice(newline);
                    }
                }
            }
        }
    }
    Rendered { bytes: out, tag: tag.clone(), length: *length, regions }
}

/// Interprets an edited file of a rendered conflict.
pub fn read_edit(bytes: &[u8], rendered: &Rendered) -> EditState {
    let marks = rendered.marks();
    if bytes == rendered.bytes || without_labels(bytes, &marks) == without_labels(&rendered.bytes, &marks) {
        return EditState::Untouched;
    }
    match marks.regions_in(bytes) {
        0 => EditState::Resolved,
        regions => EditState::StillHas(regions),
    }
}

/// Removes the labels from the marker lines of a conflict and keeps their tags. A line with other text than a label was edited by
/// the user and stays unchanged.
fn without_labels(bytes: &[u8], marks: &MarkerStyle) -> Vec<u8> {
    let mut plain = Vec::with_capacity(bytes.len());
    for line in split_lines(bytes) {
        let label_end = our_marker(line, marks).flatten().and_then(|_| label_end(line, marks));
        match label_end {
            Some(end) => {
                plain.extend_from_slice(&line[..marks.length]);
                plain.extend_from_slice(&line[end..]);
            }
            None => plain.extend_from_slice(line),
        }
    }
    plain
}

/// Returns the end of the label of an unedited marker line, or `None` for any other line.
fn label_end(line: &[u8], marks: &MarkerStyle) -> Option<usize> {
    let tag = format!(" [{TAG_NAME} {} ", marks.tag);
    let end = memchr::memmem::find(line, tag.as_bytes())?;
    let label = std::str::from_utf8(line.get(marks.length..end)?).ok()?.strip_prefix(' ')?;
    let numbers = std::str::from_utf8(&line[end + tag.len()..]).ok()?.trim_end_matches(['\r', '\n']);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (number, regions) = numbers.strip_suffix(']')?.split_once('/')?;
    let is_word = |word: &str| {
        let (kind, number) = word.split_once('-').unwrap_or((word, "1"));
        matches!(kind, "ours" | "theirs" | "base" | "side" | "draft") && is_number(number)
    };
    let is_side = |side: &str| {
        let side = side.strip_suffix(REMOVED_SUFFIX).unwrap_or(side);
        let word = side.strip_suffix(')').and_then(|side| side.rsplit_once(" (")).map_or(side, |(_, word)| word);
        is_word(word) && !side.contains('[')
    };
    let is_label = label.starts_with(END_PREFIX) || label.split(", ").all(is_side);
    (is_label && is_number(number) && is_number(regions)).then_some(end)
}

/// Returns whether a line is one of our markers, and its region number if it has one.
fn our_marker(line: &[u8], marks: &MarkerStyle) -> Option<Option<usize>> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let sign = *line.first().filter(|sign| SIGNS.contains(sign))?;
    let run = line.iter().take_while(|byte| **byte == sign).count();
    if run != marks.length {
        return None;
    }
    let rest = &line[run..];
    if rest.is_empty() && sign == b'=' || marks.tag.is_empty() {
        // No version has such a line, because markers are longer than any such run.
        return (rest.is_empty() || (sign != b'=' && rest[0] == b' ')).then_some(None);
    }
    let tag = format!("[{TAG_NAME} {} ", marks.tag);
    let at = memchr::memmem::rfind(rest, tag.as_bytes())?;
    let number = rest[at + tag.len()..].split(|byte| *byte == b'/').next()?;
    std::str::from_utf8(number).ok()?.parse().ok().map(Some)
}

/// Returns a short hash of all versions.
fn tag<'a>(versions: impl Iterator<Item = Option<&'a [u8]>>) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("amalgam conflict tag 1");
    for version in versions {
        hasher.update(&version.map_or(u64::MAX, |bytes| bytes.len() as u64).to_le_bytes());
        hasher.update(version.unwrap_or_default());
    }
    hasher.finalize().to_hex()[..8].to_owned()
}

/// Returns a length greater than any run of a marker character at the start of a line in any version.
fn length<'a>(versions: impl Iterator<Item = Option<&'a [u8]>>) -> usize {
    let lines = versions.flatten().flat_map(|version| {
        let starts = std::iter::once(0).chain(memchr::memchr_iter(b'\n', version).map(|newline| newline + 1));
        starts.map(|start| &version[start..])
    });
    let run = |line: &[u8]| match line.first() {
        Some(sign) if SIGNS.contains(sign) => {
            line.iter().take(MARKER_LENGTH_MAX).take_while(|byte| *byte == sign).count()
        }
        _ => 0,
    };
    let longest = lines.map(run).max().unwrap_or(0);
    if longest < MARKER_LENGTH_MIN { MARKER_LENGTH_MIN } else { longest + 1 }
}

/// Returns whether the lines around a region end in `\r\n` in all versions that have such lines, as Git decides it.
pub(crate) fn ends_with_cr(versions: [&Vec<&[u8]>; 3], region: &Region) -> bool {
    let [base, ours, theirs] = versions;
    let before = |range: &Range<usize>| range.start.saturating_sub(1);
    let votes =
        [line_has_cr(ours, before(&region.ours)), line_has_cr(theirs, before(&region.theirs)), line_has_cr(base, 0)];
    votes.iter().all(|vote| *vote != Some(false)) && votes.contains(&Some(true))
}

/// Returns whether a line ends in `\r\n`. A last line without a newline follows the line before it.
fn line_has_cr(lines: &[&[u8]], at: usize) -> Option<bool> {
    let line = lines.get(at)?;
    match line.ends_with(b"\n") {
        true => Some(line.ends_with(b"\r\n")),
        false => lines.get(at.checked_sub(1)?).map(|line| line.ends_with(b"\r\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Outcome;
    use crate::text;

    fn conflict(base: &str, ours: &str, theirs: &str) -> Rendered {
        let sides = Sides { base: Some(base.as_bytes()), ours: ours.as_bytes(), theirs: theirs.as_bytes() };
        match text::merge(&sides, &Labels::default()) {
            Outcome::Conflicted(conflicted) => conflicted.rendered,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_untouched_file_is_the_same_conflict_and_an_edited_one_is_resolved() {
        let rendered = conflict("a\nb\nc\n", "x\nb\nx\n", "y\nb\ny\n");
        assert_eq!((rendered.regions, rendered.length), (2, 7));
        assert_eq!(read_edit(&rendered.bytes, &rendered), EditState::Untouched);
        assert_eq!(read_edit(b"x\nb\ny\n", &rendered), EditState::Resolved);
        assert_eq!(read_edit(b"", &rendered), EditState::Resolved);
        let text = String::from_utf8(rendered.bytes.clone()).expect("text");
        let second = text.find("1/2]\nb\n").expect("the end of the first region") + 5;
        assert_eq!(read_edit(format!("x\n{}", &text[second..]).as_bytes(), &rendered), EditState::StillHas(1));
        assert_eq!(read_edit(format!("{text}more\n").as_bytes(), &rendered), EditState::StillHas(2));
        assert_eq!(read_edit(b"x\n=======\ny\n", &rendered), EditState::StillHas(1));
    }

    #[test]
    fn lines_that_only_look_like_markers_are_not_ours() {
        let rendered = conflict("a\n", "x\n", "y\n");
        assert_eq!(read_edit(b"<<<<<<< HEAD\nx\n>>>>>>> main\n", &rendered), EditState::Resolved);
        let other = conflict("a\n", "x\n", "z\n");
        assert_eq!(read_edit(&other.bytes.replace_bare(), &rendered), EditState::Resolved);
        let rendered = conflict("<<<<<<< a\n=========\n", "x\n", "y\n");
        assert_eq!(rendered.length, 10);
        assert_eq!(read_edit(b"<<<<<<< a\n=========\ny\n", &rendered), EditState::Resolved);
    }

    trait ReplaceBare {
        fn replace_bare(&self) -> Vec<u8>;
    }

    impl ReplaceBare for Vec<u8> {
        /// Removes the lines between ours and theirs, which carry no tag.
        fn replace_bare(&self) -> Vec<u8> {
            split_lines(self).into_iter().filter(|line| !line.starts_with(b"===")).collect::<Vec<_>>().concat()
        }
    }

    #[test]
    fn labels_are_part_of_one_line() {
        let labels = Labels::new("a\nb", &"é".repeat(300), "c");
        assert_eq!(labels.ours, "a b");
        assert!(labels.base.len() <= LABEL_BYTES_MAX);
    }
}
