//! Parses a TOML document into a tree: sections in document order, with their keys and values.

use std::borrow::Cow;
use std::collections::HashSet;
use std::iter::Peekable;
use std::vec::IntoIter;

use toml_edit::{Document as Toml, Key};

use super::scan::Scanner;
use crate::structure::{Container, DEPTH_MAX, Document, Entry, EntryStart, Node, ParseError, Separator};

pub(super) fn parse(text: &str) -> Result<Document<'_>, ParseError> {
    if let Err(error) = Toml::parse(text) {
        return Err(ParseError::malformed(error.span().map_or(0, |span| span.start), "it does not read as TOML"));
    }
    let start = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let mut scanner = Scanner::new(text, start);
    let (mut entries, mut end) = statements(&mut scanner)?;
    let mut sections = Vec::new();
    while let Some(section) = section(&mut scanner)? {
        end = section.end;
        sections.push(section);
    }
    entries.extend(group(text, &mut sections.into_iter().peekable(), &[], &mut 0)?);
    let root = table(&text[start..end], entries, start)?;
    Ok(Document { prefix: &text[..start], root, suffix: &text[end..] })
}

/// A header with the lines below it, up to the next header.
struct Section<'a> {
    path: Vec<String>,
    is_list: bool,
    lead: &'a str,
    /// The line of the header.
    key: &'a str,
    statements: Vec<Entry<'a>>,
    start: usize,
    body: usize,
    end: usize,
}

fn section<'a>(scanner: &mut Scanner<'a>) -> Result<Option<Section<'a>>, ParseError> {
    let start = scanner.at;
    scanner.comment_lines();
    if scanner.is_done() {
        return Ok(None);
    }
    let (lead, key_start) = (scanner.since(start), scanner.at);
    let header = scanner.line().trim_start();
    let is_list = header.starts_with("[[");
    let key = scanner.since(key_start);
    let unreadable = || ParseError::unhandled(key_start, "a header like this");
    let inner = Scanner::new(header, if is_list { 2 } else { 1 }).until(b']').ok_or_else(unreadable)?;
    let path = Key::parse(inner).map_err(|_| unreadable())?.iter().map(|key| key.get().to_owned()).collect();
    let body = scanner.at;
    let (statements, end) = statements(scanner)?;
    Ok(Some(Section { path, is_list, lead, key, statements, start, body, end }))
}

/// Parses keys with their values up to the next header. Also returns the end of the last one.
fn statements<'a>(scanner: &mut Scanner<'a>) -> Result<(Vec<Entry<'a>>, usize), ParseError> {
    let mut entries = Vec::new();
    loop {
        let start = scanner.at;
        scanner.comment_lines();
        if scanner.is_done() || scanner.rest().trim_start_matches([' ', '\t']).starts_with('[') {
            scanner.at = start;
            return Ok((entries, start));
        }
        let (lead, key_start) = (scanner.since(start), scanner.at);
        let written = scanner.until(b'=').ok_or_else(|| ParseError::unhandled(key_start, "a key like this"))?;
        let path = Key::parse(written.trim()).map_err(|_| ParseError::unhandled(key_start, "a key like this"))?;
        let name = Cow::Owned(path.iter().map(Key::get).collect::<Vec<_>>().join("."));
        scanner.at += 1;
        scanner.blanks(false);
        let key = scanner.since(key_start);
        let value = scanner.value(0)?;
        let value_end = scanner.at;
        scanner.line();
        entries.push(Entry { name, lead, indent: 0, key, value, tail: scanner.since(value_end), after: "" });
    }
}

/// Groups sections that belong to an element of a list below it; the others stay side by side.
fn group<'a>(
    text: &'a str,
    sections: &mut Peekable<IntoIter<Section<'a>>>,
    inside: &[String],
    end: &mut usize,
) -> Result<Vec<Entry<'a>>, ParseError> {
    let mut entries = Vec::new();
    while let Some(section) = sections.next_if(|next| next.path.len() > inside.len() && next.path.starts_with(inside)) {
        if section.path.len() > DEPTH_MAX {
            return Err(ParseError::unhandled(section.start, "a table as deep as this"));
        }
        let path = section.path.clone();
        *end = section.end;
        if !section.is_list {
            let name = Cow::Owned(format!("[{}]", path.join(".")));
            let value = table(&text[section.body..section.end], section.statements, section.start)?;
            entries.push(Entry { name, lead: section.lead, indent: 0, key: section.key, value, tail: "", after: "" });
            continue;
        }
        let start = section.start;
        let mut elements = Vec::new();
        let mut next = Some(section);
        while let Some(section) = next {
            *end = section.end;
            let mut inner = section.statements;
            inner.extend(group(text, sections, &path, end)?);
            let value = table(&text[section.body..*end], inner, section.start)?;
            let (name, lead, key) = (Cow::Borrowed(""), section.lead, section.key);
            elements.push(Entry { name, lead, indent: 0, key, value, tail: "", after: "" });
            next = sections.next_if(|next| next.is_list && next.path == path);
        }
        let value = Node::list(&text[start..*end], lines(elements));
        let name = Cow::Owned(format!("[[{}]]", path.join(".")));
        entries.push(Entry { name, lead: "", indent: 0, key: "", value, tail: "", after: "" });
    }
    Ok(entries)
}

fn table<'a>(text: &'a str, entries: Vec<Entry<'a>>, at: usize) -> Result<Node<'a>, ParseError> {
    let mut seen = HashSet::with_capacity(entries.len());
    match entries.iter().all(|entry| seen.insert(entry.name.as_ref())) {
        true => Ok(Node::map(text, lines(entries))),
        false => Err(ParseError::unhandled(at, "a list of tables in several places")),
    }
}

fn lines(entries: Vec<Entry<'_>>) -> Container<'_> {
    Container {
        separator: Separator::Lines,
        open: "",
        entries,
        tail: "",
        close: "",
        start: EntryStart::KeysFirst,
        has_last_comma: false,
    }
}
