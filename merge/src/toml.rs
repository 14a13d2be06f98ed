//! Merges TOML by structure while keeping its text: comments, blank lines and the order of items stay.
//!
//! `toml_edit` validates the syntax; this module splits the text by lines into keys, sections and lists of sections. Arrays and
//! inline tables are merged too, unless they contain comments. Conflicts between several sections of one table are detected in
//! the whole result.

mod parse;
mod scan;

use std::collections::HashMap;

use crate::job::Job;
use crate::outcome::Outcome;
use crate::structure::{self, Document, Format, Kind, Node};

pub(crate) const FORMAT: Format =
    Format { name: "TOML", parse: parse::parse, comments: Some(comments), is_consistent: Some(is_consistent) };

pub(crate) fn run(job: &Job<'_>) -> Outcome {
    structure::run(job, &FORMAT)
}

/// Returns possible comments. Parts of strings may look like comments; they are counted too.
fn comments(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.find('#').map(|at| &line[at..])).collect()
}

/// Returns whether each path is a section in all documents or in none, and each key is always in the same section.
fn is_consistent(documents: &[&Document<'_>]) -> bool {
    let mut spellings = HashMap::new();
    documents.iter().all(|document| spell(&document.root, "", "", &mut spellings))
}

/// Records how each path is written. Returns false if a path was written differently before.
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
