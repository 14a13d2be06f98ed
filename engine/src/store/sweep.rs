//! The store's half of a collection. Which objects are dead is for the collector to find out; that nothing alive can die
//! between its marking and its deleting is guaranteed here.

use super::Store;
use crate::backend::Epoch;
use crate::error::Result;
use crate::id::{ObjectId, ObjectKind};
use crate::reference::RefValue;

const PAGE: usize = 256;

/// One collection, from its beginning to its last deletion. Only one may run at a time.
///
/// The order is: begin, mark everything reachable from [`roots`](Self::roots), ask for the roots again and mark the new ones
/// until none is new, then [`sweep`](Self::sweep), marking what it returns, until it is done.
///
/// Trees go root first, and a tree whose root is too young to go stays whole. So whoever finds a root, finds all below it.
pub struct SweepRound {
    store: Store,
    epoch: Epoch,
    older_than: Epoch,
    first_operation: u64,
    stage: Stage,
    after: Option<ObjectId>,
    deleted: u64,
}

/// What is being deleted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Roots,
    Others,
}

/// What a sweep came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swept {
    /// All that was dead is gone: so many objects since the round began.
    Done {
        /// How many.
        objects: u64,
    },
    /// These are alive and not marked. Mark all that is reachable from them, then go on.
    Unmarked(Vec<ObjectId>),
}

impl SweepRound {
    pub(super) fn begin(store: Store) -> Result<Self> {
        let sessions = store.inner.sessions.lock();
        store.inner.pins.begin_sweep();
        let epoch = store.inner.backend.advance_epoch()?;
        let older_than = sessions.oldest().map_or(epoch, |oldest| oldest.min(epoch));
        drop(sessions);
        let first_operation = store.inner.backend.last_operation()?;
        Ok(Self { store, epoch, older_than, first_operation, stage: Stage::Roots, after: None, deleted: 0 })
    }

    /// Every object that a reference holds, or held at any time since the round began, and every pinned one.
    ///
    /// The log closes the gap of a reference that moves from behind the reader's position to before it.
    pub fn roots(&self) -> Result<Vec<ObjectId>> {
        let mut roots = Vec::new();
        let mut after = None;
        loop {
            let page = self.store.list_refs("", after.as_ref(), PAGE)?;
            roots.extend(page.iter().flat_map(|(_, value)| value.roots()));
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
            roots.extend(values.flat_map(|change| [&change.before, &change.after]).flatten().flat_map(RefValue::roots));
        }
        roots.extend(self.store.inner.pins.since_sweep());
        roots.sort_unstable();
        roots.dedup();
        Ok(roots)
    }

    /// Deletes what is not alive and what no session may still rely on. Goes on where it stopped.
    pub fn sweep(&mut self, is_alive: &dyn Fn(ObjectId) -> bool) -> Result<Swept> {
        let inner = &self.store.inner;
        loop {
            let page = inner.backend.scan(self.after, PAGE)?;
            let Some(last) = page.last() else {
                if self.stage == Stage::Others {
                    return Ok(Swept::Done { objects: self.deleted });
                }
                (self.stage, self.after) = (Stage::Others, None);
                continue;
            };
            let of_stage = |id: ObjectId| (id.kind == ObjectKind::Root) == (self.stage == Stage::Roots);
            let unmarked: Vec<_> = page.iter().filter(|row| of_stage(row.id) && !is_alive(row.id)).collect();
            if self.stage == Stage::Roots {
                // What lies below such a root may be older than it is. Roots of this epoch were made from marked ones.
                let too_young = unmarked.iter().filter(|row| (self.older_than..self.epoch).contains(&row.epoch));
                let too_young: Vec<_> = too_young.map(|row| row.id).collect();
                if !too_young.is_empty() {
                    return Ok(Swept::Unmarked(too_young));
                }
            }
            let dead: Vec<_> = unmarked.iter().map(|row| row.id).collect();
            match inner.pins.unless_untold(is_alive, || inner.backend.delete(&dead, self.older_than)) {
                Ok(deleted) => self.deleted += deleted?,
                Err(untold) => return Ok(Swept::Unmarked(untold)),
            }
            self.after = Some(last.id);
        }
    }
}

impl Drop for SweepRound {
    fn drop(&mut self) {
        self.store.inner.pins.end_sweep();
    }
}
