//! A stored directory as a map: look up, list, change.

use std::collections::HashMap;

use crate::error::Result;
use crate::id::{ObjectId, RootId};
use crate::merkle::{self, Items, Splice};
use crate::name::{Name, TreePath};
use crate::object::{Directories, DirectoryItem, DirectoryLink, DirectoryRef, Entry, Node, Root, Said};
use crate::store::{Store, WriteSession};

/// The entry of a name.
pub(crate) fn get(store: &Store, directory: Option<DirectoryRef>, name: &Name) -> Result<Option<Entry>> {
    match directory {
        None => Ok(None),
        Some(directory) => {
            let entry = |item: Option<&DirectoryItem>| item.map(|item| item.entry.clone());
            merkle::look::<Directories, _>(store, directory.id.object(), name, entry).map(|(_, entry)| entry)
        }
    }
}

/// What is at a path of a tree; nothing where there is none.
pub(crate) fn entry_at(store: &Store, root: &Root, path: &TreePath) -> Result<Option<Entry>> {
    let mut here = root.directory.clone();
    for name in path.names() {
        let Node::Directory(contents) = here.node else { return Ok(None) };
        match get(store, contents, &name)? {
            Some(entry) => here = entry,
            None => return Ok(None),
        }
    }
    Ok(Some(here))
}

/// What is at a path of each of many trees. Nothing at all for a tree that is not there.
pub(crate) fn entries_at(store: &Store, roots: &[RootId], path: &TreePath) -> Result<Vec<Option<Option<Entry>>>> {
    let roots = store.roots(roots)?;
    let mut here: Vec<_> = roots.iter().map(|root| root.as_ref().map(|root| Some(root.directory.clone()))).collect();
    for name in path.names() {
        let contents = |entry: &Option<Option<Entry>>| match entry {
            Some(Some(Entry { node: Node::Directory(Some(contents)), .. })) => Some(contents.id.object()),
            _ => None,
        };
        // Neighbours in history share nearly all of their directories.
        let mut places = HashMap::new();
        let mut tops = Vec::new();
        for top in here.iter().filter_map(contents) {
            places.entry(top).or_insert_with(|| {
                tops.push(top);
                tops.len() - 1
            });
        }
        let found = get_in_many(store, &tops, &name)?;
        for entry in &mut here {
            let top = contents(entry).map(|top| places[&top]);
            if let Some(entry) = entry {
                *entry = top.and_then(|top| found[top].clone());
            }
        }
    }
    Ok(here)
}

/// The entry of a name in each of many directories, read level by level for all of them at once.
fn get_in_many(store: &Store, tops: &[ObjectId], name: &Name) -> Result<Vec<Option<Entry>>> {
    let mut found = vec![None; tops.len()];
    let mut open: Vec<_> = tops.iter().copied().enumerate().collect();
    while !open.is_empty() {
        let ids: Vec<_> = open.iter().map(|(_, id)| *id).collect();
        let said = store.ask_directories(&ids, name)?;
        let mut below = Vec::new();
        for ((place, _), said) in open.into_iter().zip(said) {
            match &*said {
                Said::Entry(entry) => found[place].clone_from(entry),
                Said::Below(_, link) => below.push((place, link.id.object())),
            }
        }
        open = below;
    }
    Ok(found)
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
    let top = before.id.object();
    let mut splices = Vec::with_capacity(edits.len());
    let mut same_names = true;
    for (name, entry) in edits {
        let look = |found: Option<&DirectoryItem>| (found.is_some(), found.map(|item| &item.entry) == entry.as_ref());
        let (index, (there, same)) = merkle::look::<Directories, _>(session.store(), top, &name, look)?;
        if same {
            continue;
        }
        same_names &= there && entry.is_some();
        let items = entry.map(|entry| DirectoryItem { name, entry }).into_iter().collect();
        splices.push(Splice { range: index..index + u64::from(there), items });
    }
    if splices.is_empty() {
        return Ok(directory);
    }
    let link = if same_names {
        let items = splices.into_iter().flat_map(|splice| splice.items).collect();
        Some(merkle::replace::<Directories>(session, top, items)?)
    } else {
        merkle::splice::<Directories>(session, Some(top), splices)?
    };
    Ok(link.as_ref().map(reference))
}

fn reference(link: &DirectoryLink) -> DirectoryRef {
    DirectoryRef { id: link.id, bare: link.bare, linked: link.linked }
}
