//! Pins: the roots of collection that live in this process.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::id::ObjectId;

/// While it lives, its object and all that it refers to stay in the store, if they were there when it was taken.
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
    /// Those of them that the collector has not been told of.
    untold: Vec<ObjectId>,
}

impl PinTable {
    pub(super) fn pin(self: &Arc<Self>, id: ObjectId) -> Pin {
        let mut state = self.state.lock();
        if state.add(id) {
            state.untold.push(id);
        }
        Pin { id, table: Arc::clone(self) }
    }

    /// Pins what an open session made: a sweep takes none of it, so the collector need not be told.
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

    /// Whether there is a pin, or a sweep.
    pub(super) fn any(&self) -> bool {
        let state = self.state.lock();
        !state.counts.is_empty() || state.since_sweep.is_some()
    }

    /// False when one is under way.
    pub(super) fn begin_sweep(&self) -> bool {
        let mut state = self.state.lock();
        if state.since_sweep.is_some() {
            return false;
        }
        state.since_sweep = Some(state.counts.keys().copied().collect());
        true
    }

    /// What was pinned at any time since the sweep began.
    pub(super) fn since_sweep(&self) -> Vec<ObjectId> {
        let mut state = self.state.lock();
        state.untold.clear();
        state.since_sweep.iter().flatten().copied().collect()
    }

    /// What of that the collector has not been told of.
    pub(super) fn untold(&self) -> Vec<ObjectId> {
        std::mem::take(&mut self.state.lock().untold)
    }

    /// Does something while no pin can come in, unless there are some that the collector does not know: then it returns them.
    pub(super) fn unless_untold<T>(&self, action: impl FnOnce() -> T) -> Result<T, Vec<ObjectId>> {
        let mut state = self.state.lock();
        if state.untold.is_empty() { Ok(action()) } else { Err(std::mem::take(&mut state.untold)) }
    }

    pub(super) fn end_sweep(&self) {
        let mut state = self.state.lock();
        state.since_sweep = None;
        state.untold.clear();
    }
}

impl Pins {
    /// Counts a pin; true when a sweep runs and has not seen its object pinned before.
    fn add(&mut self, id: ObjectId) -> bool {
        *self.counts.entry(id).or_insert(0) += 1;
        self.since_sweep.as_mut().is_some_and(|seen| seen.insert(id))
    }
}
