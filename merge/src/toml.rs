//! TOML merged by structure, in its own text: comments, blank lines and the order of everything stay.
//!
//! `toml_edit` says what is TOML; the text is taken apart here, by lines: keys, sections, lists of sections. Arrays and inline
//! tables are merged too unless they hold comments. What two sections say of one table is judged by the whole result.

mod parse;
mod scan;

use crate::outcome::Outcome;
use crate::structure::{self, Format};
use crate::way::Job;

const FORMAT: Format = Format { name: "TOML", parse: parse::parse, comments: Some(comments) };

pub(crate) fn run(job: &Job<'_>) -> Outcome {
    structure::run(job, &FORMAT)
}

/// What looks like a comment. Parts of strings may do so too; they are counted like any other.
fn comments(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.find('#').map(|at| &line[at..])).collect()
}
