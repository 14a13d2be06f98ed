//! A short list of the snapshots that a receiver has, so that the sender can skip them.

use std::collections::BTreeSet;

use amalgam_engine::{Error as EngineError, ObjectKind, SnapshotId, Store};

use crate::error::{Error, Result};

const TITLE: &str = "amalgam have 1";
/// Most snapshots in the list. More would hardly save anything.
const SNAPSHOTS_MAX: usize = 4_096;
/// Most lines that are read: the list of a backup may be longer.
const LINES_MAX: usize = 1 << 20;
const PAGE: usize = 1_024;

/// Snapshots that a store has, with their trees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Have {
    /// The snapshots.
    pub snapshots: Vec<SnapshotId>,
}

/// Lists the snapshots that a store's names hold; only the latest generations if there are too many.
pub fn have(store: &Store) -> Result<Have> {
    let mut found = BTreeSet::new();
    let mut after = None;
    loop {
        let page = store.list_refs("", after.as_ref(), PAGE)?;
        for id in page.iter().flat_map(|(_, value)| value.roots()).filter(|id| id.kind == ObjectKind::Snapshot) {
            let id = SnapshotId::from_bytes(id.hash);
            match store.snapshot(id).and_then(|snapshot| store.hold(snapshot.root).map(|_| snapshot.generation)) {
                Ok(generation) => drop(found.insert((generation, id))),
                // Dropped a moment ago, or thinned.
                Err(EngineError::Missing { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if found.len() > SNAPSHOTS_MAX {
                found.pop_first();
            }
        }
        match page.into_iter().last() {
            Some((name, _)) => after = Some(name),
            None => break,
        }
    }
    Ok(Have { snapshots: found.into_iter().rev().map(|(_, id)| id).collect() })
}

/// Returns those of some snapshots that a store has with their trees, whether or not a name holds them, in the same order.
///
/// A transfer that broke off leaves complete snapshots without names. The answer is a hint: a collection may remove them before
/// the next stream arrives, which then fails.
pub fn have_of(store: &Store, candidates: &[SnapshotId]) -> Result<Have> {
    let mut snapshots = Vec::new();
    for id in candidates {
        match store.snapshot(*id).and_then(|snapshot| store.hold(snapshot.root)) {
            Ok(_) => snapshots.push(*id),
            Err(EngineError::Missing { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Have { snapshots })
}

impl Have {
    /// Most snapshots that one question may name.
    pub const CANDIDATES_MAX: usize = SNAPSHOTS_MAX;

    /// Encodes as text: a title, then one id per line.
    pub fn encode(&self) -> String {
        let lines = self.snapshots.iter().map(|id| format!("{id}\n"));
        std::iter::once(format!("{TITLE}\n")).chain(lines).collect()
    }

    /// Decodes the text.
    pub fn decode(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::NotAStream { why: format!("no list of what a store has: {why}") };
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err(wrong("it begins otherwise"));
        }
        let mut snapshots = Vec::new();
        for line in lines {
            if snapshots.len() == LINES_MAX {
                return Err(wrong("it is too long"));
            }
            snapshots.push(SnapshotId::from_hex(line).ok_or_else(|| wrong("a line that is no id"))?);
        }
        Ok(Self { snapshots })
    }
}
