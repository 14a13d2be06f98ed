//! Pins: the roots of collection that live in this process.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::id::ObjectId;

/// While it lives, its object and all that refers to from there stay in the store.
pub struct Pin {
    id: ObjectId,
    table: Arc<PinTable>,
}

impl Pin {
    /// What it keeps.
    pub fn id(&self) -> ObjectId {
        self.id
    }
}

impl Clone for Pin {
    fn clone(&self) -> Self {
        self.table.pin(self.id)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.table.unpin(self.id);
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pin({})", self.id)
    }
}

#[derive(Default)]
pub(super) struct PinTable {
    state: Mutex<Pins>,
}

#[derive(Default)]
struct Pins {
    counts: HashMap<ObjectId, usize>,
    /// During a sweep, every pin that existed at any time since it began: a pin may hand its object on to a reference
    /// and go, and the sweep must not miss both.
    since_sweep: Option<HashSet<ObjectId>>,
}

impl PinTable {
    pub(super) fn pin(self: &Arc<Self>, id: ObjectId) -> Pin {
        let mut state = self.state.lock();
        *state.counts.entry(id).or_insert(0) += 1;
        if let Some(seen) = &mut state.since_sweep {
            seen.insert(id);
        }
        Pin { id, table: Arc::clone(self) }
    }

    fn unpin(&self, id: ObjectId) {
        let mut state = self.state.lock();
        let count = state.counts.get_mut(&id).expect("a pin is in the table while it lives");
        *count -= 1;
        if *count == 0 {
            state.counts.remove(&id);
        }
    }

    pub(super) fn begin_sweep(&self) {
        let mut state = self.state.lock();
        state.since_sweep = Some(state.counts.keys().copied().collect());
    }

    pub(super) fn since_sweep(&self) -> Vec<ObjectId> {
        self.state.lock().since_sweep.iter().flatten().copied().collect()
    }

    pub(super) fn end_sweep(&self) {
        self.state.lock().since_sweep = None;
    }
}
