//! A strict JSON parser. It reads a document once into a [`Tape`]; values become nodes on first access.

use std::borrow::Cow;

use crate::structure::{
    DEPTH_MAX, Document, LIST, MapHash, ParseError, Tape, TapeKind, TapeMark, comment_bytes, list_with, name_hash,
    scalar_hash,
};

/// Parses a document. It may start with a byte order mark.
pub(crate) fn parse(text: &str) -> Result<Document<'_>, ParseError> {
    read(text, false)
}

/// Parses a document with line and block comments and trailing commas.
pub(crate) fn parse_with_comments(text: &str) -> Result<Document<'_>, ParseError> {
    read(text, true)
}

/// Returns the comments of a document.
pub(crate) fn comments(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = text[at..].find(['"', '/']) {
        at += next;
        let rest = &text[at..];
        at += match rest.as_bytes()[0] {
            b'"' => string_bytes(rest),
            _ => match comment_bytes(rest) {
                Some(bytes) => {
                    found.push(&rest[..bytes]);
                    bytes
                }
                None => 1,
            },
        };
    }
    found
}

/// Returns the length of the string at the start of a text.
fn string_bytes(text: &str) -> usize {
    let mut is_escaped = true;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn read(text: &str, has_comments: bool) -> Result<Document<'_>, ParseError> {
    if u32::try_from(text.len()).is_err() {
        return Err(ParseError::unhandled(0, "4 GiB or more"));
    }
    let start = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    // Reserves one mark per twelve bytes: more than most documents need, so that the tape is rarely reallocated.
    let tape = Tape { text, marks: Vec::with_capacity(text.len() / 12 + 1), meaning };
    let mut parser = Parser { text, bytes: text.as_bytes(), at: start, tape, names: Vec::new(), has_comments };
    parser.blanks();
    let root = parser.at;
    parser.marked(0, root, root)?;
    let end = parser.at;
    parser.blanks();
    match parser.at == text.len() {
        true => Ok(Document { prefix: &text[..root], root: parser.tape.root(), suffix: &text[end..] }),
        false => Err(parser.flaw("something after the end")),
    }
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    tape: Tape<'a>,
    /// The hashes of the names in the open maps.
    names: Vec<u64>,
    /// Whether comments count as whitespace, and a comma may precede the end.
    has_comments: bool,
}

/// The kind of a value and the hash of its meaning.
type Read = (TapeKind, u64);

impl<'a> Parser<'a> {
    fn flaw(&self, what: &'static str) -> ParseError {
        ParseError::malformed(self.at, what)
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn blanks(&mut self) {
        loop {
            match self.peek() {
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.at += 1,
                Some(b'/') if self.has_comments => match comment_bytes(&self.text[self.at..]) {
                    Some(bytes) => self.at += bytes,
                    None => return,
                },
                _ => return,
            }
        }
    }

    /// Parses a value and adds its mark to the tape.
    fn marked(&mut self, depth: usize, lead: usize, key: usize) -> Result<u64, ParseError> {
        let place = self.tape.marks.len();
        let [lead, key, start] = [lead, key, self.at].map(|at| at as u32);
        self.tape.marks.push(TapeMark { sort: TapeKind::Scalar, lead, key, start, end: 0, next: 0, hash: 0 });
        let (sort, hash) = self.value(depth)?;
        let (end, next) = (self.at as u32, self.tape.marks.len() as u32);
        let mark = &mut self.tape.marks[place];
        (mark.sort, mark.hash, mark.end, mark.next) = (sort, hash, end, next);
        Ok(hash)
    }

    fn value(&mut self, depth: usize) -> Result<Read, ParseError> {
        match self.peek() {
            Some(b'{') if depth < DEPTH_MAX => self.map(depth),
            Some(b'[') if depth < DEPTH_MAX => self.list(depth),
            Some(b'{' | b'[') => Err(self.flaw("nested too deep")),
            Some(b'"') => Ok((TapeKind::Scalar, scalar_hash(&self.string()?))),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            Some(_) => Err(self.flaw("no value begins like this")),
            None => Err(self.flaw("a value is missing")),
        }
    }

    fn word(&mut self, word: &'static str) -> Result<Read, ParseError> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.flaw("no value begins like this"));
        }
        self.at += word.len();
        Ok((TapeKind::Scalar, scalar_hash(word)))
    }

    fn digits(&mut self) -> Result<(), ParseError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.flaw("a digit is missing")) } else { Ok(()) }
    }

    /// Parses a number and keeps it as written: `1.0`, `1` and `1e0` are three different values.
    fn number(&mut self) -> Result<Read, ParseError> {
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
        Ok((TapeKind::Scalar, scalar_hash(&self.text[start..self.at])))
    }

    /// Parses a string. Returns its meaning after a quote, which distinguishes it from a number.
    fn string(&mut self) -> Result<Cow<'a, str>, ParseError> {
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
        // Omits the closing quote, so that the meaning of a string without escapes is a prefix of its text.
        let inner = &self.text[start..self.at - 1];
        if !has_escapes {
            return Ok(Cow::Borrowed(inner));
        }
        match decode(&inner[1..]) {
            Some(decoded) => Ok(quoted(&decoded)),
            None => Err(ParseError::malformed(start, "a bad escape in a string")),
        }
    }

    fn map(&mut self, depth: usize) -> Result<Read, ParseError> {
        let (start, outer) = (self.at, self.names.len());
        let (first, mut hash) = (self.tape.marks.len(), MapHash::default());
        self.entries(b'}', |parser, lead| {
            let key = parser.at;
            if parser.peek() != Some(b'"') {
                return Err(parser.flaw("a name is missing"));
            }
            let name = name_hash(&parser.string()?[1..]);
            let named = parser.at;
            parser.blanks();
            if parser.peek() != Some(b':') {
                return Err(parser.flaw("a colon is missing"));
            }
            parser.at += 1;
            parser.blanks();
            if parser.text[named..parser.at].contains('/') {
                return Err(ParseError::unhandled(named, "a comment between a name and its value"));
            }
            hash.add(name, parser.marked(depth + 1, lead, key)?);
            parser.names.push(name);
            Ok(())
        })?;
        // Different names rarely have equal hashes; if two hashes are equal, the names are compared.
        let names = &mut self.names[outer..];
        let may_have_twice = match names.len() {
            0..=8 => (1..names.len()).any(|at| names[..at].contains(&names[at])),
            _ => {
                names.sort_unstable();
                names.windows(2).any(|pair| pair[0] == pair[1])
            }
        };
        self.names.truncate(outer);
        match may_have_twice && self.tape.has_twice(first) {
            true => Err(ParseError::malformed(start, "a name stands twice in one object")),
            false => Ok((TapeKind::Map, hash.end())),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Read, ParseError> {
        let mut hash = LIST;
        self.entries(b']', |parser, lead| {
            hash = list_with(hash, parser.marked(depth + 1, lead, parser.at)?);
            Ok(())
        })?;
        Ok((TapeKind::List, hash))
    }

    /// Parses entries up to the end of their map or list, each after its whitespace.
    fn entries(
        &mut self,
        close: u8,
        mut read: impl FnMut(&mut Self, usize) -> Result<(), ParseError>,
    ) -> Result<(), ParseError> {
        self.at += 1;
        let mut lead = self.at;
        self.blanks();
        if self.peek() == Some(close) {
            self.at += 1;
            return Ok(());
        }
        loop {
            read(self, lead)?;
            self.blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(byte) if byte == close => break,
                Some(_) => return Err(self.flaw("a comma or the end is missing")),
                None => return Err(self.flaw("the end is missing")),
            }
            lead = self.at;
            self.blanks();
            if self.has_comments && self.peek() == Some(close) {
                break;
            }
        }
        self.at += 1;
        Ok(())
    }
}

/// Returns the meaning of a string, a number or a word: its text; for a string, the text with escapes decoded and without the
/// closing quote.
fn meaning(written: &str) -> Cow<'_, str> {
    match written.strip_suffix('"') {
        Some(text) if text.contains('\\') => decode(&text[1..]).map_or(Cow::Borrowed(text), |inner| quoted(&inner)),
        Some(text) => Cow::Borrowed(text),
        None => Cow::Borrowed(written),
    }
}

fn quoted(inner: &str) -> Cow<'static, str> {
    Cow::Owned(format!("\"{inner}"))
}

/// Decodes the inside of a string. A lone surrogate is represented by a sequence that no other string has.
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
                        // A NUL and a number: a regular string does not contain this by accident.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structure::{Kind, Node};

    /// Joins the text of a value from its parts, recursively.
    fn together(node: &Node<'_>) -> String {
        let Some(parts) = node.container() else { return node.text.to_owned() };
        let entries = parts.entries.iter();
        let entries: Vec<_> =
            entries.map(|entry| [entry.lead, entry.key, &together(&entry.value), entry.tail].concat()).collect();
        let mut text = parts.open.to_owned();
        for (at, entry) in entries.iter().enumerate() {
            text.push_str(entry);
            if at + 1 < entries.len() || parts.has_last_comma {
                text.push(',');
            }
            text.push_str(parts.entries[at].after);
        }
        [&text, parts.tail, parts.close].concat()
    }

    fn root(text: &str) -> Node<'_> {
        parse(text).expect("JSON").root
    }

    #[test]
    fn what_is_unfolded_is_the_text_that_was_read() {
        for text in [
            "{}",
            "[ ]",
            "{ \"a\" : [ 1 , {\"b\":null} , [] ] , \"c\\u0064\" : \"x\\ny\"\n}",
            "[[[-1.5e3,true],{\"\":{}}],\"\\\"\"]",
        ] {
            assert_eq!(together(&root(text)), text);
        }
    }

    #[test]
    fn fields_are_found_before_and_after_unfolding() {
        let node = root("{\"\\u0069d\": \"a\\u0062\", \"list\": [1], \"name\": \"plain\", \"n\": 7}");
        for _ in 0..2 {
            assert_eq!(node.field("id"), Some("\"ab"));
            assert_eq!(node.field("name"), Some("\"plain"));
            assert_eq!(node.field("n"), Some("7"));
            assert_eq!((node.field("list"), node.field("none"), node.field("name\"")), (None, None, None));
            assert_eq!(node.container().map(|parts| parts.entries.len()), Some(4));
        }
        let Kind::Map(parts) = &node.kind else { panic!("it is a map") };
        assert_eq!(parts.entries[0].name, "id");
    }

    #[test]
    fn a_name_that_stands_twice_is_refused_however_it_is_written() {
        let many: String = (0..20).map(|at| format!("\"k{at}\": {at}, ")).collect();
        for text in [
            "{\"a\": 1, \"a\": 2}".to_owned(),
            "{\"a\": 1, \"\\u0061\": 2}".to_owned(),
            format!("[{{{many}\"k7\": 1}}]"),
        ] {
            assert_eq!(parse(&text).expect_err("refused").what, "a name stands twice in one object");
        }
        assert!(parse(&format!("[{{{many}\"k\": {{\"k7\": 1}}}}]")).is_ok(), "in another object it is another name");
    }

    #[test]
    fn a_hash_is_of_what_is_meant() {
        let same = |one: &str, other: &str| root(one).hash == root(other).hash;
        assert!(same("{\"a\":1,\"b\":[true]}", "{ \"b\" : [ true ], \"\\u0061\" : 1 }"));
        assert!(!same("{\"a\":1}", "{\"a\":1.0}"));
        assert!(!same("[1,2]", "[2,1]"));
        assert!(!same("\"1\"", "1"));
    }

    #[test]
    fn comments_are_read_and_stay_where_they_are() {
        for text in [
            "// a\n{ // b\n  \"x\": 1, // c\n  /* d */ \"y\": [1 /* e */, 2,], // f\n  \"z\": {} // g\n}\n// h",
            "[1, 2 // a\n, 3 /* , */ , ]",
            "{\r\n  \"a\": 1, // one\r\n  \"b\": 2, // two\r\n}",
            "{ /* nothing */ }",
            "[1, /* two\n lines */ 2]",
        ] {
            let document = parse_with_comments(text).expect("JSON with comments");
            let again = [document.prefix, &together(&document.root), document.suffix].concat();
            assert_eq!(again, text);
            assert!(parse(text).is_err(), "{text} is not JSON to the letter");
        }
        let text = "{\"//\": \"/* no */\", // \"yes\n\"a\\\"/*\": 1 /* yes */}// yes";
        assert_eq!(comments(text), ["// \"yes", "/* yes */", "// yes"]);
        let root = parse_with_comments("{\n\"a\": 1, // one\n\"b\": 2 // two\n}").expect("JSON with comments").root;
        let entries = &root.container().expect("a map").entries;
        assert_eq!(entries.iter().map(|entry| entry.after).collect::<Vec<_>>(), [" // one", " // two"]);
    }

    #[test]
    fn what_is_no_comment_is_no_json() {
        for text in ["{/}", "[1, /* 2]", "[1 / 2]", "{,}", "[,]", "[1,,]", "{\"a\": 1,,}", "{\"a\" // b\n: 1}", "/"] {
            assert!(parse_with_comments(text).is_err(), "{text}");
        }
    }
}
