//! TOML merged by structure, in its own text: comments, blank lines and the order of everything stay.
//!
//! `toml_edit` says what is TOML; the text is taken apart here, by lines: keys, sections, lists of sections. Arrays and inline
//! tables are merged too unless they hold comments. What two sections say of one table is judged by the whole result.

mod parse;
mod scan;

use std::collections::HashMap;

use crate::outcome::Outcome;
use crate::structure::{self, Document, Format, Kind, Node};
use crate::way::Job;

pub(crate) const FORMAT: Format =
    Format { name: "TOML", parse: parse::parse, comments: Some(comments), agree: Some(agree) };

pub(crate) fn run(job: &Job<'_>) -> Outcome {
    structure::run(job, &FORMAT)
}

/// What looks like a comment. Parts of strings may do so too; they are counted like any other.
fn comments(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.find('#').map(|at| &line[at..])).collect()
}

/// Whether a path is a section in all documents or in none, and a key always has its place in the same section.
fn agree(documents: &[&Document<'_>]) -> bool {
    let mut spellings = HashMap::new();
    documents.iter().all(|document| spell(&document.root, "", "", &mut spellings))
}

/// Notes how each path is written; says whether none was written in another way before.
fn spell(table: &Node<'_>, path: &str, section: &str, spellings: &mut HashMap<String, String>) -> bool {
    let Kind::Map(map) = &table.kind else { return true };
    map.entries.iter().all(|entry| {
        let bare = entry.name.trim_start_matches('[').trim_end_matches(']');
        let is_section = bare.len() != entry.name.len();
        let full = if is_section || path.is_empty() { bare.to_owned() } else { format!("{path}.{bare}") };
        let spelled = if is_section { entry.name.to_string() } else { format!("{section} {bare}") };
        let known = spellings.entry(full.clone()).or_insert_with(|| spelled.clone());
        *known == spelled && (!is_section || spell(&entry.value, &full, &entry.name, spellings))
    })
}
