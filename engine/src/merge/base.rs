//! What two snapshots came of, as one tree. After criss-cross merges there are several best common ancestors; these are merged
//! themselves, with the conflicts left in, so that what each of them settled counts.

use super::{MergeContents, MergeOptions, Outcome, merge_trees};
use crate::error::Result;
use crate::history::History;
use crate::id::{RootId, SnapshotId};
use crate::operation::hold_snapshot;
use crate::store::{Pin, Store};
use crate::work::WorkingTree;

/// The most common ancestors that are merged into one base; further ones are left out.
const ANCESTORS_MAX: usize = 8;
/// How many trees are merged at most to make one base; beyond, the first ancestor stands for all.
const MERGES_MAX: usize = 64;
/// How deep ancestors of ancestors are merged.
const DEPTH_MAX: usize = 8;

/// The tree that a merge starts from, kept in the store while this lives.
pub struct MergeBase {
    /// The best common ancestors, sorted; none for histories that have nothing in common.
    pub snapshots: Vec<SnapshotId>,
    /// Their tree; nothing for none.
    pub root: Option<RootId>,
    _pin: Option<Pin>,
}

/// The base of a merge of some snapshot, seen as one, with another.
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

/// The best common ancestors of a snapshot and some others seen as one, sorted.
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

/// Writes a tree that no name points at; it stays while the pin lives.
pub(super) fn write(store: &Store, tree: &WorkingTree) -> Result<(RootId, Pin)> {
    let session = store.session();
    let root = tree.freeze().write(&session)?;
    session.write_all_ahead()?;
    // Pinned before the session closes, so that there is no moment without protection.
    let pin = store.hold(root)?;
    Ok((root, pin))
}

/// Merges one snapshot into another. The tree's base is ours; whoever commits it adds theirs as a parent.
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
