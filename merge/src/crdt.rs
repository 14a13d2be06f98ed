//! Merges JSON documents by rules that never produce a conflict (`*.crdt.json`).
//!
//! Such a file contains no history, so this is a merge of three versions, not of histories: fields by name, lists with the
//! insertions of both sides, counters that add up, texts by characters. `docs/MERGE.md` describes the conventions. The result
//! does not depend on which side is ours: the sides are put into a canonical order first.

mod counter;
mod value;
mod weave;

use crate::job::{Job, Options};
use crate::json;
use crate::name_order::{self, NumberedNames};
use crate::outcome::{Outcome, UnableReason, Version};
use crate::structure::{Entry, Kind, Node, NodeNumbers, ParseError, has_same_meaning, line_and_column};

use value::{Value, entries};

const KEYS: [&str; 3] = ["id", "key", "name"];
const TEXT: &str = "$text";

pub(crate) fn run(job: &Job<'_>) -> Outcome {
    merge(job).map_or_else(Outcome::Unable, |text| Outcome::Merged(text.into_bytes()))
}

fn merge(job: &Job<'_>) -> Result<String, UnableReason> {
    job.check_structure()?;
    let sides = &job.sides;
    let base = sides.base.map(|bytes| parse(bytes, Version::Base)).transpose()?;
    let (ours, theirs) = (parse(sides.ours, Version::Ours)?, parse(sides.theirs, Version::Theirs)?);
    let (one, other) = if sides.ours <= sides.theirs { (&ours, &theirs) } else { (&theirs, &ours) };
    let mut merger = Merger { options: job.options, path: Vec::new() };
    let merged = merger.value(base.as_ref(), one, other);
    let mut text = String::with_capacity(sides.ours.len() + sides.theirs.len() / 8);
    merged.write(&mut text, 0);
    text.push('\n');
    Ok(text)
}

fn parse(bytes: &[u8], version: Version) -> Result<Node<'_>, UnableReason> {
    let bad = |at: usize, what: &'static str| {
        let (line, column) = line_and_column(bytes, at);
        UnableReason::Malformed { version, format: "JSON", line, column, what }
    };
    let text = std::str::from_utf8(bytes).map_err(|error| bad(error.valid_up_to(), "not UTF-8"))?;
    let document = json::parse(text).map_err(|ParseError { at, what, .. }| bad(at, what))?;
    Ok(document.root)
}

struct Merger<'o> {
    options: &'o Options,
    path: Vec<String>,
}

impl Merger<'_> {
    fn value<'a>(&mut self, base: Option<&'a Node<'a>>, one: &'a Node<'a>, other: &'a Node<'a>) -> Value<'a> {
        if has_same_meaning(one, other) || base.is_some_and(|base| has_same_meaning(base, other)) {
            return Value::of(one);
        }
        if base.is_some_and(|base| has_same_meaning(base, one)) {
            return Value::of(other);
        }
        if let Some(sum) = counter::add(base, one, other) {
            return sum;
        }
        if let Some(text) = self.text(base, one, other) {
            return text;
        }
        match (&one.kind, &other.kind) {
            (Kind::Map(_), Kind::Map(_)) => self.map(base, one, other),
            (Kind::List(_), Kind::List(_)) => self.list(base, one, other),
            _ => Value::of(value::greater(one, other)),
        }
    }

    fn map<'a>(&mut self, base: Option<&'a Node<'a>>, one: &'a Node<'a>, other: &'a Node<'a>) -> Value<'a> {
        let was = base.filter(|base| matches!(base.kind, Kind::Map(_))).map_or(&[][..], entries);
        let sides = [was, entries(one), entries(other)];
        let names = sides.map(|side| side.iter().map(|entry| entry.name.as_ref()).collect::<Vec<_>>());
        let numbered = NumberedNames::of(names.each_ref().map(Vec::as_slice)).expect("the parser takes no name twice");
        Value::Map(self.named(sides, &numbered))
    }

    /// Merges entries by name. An entry that one side removed and the other changed stays, as changed.
    fn named<'a>(&mut self, sides: [&'a [Entry<'a>]; 3], numbered: &NumberedNames<'a>) -> Vec<(&'a str, Value<'a>)> {
        let positions = numbered.positions();
        let mut merged: Vec<Option<(&str, Value<'a>)>> = Vec::new();
        merged.resize_with(numbered.names.len(), || None);
        for number in numbered.of_the_sides() {
            let version = |side: usize| positions[side][number].map(|at| &sides[side][at]);
            self.path.push(numbered.names[number].to_owned());
            let before = version(0).map(|entry| &entry.value);
            let value = match (version(1), version(2)) {
                (Some(one), Some(other)) => Some(self.value(before, &one.value, &other.value)),
                (Some(left), None) | (None, Some(left)) => {
                    let is_removed = before.is_some_and(|before| has_same_meaning(before, &left.value));
                    (!is_removed).then(|| Value::of(&left.value))
                }
                (None, None) => None,
            };
            self.path.pop();
            merged[number] =
                value.zip(version(1).or(version(2))).map(|(value, entry)| (value::name_text(entry), value));
        }
        let order = name_order::merged_order(numbered, |number| merged[number].is_some());
        order.numbers.iter().filter_map(|number| merged[*number].take()).collect()
    }

    fn list<'a>(&mut self, base: Option<&'a Node<'a>>, one: &'a Node<'a>, other: &'a Node<'a>) -> Value<'a> {
        let base = base.filter(|base| matches!(base.kind, Kind::List(_))).map_or(&[][..], entries);
        let (one, other) = (entries(one), entries(other));
        let keys: Vec<&str> = match self.options.keys.is_empty() {
            true => KEYS.to_vec(),
            false => self.options.keys.iter().map(String::as_str).collect(),
        };
        let by_key = keys
            .into_iter()
            .find_map(|key| NumberedNames::of([&keyed(base, key)?, &keyed(one, key)?, &keyed(other, key)?]));
        if let Some(numbered) = by_key {
            let named = self.named([base, one, other], &numbered);
            return Value::List(named.into_iter().map(|(_, value)| value).collect());
        }
        Value::List(self.woven(base, one, other))
    }

    fn woven<'a>(&mut self, base: &'a [Entry<'a>], one: &'a [Entry<'a>], other: &'a [Entry<'a>]) -> Vec<Value<'a>> {
        let mut merged = Vec::with_capacity(one.len().max(other.len()));
        for stretch in weave::entries(base, one, other) {
            match stretch {
                weave::Stretch::Base(at) => merged.push(Value::of(&base[at].value)),
                weave::Stretch::Changed { base: was, one: mine, other: theirs } if !was.is_empty() => {
                    // Both sides have as many elements as the base: each element was changed by both.
                    for at in 0..was.len() {
                        let before = Some(&base[was.start + at].value);
                        let value = self.value(before, &one[mine.start + at].value, &other[theirs.start + at].value);
                        merged.push(value);
                    }
                }
                weave::Stretch::Changed { one: mine, other: theirs, .. } => {
                    let mine = &one[mine];
                    merged.extend(mine.iter().map(|entry| Value::of(&entry.value)));
                    let there = NodeNumbers::of_all(mine);
                    let new = other[theirs].iter().filter(|entry| !there.has(&entry.value));
                    merged.extend(new.map(|entry| Value::of(&entry.value)));
                }
            }
        }
        merged
    }

    /// Merges a text by characters: one that is marked as such, or one at a path that the rule names.
    fn text<'a>(&self, base: Option<&Node<'a>>, one: &Node<'a>, other: &Node<'a>) -> Option<Value<'a>> {
        let is_named = self.options.texts.iter().any(|pattern| matches(pattern, &self.path));
        let plain = |node: &Node<'a>| match &node.kind {
            Kind::Scalar(meaning) if is_named => meaning.strip_prefix('"').map(str::to_owned),
            _ => None,
        };
        let marked = |node: &Node<'a>| {
            let is_marked = entries(node).len() == 1 && matches!(node.kind, Kind::Map(_));
            is_marked.then(|| node.field(TEXT)?.strip_prefix('"').map(str::to_owned)).flatten()
        };
        // A lone surrogate is not a character and cannot be written back.
        let is_whole = |node: &Node<'a>| !node.text.contains("\\ud") && !node.text.contains("\\uD");
        if ![one, other].into_iter().chain(base).all(is_whole) {
            return None;
        }
        if let (Some(one), Some(other)) = (plain(one), plain(other)) {
            let base = base.and_then(plain).unwrap_or_default();
            return Some(Value::Made(value::quoted(&weave::text(&base, &one, &other))));
        }
        let (one, other) = (marked(one)?, marked(other)?);
        let text = weave::text(&base.and_then(marked).unwrap_or_default(), &one, &other);
        Some(Value::Map(vec![("\"$text\"", Value::Made(value::quoted(&text)))]))
    }
}

/// Returns the values of a field, or `None` if an element lacks it.
fn keyed<'a>(entries: &'a [Entry<'a>], key: &str) -> Option<Vec<&'a str>> {
    entries.iter().map(|entry| entry.value.field(key)).collect()
}

/// Returns whether a pattern such as `/notes/*/body` matches a path.
fn matches(pattern: &str, path: &[String]) -> bool {
    let parts: Vec<_> = pattern.split('/').skip(1).collect();
    parts.len() == path.len() && parts.iter().zip(path).all(|(part, name)| *part == "*" || part == name)
}
