//! Selects the snapshots to send, and their order: parents before children.

use std::collections::{BinaryHeap, HashMap, HashSet};

use amalgam_engine::{Error as EngineError, SnapshotId, Store};

use crate::error::Result;

const WANTED: u8 = 1;
/// The receiver has it, or a descendant of it.
const HAD: u8 = 2;
/// Asked for explicitly: it is sent even if the receiver has a descendant.
const ASKED: u8 = 4;

/// Returns the tips and those of their ancestors that exist and that the receiver lacks; parents first.
pub(crate) fn send_order(store: &Store, tips: &[SnapshotId], had: &HashSet<SnapshotId>) -> Result<Vec<SnapshotId>> {
    let mut walk = HistoryWalk { store, visited: HashMap::new(), heap: BinaryHeap::new(), open: 0 };
    for id in had {
        walk.add(*id, HAD)?;
    }
    for id in tips.iter().filter(|id| !had.contains(id)) {
        walk.add(*id, WANTED | ASKED)?;
    }
    let mut found = walk.walk()?;
    found.reverse();
    Ok(found)
}

/// A walk back through history, latest generation first.
struct HistoryWalk<'a> {
    store: &'a Store,
    visited: HashMap<SnapshotId, Visited>,
    heap: BinaryHeap<(u64, SnapshotId)>,
    /// Number of snapshots in the heap that have to be sent.
    open: usize,
}

struct Visited {
    flags: u8,
    parents: Vec<SnapshotId>,
}

fn is_sent(flags: u8) -> bool {
    flags & HAD == 0 || flags & ASKED != 0
}

impl HistoryWalk<'_> {
    fn add(&mut self, id: SnapshotId, flags: u8) -> Result<()> {
        if let Some(place) = self.visited.get_mut(&id) {
            let before = is_sent(place.flags);
            place.flags |= flags;
            self.open -= usize::from(before && !is_sent(place.flags));
            self.open += usize::from(!before && is_sent(place.flags));
            return Ok(());
        }
        let snapshot = match self.store.snapshot(id) {
            Ok(snapshot) => snapshot,
            // Ancestors may be missing.
            Err(EngineError::Missing { .. }) if flags & ASKED == 0 => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        self.visited.insert(id, Visited { flags, parents: snapshot.parents.clone() });
        self.heap.push((snapshot.generation, id));
        self.open += usize::from(is_sent(flags));
        Ok(())
    }

    /// Walks the history. A parent has a smaller generation than its children, so it comes after all of them.
    fn walk(&mut self) -> Result<Vec<SnapshotId>> {
        let mut found = Vec::new();
        while self.open > 0 {
            let Some((_, id)) = self.heap.pop() else { break };
            let place = self.visited.get_mut(&id).expect("what is in the heap has a place");
            let (flags, parents) = (place.flags, std::mem::take(&mut place.parents));
            if is_sent(flags) {
                self.open -= 1;
                found.push(id);
            }
            for parent in parents {
                self.add(parent, flags & !ASKED)?;
            }
        }
        Ok(found)
    }
}
