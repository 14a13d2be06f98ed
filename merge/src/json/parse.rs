//! A JSON parser that keeps the text of every value and takes nothing but JSON.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::structure::{Container, DEPTH_MAX, Document, Entry, Flaw, Glue, Node, Start};

/// Reads a document; a byte order mark may stand before it.
pub(crate) fn parse(text: &str) -> Result<Document<'_>, Flaw> {
    let start = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let mut parser = Parser { text, bytes: text.as_bytes(), at: start };
    parser.blanks();
    let prefix = &text[..parser.at];
    let root = parser.value(0)?;
    let end = parser.at;
    parser.blanks();
    match parser.at == text.len() {
        true => Ok(Document { prefix, root, suffix: &text[end..] }),
        false => Err(parser.flaw("something after the end")),
    }
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    fn flaw(&self, what: &'static str) -> Flaw {
        Flaw::malformed(self.at, what)
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn since(&self, start: usize) -> &'a str {
        &self.text[start..self.at]
    }

    fn value(&mut self, depth: usize) -> Result<Node<'a>, Flaw> {
        match self.peek() {
            Some(b'{') if depth < DEPTH_MAX => self.container(depth, b'}'),
            Some(b'[') if depth < DEPTH_MAX => self.container(depth, b']'),
            Some(b'{' | b'[') => Err(self.flaw("nested too deep")),
            Some(b'"') => {
                let start = self.at;
                let meaning = self.string()?;
                Ok(Node::scalar(self.since(start), meaning))
            }
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            Some(_) => Err(self.flaw("no value begins like this")),
            None => Err(self.flaw("a value is missing")),
        }
    }

    fn word(&mut self, word: &'static str) -> Result<Node<'a>, Flaw> {
        let start = self.at;
        if !self.bytes[start..].starts_with(word.as_bytes()) {
            return Err(self.flaw("no value begins like this"));
        }
        self.at += word.len();
        Ok(Node::scalar(self.since(start), Cow::Borrowed(word)))
    }

    fn digits(&mut self) -> Result<(), Flaw> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.flaw("a digit is missing")) } else { Ok(()) }
    }

    /// A number as it is written: `1.0`, `1` and `1e0` are three.
    fn number(&mut self) -> Result<Node<'a>, Flaw> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        let text = self.since(start);
        Ok(Node::scalar(text, Cow::Borrowed(text)))
    }

    /// A string: what it means, behind a quote that tells it from a number.
    fn string(&mut self) -> Result<Cow<'a, str>, Flaw> {
        let start = self.at;
        self.at += 1;
        let mut has_escapes = false;
        loop {
            let rest = &self.bytes[self.at..];
            let Some(found) = rest.iter().position(|byte| *byte == b'"' || *byte == b'\\' || *byte < 0x20) else {
                self.at = self.bytes.len();
                return Err(self.flaw("a string does not end"));
            };
            self.at += found;
            match self.bytes[self.at] {
                b'"' => break,
                b'\\' => {
                    has_escapes = true;
                    self.at += 2;
                }
                _ => return Err(self.flaw("a control character in a string")),
            }
            if self.at > self.bytes.len() {
                self.at = self.bytes.len();
                return Err(self.flaw("a string does not end"));
            }
        }
        self.at += 1;
        // Without the closing quote, so that the meaning of a string is what it begins with.
        let inner = &self.text[start..self.at - 1];
        if !has_escapes {
            return Ok(Cow::Borrowed(inner));
        }
        match decode(&inner[1..]) {
            Some(decoded) => Ok(Cow::Owned(format!("\"{decoded}"))),
            None => Err(Flaw::malformed(start, "a bad escape in a string")),
        }
    }

    fn container(&mut self, depth: usize, close: u8) -> Result<Node<'a>, Flaw> {
        let (start, is_map) = (self.at, close == b'}');
        self.at += 1;
        let open = self.since(start);
        let mut entries: Vec<Entry<'a>> = Vec::new();
        let mut tail_start = self.at;
        self.blanks();
        if self.peek() != Some(close) {
            self.at = tail_start;
            loop {
                entries.push(self.entry(depth, is_map)?);
                tail_start = self.at;
                self.blanks();
                match self.peek() {
                    Some(b',') => {
                        let last = entries.last_mut().expect("one was just pushed");
                        last.tail = &self.text[tail_start..self.at];
                        self.at += 1;
                    }
                    Some(byte) if byte == close => break,
                    Some(_) => return Err(self.flaw("a comma or the end is missing")),
                    None => return Err(self.flaw("the end is missing")),
                }
            }
        }
        let tail = self.since(tail_start);
        let end = self.at;
        self.at += 1;
        if is_map && has_twice(&entries) {
            return Err(Flaw::malformed(start, "a name stands twice in one object"));
        }
        let close = self.since(end);
        let container = Container { glue: Glue::Commas, open, entries, tail, close, start: Start::Own };
        let text = self.since(start);
        Ok(if is_map { Node::map(text, container) } else { Node::list(text, container) })
    }

    fn entry(&mut self, depth: usize, is_map: bool) -> Result<Entry<'a>, Flaw> {
        let start = self.at;
        self.blanks();
        let (lead, key_start) = (self.since(start), self.at);
        let mut name = Cow::Borrowed("");
        if is_map {
            if self.peek() != Some(b'"') {
                return Err(self.flaw("a name is missing"));
            }
            name = match self.string()? {
                Cow::Borrowed(quoted) => Cow::Borrowed(&quoted[1..]),
                Cow::Owned(quoted) => Cow::Owned(quoted[1..].to_owned()),
            };
            self.blanks();
            if self.peek() != Some(b':') {
                return Err(self.flaw("a colon is missing"));
            }
            self.at += 1;
            self.blanks();
        }
        let key = self.since(key_start);
        let value = self.value(depth + 1)?;
        Ok(Entry { name, lead, indent: 0, key, value, tail: "" })
    }
}

fn has_twice(entries: &[Entry<'_>]) -> bool {
    if entries.len() <= 8 {
        return entries
            .iter()
            .enumerate()
            .any(|(at, entry)| entries[..at].iter().any(|other| other.name == entry.name));
    }
    let mut seen = HashSet::with_capacity(entries.len());
    !entries.iter().all(|entry| seen.insert(entry.name.as_ref()))
}

/// What the inside of a string means. A half of a surrogate pair stands for itself, in a form that no other string has.
fn decode(inner: &str) -> Option<String> {
    let mut out = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest.as_bytes().get(at + 1)?;
        let mut used = at + 2;
        match code {
            b'"' | b'\\' | b'/' => out.push(char::from(*code)),
            b'b' => out.push('\u{8}'),
            b'f' => out.push('\u{c}'),
            b'n' => out.push('\n'),
            b'r' => out.push('\r'),
            b't' => out.push('\t'),
            b'u' => {
                let unit = hex(rest.get(at + 2..at + 6)?)?;
                used = at + 6;
                match rest.get(at + 6..at + 12).filter(|next| next.starts_with("\\u")).and_then(|next| hex(&next[2..]))
                {
                    Some(low) if (0xd800..0xdc00).contains(&unit) && (0xdc00..0xe000).contains(&low) => {
                        out.push(char::from_u32(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00))?);
                        used = at + 12;
                    }
                    _ => match char::from_u32(unit) {
                        Some(c) => out.push(c),
                        // A NUL and a number: nothing that is decoded on the normal way looks like it by chance.
                        None => out.push_str(&format!("\0\u{fffd}{unit:04x}")),
                    },
                }
            }
            _ => return None,
        }
        rest = &rest[used..];
    }
    out.push_str(rest);
    Some(out)
}

fn hex(digits: &str) -> Option<u32> {
    digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok())?
}
