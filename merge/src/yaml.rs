//! Merges block-style YAML by structure while keeping its text: comments, blank lines and quotes stay.
//!
//! Supported are block maps and lists, scalars on one line, block scalars, and flow collections on one line. A file with anchors,
//! aliases, tags, several documents, or scalars or flow collections over several lines is left to the line merge.

mod flow;
mod parse;

use crate::job::Job;
use crate::outcome::Outcome;
use crate::structure::{self, Format};

pub(crate) const FORMAT: Format =
    Format { name: "YAML", parse: parse::parse, comments: Some(comments), is_consistent: None };

pub(crate) fn run(job: &Job<'_>) -> Outcome {
    structure::run(job, &FORMAT)
}

/// Returns possible comments. Lines of block scalars may look like comments; they are counted too.
fn comments(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| parse::comment(line).map(|at| &line[at..])).collect()
}
