//! The store's half of a collection. Which objects are dead is for the collector to find out; that nothing alive can die
//! between its marking and its deleting is guaranteed here.

use super::Store;
use crate::backend::{Epoch, IndexRow};
use crate::error::Result;
use crate::id::ObjectId;

const PAGE: usize = 1_000;

/// One collection, from its beginning to its last deletion. Only one may run at a time.
///
/// The order is: begin, mark everything reachable from [`roots`](Self::roots), ask for the roots again and mark the new ones
/// until none is new, delete what is unmarked.
pub struct SweepRound {
    store: Store,
    older_than: Epoch,
    first_operation: u64,
}

impl SweepRound {
    pub(super) fn begin(store: Store) -> Result<Self> {
        let sessions = store.inner.sessions.lock();
        store.inner.pins.begin_sweep();
        let epoch = store.inner.backend.advance_epoch()?;
        let older_than = sessions.oldest().map_or(epoch, |oldest| oldest.min(epoch));
        drop(sessions);
        let first_operation = last_operation(&store)?;
        Ok(Self { store, older_than, first_operation })
    }

    /// Every object that a reference holds, or held at any time since the round began, and every pinned one.
    ///
    /// The log closes the gap of a reference that moves from behind the reader's position to before it.
    pub fn roots(&self) -> Result<Vec<ObjectId>> {
        let mut roots = Vec::new();
        let mut after = None;
        loop {
            let page = self.store.list_refs("", after.as_ref(), PAGE)?;
            roots.extend(page.iter().filter_map(|(_, value)| value.target));
            match page.into_iter().last() {
                Some((name, _)) => after = Some(name),
                None => break,
            }
        }
        let mut sequence = self.first_operation;
        loop {
            let page = self.store.list_operations(sequence, PAGE)?;
            let Some(last) = page.last() else { break };
            sequence = last.sequence;
            let values = page.iter().flat_map(|operation| &operation.changes);
            roots.extend(values.flat_map(|change| [&change.before, &change.after]).flatten().filter_map(|v| v.target));
        }
        roots.extend(self.store.inner.pins.since_sweep());
        roots.sort_unstable();
        roots.dedup();
        Ok(roots)
    }

    /// A page of the object index.
    pub fn scan(&self, after: Option<ObjectId>, limit: usize) -> Result<Vec<IndexRow>> {
        self.store.inner.backend.scan(after, limit)
    }

    /// Deletes those of the objects that no session may still rely on; returns how many went.
    pub fn delete(&self, ids: &[ObjectId]) -> Result<u64> {
        self.store.inner.backend.delete(ids, self.older_than)
    }
}

impl Drop for SweepRound {
    fn drop(&mut self) {
        self.store.inner.pins.end_sweep();
    }
}

fn last_operation(store: &Store) -> Result<u64> {
    store.inner.backend.last_operation()
}
