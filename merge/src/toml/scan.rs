//! Finds the boundaries of tokens in a text that is known to be valid TOML.

use std::borrow::Cow;

use toml_edit::Key;

use crate::structure::{Container, DEPTH_MAX, Entry, EntryStart, Node, ParseError, Separator};

pub(super) struct Scanner<'a> {
    text: &'a str,
    pub(super) at: usize,
    /// Number of comments skipped so far.
    comments: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a str, at: usize) -> Self {
        Self { text, at, comments: 0 }
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub(super) fn since(&self, start: usize) -> &'a str {
        &self.text[start..self.at]
    }

    pub(super) fn is_done(&self) -> bool {
        self.at == self.text.len()
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips the rest of the line including its terminator.
    pub(super) fn line(&mut self) -> &'a str {
        let start = self.at;
        self.at = memchr::memchr(b'\n', self.rest().as_bytes()).map_or(self.text.len(), |newline| start + newline + 1);
        self.since(start)
    }

    /// Skips empty lines and comment lines.
    pub(super) fn comment_lines(&mut self) {
        while !self.is_done() {
            let start = self.at;
            let line = self.line().trim();
            if !line.is_empty() && !line.starts_with('#') {
                self.at = start;
                return;
            }
        }
    }

    /// Skips whitespace; inside brackets also line ends and comments.
    pub(super) fn blanks(&mut self, inside: bool) {
        loop {
            match self.peek() {
                Some(b' ' | b'\t') => self.at += 1,
                Some(b'\n' | b'\r') if inside => self.at += 1,
                Some(b'#') if inside => {
                    self.comments += 1;
                    self.line();
                }
                _ => return,
            }
        }
    }

    /// Returns the text before a byte outside of strings.
    pub(super) fn until(&mut self, end: u8) -> Option<&'a str> {
        let start = self.at;
        loop {
            match self.peek()? {
                byte if byte == end => return Some(self.since(start)),
                b'\n' => return None,
                b'"' | b'\'' => self.string()?,
                _ => self.at += 1,
            }
        }
    }

    /// Skips a string of any of the four kinds.
    fn string(&mut self) -> Option<()> {
        let quote = self.peek()?;
        let bytes = self.text.as_bytes();
        let is_long = self.text.as_bytes()[self.at..].starts_with(&[quote; 3]);
        self.at += if is_long { 3 } else { 1 };
        loop {
            match bytes.get(self.at)? {
                b'\\' if quote == b'"' => self.at += 2,
                byte if *byte == quote && !is_long => {
                    self.at += 1;
                    return Some(());
                }
                byte if *byte == quote && bytes[self.at..].starts_with(&[quote; 3]) => {
                    // Up to two quotes may precede the closing three.
                    let run = bytes[self.at..].iter().take_while(|byte| **byte == quote).count();
                    self.at += run.min(5);
                    return Some(());
                }
                _ => self.at += 1,
            }
        }
    }

    pub(super) fn value(&mut self, depth: usize) -> Result<Node<'a>, ParseError> {
        let start = self.at;
        match self.peek() {
            Some(b'[' | b'{') if depth >= DEPTH_MAX => {
                return Err(ParseError::unhandled(start, "a value as deep as this"));
            }
            Some(b'[') => return self.container(depth, b']'),
            Some(b'{') => return self.container(depth, b'}'),
            Some(b'"' | b'\'') => {
                let ended = self.string().filter(|()| self.text.is_char_boundary(self.at));
                ended.ok_or_else(|| ParseError::unhandled(start, "a string like this"))?;
            }
            _ => {
                let end = self.rest().find([',', ']', '}', '#', '\n', '\r']).unwrap_or(self.rest().len());
                self.at += self.rest()[..end].trim_end().len();
            }
        }
        let text = self.since(start);
        Ok(Node::scalar(text, Cow::Borrowed(text)))
    }

    fn container(&mut self, depth: usize, close: u8) -> Result<Node<'a>, ParseError> {
        let (start, comments, is_map) = (self.at, self.comments, close == b'}');
        self.at += 1;
        let open = self.since(start);
        let mut entries: Vec<Entry<'a>> = Vec::new();
        let mut tail_start = self.at;
        self.blanks(true);
        while self.peek() != Some(close) {
            self.at = if entries.is_empty() { tail_start } else { self.at };
            entries.push(self.entry(depth, is_map)?);
            tail_start = self.at;
            self.blanks(true);
            if self.peek() != Some(b',') {
                break;
            }
            let comma = self.at;
            self.at += 1;
            self.blanks(true);
            if self.peek() != Some(close) {
                entries.last_mut().expect("one was just pushed").tail = &self.text[tail_start..comma];
                self.at = comma + 1;
            }
        }
        if self.peek() != Some(close) {
            return Err(ParseError::unhandled(self.at, "a value like this"));
        }
        let (tail, end) = (self.since(tail_start), self.at);
        self.at += 1;
        let text = self.since(start);
        if self.comments > comments {
            return Ok(Node::scalar(text, Cow::Borrowed(text)));
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
        Ok(if is_map { Node::map(text, container) } else { Node::list(text, container) })
    }

    fn entry(&mut self, depth: usize, is_map: bool) -> Result<Entry<'a>, ParseError> {
        let start = self.at;
        self.blanks(true);
        let (lead, key_start) = (self.since(start), self.at);
        let mut name = String::new();
        if is_map {
            let bad = || ParseError::unhandled(key_start, "a key like this");
            let path = Key::parse(self.until(b'=').ok_or_else(bad)?.trim()).map_err(|_| bad())?;
            name = path.iter().map(Key::get).collect::<Vec<_>>().join(".");
            self.at += 1;
            self.blanks(true);
        }
        let key = self.since(key_start);
        let value = self.value(depth + 1)?;
        Ok(Entry { name: Cow::Owned(name), lead, indent: 0, key, value, tail: "", after: "" })
    }
}
