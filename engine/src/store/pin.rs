//! Pins: in-process roots of garbage collection.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::id::ObjectId;

/// Protects an object and everything it refers to from collection, if they existed when the pin was created.
pub struct Pin {
    id: ObjectId,
    table: Arc<PinTable>,
}

impl Pin {
    /// Returns the pinned object.
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

/// All pins of a store, counted by object.
#[derive(Default)]
pub(super) struct PinTable {
    state: Mutex<Pins>,
}

#[derive(Default)]
struct Pins {
    counts: HashMap<ObjectId, usize>,
    /// During a sweep, every pin that existed at any time since it began: a pin may pass its object on to a reference and be
    /// dropped, and the sweep must not miss both.
    since_sweep: Option<HashSet<ObjectId>>,
    /// The objects of that set that have not been reported to the collector.
    unreported: Vec<ObjectId>,
}

impl PinTable {
    /// Pins an object. A running sweep learns of it by [`unreported`](Self::unreported).
    pub(super) fn pin(self: &Arc<Self>, id: ObjectId) -> Pin {
        let mut state = self.state.lock();
        if state.add(id) {
            state.unreported.push(id);
        }
        Pin { id, table: Arc::clone(self) }
    }

    /// Pins an object that an open session made. A sweep deletes none of those, so the collector need not be informed.
    pub(super) fn pin_own(self: &Arc<Self>, id: ObjectId) -> Pin {
        self.state.lock().add(id);
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

    /// Returns whether a pin exists or a sweep runs.
    pub(super) fn has_pin_or_sweep(&self) -> bool {
        let state = self.state.lock();
        !state.counts.is_empty() || state.since_sweep.is_some()
    }

    /// Returns the pinned objects.
    pub(super) fn pinned(&self) -> Vec<ObjectId> {
        self.state.lock().counts.keys().copied().collect()
    }

    /// Starts tracking pins for a sweep. Returns false if a sweep is already running.
    pub(super) fn begin_sweep(&self) -> bool {
        let mut state = self.state.lock();
        if state.since_sweep.is_some() {
            return false;
        }
        state.since_sweep = Some(state.counts.keys().copied().collect());
        true
    }

    /// Returns everything that was pinned at any time since the sweep began.
    pub(super) fn since_sweep(&self) -> Vec<ObjectId> {
        let mut state = self.state.lock();
        state.unreported.clear();
        state.since_sweep.iter().flatten().copied().collect()
    }

    /// Returns the pinned objects that have not been reported to the collector yet.
    pub(super) fn unreported(&self) -> Vec<ObjectId> {
        std::mem::take(&mut self.state.lock().unreported)
    }

    /// Calls `action` while no pin can be added. If there are unreported pins, returns those instead and does not call
    /// it.
    pub(super) fn unless_unreported<T>(&self, action: impl FnOnce() -> T) -> Result<T, Vec<ObjectId>> {
        let mut state = self.state.lock();
        if state.unreported.is_empty() { Ok(action()) } else { Err(std::mem::take(&mut state.unreported)) }
    }

    /// Stops tracking pins.
    pub(super) fn end_sweep(&self) {
        let mut state = self.state.lock();
        state.since_sweep = None;
        state.unreported.clear();
    }
}

impl Pins {
    /// Counts a pin. Returns true if a sweep is running and has not seen this object pinned before.
    fn add(&mut self, id: ObjectId) -> bool {
        *self.counts.entry(id).or_insert(0) += 1;
        self.since_sweep.as_mut().is_some_and(|seen| seen.insert(id))
    }
}
