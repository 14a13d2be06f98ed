//! Writes a merged document, with the contested places of one version.

use super::merger::{MergedContainer, MergedEntry, MergedValue, Slot};
use super::node::{Container, Entry, EntryStart, Separator, list_hash, map_hash, scalar_hash};
use crate::outcome::UnableReason;

/// Writes a value with the contested places of one version.
pub(super) fn piece<'a>(out: &mut String, piece: &'a MergedValue<'a>, version: usize) -> Result<(), UnableReason> {
    match piece {
        MergedValue::Take(node) => out.push_str(node.text),
        MergedValue::Lines(text) => out.push_str(text),
        MergedValue::Container(made) if made.shape.separator == Separator::Commas => commas(out, made, version)?,
        MergedValue::Container(made) => lines(out, made, version)?,
    }
    Ok(())
}

/// Returns the hash of a merged value's meaning, without its clashes.
pub(super) fn meaning(piece: &MergedValue<'_>) -> u64 {
    match piece {
        MergedValue::Take(node) => node.hash,
        MergedValue::Lines(text) => scalar_hash(text.trim_end()),
        MergedValue::Container(made) => {
            let ones = made.slots.iter().filter_map(|slot| match slot {
                Slot::Merged(one) => Some((one.name, meaning(&one.value))),
                Slot::Clash(_) => None,
            });
            match made.is_map {
                true => map_hash(ones),
                false => list_hash(ones.map(|(_, hash)| hash)),
            }
        }
    }
}

/// An entry to write: merged, or from a version.
enum Item<'a> {
    Merged(&'a MergedEntry<'a>),
    Entry(&'a Entry<'a>),
}

fn items<'a>(made: &'a MergedContainer<'a>, version: usize) -> Vec<Item<'a>> {
    let mut items = Vec::with_capacity(made.slots.len());
    for slot in &made.slots {
        match slot {
            Slot::Merged(one) => items.push(Item::Merged(one)),
            Slot::Clash(versions) => items.extend(versions[version].iter().map(Item::Entry)),
        }
    }
    items
}

impl<'a> Item<'a> {
    fn lead(&self) -> &'a str {
        match self {
            Self::Merged(one) => one.lead,
            Self::Entry(entry) => entry.lead,
        }
    }

    fn after(&self) -> &'a str {
        match self {
            Self::Merged(one) => one.after,
            Self::Entry(entry) => entry.after,
        }
    }

    fn indent(&self) -> usize {
        match self {
            Self::Merged(one) => one.indent,
            Self::Entry(entry) => entry.indent,
        }
    }

    /// Returns whether its leading whitespace fits the position.
    fn fits(&self, is_first: bool) -> bool {
        match self {
            Self::Merged(one) => one.was_first == is_first && !one.is_added,
            Self::Entry(_) => !is_first,
        }
    }

    /// Writes the key, the value and the text after it.
    fn body(&self, out: &mut String, version: usize) -> Result<(), UnableReason> {
        match self {
            Self::Merged(one) => {
                out.push_str(one.key);
                piece(out, &one.value, version)?;
                out.push_str(one.tail);
            }
            Self::Entry(entry) => {
                out.push_str(entry.key);
                out.push_str(entry.value.text);
                out.push_str(entry.tail);
            }
        }
        Ok(())
    }
}

fn commas<'a>(out: &mut String, made: &'a MergedContainer<'a>, version: usize) -> Result<(), UnableReason> {
    let shape = made.shape;
    let items = items(made, version);
    out.push_str(shape.open);
    for (at, item) in items.iter().enumerate() {
        out.push_str(blanks(shape, item, at));
        item.body(out, version)?;
        if at + 1 < items.len() || shape.has_last_comma {
            out.push(',');
        }
        out.push_str(item.after());
    }
    if !items.is_empty() || shape.entries.is_empty() {
        out.push_str(shape.tail);
    }
    out.push_str(shape.close);
    Ok(())
}

/// Returns the whitespace before an entry: its own, unless the entry moved to or from the first position or comes from another
/// layout.
fn blanks<'a>(shape: &'a Container<'a>, item: &Item<'a>, at: usize) -> &'a str {
    let own = item.lead();
    let like = if at == 0 { shape.entries.first() } else { shape.entries.get(1) };
    match like.filter(|like| like.lead.trim().is_empty()) {
        _ if !own.trim().is_empty() || item.fits(at == 0) => own,
        Some(like) => like.lead,
        None if at > 0 && own.is_empty() => " ",
        None => own,
    }
}

fn lines<'a>(out: &mut String, made: &'a MergedContainer<'a>, version: usize) -> Result<(), UnableReason> {
    let shape = made.shape;
    out.push_str(shape.open);
    for (at, item) in items(made, version).iter().enumerate() {
        if at == 0 && shape.start == EntryStart::Shared {
            if !item.lead().trim().is_empty() {
                return Err(UnableReason::Doubt { what: "a comment would stand in the middle of a line" });
            }
        } else {
            end_line(out);
            out.push_str(item.lead());
            end_line(out);
            (0..item.indent()).for_each(|_| out.push(' '));
        }
        item.body(out, version)?;
    }
    if !shape.tail.is_empty() {
        end_line(out);
    }
    out.push_str(shape.tail);
    out.push_str(shape.close);
    Ok(())
}

/// Terminates a line that used to be the last one.
pub(super) fn end_line(out: &mut String) {
    if !out.is_empty() && !out.ends_with('\n') {
        let cr = out.find('\n').is_some_and(|first| out[..first].ends_with('\r'));
        out.push_str(if cr { "\r\n" } else { "\n" });
    }
}
