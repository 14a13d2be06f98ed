//! A document as a tree that keeps its text.

use std::borrow::Cow;
use std::collections::HashMap;

use super::lazy::LazyContainer;

/// A document: the text before its value, the value, and the text after it.
#[derive(Debug)]
pub(crate) struct Document<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) root: Node<'a>,
    pub(crate) suffix: &'a str,
}

/// A value with the text it was read from.
#[derive(Debug)]
pub(crate) struct Node<'a> {
    pub(crate) text: &'a str,
    /// A hash of its meaning. Formatting, comments and the order of fields do not affect it.
    pub(crate) hash: u64,
    pub(crate) kind: Kind<'a>,
}

#[derive(Debug)]
pub(crate) enum Kind<'a> {
    /// A scalar, in a canonical text for its meaning.
    Scalar(Cow<'a, str>),
    Map(LazyContainer<'a>),
    List(LazyContainer<'a>),
}

/// The text around the entries of a map or a list.
#[derive(Debug)]
pub(crate) struct Container<'a> {
    pub(crate) separator: Separator,
    pub(crate) open: &'a str,
    pub(crate) entries: Vec<Entry<'a>>,
    /// The text between the last entry and the end: whitespace, a trailing comma.
    pub(crate) tail: &'a str,
    pub(crate) close: &'a str,
    pub(crate) start: EntryStart,
    /// Whether a comma follows the last entry, if it is not part of the tail.
    pub(crate) has_last_comma: bool,
}

/// How entries are separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Separator {
    /// By commas; whitespace has no meaning.
    Commas,
    /// Each on lines of its own; a comment may precede it.
    Lines,
}

/// Where entries may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryStart {
    /// Anywhere; entries in lines start on a line of their own.
    Own,
    /// The first entry shares its line with other text.
    Shared,
    /// Keys come before the sections, whose names start with a bracket.
    KeysFirst,
}

/// A field or an element.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    /// The name of a field; empty for an element.
    pub(crate) name: Cow<'a, str>,
    /// The text before it: whitespace or comment lines.
    pub(crate) lead: &'a str,
    /// Its indentation in spaces, if that is not part of its lead.
    pub(crate) indent: usize,
    /// The text up to the value: `"name": `, `- `.
    pub(crate) key: &'a str,
    pub(crate) value: Node<'a>,
    /// The text after the value: whitespace, or a comment and the end of the line.
    pub(crate) tail: &'a str,
    /// A comment after the comma on the same line, in formats that allow it.
    pub(crate) after: &'a str,
}

impl<'a> Node<'a> {
    pub(crate) fn scalar(text: &'a str, meaning: Cow<'a, str>) -> Self {
        Self { text, hash: scalar_hash(&meaning), kind: Kind::Scalar(meaning) }
    }

    pub(crate) fn map(text: &'a str, container: Container<'a>) -> Self {
        let hash = map_hash(container.entries.iter().map(|entry| (entry.name.as_ref(), entry.value.hash)));
        Self { text, hash, kind: Kind::Map(container.into()) }
    }

    pub(crate) fn list(text: &'a str, container: Container<'a>) -> Self {
        let hash = list_hash(container.entries.iter().map(|entry| entry.value.hash));
        Self { text, hash, kind: Kind::List(container.into()) }
    }

    pub(crate) fn container(&self) -> Option<&Container<'a>> {
        match &self.kind {
            Kind::Scalar(_) => None,
            Kind::Map(container) | Kind::List(container) => Some(container),
        }
    }

    /// Returns the meaning of a scalar field of a map.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        match &self.kind {
            Kind::Map(parts) => parts.field(name),
            _ => None,
        }
    }
}

/// Returns the hash of a scalar from its meaning.
pub(crate) fn scalar_hash(meaning: &str) -> u64 {
    bytes_hash(1, meaning.as_bytes())
}

/// Returns the hash of a map from those of its fields, in any order.
pub(crate) fn map_hash<'a>(fields: impl Iterator<Item = (&'a str, u64)>) -> u64 {
    let mut whole = MapHash::default();
    fields.for_each(|(name, hash)| whole.add(name_hash(name), hash));
    whole.end()
}

/// The incremental hash of a map.
#[derive(Default)]
pub(crate) struct MapHash {
    sum: u64,
    count: u64,
}

impl MapHash {
    pub(crate) fn add(&mut self, name: u64, value: u64) {
        self.sum = self.sum.wrapping_add(mixed(name, value));
        self.count += 1;
    }

    pub(crate) fn end(&self) -> u64 {
        mixed(mixed(3, self.count), self.sum)
    }
}

pub(crate) fn name_hash(name: &str) -> u64 {
    bytes_hash(2, name.as_bytes())
}

/// Returns the hash of a list from those of its elements.
pub(crate) fn list_hash(elements: impl Iterator<Item = u64>) -> u64 {
    elements.fold(LIST, list_with)
}

/// The hash of an empty list.
pub(crate) const LIST: u64 = 4;

/// Returns the hash of a list with one more element.
pub(crate) fn list_with(list: u64, element: u64) -> u64 {
    mixed(list, element)
}

/// Hashes eight bytes at a time. Equal hashes do not prove equal values: see [`same`].
fn bytes_hash(kind: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let start = mixed(kind, bytes.len() as u64);
    let hash = words.iter().fold(start, |hash, word| mixed(hash, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mixed(hash, u64::from_le_bytes(last))
}

/// Combines two numbers: a 128-bit product, folded.
fn mixed(one: u64, other: u64) -> u64 {
    let product = u128::from(one ^ 0x9e37_79b9_7f4a_7c15) * u128::from(other ^ 0xd1b5_4a32_d192_ed03);
    (product as u64) ^ ((product >> 64) as u64) ^ one.rotate_left(29)
}

/// Returns whether two values have the same meaning. The hashes only serve to reject quickly.
pub(crate) fn has_same_meaning(one: &Node<'_>, other: &Node<'_>) -> bool {
    if one.hash != other.hash {
        return false;
    }
    match (&one.kind, &other.kind) {
        (Kind::Scalar(one), Kind::Scalar(other)) => one == other,
        _ if one.text == other.text => true,
        (Kind::List(one), Kind::List(other)) => {
            let pairs = one.entries.iter().zip(&other.entries);
            one.entries.len() == other.entries.len()
                && pairs.into_iter().all(|(a, b)| has_same_meaning(&a.value, &b.value))
        }
        (Kind::Map(one), Kind::Map(other)) => {
            let there: HashMap<&str, &Node<'_>> = other.entries.iter().map(|e| (e.name.as_ref(), &e.value)).collect();
            one.entries.len() == other.entries.len()
                && one
                    .entries
                    .iter()
                    .all(|e| there.get(e.name.as_ref()).is_some_and(|value| has_same_meaning(&e.value, value)))
        }
        _ => false,
    }
}

/// Returns the line and column of a byte, counted from 1.
pub(crate) fn line_and_column(text: &[u8], at: usize) -> (usize, usize) {
    let before = &text[..at.min(text.len())];
    let line = memchr::memchr_iter(b'\n', before).count() + 1;
    let start = memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1);
    (line, before.len() - start + 1)
}
