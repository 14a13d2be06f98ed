//! Documents of more than two sides, each written with all that no two sides dispute.
//!
//! The places that any two sides dispute are found first. Then everything else is merged, side by side, into one document, which is
//! written once as the base has those places and once as each side has them. The texts differ in these places alone.

use std::collections::BTreeSet;

use super::{Format, with_merged};
use crate::lines::{BASE, THEIRS};
use crate::outcome::{Sides, Why};
use crate::way::Options;

/// With more sides than this, a conflict is shown by lines: pairs are compared.
const SIDES_MAX: usize = 16;
/// How often a place that turned out to be disputed is added before lines are shown instead.
const ROUNDS_MAX: usize = 8;

/// A document as the base and as each side has what is disputed, and everything else merged.
pub(crate) struct Views {
    pub(crate) base: String,
    pub(crate) sides: Vec<String>,
}

/// Writes the versions of a document that differ only where two sides dispute something; nothing where structure cannot tell.
pub(crate) fn views_of_many(base: &[u8], sides: &[&[u8]], options: &Options, format: &Format) -> Option<Views> {
    if sides.len() > SIDES_MAX {
        return None;
    }
    let mut disputed = BTreeSet::new();
    for (at, ours) in sides.iter().enumerate() {
        for theirs in &sides[..at] {
            disputed.extend(step(base, ours, theirs, options, format, &BTreeSet::new()).ok()??.clashes);
        }
    }
    for _ in 0..ROUNDS_MAX {
        topmost(&mut disputed);
        match views(base, sides, options, format, &disputed).ok()? {
            Ok(views) => return is_shown(&views, base, sides, format).then_some(views),
            // What is disputed among three, or in a list without names, is so as the whole that holds it.
            Err(more) => {
                for path in more {
                    let mut above = path.as_str();
                    loop {
                        above = above.rsplit_once('/').map(|(above, _)| above).filter(|above| !above.is_empty())?;
                        if disputed.insert(above.to_owned()) {
                            break;
                        }
                    }
                }
            }
        }
    }
    None
}

/// One merge with the texts that it comes to.
struct Step {
    clashes: Vec<String>,
    base: String,
    theirs: String,
}

fn step(
    base: &[u8],
    ours: &[u8],
    theirs: &[u8],
    options: &Options,
    format: &Format,
    forced: &BTreeSet<String>,
) -> Result<Option<Step>, Why> {
    let sides = Sides { base: Some(base), ours, theirs };
    with_merged(&sides, options, format, forced, |clashes, _, view| {
        Ok(Step { clashes, base: view(BASE)?, theirs: view(THEIRS)? })
    })
}

/// The views, or the places that are disputed beside those that are known.
fn views(
    base: &[u8],
    sides: &[&[u8]],
    options: &Options,
    format: &Format,
    disputed: &BTreeSet<String>,
) -> Result<Result<Views, Vec<String>>, Why> {
    let whole = || Why::Doubt { what: "the sides disagree about the document as a whole" };
    let take = |merged: &str, side: &[u8]| -> Result<Result<Step, Vec<String>>, Why> {
        let step = step(base, merged.as_bytes(), side, options, format, disputed)?.ok_or_else(whole)?;
        let more: Vec<_> = step.clashes.iter().filter(|path| !disputed.contains(*path)).cloned().collect();
        Ok(if more.is_empty() { Ok(step) } else { Err(more) })
    };
    let mut merged = std::str::from_utf8(base).map_err(|_| whole())?.to_owned();
    for side in sides {
        match take(&merged, side)? {
            Ok(step) => merged = step.base,
            Err(more) => return Ok(Err(more)),
        }
    }
    let mut texts = Vec::with_capacity(sides.len());
    for side in sides {
        match take(&merged, side)? {
            Ok(step) => texts.push(step.theirs),
            Err(more) => return Ok(Err(more)),
        }
    }
    Ok(Ok(Views { base: merged, sides: texts }))
}

/// Leaves out what lies below another path.
fn topmost(paths: &mut BTreeSet<String>) {
    let all = paths.clone();
    paths.retain(|path| !path.match_indices('/').any(|(at, _)| at > 0 && all.contains(&path[..at])));
}

/// Whether every comment that a side brought is in one of the texts.
fn is_shown(views: &Views, base: &[u8], sides: &[&[u8]], format: &Format) -> bool {
    let Some(comments) = format.comments else { return true };
    let of = |bytes: &[u8]| -> BTreeSet<String> {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        comments(text).into_iter().map(|comment| comment.trim().to_owned()).collect()
    };
    let before = of(base);
    let is_there = |comment: &String| views.sides.iter().any(|view| view.contains(comment.as_str()));
    sides.iter().flat_map(|side| of(side)).all(|comment| before.contains(&comment) || is_there(&comment))
}
