//! A merged value and its formatting: fields and elements on lines of their own, indented by two spaces per level.

use std::cmp::Ordering;

use crate::structure::{Entry, Kind, Node};

pub(super) enum Value<'a> {
    /// A scalar, as written.
    Text(&'a str),
    /// A scalar that neither side has.
    Made(String),
    List(Vec<Value<'a>>),
    /// Fields with their names as written.
    Map(Vec<(&'a str, Value<'a>)>),
}

impl<'a> Value<'a> {
    /// Copies the value of one side.
    pub(super) fn of(node: &'a Node<'a>) -> Self {
        match &node.kind {
            Kind::Scalar(_) => Self::Text(node.text),
            Kind::List(list) => Self::List(list.entries.iter().map(|entry| Self::of(&entry.value)).collect()),
            Kind::Map(map) => {
                Self::Map(map.entries.iter().map(|entry| (name_text(entry), Self::of(&entry.value))).collect())
            }
        }
    }

    pub(super) fn write(&self, out: &mut String, depth: usize) {
        match self {
            Self::Text(text) => out.push_str(text),
            Self::Made(text) => out.push_str(text),
            Self::List(list) if list.is_empty() => out.push_str("[]"),
            Self::Map(map) if map.is_empty() => out.push_str("{}"),
            Self::List(list) => {
                out.push('[');
                for (at, value) in list.iter().enumerate() {
                    begin(out, at, depth + 1);
                    value.write(out, depth + 1);
                }
                end(out, ']', depth);
            }
            Self::Map(map) => {
                out.push('{');
                for (at, (name, value)) in map.iter().enumerate() {
                    begin(out, at, depth + 1);
                    out.push_str(name);
                    out.push_str(": ");
                    value.write(out, depth + 1);
                }
                end(out, '}', depth);
            }
        }
    }
}

/// Returns the entries of a map or a list; none for a scalar.
pub(super) fn entries<'n, 'a>(node: &'n Node<'a>) -> &'n [Entry<'a>] {
    node.container().map_or(&[], |container| &container.entries)
}

fn begin(out: &mut String, at: usize, depth: usize) {
    out.push_str(if at == 0 { "\n" } else { ",\n" });
    out.extend(std::iter::repeat_n("  ", depth));
}

fn end(out: &mut String, close: char, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth));
    out.push(close);
}

/// Returns the name of a field with its quotes, as written.
pub(super) fn name_text<'a>(entry: &Entry<'a>) -> &'a str {
    entry.key.trim_end().trim_end_matches(':').trim_end()
}

/// Returns the greater of two values: by kind, then by value. The kinds in ascending order are null, booleans, numbers, texts,
/// lists and maps.
pub(super) fn greater<'a>(one: &'a Node<'a>, other: &'a Node<'a>) -> &'a Node<'a> {
    let by_number = || Some((one.text.parse::<f64>().ok()?, other.text.parse::<f64>().ok()?));
    let order = rank(one).cmp(&rank(other));
    let order = order.then_with(|| by_number().map_or(Ordering::Equal, |(one, other)| one.total_cmp(&other)));
    let order = order.then_with(|| meaning(one).cmp(meaning(other))).then_with(|| one.text.cmp(other.text));
    if order == Ordering::Less { other } else { one }
}

fn rank(node: &Node<'_>) -> u8 {
    match &node.kind {
        Kind::Scalar(meaning) => match meaning.bytes().next() {
            Some(b'n') => 0,
            Some(b'f' | b't') => 1,
            Some(b'"') => 3,
            _ => 2,
        },
        Kind::List(_) => 4,
        Kind::Map(_) => 5,
    }
}

fn meaning<'n>(node: &'n Node<'_>) -> &'n str {
    match &node.kind {
        Kind::Scalar(meaning) => meaning,
        _ => node.text,
    }
}

/// Returns a text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if u32::from(c) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
