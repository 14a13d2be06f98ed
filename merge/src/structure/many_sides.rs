//! Merges documents of more than two sides and writes each side with all uncontested changes applied.
//!
//! First it finds the places that any two sides contest. Then it merges everything else, side by side, into one document, and
//! writes that document once with the contested places of the base and once with those of each side. The resulting texts differ
//! only in these places.

use std::collections::BTreeSet;

use super::{Format, with_merged};
use crate::job::Options;
use crate::outcome::UnableReason;
use crate::sides::Sides;
use crate::three_texts::{BASE, OURS, THEIRS};

/// With more sides than this, a conflict is rendered by lines, because all pairs are compared.
const SIDES_MAX: usize = 16;
/// Maximum number of rounds that add newly found contested places. Beyond it, the conflict is rendered by lines.
const ROUNDS_MAX: usize = 8;

/// The merged document with the contested places of the base and of each side.
pub(crate) struct Views {
    pub(crate) base: String,
    pub(crate) sides: Vec<String>,
}

/// Writes the versions of a document that differ only in contested places. Returns `None` if the structure does not allow it.
pub(crate) fn many_side_views(base: &[u8], sides: &[&[u8]], options: &Options, format: &Format) -> Option<Views> {
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
            // A place that only three sides together contest is contested as the container that holds it.
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

/// One merge with its resulting texts.
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
) -> Result<Option<Step>, UnableReason> {
    let sides = Sides { base: Some(base), ours, theirs };
    with_merged(&sides, options, format, forced, |clashes, _, view| {
        Ok(Step { clashes, base: view(BASE)?, theirs: view(THEIRS)? })
    })
}

/// Returns the views, or the contested places that are not known yet.
fn views(
    base: &[u8],
    sides: &[&[u8]],
    options: &Options,
    format: &Format,
    disputed: &BTreeSet<String>,
) -> Result<Result<Views, Vec<String>>, UnableReason> {
    let whole = || UnableReason::Doubt { what: "the sides disagree about the document as a whole" };
    let take = |merged: &str, side: &[u8]| -> Result<Result<Step, Vec<String>>, UnableReason> {
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

/// Returns the part of a path that consists of names only: elements of a list without names are contested as the whole list,
/// because each merge numbers them differently. Returns `None` if that is the whole document.
fn named_part(path: &str) -> Option<String> {
    let is_index = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let named: Vec<_> = path.split('/').take_while(|part| !is_index(part)).collect();
    Some(named.join("/")).filter(|path| !path.is_empty())
}

/// Returns whether a text contains all changes of a side, so that none is hidden.
fn has_all_of(view: &str, base: &[u8], side: &[u8], options: &Options, format: &Format) -> bool {
    let sides = Sides { base: Some(base), ours: view.as_bytes(), theirs: side };
    let merged = with_merged(&sides, options, format, &BTreeSet::new(), |clashes, _, view| {
        Ok(if clashes.is_empty() { Some(view(OURS)?) } else { None })
    });
    matches!(merged, Ok(Some(Some(merged))) if merged == view)
}

/// Removes paths that are below another path in the set.
fn topmost(paths: &mut BTreeSet<String>) {
    let all = paths.clone();
    paths.retain(|path| !path.match_indices('/').any(|(at, _)| at > 0 && all.contains(&path[..at])));
}

/// Returns whether every comment that a side added is in one of the texts.
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
