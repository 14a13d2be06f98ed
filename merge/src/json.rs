//! JSON merged by structure, in its own text: numbers, escapes, blanks and the order of fields stay as they are written.
//!
//! What is not JSON to the letter is left to lines: comments, last commas, a name twice in one object.

mod parse;

use crate::outcome::Outcome;
use crate::structure::{self, Format};
use crate::way::Job;

pub(crate) use parse::parse;

const FORMAT: Format = Format { name: "JSON", parse, comments: None, agree: None };

pub(crate) fn run(job: &Job<'_>) -> Outcome {
    structure::run(job, &FORMAT)
}
