//! Tracks snapshots from other stores. A received stream leaves a reference for each line of history, named after its newest
//! snapshot: its ancestors and descendants may contain data from an untrusted source.

use super::History;
use super::foreign_cache::{PREFIX, marks, short};
use crate::error::Result;
use crate::id::{RootId, SnapshotId};
use crate::operation::OperationContext;
use crate::reference::{REFS_PER_TRANSACTION_MAX, RefName, RefValue};
use crate::store::{RefMove, Store};

/// The note of a reference that marks snapshots from another store.
const NOTE: &[u8] = b"stream";

/// Records that these snapshots and their ancestors came from another store.
pub fn mark_foreign(
    store: &Store,
    newest: impl IntoIterator<Item = SnapshotId>,
    context: &OperationContext,
) -> Result<()> {
    let mut new = Vec::new();
    for name in newest.into_iter().map(reference) {
        if store.read_ref(&name)?.is_none() {
            new.push(name);
        }
    }
    for part in new.chunks(REFS_PER_TRANSACTION_MAX) {
        let refs = RefMove {
            expect: part.iter().map(|name| (name.clone(), None)).collect(),
            set: part.iter().map(|name| (name.clone(), Some(RefValue::noting(NOTE)))).collect(),
            operation: context.draft("receive"),
            durability: context.durability,
        };
        let session = store.session();
        let nothing = crate::id::ObjectId::of(crate::id::ObjectKind::Chunk, b"");
        session.commit(nothing, refs)?;
    }
    Ok(())
}

fn reference(snapshot: SnapshotId) -> RefName {
    RefName::new(format!("{PREFIX}{snapshot}")).expect("short and printable")
}

impl History {
    /// Returns whether one of these snapshots came from another store or has an ancestor that did, or whether a tree is that of
    /// such a snapshot. Reads the marks; each snapshot is visited once per process and then costs a few bytes of memory.
    pub fn is_foreign(&self, snapshots: &[SnapshotId], root: Option<RootId>) -> Result<bool> {
        let marked = marks(&self.store)?;
        if marked.is_empty() {
            return Ok(false);
        }
        let mut cache = self.foreign.lock();
        cache.follow(&self.store, marked)?;
        if root.is_some_and(|root| cache.trees.contains(&short(*root.as_bytes()))) {
            return Ok(true);
        }
        for snapshot in snapshots {
            if cache.is_foreign(&self.store, *snapshot)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::{Memory, Meter, Metered};
    use crate::commit::Commit;
    use crate::store::StoreOptions;
    use crate::time::Time;
    use crate::work::WorkingTree;

    /// Commits `number` snapshots, one on top of another. Returns the last one.
    fn grow(store: &Store, head: &str, number: usize, tree: &mut WorkingTree) -> SnapshotId {
        let head = RefName::new(head).expect("a name");
        let commit = |tree: &mut WorkingTree, at: usize| {
            tree.write("file", at.to_string().as_bytes()).expect("written");
            tree.commit(Commit::new(&head, "one more")).expect("committed").snapshot
        };
        let last = (0..number).map(|at| commit(tree, at)).last().expect("one at least");
        store.snapshot(last).expect("it is there");
        last
    }

    #[test]
    fn history_is_walked_over_once_however_often_it_is_asked_for() {
        let meter = Arc::new(Meter::default());
        let options = StoreOptions { cache_bytes: 0, ..StoreOptions::default() };
        let store = Store::new(Arc::new(Metered::new(Memory::default(), Arc::clone(&meter))), &options);
        let (mut own, mut other) = (WorkingTree::new(&store), WorkingTree::new(&store));
        other.write("other", b"theirs").expect("written");
        let mine = grow(&store, "head/mine", 200, &mut own);
        let theirs = grow(&store, "head/theirs", 200, &mut other);
        mark_foreign(&store, [theirs], &OperationContext::new("ann", Time(1))).expect("marked");
        let history = History::of(&store);
        let asked = |snapshot| {
            let before = meter.gets();
            let is_foreign = history.is_foreign(&[snapshot], None).expect("asked");
            (is_foreign, meter.gets() - before)
        };
        assert!(!asked(mine).0 && asked(theirs).0);
        for (tree, head, expected) in [(&mut own, "head/mine", false), (&mut other, "head/theirs", true)] {
            let next = grow(&store, head, 1, tree);
            let (is_foreign, reads) = asked(next);
            assert_eq!(is_foreign, expected, "{head}");
            assert!(reads <= 4, "{head}: {reads} reads for one new snapshot");
            assert!(asked(next).1 <= 4);
        }
        // A new mark in a history that was known to have none.
        mark_foreign(&store, [mine], &OperationContext::new("ann", Time(2))).expect("marked");
        assert!(asked(mine).0 && asked(grow(&store, "head/mine", 1, &mut own)).0);
    }
}
