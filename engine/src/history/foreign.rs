//! Tracks snapshots from other stores. A received stream leaves a reference for each line of history, named after its newest
//! snapshot: its ancestors and descendants may contain data from an untrusted source.

use std::collections::HashSet;
use std::sync::Arc;

use super::History;
use crate::error::{Error, Result};
use crate::id::{RootId, SnapshotId};
use crate::object::Snapshot;
use crate::operation::Act;
use crate::reference::{REFS_PER_TRANSACTION_MAX, RefName, RefValue};
use crate::store::{RefMove, Store};

const PREFIX: &str = "foreign/";
const PAGE: usize = 1_024;
/// The note of a reference that marks snapshots from another store.
const NOTE: &[u8] = b"stream";

/// Records that these snapshots and their ancestors came from another store.
pub fn mark_foreign(store: &Store, newest: impl IntoIterator<Item = SnapshotId>, act: &Act) -> Result<()> {
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
            operation: act.draft("receive"),
            durability: act.durability,
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

fn marks(store: &Store) -> Result<HashSet<SnapshotId>> {
    let (mut found, mut after) = (HashSet::new(), None);
    loop {
        let page = store.list_refs(PREFIX, after.as_ref(), PAGE)?;
        let Some((last, _)) = page.last() else { return Ok(found) };
        after = Some(last.clone());
        found.extend(page.iter().filter_map(|(name, _)| SnapshotId::from_hex(name.as_str().strip_prefix(PREFIX)?)));
    }
}

/// What was found out about snapshots so far: each is walked over once in the life of a process.
#[derive(Default)]
pub(super) struct Memo {
    /// The marks that it was made by.
    marked: HashSet<SnapshotId>,
    /// Snapshots that came from elsewhere, or have something in their history that did, by the first bytes of their ids. Two ids that
    /// share them would make a tree foreign that is not, and never the other way round.
    foreign: HashSet<u64>,
    /// The trees of those that came from elsewhere.
    trees: HashSet<u64>,
    /// Snapshots without anything of it in their history.
    own: HashSet<u64>,
}

/// The record of a snapshot; a collection may have removed it.
fn record(store: &Store, id: SnapshotId) -> Result<Option<Arc<Snapshot>>> {
    match store.snapshot(id) {
        Err(Error::Missing { .. }) => Ok(None),
        found => found.map(Some),
    }
}

fn short(id: [u8; 32]) -> u64 {
    u64::from_le_bytes(id[..8].try_into().expect("eight bytes"))
}

impl Memo {
    /// Brings it to the marks of the moment. What new marks came of is walked over; what other marks brought is known.
    fn follow(&mut self, store: &Store, marked: HashSet<SnapshotId>) -> Result<()> {
        if self.marked == marked {
            return Ok(());
        }
        if !self.marked.is_subset(&marked) {
            *self = Self::default();
        }
        // What had nothing foreign in its history may have a new mark in it.
        self.own.clear();
        let mut open: Vec<_> = marked.difference(&self.marked).copied().collect();
        let mut seen = HashSet::new();
        while let Some(id) = open.pop() {
            let Some(snapshot) = record(store, id)? else { continue };
            self.foreign.insert(short(*id.as_bytes()));
            self.trees.insert(short(*snapshot.root.as_bytes()));
            open.extend(snapshot.parents.iter().copied().filter(|parent| seen.insert(short(*parent.as_bytes()))));
        }
        self.marked = marked;
        Ok(())
    }

    /// Whether a snapshot has something in its history that came from elsewhere: walks back to the first ones that are known.
    fn is_foreign(&mut self, store: &Store, start: SnapshotId) -> Result<bool> {
        let (mut open, mut seen) = (vec![start], HashSet::from([short(*start.as_bytes())]));
        while let Some(id) = open.pop() {
            let key = short(*id.as_bytes());
            if self.foreign.contains(&key) {
                self.foreign.insert(short(*start.as_bytes()));
                return Ok(true);
            }
            if self.own.contains(&key) {
                continue;
            }
            let parents = record(store, id)?.map(|snapshot| snapshot.parents.clone()).unwrap_or_default();
            open.extend(parents.into_iter().filter(|parent| seen.insert(short(*parent.as_bytes()))));
        }
        self.own.extend(seen);
        Ok(false)
    }
}

impl History {
    /// Returns whether one of these snapshots came from another store or has an ancestor that did, or whether a tree is that of
    /// such a snapshot. Reads the marks; each snapshot is visited once per process and then costs a few bytes of memory.
    pub fn is_foreign(&self, snapshots: &[SnapshotId], root: Option<RootId>) -> Result<bool> {
        let marked = marks(&self.store)?;
        if marked.is_empty() {
            return Ok(false);
        }
        let mut memo = self.foreign.lock();
        memo.follow(&self.store, marked)?;
        if root.is_some_and(|root| memo.trees.contains(&short(*root.as_bytes()))) {
            return Ok(true);
        }
        for snapshot in snapshots {
            if memo.is_foreign(&self.store, *snapshot)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Memory, Meter, Metered};
    use crate::commit::Commit;
    use crate::store::StoreOptions;
    use crate::time::Time;
    use crate::work::WorkingTree;

    /// Commits so many snapshots, one on top of another.
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
        mark_foreign(&store, [theirs], &Act::new("ann", Time(1))).expect("marked");
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
        // A new mark in what was known to be without one.
        mark_foreign(&store, [mine], &Act::new("ann", Time(2))).expect("marked");
        assert!(asked(mine).0 && asked(grow(&store, "head/mine", 1, &mut own)).0);
    }
}
