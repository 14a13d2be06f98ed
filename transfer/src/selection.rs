//! What is to be sent, kept from collection until it is.

use std::collections::BTreeSet;

use amalgam_engine::reference::{RefName, RefValue};
use amalgam_engine::workspace::share_workspace;
use amalgam_engine::{Error as EngineError, ObjectId, ObjectKind, PastRefs, Pin, SnapshotId, Store};

use crate::error::Result;
use crate::kinds;

/// A set of names is read anew this often when a collection takes what they held a moment ago.
const TRIES: usize = 8;

/// Snapshots and names to send. Holds pins on all of them.
#[derive(Debug)]
pub struct Selection {
    pub(crate) tips: Vec<SnapshotId>,
    /// What names hold that is no snapshot.
    pub(crate) others: Vec<ObjectId>,
    pub(crate) names: Vec<(RefName, RefValue)>,
    operation: u64,
    _pins: Vec<Pin>,
}

impl Selection {
    /// Some snapshots, without names.
    pub fn snapshots(store: &Store, snapshots: &[SnapshotId]) -> Result<Self> {
        Self::hold(store, snapshots.to_vec(), Vec::new(), store.last_operation()?)
    }

    /// Every name that a stream may set (workspaces, labels, notes, rewards, episodes, steps), as they all were at one moment, with
    /// what it holds.
    pub fn everything(store: &Store) -> Result<Self> {
        Self::named(store, kinds::is_sent)
    }

    /// Every name of a backup, as they all were at one moment, with what it holds: all but the checkpoints of live views.
    pub fn of_backup(store: &Store) -> Result<Self> {
        Self::named(store, kinds::is_backed_up)
    }

    /// The names that are wanted, as they were at one moment, with what they hold.
    pub fn named(store: &Store, wanted: impl Fn(&RefName) -> bool) -> Result<Self> {
        Self::chosen(store, &[], wanted)
    }

    /// Some snapshots without names, and the names that are wanted, as they were at one moment, with what they hold.
    pub fn chosen(store: &Store, snapshots: &[SnapshotId], wanted: impl Fn(&RefName) -> bool) -> Result<Self> {
        let attempt = || {
            let past = PastRefs::at(store, store.last_operation()?)?;
            let names = past.refs("").filter(|(name, _)| wanted(name));
            let names = names.map(|(name, value)| (name.clone(), value.clone())).collect();
            Self::hold(store, snapshots.to_vec(), names, past.sequence())
        };
        let mut last = attempt();
        for _ in 1..TRIES {
            match last {
                Err(crate::Error::Engine(EngineError::Missing { .. })) => last = attempt(),
                other => return other,
            }
        }
        last
    }

    /// The snapshots that were asked for, or are held by a name.
    pub fn tips(&self) -> &[SnapshotId] {
        &self.tips
    }

    /// The names and what they hold.
    pub fn names(&self) -> &[(RefName, RefValue)] {
        &self.names
    }

    /// The operation after which the names were as they are here.
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
