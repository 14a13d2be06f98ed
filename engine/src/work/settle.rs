//! After a commit: what was committed becomes the base, and only what was edited since stays dirty.

use std::sync::Arc;

use super::freeze::{Frozen, Written};
use super::node::{Child, Dir, Memo};
use super::ordmap::OrdMap;
use super::{Base, State, WorkingTree};
use crate::directory;
use crate::error::Result;
use crate::id::SnapshotId;
use crate::object::Node;
use crate::store::{SessionMark, Store};

/// Directories nested deeper than this stay dirty when they were edited during the commit; the next commit looks again.
const SETTLE_DEPTH_MAX: usize = 128;

impl WorkingTree {
    /// Moves the base of this tree to what was just written from a freeze of it.
    pub(crate) fn settle(
        &mut self,
        frozen: &Frozen,
        written: Written,
        snapshot: SnapshotId,
        mark: SessionMark,
    ) -> Result<()> {
        let before = &frozen.tree.state;
        let live = &mut self.state;
        let values_same = live.values.is_same(&before.values);
        if Arc::ptr_eq(&live.root, &before.root) && live.groups.is_same(&before.groups) && values_same {
            *live = State::clean(written.root, Some(snapshot), mark);
            return Ok(());
        }
        if !live.groups.is_empty() || !before.groups.is_empty() {
            // Names of one file can lie anywhere: the tree stays relative to its old base, the ids given are kept.
            live.assigned = written.assigned;
            live.base.snapshot = Some(snapshot);
            return Ok(());
        }
        match settle_directory(&self.store, &live.root, &before.root, SETTLE_DEPTH_MAX)? {
            Child::Dir(root) => live.root = root,
            Child::Clean(entry) => {
                let Node::Directory(contents) = entry.node else { unreachable!("a directory stays one") };
                let root = Dir::stored(&entry, contents);
                root.memo.set(entry, &mark);
                live.root = Arc::new(root);
            }
            Child::Leaf(_) | Child::Linked(_) => unreachable!("a directory stays one"),
        }
        let mut values = OrdMap::default();
        for (key, value) in live.values.iter() {
            if before.values.get(key) != Some(value) {
                values.insert(key.clone(), value.clone());
            }
        }
        live.values = values;
        live.base = Base { root: Some(written.root), snapshot: Some(snapshot), mark: Some(mark) };
        Ok(())
    }
}

/// The live directory relative to what the frozen one became.
fn settle_directory(store: &Store, live: &Arc<Dir>, frozen: &Arc<Dir>, depth_left: usize) -> Result<Child> {
    let unchanged = || Ok(Child::Dir(Arc::clone(live)));
    let Some(entry) = frozen.memo.stored() else {
        return unchanged();
    };
    if Arc::ptr_eq(live, frozen) {
        return Ok(Child::Clean(entry.clone()));
    }
    let Node::Directory(contents) = entry.node else { unreachable!("a directory stays one") };
    if live.base != frozen.base || depth_left == 0 {
        return unchanged();
    }
    let mut edits = OrdMap::default();
    for (name, child) in live.edits.iter() {
        match (child, frozen.edits.get(name)) {
            (None, Some(None)) => {}
            (Some(ours), Some(Some(theirs))) if ours.is_same(theirs) => {}
            (Some(Child::Dir(ours)), Some(Some(Child::Dir(theirs)))) => {
                match settle_directory(store, ours, theirs, depth_left - 1)? {
                    Child::Clean(_) => {}
                    settled => drop(edits.insert(name.clone(), Some(settled))),
                }
            }
            _ => drop(edits.insert(name.clone(), child.clone())),
        }
    }
    for (name, _) in frozen.edits.iter() {
        if live.edits.get(name).is_none() {
            // The edit was taken back since: what shows there is the old base again.
            edits.insert(name.clone(), directory::get(store, live.base, name)?.map(Child::Clean));
        }
    }
    Ok(Child::Dir(Arc::new(Dir { meta: live.meta.clone(), base: contents, edits, memo: Memo::default() })))
}
