//! The fast path of a merge, for changes without overlap: every path that theirs changed is the same in ours as in the base. Then
//! the changes of theirs are applied to ours in order. Everything else is left to [`merge_trees`](crate::merge::merge_trees),
//! which tracks renames, merges contents and handles hard links.

use std::collections::HashSet;

use crate::diff::{Change, What};
use crate::directory::entry_at;
use crate::error::Result;
use crate::name::TreePath;
use crate::object::{Entry, Node, Root};
use crate::store::Store;
use crate::time::Time;
use crate::work::WorkingTree;

/// Applies the changes of theirs to our tree. Returns false and leaves the tree unchanged if the fast path does not apply.
pub(super) fn apply(
    store: &Store,
    [base, ours, theirs]: [&Root; 3],
    changes: &[Change],
    tree: &mut WorkingTree,
    time: Time,
) -> Result<bool> {
    if [base, ours, theirs].iter().any(|root| root.links.is_some()) || base.state != theirs.state {
        return Ok(false);
    }
    let mut found = Vec::with_capacity(changes.len());
    let mut added = HashSet::new();
    for change in changes {
        match look(store, ours, change, &added)? {
            Overlap::Apart { ours } => found.push(ours),
            Overlap::Meets => return Ok(false),
        }
        if change.after.as_ref().is_some_and(is_directory) {
            added.insert(&change.path);
        }
    }
    for (change, ours) in changes.iter().zip(found) {
        match &change.after {
            None => tree.remove(change.path.as_bytes())?,
            Some(after) if is_directory(after) && ours.is_some() => {}
            Some(after) => {
                let mtime = match &ours {
                    Some(ours) if ours.node == after.node => ours.mtime,
                    _ if matches!(after.node, Node::Conflict(_)) => Time::EPOCH,
                    _ => time,
                };
                tree.put_entry(&change.path, after, mtime)?;
            }
        }
    }
    Ok(true)
}

enum Overlap {
    /// The other side did not change it; this is the entry in ours.
    Apart {
        ours: Option<Entry>,
    },
    Meets,
}

fn look(store: &Store, ours: &Root, change: &Change, added: &HashSet<&TreePath>) -> Result<Overlap> {
    // Directories that changed, were removed or replaced another kind of entry are not handled by the fast path.
    if change.before.as_ref().is_some_and(is_directory) || change.what == What::KindChanged {
        return Ok(Overlap::Meets);
    }
    let Some((parent, _)) = change.path.split_last() else { return Ok(Overlap::Meets) };
    if !added.contains(&parent) {
        let is_there = parent.is_root() || entry_at(store, ours, &parent)?.as_ref().is_some_and(is_directory);
        if !is_there {
            return Ok(Overlap::Meets);
        }
    }
    let here = entry_at(store, ours, &change.path)?;
    let is_apart = match (&change.before, &change.after, &here) {
        (None, _, None) => true,
        // Both sides created the same directory.
        (None, Some(after), Some(here)) => {
            is_directory(after) && is_directory(here) && after.mode == here.mode && after.extra == here.extra
        }
        (Some(before), _, Some(here)) => before.equal_but_for_times(here),
        _ => false,
    };
    Ok(if is_apart { Overlap::Apart { ours: here } } else { Overlap::Meets })
}

fn is_directory(entry: &Entry) -> bool {
    matches!(entry.node, Node::Directory(_))
}
