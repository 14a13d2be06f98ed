//! The snapshots and names to send, pinned until they are sent.

use std::collections::BTreeSet;

use amalgam_engine::reference::{RefName, RefValue};
use amalgam_engine::workspace::share_workspace;
use amalgam_engine::{Error as EngineError, ObjectId, ObjectKind, PastRefs, Pin, SnapshotId, Store};

use crate::error::Result;
use crate::ref_kinds;

/// Attempts to read the names while collections remove their targets.
const ATTEMPTS_MAX: usize = 8;

/// Snapshots and names to send. Holds pins on all of them.
#[derive(Debug)]
pub struct Selection {
    pub(crate) tips: Vec<SnapshotId>,
    /// Targets of names that are no snapshots.
    pub(crate) others: Vec<ObjectId>,
    pub(crate) names: Vec<(RefName, RefValue)>,
    operation: u64,
    _pins: Vec<Pin>,
}

impl Selection {
    /// Selects snapshots without names.
    pub fn snapshots(store: &Store, snapshots: &[SnapshotId]) -> Result<Self> {
        Self::hold(store, snapshots.to_vec(), Vec::new(), store.last_operation()?)
    }

    /// Selects all names that a stream may set (workspaces, labels, notes, rewards, episodes, steps) at one moment, with their
    /// targets.
    pub fn everything(store: &Store) -> Result<Self> {
        Self::named(store, ref_kinds::is_sent)
    }

    /// Selects all names of a backup at one moment, with their targets: all but the checkpoints of live views.
    pub fn of_backup(store: &Store) -> Result<Self> {
        Self::named(store, ref_kinds::is_backed_up)
    }

    /// Selects the names that `wanted` accepts at one moment, with their targets.
    pub fn named(store: &Store, wanted: impl Fn(&RefName) -> bool) -> Result<Self> {
        Self::chosen(store, &[], wanted)
    }

    /// Selects snapshots without names, and the names that `wanted` accepts at one moment, with their targets.
    pub fn chosen(store: &Store, snapshots: &[SnapshotId], wanted: impl Fn(&RefName) -> bool) -> Result<Self> {
        let attempt = || {
            let past = PastRefs::at(store, store.last_operation()?)?;
            let names = past.refs("").filter(|(name, _)| wanted(name));
            let names = names.map(|(name, value)| (name.clone(), value.clone())).collect();
            Self::hold(store, snapshots.to_vec(), names, past.sequence())
        };
        let mut last = attempt();
        for _ in 1..ATTEMPTS_MAX {
            match last {
                Err(crate::Error::Engine(EngineError::Missing { .. })) => last = attempt(),
                other => return other,
            }
        }
        last
    }

    /// Returns the snapshots that were asked for, or that a name holds.
    pub fn tips(&self) -> &[SnapshotId] {
        &self.tips
    }

    /// Returns the names with their values.
    pub fn names(&self) -> &[(RefName, RefValue)] {
        &self.names
    }

    /// Returns the operation after which the names had these values.
    pub fn operation(&self) -> u64 {
        self.operation
    }

    fn hold(
        store: &Store,
        snapshots: Vec<SnapshotId>,
        names: Vec<(RefName, RefValue)>,
        operation: u64,
    ) -> Result<Self> {
        let share = |(name, value)| share_workspace(&name, value).map(|value| (name, value));
        let names = names.into_iter().map(share).collect::<amalgam_engine::Result<Vec<_>>>()?;
        let mut tips: BTreeSet<_> = snapshots.into_iter().collect();
        let mut others = BTreeSet::new();
        for id in names.iter().flat_map(|(_, value)| value.roots()) {
            match id.kind {
                ObjectKind::Snapshot => drop(tips.insert(SnapshotId::from_bytes(id.hash))),
                _ => drop(others.insert(id)),
            }
        }
        let mut pins = Vec::with_capacity(2 * tips.len() + others.len());
        for tip in &tips {
            pins.push(store.pin(*tip));
            pins.push(store.hold(store.snapshot(*tip)?.root)?);
        }
        pins.extend(others.iter().map(|id| store.pin(*id)));
        Ok(Self {
            tips: tips.into_iter().collect(),
            others: others.into_iter().collect(),
            names,
            operation,
            _pins: pins,
        })
    }
}
