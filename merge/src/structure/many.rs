//! Documents of more than two sides, each written with all that no two sides dispute.
//!
//! The places that any two sides dispute are found first. Then everything else is merged, side by side, into one document, which
//! is written once as the base has those places and once as each side has them. The texts differ in these places alone.

use std::collections::BTreeSet;

use super::{Format, with_merged};
use crate::lines::{BASE, OURS, THEIRS};
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
    let (mut disputed, mut disputants) = (BTreeSet::new(), BTreeSet::new());
    for (at, ours) in sides.iter().enumerate() {
        for (other, theirs) in sides[..at].iter().enumerate() {
            let clashes = step(base, ours, theirs, options, format, &BTreeSet::new()).ok()??.clashes;
            if !clashes.is_empty() {
                disputants.extend([at, other]);
            }
            for path in clashes {
                disputed.insert(named_part(&path)?);
            }
        }
    }
    for _ in 0..ROUNDS_MAX {
        topmost(&mut disputed);
        match views(base, sides, options, format, &disputed).ok()? {
            Ok(views) => {
                let is_told_apart = disputants.iter().all(|side| views.sides[*side] != views.base);
                let is_whole = is_told_apart
                    && is_shown(&views, base, sides, format)
                    && views.sides.iter().zip(sides).all(|(view, side)| has_all_of(view, base, side, options, format));
                return is_whole.then_some(views);
            }
            // What is disputed among three is so as the whole that holds it.
            Err(more) => {
                for path in more {
                    let mut above = named_part(&path)?;
                    while !disputed.insert(above.clone()) {
                        let (shorter, _) = above.rsplit_once('/').filter(|(shorter, _)| !shorter.is_empty())?;
                        above = shorter.to_owned();
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

/// The part of a path that names alone lead to: elements of a list without names are disputed as the list, because each merge
/// counts them anew. Nothing where that is the document.
fn named_part(path: &str) -> Option<String> {
    let is_index = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let named: Vec<_> = path.split('/').take_while(|part| !is_index(part)).collect();
    Some(named.join("/")).filter(|path| !path.is_empty())
}

/// Whether a text has all that a side changed, so that nothing of it is hidden.
fn has_all_of(view: &str, base: &[u8], side: &[u8], options: &Options, format: &Format) -> bool {
    let sides = Sides { base: Some(base), ours: view.as_bytes(), theirs: side };
    let merged = with_merged(&sides, options, format, &BTreeSet::new(), |clashes, _, view| {
        Ok(if clashes.is_empty() { Some(view(OURS)?) } else { None })
    });
    matches!(merged, Ok(Some(Some(merged))) if merged == view)
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
