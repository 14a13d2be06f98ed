//! The regions that a three-way comparison of token lists finds: diff3 with Git's definition of adjacent changes.
//!
//! Changes of both sides that overlap or are adjacent form one region. A region that only one side changed, or both in the same
//! way, is clean. Regions are not split further.

use std::ops::Range;

use amalgam_textdiff::{Hunk, Token, token_hunks};

use crate::three_texts::{BASE, OURS, THEIRS};

/// A range of lines in all three versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) kind: RegionKind,
    pub(crate) base: Range<usize>,
    pub(crate) ours: Range<usize>,
    pub(crate) theirs: Range<usize>,
}

/// The side that changed a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionKind {
    Ours,
    Theirs,
    Conflict,
}

/// Returns the regions that changed, except for those with the same change on both sides, in ascending order. Tokens are the
/// numbered lines of a text or elements of a list.
pub(crate) fn regions(tokens: [&[Token]; 3], count: u32) -> Vec<Region> {
    let (ours, theirs) =
        (token_hunks(tokens[BASE], tokens[OURS], count), token_hunks(tokens[BASE], tokens[THEIRS], count));
    let same = |mine: &Hunk, other: &Hunk| {
        mine.before == other.before && tokens[OURS][mine.after.clone()] == tokens[THEIRS][other.after.clone()]
    };
    let mut regions = Regions::default();
    let (mut left, mut right) = (ours.iter().peekable(), theirs.iter().peekable());
    loop {
        match (left.peek(), right.peek()) {
            (None, None) => return regions.found,
            (Some(mine), None) => {
                regions.ours(mine);
                left.next();
            }
            (None, Some(other)) => {
                regions.theirs(other);
                right.next();
            }
            (Some(mine), Some(other)) if mine.before.end < other.before.start => {
                regions.ours(mine);
                left.next();
            }
            (Some(mine), Some(other)) if other.before.end < mine.before.start => {
                regions.theirs(other);
                right.next();
            }
            (Some(mine), Some(other)) => {
                let (mine, other) = (*mine, *other);
                match same(mine, other) {
                    true => regions.both(mine, other),
                    false => regions.conflict(mine, other),
                }
                if mine.before.end >= other.before.end {
                    right.next();
                }
                if other.before.end >= mine.before.end {
                    left.next();
                }
            }
        }
    }
}

/// The regions found so far, and the offset of each side relative to the base after them.
#[derive(Default)]
struct Regions {
    found: Vec<Region>,
    ours_ahead: isize,
    theirs_ahead: isize,
}

impl Regions {
    fn ours(&mut self, hunk: &Hunk) {
        let theirs = moved(&hunk.before, self.theirs_ahead);
        self.ours_ahead = ahead(hunk);
        self.push(Region { kind: RegionKind::Ours, base: hunk.before.clone(), ours: hunk.after.clone(), theirs });
    }

    fn theirs(&mut self, hunk: &Hunk) {
        let ours = moved(&hunk.before, self.ours_ahead);
        self.theirs_ahead = ahead(hunk);
        self.push(Region { kind: RegionKind::Theirs, base: hunk.before.clone(), ours, theirs: hunk.after.clone() });
    }

    fn both(&mut self, mine: &Hunk, other: &Hunk) {
        (self.ours_ahead, self.theirs_ahead) = (ahead(mine), ahead(other));
    }

    fn conflict(&mut self, mine: &Hunk, other: &Hunk) {
        let base = mine.before.start.min(other.before.start)..mine.before.end.max(other.before.end);
        // Each side has the lines of the base around its own change. If it changed some of those too, the region is adjacent to
        // the previous one, and only its end counts.
        let whole = |hunk: &Hunk| {
            let (above, below) = (hunk.before.start - base.start, base.end - hunk.before.end);
            hunk.after.start.saturating_sub(above)..hunk.after.end + below
        };
        let (ours, theirs) = (whole(mine), whole(other));
        (self.ours_ahead, self.theirs_ahead) = (ahead(mine), ahead(other));
        self.push(Region { kind: RegionKind::Conflict, base, ours, theirs });
    }

    /// Adds a region. A region adjacent to the last one is joined with it.
    fn push(&mut self, region: Region) {
        match self.found.last_mut() {
            Some(last) if region.ours.start <= last.ours.end || region.theirs.start <= last.theirs.end => {
                if last.kind != region.kind {
                    last.kind = RegionKind::Conflict;
                }
                last.base.end = region.base.end;
                last.ours.end = region.ours.end;
                last.theirs.end = region.theirs.end;
            }
            _ => self.found.push(region),
        }
    }
}

fn ahead(hunk: &Hunk) -> isize {
    hunk.after.end as isize - hunk.before.end as isize
}

fn moved(range: &Range<usize>, by: isize) -> Range<usize> {
    range.start.saturating_add_signed(by)..range.end.saturating_add_signed(by)
}
