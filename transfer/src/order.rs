//! Which snapshots go, and in which order: those before others that came of them.

use std::collections::{BinaryHeap, HashMap, HashSet};

use amalgam_engine::{Error as EngineError, SnapshotId, Store};

use crate::error::Result;

const WANTED: u8 = 1;
/// The receiver has it, or something that came of it.
const HAD: u8 = 2;
/// Asked for by itself: it goes whatever came of it.
const ASKED: u8 = 4;

/// The tips and what they came of, as far as its records are there, without what those came of that the receiver has.
/// Parents come first.
pub(crate) fn order(store: &Store, tips: &[SnapshotId], had: &HashSet<SnapshotId>) -> Result<Vec<SnapshotId>> {
    let mut past = Past { store, places: HashMap::new(), heap: BinaryHeap::new(), open: 0 };
    for id in had {
        past.reach(*id, HAD)?;
    }
    for id in tips.iter().filter(|id| !had.contains(id)) {
        past.reach(*id, WANTED | ASKED)?;
    }
    let mut found = past.walk()?;
    found.reverse();
    Ok(found)
}

/// A walk back through history, the latest generation first.
struct Past<'a> {
    store: &'a Store,
    places: HashMap<SnapshotId, Place>,
    heap: BinaryHeap<(u64, SnapshotId)>,
    /// How many in the heap have to go.
    open: usize,
}

struct Place {
    flags: u8,
    parents: Vec<SnapshotId>,
}

fn goes(flags: u8) -> bool {
    flags & HAD == 0 || flags & ASKED != 0
}

impl Past<'_> {
    fn reach(&mut self, id: SnapshotId, flags: u8) -> Result<()> {
        if let Some(place) = self.places.get_mut(&id) {
            let before = goes(place.flags);
            place.flags |= flags;
            self.open -= usize::from(before && !goes(place.flags));
            self.open += usize::from(!before && goes(place.flags));
            return Ok(());
        }
        let snapshot = match self.store.snapshot(id) {
            Ok(snapshot) => snapshot,
            // History is weak.
            Err(EngineError::Missing { .. }) if flags & ASKED == 0 => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        self.places.insert(id, Place { flags, parents: snapshot.parents.clone() });
        self.heap.push((snapshot.generation, id));
        self.open += usize::from(goes(flags));
        Ok(())
    }

    /// A parent has a smaller generation than its children: when it comes, all that lead to it have come.
    fn walk(&mut self) -> Result<Vec<SnapshotId>> {
        let mut found = Vec::new();
        while self.open > 0 {
            let Some((_, id)) = self.heap.pop() else { break };
            let place = self.places.get_mut(&id).expect("what is in the heap has a place");
            let (flags, parents) = (place.flags, std::mem::take(&mut place.parents));
            if goes(flags) {
                self.open -= 1;
                found.push(id);
            }
            for parent in parents {
                self.reach(parent, flags & !ASKED)?;
            }
        }
        Ok(found)
    }
}
