//! Resolves conflicts by taking one side's version.

use super::entry::{QueueEntry, Side, SideChoice};
use crate::directory::entry_at;
use crate::error::Result;
use crate::id::RootId;
use crate::merge::{ConflictKind, Decision, FileMerged, FileResult, PathConflict, Undecided};
use crate::name::TreePath;
use crate::object::{Entry, Node, Root};
use crate::store::Store;
use crate::time::Time;
use crate::work::WorkingTree;

/// The strategy name for a file that was resolved by taking a side.
const CHOSEN_STRATEGY: &str = "taken";

/// Records the taken side for files that conflicted.
pub(super) fn tell(files: &mut [FileMerged], left: &[PathConflict], entry: &QueueEntry) {
    let is_left = |path: &TreePath| left.iter().any(|conflict| conflict.path == *path);
    for file in files.iter_mut().filter(|file| file.result == FileResult::Conflict && !is_left(&file.path)) {
        let Some(side) = side_of(entry, |about| file.path.below(about).is_some()) else { continue };
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
        // A decision about one path of a unit is about all of them.
        let has_path = |about: &TreePath| {
            conflict.path.below(about).is_some() || conflict.entry_paths().any(|path| path.below(about).is_some())
        };
        let Some(side) = side_of(entry, has_path) else {
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
        let root = match side {
            Side::Ours => Some(&*ours),
            Side::Theirs => Some(&*theirs),
            Side::Base => base.as_deref(),
        };
        let mut is_taken = true;
        for path in conflict.entry_paths() {
            is_taken &= take_side(store, tree, path, &conflict.kind, side, root, time)?;
        }
        if !is_taken {
            left.push(conflict);
        }
    }
    Ok(left)
}

/// Puts the version of a side at a conflicting path. Returns false, and leaves the path as it is, if that would lose something.
fn take_side(
    store: &Store,
    tree: &mut WorkingTree,
    path: &TreePath,
    kind: &ConflictKind,
    side: Side,
    root: Option<&Root>,
    time: Time,
) -> Result<bool> {
    // A decision about the path of the item may have removed it already.
    let Some(stat) = tree.stat(path.as_bytes())? else { return Ok(true) };
    let here = stat.entry.map(|entry| entry.node);
    let taken = match (versions(kind, here.as_ref()), side) {
        (Some([version, _, _]), Side::Ours)
        | (Some([_, version, _]), Side::Base)
        | (Some([_, _, version]), Side::Theirs) => version,
        (None, _) => root.map(|root| entry_at(store, root, path)).transpose()?.flatten(),
    };
    // No version is absent, so the side has its version at another path.
    if taken.is_none() && matches!(&here, Some(Node::Conflict(met)) if met.terms().iter().all(Option::is_some)) {
        return Ok(false);
    }
    let is_directory = taken.as_ref().is_some_and(|taken| matches!(taken.node, Node::Directory(_)));
    // Hard links below a directory would lose their other names.
    if is_directory && root.is_some_and(|root| root.links.is_some()) {
        return Ok(false);
    }
    tree.remove_all(path.as_bytes())?;
    match taken {
        None => {}
        Some(taken) if is_directory => tree.put_tree(path, &taken)?,
        Some(taken) => tree.put_entry(path, &taken, time)?,
    }
    Ok(true)
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

/// Returns the side of the last decision without a path, or about one for which `has_path` is true.
fn side_of(entry: &QueueEntry, has_path: impl Fn(&TreePath) -> bool) -> Option<Side> {
    let is_about = |take: &&SideChoice| take.path.as_ref().is_none_or(&has_path);
    entry.options.choices.iter().rev().find(is_about).map(|take| take.side)
}
