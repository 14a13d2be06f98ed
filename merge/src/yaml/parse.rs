//! Parses the subset of YAML that is common in configuration files into a tree.

use std::borrow::Cow;
use std::collections::HashSet;

use super::flow::{self, quoted};
use crate::structure::{Container, DEPTH_MAX, Document, Entry, EntryStart, Node, ParseError, Separator};

pub(super) fn parse(text: &str) -> Result<Document<'_>, ParseError> {
    let mut parser = Parser { text, at: if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 } };
    let start = parser.at;
    let Some(mut first) = parser.next()? else { return Err(ParseError::unhandled(0, "a document without anything")) };
    if first.content.starts_with('%') {
        return Err(ParseError::unhandled(first.at, "a directive"));
    }
    let mut root_start = start;
    if first.indent == 0 && first.content.starts_with("---") {
        if comment_or_nothing(&first.content[3..]).is_none() {
            return Err(ParseError::unhandled(first.at, "a value behind `---`"));
        }
        parser.at = parser.line_end(first.at);
        root_start = parser.at;
        let Some(next) = parser.next()? else { return Err(ParseError::unhandled(0, "a document without anything")) };
        first = next;
    }
    parser.at = root_start;
    let root = parser.block(first.indent, 0)?;
    let end = parser.at;
    match parser.next()? {
        Some(next) => Err(ParseError::malformed(next.at, "it is indented like nothing before it")),
        None => Ok(Document { prefix: &text[..root_start], root, suffix: &text[end..] }),
    }
}

/// A line that is neither empty nor a comment.
struct Next<'a> {
    /// The offset of the line.
    line: usize,
    /// The offset of its content.
    at: usize,
    indent: usize,
    /// The content without the line terminator.
    content: &'a str,
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    /// Returns the next line with content. The current position must be the start of a line.
    fn next(&self) -> Result<Option<Next<'a>>, ParseError> {
        let mut line = self.at;
        while line < self.text.len() {
            let end = self.line_end(line);
            let whole = self.text[line..end].trim_end();
            let content = whole.trim_start_matches(' ');
            if !content.is_empty() && !content.starts_with('#') {
                let indent = whole.len() - content.len();
                let at = line + indent;
                return match content {
                    _ if content.starts_with('\t') => Err(ParseError::unhandled(at, "a tab before content")),
                    _ if indent == 0 && line > 0 && is_document_mark(content) && self.at != 0 => {
                        Err(ParseError::unhandled(at, "a second document"))
                    }
                    _ => Ok(Some(Next { line, at, indent, content })),
                };
            }
            line = end;
        }
        Ok(None)
    }

    fn line_end(&self, at: usize) -> usize {
        memchr::memchr(b'\n', &self.text.as_bytes()[at..]).map_or(self.text.len(), |newline| at + newline + 1)
    }

    /// Parses a map or a list whose entries have this indentation.
    fn block(&mut self, indent: usize, depth: usize) -> Result<Node<'a>, ParseError> {
        let next = self.next()?;
        match next {
            Some(next) if depth > DEPTH_MAX => Err(ParseError::unhandled(next.at, "a value as deep as this")),
            Some(next) if is_element(next.content) => self.list(indent, depth),
            _ => self.map(indent, None, depth),
        }
    }

    /// Parses a map. Its first key may be on a line that starts with other text.
    fn map(&mut self, indent: usize, compact: Option<usize>, depth: usize) -> Result<Node<'a>, ParseError> {
        let start = compact.unwrap_or(self.at);
        let mut entries: Vec<Entry<'a>> = Vec::new();
        let mut names = HashSet::new();
        loop {
            let (lead, at, content) = match compact.filter(|_| entries.is_empty()) {
                Some(at) => ("", at, self.text[at..self.line_end(at)].trim_end()),
                None => match self.next()? {
                    Some(next) if next.indent == indent && !is_element(next.content) => {
                        (&self.text[self.at..next.line], next.at, next.content)
                    }
                    Some(next) if next.indent > indent => {
                        return Err(ParseError::malformed(next.at, "it is indented like nothing before it"));
                    }
                    _ => break,
                },
            };
            let (name, length) = key(content).map_err(|what| ParseError::unhandled(at, what))?;
            if !names.insert(name.clone()) {
                return Err(ParseError::malformed(at, "a key stands twice in one map"));
            }
            let (key, value, tail) = self.entry(at, length, indent, true, depth)?;
            entries.push(Entry { name, lead, indent, key, value, tail, after: "" });
        }
        let tail = self.comments_inside(indent)?;
        let start_of = if compact.is_some() { EntryStart::Shared } else { EntryStart::Own };
        let container = Container {
            separator: Separator::Lines,
            open: "",
            entries,
            tail,
            close: "",
            start: start_of,
            has_last_comma: false,
        };
        Ok(Node::map(&self.text[start..self.at], container))
    }

    fn list(&mut self, indent: usize, depth: usize) -> Result<Node<'a>, ParseError> {
        let start = self.at;
        let mut entries: Vec<Entry<'a>> = Vec::new();
        loop {
            let next = match self.next()? {
                Some(next) if next.indent == indent && is_element(next.content) => next,
                Some(next) if next.indent > indent => {
                    return Err(ParseError::malformed(next.at, "it is indented like nothing before it"));
                }
                _ => break,
            };
            let lead = &self.text[self.at..next.line];
            let (key, value, tail) = self.entry(next.at, 1, indent, false, depth)?;
            entries.push(Entry { name: Cow::Borrowed(""), lead, indent, key, value, tail, after: "" });
        }
        let tail = self.comments_inside(indent)?;
        let container = Container {
            separator: Separator::Lines,
            open: "",
            entries,
            tail,
            close: "",
            start: EntryStart::Own,
            has_last_comma: false,
        };
        Ok(Node::list(&self.text[start..self.at], container))
    }

    /// Returns the comments after the last entry with the same indentation, and the blank lines before them.
    fn comments_inside(&mut self, indent: usize) -> Result<&'a str, ParseError> {
        let start = self.at;
        let mut line = start;
        // A list may have the indentation of the key above it; then the following text belongs to the next key.
        let is_followed = self.next()?.is_some_and(|next| next.indent >= indent);
        while indent > 0 && !is_followed && line < self.text.len() {
            let end = self.line_end(line);
            let content = self.text[line..end].trim_start_matches(' ');
            match content.starts_with('#') {
                true if self.text[line..end].len() - content.len() >= indent => self.at = end,
                false if content.trim().is_empty() => {}
                _ => break,
            }
            line = end;
        }
        Ok(&self.text[start..self.at])
    }

    /// Parses an entry after a key or a dash of this length: the text up to the value, the value, and the rest of its line.
    fn entry(
        &mut self,
        at: usize,
        length: usize,
        indent: usize,
        in_map: bool,
        depth: usize,
    ) -> Result<(&'a str, Node<'a>, &'a str), ParseError> {
        let text = self.text;
        let line_end = self.line_end(at);
        let rest = &text[at + length..line_end];
        let content = rest.trim_start_matches([' ', '\t']);
        let value_at = line_end - content.len();
        self.at = line_end;
        if comment_or_nothing(content).is_some() {
            let next = self.next()?;
            let inner = match next {
                Some(next) if next.indent > indent => Some(next.indent),
                Some(next) if in_map && next.indent == indent && is_element(next.content) => Some(indent),
                _ => None,
            };
            return match inner {
                Some(inner) => Ok((&text[at..line_end], self.block(inner, depth + 1)?, "")),
                None => {
                    let end = at + length;
                    Ok((&text[at..end], Node::scalar("", Cow::Borrowed("")), &text[end..line_end]))
                }
            };
        }
        let key = &text[at..value_at];
        if !in_map {
            if is_element(content.trim_end()) {
                return Err(ParseError::unhandled(value_at, "a list in a list on one line"));
            }
            let is_plain = !content.starts_with(['[', '{', '|', '>', '&', '*', '!']);
            if is_plain && self::key(content.trim_end()).is_ok() {
                let column = value_at - at + indent;
                let value = self.map(column, Some(value_at), depth + 1)?;
                return Ok((key, value, ""));
            }
        }
        let (value, end) = self.scalar(value_at, line_end, indent, depth)?;
        Ok((key, value, &text[end..self.at]))
    }

    /// Parses a scalar or a flow collection, and returns its end.
    fn scalar(
        &mut self,
        at: usize,
        line_end: usize,
        indent: usize,
        depth: usize,
    ) -> Result<(Node<'a>, usize), ParseError> {
        let text = self.text;
        let content = text[at..line_end].trim_end();
        let first = content.bytes().next().unwrap_or(b' ');
        let length = match first {
            b'&' => return Err(ParseError::unhandled(at, "an anchor")),
            b'*' => return Err(ParseError::unhandled(at, "an alias")),
            b'!' => return Err(ParseError::unhandled(at, "a tag")),
            b'@' | b'`' | b'%' | b'?' => return Err(ParseError::unhandled(at, "a value like this")),
            b'|' | b'>' => {
                self.block_scalar(content, indent);
                let value = &text[at..self.at];
                return Ok((Node::scalar(value, Cow::Borrowed(value.trim_end())), self.at));
            }
            b'"' | b'\'' => {
                quoted(content).ok_or_else(|| ParseError::unhandled(at, "a quoted text over several lines"))?
            }
            b'[' | b'{' => {
                let (node, length) = flow::value(content, depth)
                    .ok_or_else(|| ParseError::unhandled(at, "a flow collection over several lines"))?;
                self.nothing_more(at, &content[length..], indent)?;
                return Ok((node, at + length));
            }
            _ => plain(content).ok_or_else(|| ParseError::malformed(at, "a second colon in one line"))?,
        };
        self.nothing_more(at, &content[length..], indent)?;
        let value = &text[at..at + length];
        Ok((Node::scalar(value, Cow::Borrowed(value)), at + length))
    }

    /// Checks that a value ends where it seems to.
    fn nothing_more(&self, at: usize, rest: &str, indent: usize) -> Result<(), ParseError> {
        if comment_or_nothing(rest).is_none() || (!rest.is_empty() && !rest.starts_with([' ', '\t'])) {
            return Err(ParseError::malformed(at, "something behind a value"));
        }
        match self.next()? {
            Some(next) if next.indent > indent => Err(ParseError::unhandled(next.at, "a text over several lines")),
            _ => Ok(()),
        }
    }

    /// Skips the lines of a block scalar; trailing empty lines only if it keeps them.
    fn block_scalar(&mut self, header: &str, indent: usize) {
        let keeps = header.split_whitespace().next().is_some_and(|header| header.contains('+'));
        let mut line = self.at;
        while line < self.text.len() {
            let end = self.line_end(line);
            let whole = self.text[line..end].trim_end();
            let content = whole.trim_start_matches(' ');
            match content.is_empty() {
                true if keeps => self.at = end,
                true => {}
                false if whole.len() - content.len() > indent => self.at = end,
                false => return,
            }
            line = end;
        }
    }
}

fn is_element(content: &str) -> bool {
    content == "-" || content.starts_with("- ")
}

fn is_document_mark(content: &str) -> bool {
    ["---", "..."]
        .iter()
        .any(|mark| content.strip_prefix(mark).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')))
}

/// Returns `Some` if the rest is empty or a comment.
fn comment_or_nothing(rest: &str) -> Option<()> {
    let rest = rest.trim();
    (rest.is_empty() || rest.starts_with('#')).then_some(())
}

/// Returns the start of a comment in a line, as far as it can be determined without the lines before it.
pub(super) fn comment(line: &str) -> Option<usize> {
    let bytes = line.as_bytes();
    memchr::memchr_iter(b'#', bytes).find(|at| *at == 0 || matches!(bytes[at - 1], b' ' | b'\t'))
}

/// Returns the name of the key at the start of a line, and its length with the colon.
fn key(content: &str) -> Result<(Cow<'_, str>, usize), &'static str> {
    let is_end = |at: usize| matches!(content.as_bytes().get(at), None | Some(b' ' | b'\t'));
    match content.bytes().next() {
        Some(b'"' | b'\'') => {
            let length = quoted(content).ok_or("a key like this")?;
            let blanks = content[length..].len() - content[length..].trim_start().len();
            match content.as_bytes().get(length + blanks) {
                Some(b':') if is_end(length + blanks + 1) => {
                    Ok((Cow::Borrowed(&content[..length]), length + blanks + 1))
                }
                _ => Err("a value without a key"),
            }
        }
        Some(b'&' | b'*' | b'!' | b'[' | b'{' | b'|' | b'>' | b'@' | b'`' | b'%' | b',') => Err("a key like this"),
        Some(b'?') if is_end(1) => Err("a key like this"),
        _ => {
            let plain = &content[..comment(content).unwrap_or(content.len())];
            let colon = memchr::memchr_iter(b':', plain.as_bytes()).find(|at| is_end(at + 1));
            let colon = colon.ok_or("a value without a key")?;
            match plain[..colon].trim_end() {
                "" => Err("a key like this"),
                "<<" => Err("a merged map"),
                name => Ok((Cow::Borrowed(name), colon + 1)),
            }
        }
    }
}

/// Returns the length of a plain text up to a comment, or `None` if it contains text that looks like a key.
fn plain(content: &str) -> Option<usize> {
    let text = content[..comment(content).unwrap_or(content.len())].trim_end();
    let has_colon = text.ends_with(':') || text.contains(": ");
    (!has_colon).then_some(text.len())
}
