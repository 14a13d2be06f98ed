//! Finds the conflicts of a tree: by a walk over the whole tree, or by a diff with a tree whose conflicts are known.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::diff::{DiffOptions, diff_roots};
use crate::directory::list_directory;
use crate::error::Result;
use crate::id::{DirectoryId, RootId};
use crate::name::TreePath;
use crate::object::{Conflict, DirectoryRef, Entry, Node};
use crate::store::Store;

/// A conflict with its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedConflict {
    /// The path.
    pub path: TreePath,
    /// The conflict.
    pub conflict: Arc<Conflict>,
}

/// Returns all conflicts of a tree, sorted by path. Reads every distinct directory once, and then reads those with conflicts
/// again at each of their paths. Conflicts inside a directory that is itself a term of a conflict are not included.
pub fn conflicts(store: &Store, root: RootId) -> Result<Vec<PlacedConflict>> {
    let Node::Directory(Some(top)) = store.root(root)?.directory.node else { return Ok(Vec::new()) };
    let conflicted = conflicted_directories(store, top)?;
    let (mut found, mut count) = (Vec::new(), store.held_path_count());
    let mut open = vec![(TreePath::root(), top)];
    while let Some((path, directory)) = open.pop() {
        for item in list_directory(store, Some(directory))? {
            let (name, entry) = item?;
            match &entry.node {
                Node::Directory(Some(below)) if conflicted.get(&below.id) == Some(&true) => {
                    count.add(1)?;
                    open.push((path.join(&name), *below));
                }
                Node::Conflict(conflict) => {
                    count.add(1)?;
                    found.push(PlacedConflict { path: path.join(&name), conflict: Arc::clone(conflict) });
                }
                _ => {}
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// A directory whose scan is in progress.
struct Open {
    id: DirectoryId,
    below: std::vec::IntoIter<DirectoryRef>,
    is_conflicted: bool,
}

impl Open {
    fn new(store: &Store, directory: DirectoryRef) -> Result<Self> {
        let (mut below, mut is_conflicted) = (Vec::new(), false);
        for item in list_directory(store, Some(directory))? {
            match item?.1.node {
                Node::Directory(Some(directory)) => below.push(directory),
                Node::Conflict(_) => is_conflicted = true,
                _ => {}
            }
        }
        Ok(Self { id: directory.id, below: below.into_iter(), is_conflicted })
    }
}

/// Returns for each directory, at or below `top`, whether it contains conflicts, in it or below it.
fn conflicted_directories(store: &Store, top: DirectoryRef) -> Result<HashMap<DirectoryId, bool>> {
    let mut known = HashMap::new();
    let mut open = vec![Open::new(store, top)?];
    while let Some(here) = open.last_mut() {
        let Some(below) = here.below.next() else {
            let done = open.pop().expect("it is the last one");
            known.insert(done.id, done.is_conflicted);
            if let Some(above) = open.last_mut() {
                above.is_conflicted |= done.is_conflicted;
            }
            continue;
        };
        match known.get(&below.id) {
            Some(is_conflicted) => here.is_conflicted |= is_conflicted,
            None => open.push(Open::new(store, below)?),
        }
    }
    Ok(known)
}

/// Returns the conflicts of a tree, given the conflicts of another tree. Reads only the difference between the two.
pub fn conflicts_after(
    store: &Store,
    before: RootId,
    known: &[PlacedConflict],
    after: RootId,
) -> Result<Vec<PlacedConflict>> {
    let mut found: BTreeMap<_, _> = known.iter().map(|placed| (placed.path.clone(), placed.conflict.clone())).collect();
    // Terms that differ only in times are different terms.
    for change in diff_roots(store, Some(before), Some(after), DiffOptions { times: true, ..DiffOptions::default() })? {
        let change = change?;
        match change.after {
            Some(Entry { node: Node::Conflict(conflict), .. }) => drop(found.insert(change.path, conflict)),
            _ => drop(found.remove(&change.path)),
        }
    }
    Ok(found.into_iter().map(|(path, conflict)| PlacedConflict { path, conflict }).collect())
}
