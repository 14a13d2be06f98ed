//! Merges documents by structure while keeping their text.
//!
//! The parser of a format builds a tree of [`Node`]s, each with the exact text it was read from. The merge compares meaning and
//! joins pieces of text: untouched parts stay byte for byte the same, including comments and number formats. The result is parsed
//! again and must have the intended meaning; otherwise the caller falls back to the line merge.

mod format;
mod lazy;
mod list;
mod many_sides;
mod merger;
mod node;
mod render;

use std::collections::{BTreeMap, BTreeSet};

use crate::job::{Job, Options};
use crate::markers::MarkerStyle;
use crate::outcome::{Clash, Conflicted, Outcome, UnableReason, Version};
use crate::sides::Sides;
use crate::text;
use crate::three_texts::{BASE, OURS, THEIRS};

pub(crate) use format::{DEPTH_MAX, Format, ParseError};
pub(crate) use lazy::{Tape, TapeKind, TapeMark, comment_bytes};
pub(crate) use list::NodeNumbers;
pub(crate) use many_sides::many_side_views;
use merger::{MergedValue, Merger, pick};
pub(crate) use node::{
    Container, Document, Entry, EntryStart, Kind, LIST, MapHash, Node, Separator, has_same_meaning, line_and_column,
    list_with, name_hash, scalar_hash,
};

pub(crate) fn run(job: &Job<'_>, format: &Format) -> Outcome {
    merge(job, format).unwrap_or_else(Outcome::Unable)
}

fn merge(job: &Job<'_>, format: &Format) -> Result<Outcome, UnableReason> {
    job.check_structure()?;
    let sides = &job.sides;
    let nowhere = BTreeSet::new();
    let outcome = with_merged(sides, job.options, format, &nowhere, |clashes, root, view| {
        if clashes.is_empty() {
            let text = view(OURS)?;
            check(&text, render::meaning(root), sides, format)?;
            return Ok(Outcome::Merged(text.into_bytes()));
        }
        let clashes = clashes.into_iter().map(Clash::Path).collect();
        let outcome = conflicted(job, clashes, Some(&[view(BASE)?, view(OURS)?, view(THEIRS)?]));
        if let (Outcome::Conflicted(conflicted), Some(comments)) = (&outcome, format.comments) {
            check_shown(&conflicted.rendered.bytes, sides, comments)?;
        }
        Ok(outcome)
    })?;
    Ok(outcome.unwrap_or_else(|| conflicted(job, vec![Clash::Path(String::new())], None)))
}

/// Writes a merged document with the contested places as in one version.
type View<'a> = dyn Fn(usize) -> Result<String, UnableReason> + 'a;

/// Merges three documents and calls `then` with the paths of the clashes, the merged document and a function that writes it.
/// Returns `None` if they clash as a whole. The `forced` paths count as clashes even if only one side changed them.
fn with_merged<T>(
    sides: &Sides<'_>,
    options: &Options,
    format: &Format,
    forced: &BTreeSet<String>,
    then: impl FnOnce(Vec<String>, &MergedValue<'_>, &View<'_>) -> Result<T, UnableReason>,
) -> Result<Option<T>, UnableReason> {
    let base = sides.base.map(|bytes| parse(bytes, Version::Base, format)).transpose()?;
    let ours = parse(sides.ours, Version::Ours, format)?;
    let theirs = parse(sides.theirs, Version::Theirs, format)?;
    let all: Vec<_> = base.iter().chain([&ours, &theirs]).collect();
    if format.is_consistent.is_some_and(|is_consistent| !is_consistent(&all)) {
        return Err(UnableReason::Doubt { what: "one thing is written in different ways" });
    }
    let mut merger = Merger::new(options, forced);
    let Some(root) = merger.value(base.as_ref().map(|base| &base.root), &ours.root, &theirs.root)? else {
        return Ok(None);
    };
    let around = |base: Option<&str>, ours: &str, theirs: &str| -> Result<String, UnableReason> {
        let unsure = UnableReason::Doubt { what: "both sides changed what stands around the document" };
        let blank = Some(ours).filter(|ours: &&str| ours.trim().is_empty() && theirs.trim().is_empty());
        pick(base, ours, theirs).or(blank).ok_or(unsure).map(str::to_owned)
    };
    let prefix = around(base.as_ref().map(|base| base.prefix), ours.prefix, theirs.prefix)?;
    let suffix = around(base.as_ref().map(|base| base.suffix), ours.suffix, theirs.suffix)?;
    let view = |version: usize| -> Result<String, UnableReason> {
        let mut text = String::with_capacity(sides.ours.len() + sides.theirs.len() / 8);
        text.push_str(&prefix);
        render::piece(&mut text, &root, version)?;
        if !suffix.is_empty() && is_in_lines(&ours.root) {
            render::end_line(&mut text);
        }
        text.push_str(&suffix);
        Ok(text)
    };
    then(merger.clashes, &root, &view).map(Some)
}

/// Checks that a rendered conflict contains every comment of either side, except those removed by the other side.
fn check_shown(
    shown: &[u8],
    sides: &Sides<'_>,
    comments: for<'a> fn(&'a str) -> Vec<&'a str>,
) -> Result<(), UnableReason> {
    let of = |bytes: &[u8]| -> BTreeSet<String> {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        comments(text).into_iter().map(|comment| comment.trim().to_owned()).collect()
    };
    let [base, ours, theirs] = [sides.base_or_empty(), sides.ours, sides.theirs].map(of);
    let shown = String::from_utf8_lossy(shown);
    let is_kept =
        |comment: &&String| !base.contains(*comment) || (ours.contains(*comment) && theirs.contains(*comment));
    match ours.union(&theirs).filter(is_kept).all(|comment| shown.contains(comment.as_str())) {
        true => Ok(()),
        false => Err(UnableReason::Doubt { what: "a comment would not be shown" }),
    }
}

fn is_in_lines(node: &Node<'_>) -> bool {
    node.container().is_some_and(|container| container.separator == Separator::Lines)
}

fn parse<'a>(bytes: &'a [u8], version: Version, format: &Format) -> Result<Document<'a>, UnableReason> {
    let bad = |at: usize, what: &'static str, is_unhandled: bool| {
        let (line, column) = node::line_and_column(bytes, at);
        match is_unhandled {
            true => UnableReason::Unhandled { version, line, what },
            false => UnableReason::Malformed { version, format: format.name, line, column, what },
        }
    };
    let text = std::str::from_utf8(bytes).map_err(|error| bad(error.valid_up_to(), "not UTF-8", false))?;
    (format.parse)(text).map_err(|flaw| bad(flaw.at, flaw.what, flaw.is_unhandled))
}

/// Checks that a result has the intended meaning and the expected comments.
fn check(text: &str, meaning: u64, sides: &Sides<'_>, format: &Format) -> Result<(), UnableReason> {
    let document = parse(text.as_bytes(), Version::Result, format)?;
    if document.root.hash != meaning {
        return Err(UnableReason::Doubt { what: "it reads as something else" });
    }
    let Some(comments) = format.comments else { return Ok(()) };
    let count = |text: &[u8]| {
        let mut counts: BTreeMap<String, i64> = BTreeMap::new();
        let text = std::str::from_utf8(text).unwrap_or_default();
        comments(text).into_iter().for_each(|comment| *counts.entry(comment.trim().to_owned()).or_default() += 1);
        counts
    };
    let versions = [sides.base_or_empty(), sides.ours, sides.theirs, text.as_bytes()].map(count);
    let all = versions.iter().flat_map(BTreeMap::keys);
    for comment in all {
        let [base, ours, theirs, result] = versions.each_ref().map(|counts| counts.get(comment).copied().unwrap_or(0));
        let expected = match (ours == base, theirs == base) {
            (true, _) => theirs,
            (_, true) => ours,
            _ if ours == theirs => ours,
            _ => ours + theirs - base,
        };
        if result != expected {
            return Err(UnableReason::Doubt { what: "a comment would be lost or doubled" });
        }
    }
    Ok(())
}

/// Renders a structural conflict by lines: merged parts verbatim, the rest between markers.
fn conflicted(job: &Job<'_>, clashes: Vec<Clash>, views: Option<&[String; 3]>) -> Outcome {
    let labels = &job.setting.labels;
    let marks = MarkerStyle::of_sides(&job.sides, labels);
    let views = views.map(|views| views.each_ref().map(|view| view.as_bytes()));
    let sides = views.map_or(job.sides, |[base, ours, theirs]| Sides { base: Some(base), ours, theirs });
    let rendered = match text::merge_marked(&sides, labels, &marks) {
        Outcome::Conflicted(conflicted) => conflicted.rendered,
        Outcome::Merged(_) | Outcome::Unable(_) => text::whole(&sides, labels, &marks),
    };
    Outcome::Conflicted(Conflicted { clashes, rendered })
}
