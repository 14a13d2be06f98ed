//! Operations: the log of all changes of state, undo and redo, and the state of the store after any operation.
//!
//! An operation records the value of each reference before and after. So an undo is a compare-and-swap: it succeeds if no
//! reference of the operation has moved since; otherwise the error names the ones that did. An undo is an operation itself and
//! can be undone.

mod cursor;
mod past;
mod revert;

pub use cursor::OperationCursor;
pub use past::PastRefs;
pub(crate) use revert::RESOLUTIONS;
pub use revert::{next_to_redo, next_to_undo, redo, redo_operation, undo, undo_operation};

use crate::backend::{Committed, Durability, Transaction};
use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind, SnapshotId};
use crate::reference::{Operation, OperationDraft, RefName, RefValue, RequestId};
use crate::store::{Pin, Store};
use crate::time::Time;

/// The actor, time and durability of an operation.
#[derive(Clone, Debug, Default)]
pub struct OperationContext {
    /// The actor.
    pub actor: String,
    /// The time.
    pub time: Time,
    /// Makes a retry return the result of the first attempt.
    pub request: Option<RequestId>,
    /// The durability required before the operation is acknowledged.
    pub durability: Durability,
}

impl OperationContext {
    /// Creates a durable context.
    pub fn new(actor: impl Into<String>, time: Time) -> Self {
        Self { actor: actor.into(), time, request: None, durability: Durability::Durable }
    }

    /// Makes the operation buffered: it survives the end of the process but not a power failure.
    #[must_use]
    pub fn buffered(mut self) -> Self {
        self.durability = Durability::Buffered;
        self
    }

    /// Sets the request id, so that a retry is recognised.
    #[must_use]
    pub fn as_request(mut self, request: RequestId) -> Self {
        self.request = Some(request);
        self
    }

    /// Returns the operation that an earlier attempt of the same request recorded; `None` if there is none.
    pub(crate) fn done_before(&self, store: &Store) -> Result<Option<Operation>> {
        self.request.as_ref().map(|request| store.find_request(request)).transpose().map(Option::flatten)
    }

    pub(crate) fn draft(&self, action: &str) -> OperationDraft {
        OperationDraft {
            actor: self.actor.clone(),
            time: self.time,
            action: action.to_owned(),
            request: self.request.clone(),
            reverts: None,
        }
    }
}

/// A reference update: the name, the expected value and the new value.
pub(crate) struct Step {
    pub(crate) name: RefName,
    pub(crate) before: Option<RefValue>,
    pub(crate) after: Option<RefValue>,
}

/// Moves references, all or none. The caller must ensure that the objects of the new values stay in the store meanwhile, for
/// example with pins.
pub(crate) fn move_refs(
    store: &Store,
    context: &OperationContext,
    draft: OperationDraft,
    steps: Vec<Step>,
) -> Result<Committed> {
    let mut transaction =
        Transaction { operation: Some(draft), durability: context.durability, ..Transaction::default() };
    for Step { name, before, after } in steps {
        transaction.expect.push((name.clone(), before));
        transaction.set.push((name, after));
    }
    store.transact(transaction)
}

/// Removes a reference that belongs to no workspace and no label. Returns `None` if it does not exist.
pub fn remove_reference(
    store: &Store,
    name: &RefName,
    context: &OperationContext,
    action: &str,
) -> Result<Option<Operation>> {
    trying(|| {
        let Some(before) = store.read_ref(name)? else { return Ok(None) };
        let step = Step { name: name.clone(), before: Some(before), after: None };
        Ok(Some(recorded(move_refs(store, context, context.draft(action), vec![step])?)))
    })
}

/// Sets a reference that belongs to no workspace and no label, or removes it. The caller holds the objects of the value. Returns `None`
/// if it has this value.
pub fn set_reference(
    store: &Store,
    name: &RefName,
    value: Option<&RefValue>,
    context: &OperationContext,
    action: &str,
) -> Result<Option<Operation>> {
    trying(|| {
        let before = store.read_ref(name)?;
        if before.as_ref() == value {
            return Ok(None);
        }
        let step = Step { name: name.clone(), before, after: value.cloned() };
        Ok(Some(recorded(move_refs(store, context, context.draft(action), vec![step])?)))
    })
}

/// Maximum number of attempts of an operation that conflicts with a concurrent change.
const ATTEMPTS_MAX: usize = 16;

/// Retries an attempt that reads, decides and moves references while it fails because another writer was faster.
pub(crate) fn trying<T>(attempt: impl FnMut() -> Result<T>) -> Result<T> {
    retry_while(|error| matches!(error, Error::Stale { .. }), attempt)
}

/// Retries an attempt while `again` accepts its error.
pub(crate) fn retry_while<T>(again: impl Fn(&Error) -> bool, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let mut last = attempt();
    for _ in 1..ATTEMPTS_MAX {
        match last {
            Err(error) if again(&error) => last = attempt(),
            other => return other,
        }
    }
    last
}

/// Returns the operation record of a transaction that has one.
pub(crate) fn recorded(committed: Committed) -> Operation {
    committed.operation.expect("a transaction that moves references is recorded")
}

/// Pins a snapshot and its tree, and checks that they exist.
pub(crate) fn hold_snapshot(store: &Store, id: SnapshotId) -> Result<[Pin; 2]> {
    let pin = store.pin(id);
    let snapshot = match store.snapshot(id) {
        // The cache may contain a snapshot that was deleted long ago.
        Ok(snapshot) if store.has(id.object())? => snapshot,
        Ok(_) | Err(Error::Missing { .. }) => {
            let hint = "it may have been collected, or its name may be wrong";
            return Err(Error::Absent { what: format!("snapshot {}", id.short()), hint: hint.to_owned() });
        }
        Err(error) => return Err(error),
    };
    match store.hold(snapshot.root) {
        Ok(tree) => Ok([pin, tree]),
        Err(Error::Missing { .. }) => Err(Error::Absent {
            what: format!("the tree of snapshot {}", id.short()),
            hint: "retention has dropped it; its record is still in the log".to_owned(),
        }),
        Err(error) => Err(error),
    }
}

/// Pins the objects of a reference value and checks that they exist.
pub(crate) fn hold_value(store: &Store, value: &RefValue) -> Result<Vec<Pin>> {
    let mut pins = Vec::new();
    for id in value.roots() {
        match snapshot_of(id) {
            Some(snapshot) => pins.extend(hold_snapshot(store, snapshot)?),
            None => {
                pins.push(store.pin(id));
                if !store.has(id)? {
                    return Err(Error::Missing { id });
                }
            }
        }
    }
    Ok(pins)
}

/// Returns the id as a snapshot id, if it is one.
pub(crate) fn snapshot_of(id: ObjectId) -> Option<SnapshotId> {
    (id.kind == ObjectKind::Snapshot).then(|| SnapshotId::from_bytes(id.hash))
}

/// Returns one operation.
pub fn operation(store: &Store, sequence: u64) -> Result<Operation> {
    let absent =
        || Error::Absent { what: format!("operation {sequence}"), hint: "the log has none of this number".to_owned() };
    let before = sequence.checked_sub(1).ok_or_else(absent)?;
    store.list_operations(before, 1)?.into_iter().find(|found| found.sequence == sequence).ok_or_else(absent)
}
