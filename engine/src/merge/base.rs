//! The merge base of two snapshots as one tree. After criss-cross merges there are several best common ancestors. They are merged
//! recursively with the conflicts left in, so that the base contains the resolutions of each of them.

use super::{MergeContents, MergeOptions, Outcome, merge_trees};
use crate::error::Result;
use crate::history::History;
use crate::id::{RootId, SnapshotId};
use crate::operation::hold_snapshot;
use crate::store::{Pin, Store};
use crate::work::WorkingTree;

/// Maximum number of common ancestors that are merged into one base. Further ones are ignored.
const ANCESTORS_MAX: usize = 8;
/// Maximum number of merges to build one base. Beyond it, the first ancestor is the base.
const MERGES_MAX: usize = 64;
/// Maximum recursion depth when merging ancestors of ancestors.
const DEPTH_MAX: usize = 8;

/// The base tree of a merge, pinned in the store while this value exists.
pub struct MergeBase {
    /// The best common ancestors, sorted; empty for unrelated histories.
    pub snapshots: Vec<SnapshotId>,
    /// Their tree; `None` if there are none.
    pub root: Option<RootId>,
    _pin: Option<Pin>,
}

/// Returns the base for merging `theirs` into the merge of the snapshots `ours`.
pub fn merge_base(
    history: &History,
    ours: &[SnapshotId],
    theirs: SnapshotId,
    contents: &dyn MergeContents,
    options: &MergeOptions,
) -> Result<MergeBase> {
    let mut finder = Finder { history, contents, options, merges_left: MERGES_MAX };
    finder.base_of(ours, theirs, 0)
}

struct Finder<'a> {
    history: &'a History,
    contents: &'a dyn MergeContents,
    options: &'a MergeOptions,
    merges_left: usize,
}

impl Finder<'_> {
    fn base_of(&mut self, ours: &[SnapshotId], theirs: SnapshotId, depth: usize) -> Result<MergeBase> {
        let best = best_ancestors(self.history, ours, theirs)?;
        let store = self.history.store();
        let Some((first, rest)) = best.split_first() else {
            return Ok(MergeBase { snapshots: best, root: None, _pin: None });
        };
        let mut root = store.snapshot(*first)?.root;
        let mut pin = store.hold(root)?;
        let mut merged = vec![*first];
        for other in rest.iter().take(ANCESTORS_MAX - 1) {
            if depth == DEPTH_MAX || self.merges_left == 0 {
                break;
            }
            self.merges_left -= 1;
            let base = self.base_of(&merged, *other, depth + 1)?;
            let theirs = store.snapshot(*other)?.root;
            let outcome = merge_trees(store, base.root, root, theirs, self.contents, self.options)?;
            (root, pin) = write(store, &outcome.tree)?;
            merged.push(*other);
        }
        Ok(MergeBase { snapshots: best, root: Some(root), _pin: Some(pin) })
    }
}

/// Returns the best common ancestors of a snapshot and a set of others treated as one, sorted.
fn best_ancestors(history: &History, ours: &[SnapshotId], theirs: SnapshotId) -> Result<Vec<SnapshotId>> {
    let mut found = Vec::new();
    for ours in ours {
        found.extend(history.merge_bases(*ours, theirs)?);
    }
    found.sort();
    found.dedup();
    let mut best = Vec::new();
    for (at, one) in found.iter().enumerate() {
        let mut is_older = false;
        for (_, other) in found.iter().enumerate().filter(|(other, _)| *other != at) {
            is_older |= history.is_ancestor(*one, *other)?;
        }
        if !is_older {
            best.push(*one);
        }
    }
    Ok(best)
}

/// Writes a tree that no reference points at. The pin keeps it in the store.
pub(super) fn write(store: &Store, tree: &WorkingTree) -> Result<(RootId, Pin)> {
    let session = store.session();
    let root = tree.freeze().write(&session)?;
    session.write_all_ahead()?;
    // Pin before the session closes, so that the tree is protected at every moment.
    let pin = store.hold(root)?;
    Ok((root, pin))
}

/// Merges one snapshot into another. The tree's base is `ours`; the caller that commits it adds `theirs` as a parent.
pub fn merge_snapshots(
    history: &History,
    ours: SnapshotId,
    theirs: SnapshotId,
    contents: &dyn MergeContents,
    options: &MergeOptions,
) -> Result<Outcome> {
    let store = history.store();
    let _pins = [hold_snapshot(store, ours)?, hold_snapshot(store, theirs)?];
    let base = merge_base(history, &[ours], theirs, contents, options)?;
    let (our_root, their_root) = (store.snapshot(ours)?.root, store.snapshot(theirs)?.root);
    let mut outcome = merge_trees(store, base.root, our_root, their_root, contents, options)?;
    outcome.tree.rebase(Some(ours));
    Ok(outcome)
}
