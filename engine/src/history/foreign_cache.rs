//! The marks of snapshots from other stores, and a cache of the history that they affect.

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::id::SnapshotId;
use crate::object::Snapshot;
use crate::store::Store;

/// The prefix of the references that mark snapshots from other stores.
pub(super) const PREFIX: &str = "foreign/";
const PAGE: usize = 1_024;

/// Reads the marks.
pub(super) fn marks(store: &Store) -> Result<HashSet<SnapshotId>> {
    let (mut found, mut after) = (HashSet::new(), None);
    loop {
        let page = store.list_refs(PREFIX, after.as_ref(), PAGE)?;
        let Some((last, _)) = page.last() else { return Ok(found) };
        after = Some(last.clone());
        found.extend(page.iter().filter_map(|(name, _)| SnapshotId::from_hex(name.as_str().strip_prefix(PREFIX)?)));
    }
}

/// A cache of the snapshots that came from other stores. Each snapshot is visited once per process.
#[derive(Default)]
pub(super) struct ForeignCache {
    /// The marks that the cache was built from.
    marked: HashSet<SnapshotId>,
    /// Snapshots from other stores and their descendants, by the first bytes of their ids. A collision can make a snapshot count as
    /// foreign, never the other way round.
    foreign: HashSet<u64>,
    /// The trees of snapshots from other stores.
    pub(super) trees: HashSet<u64>,
    /// Snapshots without a foreign ancestor.
    own: HashSet<u64>,
}

/// Returns a snapshot, or `None` if a collection removed it.
fn record(store: &Store, id: SnapshotId) -> Result<Option<Arc<Snapshot>>> {
    match store.snapshot(id) {
        Err(Error::Missing { .. }) => Ok(None),
        found => found.map(Some),
    }
}

pub(super) fn short(id: [u8; 32]) -> u64 {
    u64::from_le_bytes(id[..8].try_into().expect("eight bytes"))
}

impl ForeignCache {
    /// Updates the cache to the current marks. Walks the history of new marks only.
    pub(super) fn follow(&mut self, store: &Store, marked: HashSet<SnapshotId>) -> Result<()> {
        if self.marked == marked {
            return Ok(());
        }
        if !self.marked.is_subset(&marked) {
            *self = Self::default();
        }
        // A snapshot without a foreign ancestor may have a newly marked one.
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

    /// Returns whether a snapshot has a foreign ancestor. Walks back to the first cached ones.
    pub(super) fn is_foreign(&mut self, store: &Store, start: SnapshotId) -> Result<bool> {
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
