//! The result type of a diff.

use std::ops::Range;

use imara_diff::Diff;

/// A range of differing lines or tokens on both sides. One of the ranges may be empty, not both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hunk {
    /// The range before, counted from 0.
    pub before: Range<usize>,
    /// The range after, counted from 0.
    pub after: Range<usize>,
}

impl Hunk {
    /// Returns the hunk with both ranges moved up by these offsets.
    pub(crate) fn shifted(self, before: usize, after: usize) -> Self {
        let shift = |range: Range<usize>, by: usize| range.start + by..range.end + by;
        Self { before: shift(self.before, before), after: shift(self.after, after) }
    }

    /// Returns the hunks of a diff, in ascending order.
    pub(crate) fn all_of(diff: &Diff) -> impl Iterator<Item = Self> {
        let wide = |range: Range<u32>| range.start as usize..range.end as usize;
        diff.hunks().map(move |hunk| Self { before: wide(hunk.before), after: wide(hunk.after) })
    }
}
