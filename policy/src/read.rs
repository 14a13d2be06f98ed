//! Reads a policy from TOML. Errors state the location and the allowed values.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use toml_edit::{Document, Item, Key, TableLike};

use crate::level::Level;
use crate::pattern::Pattern;
use crate::policy::{OnRefused, Policy, Rule};
use crate::selector::Selector;

const LEVELS: &str = "\"none\", \"R\", \"RA\", \"RW-\" or \"RW\"";
const RULE_KEYS: [&str; 3] = ["agents", "paths", "level"];
/// Begins the name of a group where agents are listed.
const GROUP_MARK: char = '@';
/// The largest policy that is read.
const POLICY_BYTES_MAX: usize = 1 << 20;

/// An error in a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// The line, counted from 1.
    pub line: usize,
    /// The byte in the line, counted from 1.
    pub column: usize,
    /// The problem and the allowed values.
    pub what: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.what)
    }
}

/// A policy that was rejected, with all its errors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct BadPolicy {
    /// One error for each location.
    pub complaints: Vec<Complaint>,
}

impl fmt::Display for BadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.complaints.iter().map(Complaint::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl Policy {
    /// Reads a policy.
    pub fn read(text: &str) -> Result<Self, BadPolicy> {
        let mut reader = Reader { text, complaints: Vec::new() };
        let policy = reader.document();
        match reader.complaints.is_empty() {
            true => Ok(policy),
            false => Err(BadPolicy { complaints: reader.complaints }),
        }
    }
}

type Groups = BTreeMap<String, Selector>;

struct Reader<'a> {
    text: &'a str,
    complaints: Vec<Complaint>,
}

impl Reader<'_> {
    fn complain(&mut self, span: Option<Range<usize>>, what: impl Into<String>) {
        let (line, column) = self.place(span);
        self.complaints.push(Complaint { line, column, what: what.into() });
    }

    /// Returns line and column of a span, counted from 1.
    fn place(&self, span: Option<Range<usize>>) -> (usize, usize) {
        let at = span.map_or(0, |span| span.start).min(self.text.len());
        let before = &self.text.as_bytes()[..at];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
        (line, column)
    }

    fn document(&mut self) -> Policy {
        let mut policy = Policy {
            default: Level::Hidden,
            on_refused: OnRefused::default(),
            rules: Vec::new(),
            reviewers: Selector::default(),
        };
        if self.text.len() > POLICY_BYTES_MAX {
            self.complain(None, format!("the policy has more than {POLICY_BYTES_MAX} bytes"));
            return policy;
        }
        let document = match Document::parse(self.text) {
            Ok(document) => document,
            Err(error) => {
                self.complain(error.span(), error.message().to_owned());
                return policy;
            }
        };
        let table = document.as_table();
        let groups = table.get("groups").map(|item| self.groups(item)).unwrap_or_default();
        for (name, item) in table {
            let key = span_of(table.key(name));
            match name {
                "default" => policy.default = self.level(item, "default").unwrap_or(Level::Hidden),
                "on_refused" => match item.as_str().and_then(OnRefused::of_word) {
                    Some(word) => policy.on_refused = word,
                    None => self.complain(item.span(), "on_refused: must be \"review\" or \"partial\""),
                },
                "groups" => {}
                "reviewers" => policy.reviewers = self.selector(item, "reviewers", &groups),
                "rule" => match item.as_array_of_tables() {
                    Some(tables) => {
                        for table in tables {
                            policy.rules.extend(self.rule(table, table.span(), &groups));
                        }
                    }
                    None => self.complain(key, "`rule` must be written [[rule]]"),
                },
                _ => self.complain(
                    key,
                    format!("`{name}`: unknown; use default, on_refused, reviewers, [groups] or [[rule]]"),
                ),
            }
        }
        policy
    }

    fn groups(&mut self, item: &Item) -> Groups {
        let mut groups = Groups::new();
        let Some(table) = item.as_table_like() else {
            self.complain(item.span(), "`groups` must be a table: [groups]");
            return groups;
        };
        for (name, members) in table.iter() {
            // Groups have no groups as members, so they cannot contain each other.
            let members = self.selector(members, name, &Groups::new());
            groups.insert(name.to_owned(), members);
        }
        groups
    }

    fn rule(&mut self, table: &dyn TableLike, span: Option<Range<usize>>, groups: &Groups) -> Option<Rule> {
        let before = self.complaints.len();
        let (line, _) = self.place(span.clone());
        for (name, _) in table.iter().filter(|(name, _)| !RULE_KEYS.contains(name)) {
            self.complain(
                span_of(table.key(name)),
                format!("`{name}`: unknown in a rule; use {}", RULE_KEYS.join(", ")),
            );
        }
        let agents = table.get("agents").map(|item| self.selector(item, "agents", groups));
        let paths = match table.get("paths") {
            Some(item) => self.patterns(item),
            None => {
                self.complain(span.clone(), "a rule needs `paths`: a list of patterns");
                Vec::new()
            }
        };
        let level = match table.get("level") {
            Some(item) => self.level(item, "level"),
            None => {
                self.complain(span, format!("a rule needs `level`: {LEVELS}"));
                None
            }
        };
        let level = level?;
        (self.complaints.len() == before).then_some(Rule { line, level, agents, paths })
    }

    fn level(&mut self, item: &Item, key: &str) -> Option<Level> {
        let level = item.as_str().and_then(Level::of_word);
        if level.is_none() {
            self.complain(item.span(), format!("{key} = {}: must be {LEVELS}", shown(item)));
        }
        level
    }

    fn patterns(&mut self, item: &Item) -> Vec<Pattern> {
        let mut patterns = Vec::new();
        for (text, span) in self.texts(item, "paths") {
            match Pattern::new(&text) {
                Ok(pattern) => patterns.push(pattern),
                Err(why) => self.complain(span, format!("paths: {text:?}: {why}")),
            }
        }
        patterns
    }

    fn selector(&mut self, item: &Item, key: &str, groups: &Groups) -> Selector {
        let mut selector = Selector::default();
        for (text, span) in self.texts(item, key) {
            match text.strip_prefix(GROUP_MARK) {
                Some(group) => match groups.get(group) {
                    Some(members) => selector.add_all(members),
                    None => self.complain(span, format!("{key}: no group {group:?} in [groups]")),
                },
                None => {
                    if let Err(why) = selector.add(&text) {
                        self.complain(span, format!("{key}: {text:?}: {why}"));
                    }
                }
            }
            selector.text.push(text);
        }
        selector
    }

    /// Returns a list of texts with their places. An empty list is an error: it would match nothing.
    fn texts(&mut self, item: &Item, key: &str) -> Vec<(String, Option<Range<usize>>)> {
        let Some(list) = item.as_array().filter(|list| !list.is_empty()) else {
            self.complain(item.span(), format!("{key}: must be a list of texts with at least one"));
            return Vec::new();
        };
        let mut texts = Vec::new();
        for value in list {
            match value.as_str().filter(|text| !text.is_empty()) {
                Some(text) => texts.push((text.to_owned(), value.span())),
                None => self.complain(value.span(), format!("{key}: must hold texts, none of them empty")),
            }
        }
        texts
    }
}

fn span_of(key: Option<&Key>) -> Option<Range<usize>> {
    key.and_then(Key::span)
}

/// Returns a value in a form that fits on one line.
fn shown(item: &Item) -> String {
    match item.as_str() {
        Some(text) => format!("{text:?}"),
        None => format!("({})", item.type_name()),
    }
}
