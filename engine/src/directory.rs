//! A stored directory as a map: look up, list, change.

use crate::error::Result;
use crate::merkle::{self, Items, Splice, find};
use crate::name::Name;
use crate::object::{Directories, DirectoryItem, DirectoryLink, DirectoryRef, Entry};
use crate::store::{Store, WriteSession};

/// The entry of a name.
pub(crate) fn get(store: &Store, directory: Option<DirectoryRef>, name: &Name) -> Result<Option<Entry>> {
    match directory {
        None => Ok(None),
        Some(directory) => {
            let found = find::<Directories>(store, directory.id.object(), name)?;
            Ok(found.item.map(|item| item.entry))
        }
    }
}

/// All names with their entries, sorted.
pub(crate) fn list(store: &Store, directory: Option<DirectoryRef>) -> Result<Items<Directories>> {
    Items::all(store, directory.map(|directory| directory.id.object()))
}

/// The directory with these names set or, with `None`, removed. The names ascend.
pub(crate) fn apply(
    session: &WriteSession,
    directory: Option<DirectoryRef>,
    edits: Vec<(Name, Option<Entry>)>,
) -> Result<Option<DirectoryRef>> {
    let Some(before) = directory else {
        let items = edits.into_iter().filter_map(|(name, entry)| Some(DirectoryItem { name, entry: entry? }));
        return Ok(merkle::build::<Directories>(session, items)?.as_ref().map(reference));
    };
    let mut splices = Vec::with_capacity(edits.len());
    for (name, entry) in edits {
        let found = find::<Directories>(session.store(), before.id.object(), &name)?;
        let there = u64::from(found.item.is_some());
        if found.item.map(|item| item.entry) == entry {
            continue;
        }
        let items = entry.map(|entry| DirectoryItem { name, entry }).into_iter().collect();
        splices.push(Splice { range: found.index..found.index + there, items });
    }
    if splices.is_empty() {
        return Ok(directory);
    }
    Ok(merkle::splice::<Directories>(session, Some(before.id.object()), splices)?.as_ref().map(reference))
}

fn reference(link: &DirectoryLink) -> DirectoryRef {
    DirectoryRef { id: link.id, bare: link.bare, linked: link.linked }
}
