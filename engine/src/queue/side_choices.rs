//! Resolves conflicts by taking one side's version.

use super::entry::{QueueEntry, Side};
use crate::directory::entry_at;
use crate::error::Result;
use crate::id::RootId;
use crate::merge::{ConflictKind, Decision, FileMerged, FileResult, PathConflict, Undecided};
use crate::name::TreePath;
use crate::object::{Entry, Node};
use crate::store::Store;
use crate::time::Time;
use crate::work::WorkingTree;

/// The strategy name for a file that was resolved by taking a side.
const CHOSEN_STRATEGY: &str = "taken";

/// Records the taken side for files that conflicted.
pub(super) fn tell(files: &mut [FileMerged], left: &[PathConflict], entry: &QueueEntry) {
    let is_left = |path: &TreePath| left.iter().any(|conflict| conflict.path == *path);
    for file in files.iter_mut().filter(|file| file.result == FileResult::Conflict && !is_left(&file.path)) {
        let Some(side) = side_of(entry, &file.path) else { continue };
        file.strategy = CHOSEN_STRATEGY.to_owned();
        file.result = match side {
            Side::Ours => FileResult::Ours,
            Side::Theirs => FileResult::Theirs,
            Side::Base => FileResult::Merged,
        };
    }
}

/// Takes a side where the entry requests it, and returns the remaining conflicts.
pub(super) fn settle(
    store: &Store,
    tree: &mut WorkingTree,
    conflicts: Vec<PathConflict>,
    base: Option<RootId>,
    [ours, theirs]: [RootId; 2],
    entry: &QueueEntry,
    time: Time,
) -> Result<Vec<PathConflict>> {
    if entry.options.choices.is_empty() {
        return Ok(conflicts);
    }
    let base = match base.filter(|_| entry.options.choices.iter().any(|take| take.side == Side::Base)) {
        Some(base) => {
            tree.keep(base)?;
            Some(store.root(base)?)
        }
        None => None,
    };
    let [ours, theirs] = [store.root(ours)?, store.root(theirs)?];
    let mut left = Vec::new();
    for conflict in conflicts {
        let Some(side) = side_of(entry, &conflict.path) else {
            left.push(conflict);
            continue;
        };
        if let Some(undecided) = Undecided::of(&conflict) {
            match side {
                Side::Ours => drop(undecided.decide(tree, Decision::Ours)?),
                Side::Theirs => drop(undecided.decide(tree, Decision::Theirs)?),
                // The old path of an item that both sides moved is wanted by neither.
                Side::Base => left.push(conflict),
            }
            continue;
        }
        // If the first file of a group is not a conflict, the others are conflicts of their own.
        if !conflict.is_entry {
            continue;
        }
        let root = match side {
            Side::Ours => Some(&ours),
            Side::Theirs => Some(&theirs),
            Side::Base => base.as_ref(),
        };
        // A decision about the path of the item may have removed it already.
        let Some(stat) = tree.stat(conflict.path.as_bytes())? else { continue };
        let here = stat.entry.map(|entry| entry.node);
        let taken = match (versions(&conflict.kind, here.as_ref()), side) {
            (Some([version, _, _]), Side::Ours)
            | (Some([_, version, _]), Side::Base)
            | (Some([_, _, version]), Side::Theirs) => version,
            (None, _) => root.map(|root| entry_at(store, root, &conflict.path)).transpose()?.flatten(),
        };
        // No version is absent, so the side has its version at another path.
        if taken.is_none() && matches!(&here, Some(Node::Conflict(met)) if met.terms().iter().all(Option::is_some)) {
            left.push(conflict);
            continue;
        }
        let has_links = root.is_some_and(|root| root.links.is_some());
        // Hard links below a directory would lose their other names.
        if taken.as_ref().is_some_and(|taken| matches!(taken.node, Node::Directory(_))) && has_links {
            left.push(conflict);
            continue;
        }
        tree.remove_all(conflict.path.as_bytes())?;
        match taken {
            None => {}
            Some(taken) if matches!(taken.node, Node::Directory(_)) => tree.put_tree(&conflict.path, &taken)?,
            Some(taken) => tree.put_entry(&conflict.path, &taken, time)?,
        }
    }
    Ok(left)
}

/// Returns the versions of ours, the base and theirs in a conflict entry. A side that did not rename the item has it at another
/// path. Returns `None` for a carried conflict, which has the terms of several merges, and for a unit, which tracks no renames.
fn versions(kind: &ConflictKind, here: Option<&Node>) -> Option<[Option<Entry>; 3]> {
    match (kind, here) {
        (ConflictKind::Carried | ConflictKind::Unit(_), _) => None,
        (_, Some(Node::Conflict(met))) => met.terms().to_vec().try_into().ok(),
        _ => None,
    }
}

/// Returns the last decision that applies to a path.
fn side_of(entry: &QueueEntry, path: &TreePath) -> Option<Side> {
    let is_about = |about: &TreePath| path.below(about).is_some();
    entry.options.choices.iter().rev().find(|take| take.path.as_ref().is_none_or(is_about)).map(|take| take.side)
}
