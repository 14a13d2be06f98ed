//! A stored directory as a map: lookup, listing and edits. Works on stored objects only; [`WorkingTree`](crate::WorkingTree)
//! holds edits in memory.

use std::collections::HashMap;

use crate::error::Result;
use crate::id::{DirectoryId, LinkGroup, ObjectId};
use crate::merkle::{self, Items, Splice};
use crate::name::{Name, TreePath};
use crate::object::{
    Directories, DirectoryItem, DirectoryLink, DirectoryRef, Entry, LinkMember, Links, Node, NodeLookup, Root,
};
use crate::store::{Store, WriteSession};

/// Returns the entry of a name.
pub(crate) fn get(store: &Store, directory: Option<DirectoryRef>, name: &Name) -> Result<Option<Entry>> {
    match directory {
        None => Ok(None),
        Some(directory) => {
            let entry = |item: Option<&DirectoryItem>| item.map(|item| item.entry.clone());
            merkle::look::<Directories, _>(store, directory.id.object(), name, entry).map(|(_, entry)| entry)
        }
    }
}

/// Returns the entry at a path of a tree, or `None` if it does not exist.
pub fn entry_at(store: &Store, root: &Root, path: &TreePath) -> Result<Option<Entry>> {
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

/// Returns all paths of a hard-linked file in a tree, sorted.
pub fn linked_paths(store: &Store, root: &Root, group: LinkGroup) -> Result<Vec<TreePath>> {
    let first = LinkMember { group, path: TreePath::root() };
    let members = Items::<Links>::from(store, root.links.map(|links| links.object()), &first)?;
    let of_group = members.take_while(|member| member.as_ref().map_or(true, |member| member.group == group));
    of_group.map(|member| member.map(|member| member.path)).collect()
}

/// Returns the entry at a path in each of many trees, given by the top nodes of their root directories. The path must not be the
/// root. The outer `None` stands for a tree that is not in the store, the inner one for a missing entry.
pub(crate) fn entries_at(
    store: &Store,
    tops: &[Option<DirectoryId>],
    path: &TreePath,
) -> Result<Vec<Option<Option<Entry>>>> {
    let mut here: Vec<Option<Option<Entry>>> = vec![Some(None); tops.len()];
    let mut open: Vec<_> = tops.to_vec();
    for (depth, name) in path.names().enumerate() {
        // Adjacent snapshots in the history share nearly all directories.
        let mut places = HashMap::new();
        let mut distinct = Vec::new();
        for top in open.iter().flatten() {
            places.entry(*top).or_insert_with(|| {
                distinct.push(top.object());
                distinct.len() - 1
            });
        }
        let found = get_in_many(store, &distinct, &name)?;
        for (entry, top) in here.iter_mut().zip(&mut open) {
            *entry = match top.map(|top| &found[places[&top]]) {
                Some(None) => None,
                Some(Some(found)) => Some(found.clone()),
                None if depth == 0 || entry.is_some() => Some(None),
                None => None,
            };
            *top = match entry {
                Some(Some(Entry { node: Node::Directory(Some(contents)), .. })) => Some(contents.id),
                _ => None,
            };
        }
    }
    Ok(here)
}

/// Returns the entry of a name in each of many directories. Reads all of them level by level, one batch per level. The outer
/// `None` stands for a directory that is not in the store.
fn get_in_many(store: &Store, tops: &[ObjectId], name: &Name) -> Result<Vec<Option<Option<Entry>>>> {
    let mut found = vec![None; tops.len()];
    let mut open: Vec<_> = tops.iter().copied().enumerate().collect();
    while !open.is_empty() {
        let ids: Vec<_> = open.iter().map(|(_, id)| *id).collect();
        let said = store.look_up_in_directories(&ids, name)?;
        let mut below = Vec::new();
        for ((place, _), said) in open.into_iter().zip(said) {
            match said.as_deref() {
                Some(NodeLookup::Entry(entry)) => found[place] = Some(entry.clone()),
                Some(NodeLookup::Below(_, link)) => below.push((place, link.id.object())),
                None => {}
            }
        }
        open = below;
    }
    Ok(found)
}

/// Lists all names with their entries, sorted.
pub(crate) fn list(store: &Store, directory: Option<DirectoryRef>) -> Result<Items<Directories>> {
    Items::all(store, directory.map(|directory| directory.id.object()))
}

/// Lists the names from this one on, with their entries.
pub(crate) fn list_from(store: &Store, directory: Option<DirectoryRef>, name: &Name) -> Result<Items<Directories>> {
    Items::from(store, directory.map(|directory| directory.id.object()), name)
}

/// Lists all names with their entries, sorted. Reads nodes on demand.
pub fn list_directory(
    store: &Store,
    directory: Option<DirectoryRef>,
) -> Result<impl Iterator<Item = Result<(Name, Entry)>> + use<>> {
    Ok(list(store, directory)?.map(|item| item.map(|DirectoryItem { name, entry }| (name, entry))))
}

/// Applies edits to a directory: sets these names or, with `None`, removes them. The names ascend.
pub(crate) fn apply(
    session: &WriteSession,
    directory: Option<DirectoryRef>,
    edits: Vec<(Name, Option<Entry>)>,
) -> Result<Option<DirectoryRef>> {
    apply_observed(session, directory, edits, |_, _, _| {})
}

/// Applies edits to a directory like [`apply`]. Calls `observe` for each edit that changes an entry, with the index of
/// the edit, its name and the old entry.
pub(crate) fn apply_observed(
    session: &WriteSession,
    directory: Option<DirectoryRef>,
    edits: Vec<(Name, Option<Entry>)>,
    mut observe: impl FnMut(usize, &Name, Option<&Entry>),
) -> Result<Option<DirectoryRef>> {
    let Some(before) = directory else {
        edits.iter().enumerate().for_each(|(at, (name, _))| observe(at, name, None));
        let items = edits.into_iter().filter_map(|(name, entry)| Some(DirectoryItem { name, entry: entry? }));
        return Ok(merkle::build::<Directories>(session, items)?.as_ref().map(reference));
    };
    let top = before.id.object();
    let mut splices = Vec::with_capacity(edits.len());
    let mut same_names = true;
    for (at, (name, entry)) in edits.into_iter().enumerate() {
        let look = |found: Option<&DirectoryItem>| {
            let before = found.map(|item| &item.entry);
            let is_same = before == entry.as_ref();
            if !is_same {
                observe(at, &name, before);
            }
            (found.is_some(), is_same)
        };
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
