//! JSON merged by structure, in its own text: numbers, escapes, blanks and the order of fields stay as they are written.
//!
//! What is not JSON to the letter is left to lines: comments, last commas, a name twice in one object. Where a rule says that a
//! file may have comments and last commas, they are read and kept: a comment goes with the value behind it, or, behind a comma on
//! the same line, with the one before it. A merge that would lose a comment or have it twice is left to lines.

mod parse;

use crate::outcome::Outcome;
use crate::structure::{self, Format};
use crate::way::Job;

pub(crate) use parse::{comment_bytes, parse};

pub(crate) const FORMAT: Format = Format { name: "JSON", parse, comments: None, agree: None };
pub(crate) const WITH_COMMENTS: Format = Format {
    name: "JSON with comments",
    parse: parse::parse_with_comments,
    comments: Some(parse::comments),
    agree: None,
};

pub(crate) fn run(job: &Job<'_>) -> Outcome {
    structure::run(job, &FORMAT)
}

pub(crate) fn run_with_comments(job: &Job<'_>) -> Outcome {
    structure::run(job, &WITH_COMMENTS)
}
