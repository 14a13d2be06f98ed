//! Where the conflicts of a tree are: by a walk over all of it, or, beside a tree whose conflicts are known, over what differs.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::diff::{DiffOptions, diff_roots};
use crate::directory::list_directory;
use crate::error::Result;
use crate::id::RootId;
use crate::name::TreePath;
use crate::object::{Conflict, Entry, Node};
use crate::store::Store;

/// A conflict and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedConflict {
    /// Where.
    pub path: TreePath,
    /// What.
    pub conflict: Arc<Conflict>,
}

/// All conflicts of a tree, by path. Reads every directory. Those inside a directory that is itself a version of a conflict are
/// not counted.
pub fn conflicts(store: &Store, root: RootId) -> Result<Vec<PlacedConflict>> {
    let mut found = Vec::new();
    let mut open = vec![(TreePath::root(), store.root(root)?.directory.clone())];
    while let Some((path, entry)) = open.pop() {
        let Node::Directory(contents) = entry.node else { continue };
        for item in list_directory(store, contents)? {
            let (name, entry) = item?;
            match &entry.node {
                Node::Directory(Some(_)) => open.push((path.join(&name), entry)),
                Node::Conflict(conflict) => {
                    found.push(PlacedConflict { path: path.join(&name), conflict: Arc::clone(conflict) });
                }
                _ => {}
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// The conflicts of a tree, from those of another one and what differs between the two.
pub fn conflicts_after(
    store: &Store,
    before: RootId,
    known: &[PlacedConflict],
    after: RootId,
) -> Result<Vec<PlacedConflict>> {
    let mut found: BTreeMap<_, _> = known.iter().map(|placed| (placed.path.clone(), placed.conflict.clone())).collect();
    // Terms that differ in times only are other terms.
    for change in diff_roots(store, Some(before), Some(after), DiffOptions { times: true, ..DiffOptions::default() })? {
        let change = change?;
        match change.after {
            Some(Entry { node: Node::Conflict(conflict), .. }) => drop(found.insert(change.path, conflict)),
            _ => drop(found.remove(&change.path)),
        }
    }
    Ok(found.into_iter().map(|(path, conflict)| PlacedConflict { path, conflict }).collect())
}
