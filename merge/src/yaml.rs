//! YAML merged by structure where it is block style, in its own text: comments, blank lines and quotes stay.
//!
//! Handled are maps and lists in blocks, scalars on one line, block scalars and flow collections on one line. A document
//! with anchors, aliases, tags, several documents, scalars or flow collections over several lines is left to lines.

mod flow;
mod parse;

use crate::outcome::Outcome;
use crate::structure::{self, Format};
use crate::way::Job;

pub(crate) const FORMAT: Format = Format { name: "YAML", parse: parse::parse, comments: Some(comments), agree: None };

pub(crate) fn run(job: &Job<'_>) -> Outcome {
    structure::run(job, &FORMAT)
}

/// What looks like a comment. Lines of block scalars may do so too; they are counted like any other.
fn comments(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| parse::comment(line).map(|at| &line[at..])).collect()
}
