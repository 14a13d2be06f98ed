//! Flow collections on one line: `[a, b]`, `{a: 1}`.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::structure::{Container, DEPTH_MAX, Entry, EntryStart, Node, Separator};

/// Parses a collection at the start of a text and returns its length. Returns `None` if it does not end on this line or uses more
/// than names and texts.
pub(super) fn value(text: &str, depth: usize) -> Option<(Node<'_>, usize)> {
    let mut reader = Reader { text, at: 0 };
    let node = reader.value(depth)?;
    Some((node, reader.at))
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn since(&self, start: usize) -> &'a str {
        &self.text[start..self.at]
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t')) {
            self.at += 1;
        }
    }

    fn value(&mut self, depth: usize) -> Option<Node<'a>> {
        if depth > DEPTH_MAX {
            return None;
        }
        match self.peek()? {
            b'[' => self.container(b']', depth),
            b'{' => self.container(b'}', depth),
            _ => {
                let text = self.text_of()?;
                Some(Node::scalar(text, Cow::Borrowed(text)))
            }
        }
    }

    /// Parses a quoted or plain text.
    fn text_of(&mut self) -> Option<&'a str> {
        let rest = &self.text[self.at..];
        let length = match self.peek()? {
            b'"' | b'\'' => quoted(rest)?,
            b'&' | b'*' | b'!' | b'|' | b'>' | b'@' | b'`' | b'%' | b'?' | b'-' if !is_number(rest) => return None,
            _ => {
                let stops = rest.find([',', '[', ']', '{', '}', '#']).unwrap_or(rest.len());
                let colon = rest.find(": ").unwrap_or(rest.len());
                rest[..stops.min(colon)].trim_end().len()
            }
        };
        let start = self.at;
        self.at += length;
        (length > 0).then(|| self.since(start))
    }

    fn container(&mut self, close: u8, depth: usize) -> Option<Node<'a>> {
        let (start, is_map) = (self.at, close == b'}');
        self.at += 1;
        let open = self.since(start);
        let mut entries: Vec<Entry<'a>> = Vec::new();
        let mut tail_start = self.at;
        self.blanks();
        if self.peek()? != close {
            self.at = tail_start;
            loop {
                entries.push(self.entry(is_map, depth)?);
                tail_start = self.at;
                self.blanks();
                match self.peek()? {
                    b',' => {
                        entries.last_mut()?.tail = self.since(tail_start);
                        self.at += 1;
                    }
                    byte if byte == close => break,
                    _ => return None,
                }
            }
        }
        let (tail, end) = (self.since(tail_start), self.at);
        self.at += 1;
        let mut seen = HashSet::new();
        if is_map && !entries.iter().all(|entry| seen.insert(entry.name.as_ref())) {
            return None;
        }
        let container = Container {
            separator: Separator::Commas,
            open,
            entries,
            tail,
            close: self.since(end),
            start: EntryStart::Own,
            has_last_comma: false,
        };
        let text = self.since(start);
        Some(if is_map { Node::map(text, container) } else { Node::list(text, container) })
    }

    fn entry(&mut self, is_map: bool, depth: usize) -> Option<Entry<'a>> {
        let start = self.at;
        self.blanks();
        let (lead, key_start) = (self.since(start), self.at);
        let mut name = "";
        if is_map {
            name = self.text_of()?;
            if self.peek()? != b':' {
                return None;
            }
            self.at += 1;
            self.blanks();
        }
        let key = self.since(key_start);
        let value = self.value(depth + 1)?;
        // A single pair in a list is a map of its own.
        if self.peek() == Some(b':') {
            return None;
        }
        Some(Entry { name: Cow::Borrowed(name), lead, indent: 0, key, value, tail: "", after: "" })
    }
}

fn is_number(text: &str) -> bool {
    text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
}

/// Returns the length of a quoted text with its quotes, if it ends on its line.
pub(super) fn quoted(content: &str) -> Option<usize> {
    let bytes = content.as_bytes();
    let quote = *bytes.first()?;
    let mut at = 1;
    loop {
        match *bytes.get(at)? {
            b'\\' if quote == b'"' => at += 2,
            byte if byte == quote && quote == b'\'' && bytes.get(at + 1) == Some(&quote) => at += 2,
            byte if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}
