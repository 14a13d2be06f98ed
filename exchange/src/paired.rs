//! Lists two directories side by side.

use std::cmp::Ordering;

use amalgam_engine::object::{DirectoryRef, Entry};
use amalgam_engine::{Name, Store, list_directory};

use crate::error::Result;

/// A name that is in one of two directories, or in both.
pub(crate) struct PairedEntry {
    pub(crate) name: Name,
    pub(crate) before: Option<Entry>,
    pub(crate) after: Option<Entry>,
}

/// Returns the names of two directories in order, equal entries included.
pub(crate) fn paired_entries(
    store: &Store,
    before: Option<DirectoryRef>,
    after: Option<DirectoryRef>,
) -> Result<impl Iterator<Item = Result<PairedEntry>>> {
    let mut old = list_directory(store, before)?.peekable();
    let mut new = list_directory(store, after)?.peekable();
    Ok(std::iter::from_fn(move || {
        let order = match (old.peek(), new.peek()) {
            (Some(Err(_)), _) | (_, Some(Err(_))) => {
                let failed = old.next().into_iter().chain(new.next()).find_map(|item| item.err());
                return Some(Err(failed.expect("one of them failed").into()));
            }
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(Ok((old, _))), Some(Ok((new, _)))) => old.cmp(new),
        };
        // Errors were handled above.
        let before = if order.is_le() { old.next().and_then(|item| item.ok()) } else { None };
        let after = if order.is_ge() { new.next().and_then(|item| item.ok()) } else { None };
        let name = before.as_ref().or(after.as_ref()).map(|(name, _)| name.clone()).expect("one of them is there");
        let entry = |item: Option<(Name, Entry)>| item.map(|(_, entry)| entry);
        Some(Ok(PairedEntry { name, before: entry(before), after: entry(after) }))
    }))
}
