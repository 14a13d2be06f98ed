//! The entries of maps and lists: either built, or on a tape and built on first access.
//!
//! A merge of a large document visits only the changed values and the path to them. A parser that writes a tape makes one
//! allocation for the whole document; the unvisited rest never becomes nodes.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::ops::Deref;
use std::rc::Rc;

use super::node::{Container, Entry, EntryStart, Kind, Node, Separator};

/// The entries of a map or a list.
#[derive(Debug)]
pub(crate) struct LazyContainer<'a> {
    built: OnceCell<Box<Container<'a>>>,
    /// Their position on the tape.
    on_tape: Option<(Rc<Tape<'a>>, u32)>,
}

/// A document with comma-separated entries, as marks in text order.
#[derive(Debug)]
pub(crate) struct Tape<'a> {
    pub(crate) text: &'a str,
    pub(crate) marks: Vec<TapeMark>,
    /// Returns the meaning of a scalar or a field name from its text.
    pub(crate) meaning: fn(&'a str) -> Cow<'a, str>,
}

/// A value in the text. The marks of the values inside it follow, up to the mark `next`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TapeMark {
    pub(crate) sort: TapeKind,
    /// The offset of the whitespace before it; `key` and `start` are the offsets of its key and of the value.
    pub(crate) lead: u32,
    pub(crate) key: u32,
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// The index of the mark after everything inside it.
    pub(crate) next: u32,
    pub(crate) hash: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TapeKind {
    Scalar,
    Map,
    List,
}

impl<'a> LazyContainer<'a> {
    /// Returns the meaning of a scalar field.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        if let (None, Some((tape, place))) = (self.built.get(), &self.on_tape) {
            let field = tape.inside(*place).find(|mark| *tape.name(mark) == *name)?;
            if field.sort != TapeKind::Scalar {
                return None;
            }
            // A computed meaning needs an owner: the node below.
            if let Cow::Borrowed(meaning) = (tape.meaning)(tape.written(field)) {
                return Some(meaning);
            }
        }
        let entry = self.entries.iter().find(|entry| entry.name == name)?;
        match &entry.value.kind {
            Kind::Scalar(meaning) => Some(meaning),
            _ => None,
        }
    }
}

impl<'a> From<Container<'a>> for LazyContainer<'a> {
    fn from(container: Container<'a>) -> Self {
        Self { built: OnceCell::from(Box::new(container)), on_tape: None }
    }
}

impl<'a> Deref for LazyContainer<'a> {
    type Target = Container<'a>;

    fn deref(&self) -> &Container<'a> {
        self.built.get_or_init(|| {
            let (tape, place) = self.on_tape.as_ref().expect("parts are there or folded");
            Box::new(tape.unfold(*place))
        })
    }
}

/// Splits the text after a comma into a comment on the same line, which belongs to the value before, and the rest.
fn behind_comma(text: &str) -> (&str, &str) {
    let line = text.find('\n').map_or(text, |end| &text[..end]);
    let line = line.strip_suffix('\r').unwrap_or(line);
    // A comment that continues on the next line belongs to the following value, and so may one that precedes other text.
    let is_whole = line.len() < text.len() && line.matches("/*").count() == line.matches("*/").count();
    match is_whole && !line.trim().is_empty() {
        true => text.split_at(line.len()),
        false => ("", text),
    }
}

/// Finds a comma among whitespace and comments.
fn last_comma(text: &str) -> Option<usize> {
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        at += match rest.as_bytes()[0] {
            b',' => return Some(at),
            b'/' => comment_bytes(rest).unwrap_or(1),
            _ => 1,
        };
    }
    None
}

/// Returns the length of the comment at the start of a text, or `None` if there is none or it does not end.
pub(crate) fn comment_bytes(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    text.strip_prefix("/*")?.find("*/").map(|end| end + 4)
}

impl<'a> Tape<'a> {
    /// Returns the first value, with all others unbuilt inside it.
    pub(crate) fn root(self) -> Node<'a> {
        Rc::new(self).node(0)
    }

    fn node(self: &Rc<Self>, place: u32) -> Node<'a> {
        let mark = &self.marks[place as usize];
        let text = self.written(mark);
        let parts = || LazyContainer { built: OnceCell::new(), on_tape: Some((Rc::clone(self), place)) };
        let kind = match mark.sort {
            TapeKind::Scalar => Kind::Scalar((self.meaning)(text)),
            TapeKind::Map => Kind::Map(parts()),
            TapeKind::List => Kind::List(parts()),
        };
        Node { text, hash: mark.hash, kind }
    }

    fn unfold(self: &Rc<Self>, place: u32) -> Container<'a> {
        let whole = &self.marks[place as usize];
        let mut entries: Vec<Entry<'a>> = Vec::with_capacity(self.inside(place).count());
        let (mut at, mut end) = (place + 1, whole.start + 1);
        while at < whole.next {
            let mark = &self.marks[at as usize];
            let mut lead = self.slice(mark.lead, mark.key);
            if let Some(before) = entries.last_mut() {
                // Up to the comma.
                before.tail = self.slice(end, mark.lead - 1);
                (before.after, lead) = behind_comma(lead);
            }
            let name = if whole.sort == TapeKind::Map { self.name(mark) } else { Cow::Borrowed("") };
            let key = self.slice(mark.key, mark.start);
            entries.push(Entry { name, lead, indent: 0, key, value: self.node(at), tail: "", after: "" });
            (at, end) = (mark.next, mark.end);
        }
        let mut tail = self.slice(end, whole.end - 1);
        let mut has_last_comma = false;
        if let Some(last) = entries.last_mut().filter(|_| !tail.trim().is_empty()) {
            if let Some(comma) = last_comma(tail) {
                (last.tail, tail, has_last_comma) = (&tail[..comma], &tail[comma + 1..], true);
            }
            (last.after, tail) = behind_comma(tail);
        }
        Container {
            separator: Separator::Commas,
            open: self.slice(whole.start, whole.start + 1),
            entries,
            tail,
            close: self.slice(whole.end - 1, whole.end),
            start: EntryStart::Own,
            has_last_comma,
        }
    }

    /// Iterates over the direct children of a value.
    fn inside(&self, place: u32) -> impl Iterator<Item = &TapeMark> {
        self.beside(place as usize + 1, self.marks[place as usize].next as usize)
    }

    /// Iterates over the siblings of a value up to an end.
    fn beside(&self, first: usize, end: usize) -> impl Iterator<Item = &TapeMark> {
        let mut at = first;
        std::iter::from_fn(move || {
            let mark = (at < end).then(|| &self.marks[at])?;
            at = mark.next as usize;
            Some(mark)
        })
    }

    /// Returns whether two sibling fields, from `first` to the end of the tape, have the same name.
    pub(crate) fn has_twice(&self, first: usize) -> bool {
        let mut names: Vec<_> = self.beside(first, self.marks.len()).map(|mark| self.name(mark)).collect();
        names.sort_unstable();
        names.windows(2).any(|pair| pair[0] == pair[1])
    }

    fn name(&self, mark: &TapeMark) -> Cow<'a, str> {
        let key = self.slice(mark.key, mark.start).trim_end();
        let written = key.strip_suffix(':').unwrap_or(key).trim_end();
        // Skips the quote, which is not part of a name.
        match (self.meaning)(written) {
            Cow::Borrowed(meaning) => Cow::Borrowed(&meaning[1..]),
            Cow::Owned(meaning) => Cow::Owned(meaning[1..].to_owned()),
        }
    }

    fn written(&self, mark: &TapeMark) -> &'a str {
        self.slice(mark.start, mark.end)
    }

    fn slice(&self, start: u32, end: u32) -> &'a str {
        &self.text[start as usize..end as usize]
    }
}
