//! Merges JSON by structure while keeping its text: numbers, escapes, whitespace and the order of fields stay as written.
//!
//! Documents that are not strict JSON are left to the line merge: comments, trailing commas, a duplicate name in one object. If a
//! rule allows comments and trailing commas, they are read and kept: a comment belongs to the value after it or, after a comma on
//! the same line, to the value before it. A merge that would lose or duplicate a comment is left to the line merge.

mod parse;

use crate::job::Job;
use crate::outcome::Outcome;
use crate::structure::{self, Format};

pub(crate) use parse::parse;

pub(crate) const FORMAT: Format = Format { name: "JSON", parse, comments: None, is_consistent: None };
pub(crate) const WITH_COMMENTS: Format = Format {
    name: "JSON with comments",
    parse: parse::parse_with_comments,
    comments: Some(parse::comments),
    is_consistent: None,
};

pub(crate) fn run(job: &Job<'_>) -> Outcome {
    structure::run(job, &FORMAT)
}

pub(crate) fn run_with_comments(job: &Job<'_>) -> Outcome {
    structure::run(job, &WITH_COMMENTS)
}
