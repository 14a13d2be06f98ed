//! Operations: every change of state, listed, taken back, done again, and the whole store as it was after any of them.
//!
//! An operation says what each reference held before and after. So taking one back is a compare-and-swap: it happens if
//! nothing that it touched has moved since, and otherwise the error names what has. Taking back is an operation too, and can
//! be taken back.

mod cursor;
mod past;
mod revert;

pub use cursor::OperationCursor;
pub use past::Past;
pub(crate) use revert::RESOLUTIONS;
pub use revert::{next_to_redo, next_to_undo, redo, redo_operation, undo, undo_operation};

use crate::backend::{Committed, Durability, Transaction};
use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind, SnapshotId};
use crate::reference::{Operation, OperationDraft, RefName, RefValue, RequestId};
use crate::store::{Pin, Store};
use crate::time::Time;

/// Who does something, when, and how surely it is to be done.
#[derive(Clone, Debug, Default)]
pub struct Act {
    /// Who.
    pub actor: String,
    /// When.
    pub time: Time,
    /// Makes a retry return the first try's result.
    pub request: Option<RequestId>,
    /// When it counts as done.
    pub durability: Durability,
}

impl Act {
    /// A durable one.
    pub fn new(actor: impl Into<String>, time: Time) -> Self {
        Self { actor: actor.into(), time, request: None, durability: Durability::Durable }
    }

    /// The same, in the log only: survives the process, not a power cut.
    #[must_use]
    pub fn buffered(mut self) -> Self {
        self.durability = Durability::Buffered;
        self
    }

    /// The same, recognised when it is tried again.
    #[must_use]
    pub fn as_request(mut self, request: RequestId) -> Self {
        self.request = Some(request);
        self
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

/// A reference, what it must hold, and what it is to hold.
pub(crate) struct Step {
    pub(crate) name: RefName,
    pub(crate) before: Option<RefValue>,
    pub(crate) after: Option<RefValue>,
}

/// Moves references, all or none. Whoever calls has made sure that what they are to point at stays in the store meanwhile.
pub(crate) fn move_refs(store: &Store, act: &Act, draft: OperationDraft, steps: Vec<Step>) -> Result<Committed> {
    let mut transaction = Transaction { operation: Some(draft), durability: act.durability, ..Transaction::default() };
    for Step { name, before, after } in steps {
        transaction.expect.push((name.clone(), before));
        transaction.set.push((name, after));
    }
    store.transact(transaction)
}

/// Removes a reference that belongs to no workspace and no label; nothing when it is not there.
pub fn remove_reference(store: &Store, name: &RefName, act: &Act, action: &str) -> Result<Option<Operation>> {
    trying(|| {
        let Some(before) = store.read_ref(name)? else { return Ok(None) };
        let step = Step { name: name.clone(), before: Some(before), after: None };
        Ok(Some(recorded(move_refs(store, act, act.draft(action), vec![step])?)))
    })
}

/// Something that meets another change at the same moment is tried this often.
const TRIES: usize = 16;

/// Does something that reads, decides and moves, once more when somebody else was quicker.
pub(crate) fn trying<T>(attempt: impl FnMut() -> Result<T>) -> Result<T> {
    trying_while(|error| matches!(error, Error::Stale { .. }), attempt)
}

/// The same while it fails in such a way.
pub(crate) fn trying_while<T>(again: impl Fn(&Error) -> bool, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let mut last = attempt();
    for _ in 1..TRIES {
        match last {
            Err(error) if again(&error) => last = attempt(),
            other => return other,
        }
    }
    last
}

/// The record of a transaction that has one.
pub(crate) fn recorded(committed: Committed) -> Operation {
    committed.operation.expect("a transaction that moves references is recorded")
}

/// Keeps a snapshot and its tree in the store while the pins live, and makes sure that they are there.
pub(crate) fn hold_snapshot(store: &Store, id: SnapshotId) -> Result<[Pin; 2]> {
    let pin = store.pin(id);
    let snapshot = match store.snapshot(id) {
        // The cache may know one that is long gone.
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

/// Keeps what a reference is to hold.
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

/// The snapshot that an id is one of.
pub(crate) fn snapshot_of(id: ObjectId) -> Option<SnapshotId> {
    (id.kind == ObjectKind::Snapshot).then(|| SnapshotId::from_bytes(id.hash))
}

/// One operation.
pub fn operation(store: &Store, sequence: u64) -> Result<Operation> {
    let absent =
        || Error::Absent { what: format!("operation {sequence}"), hint: "the log has none of this number".to_owned() };
    let before = sequence.checked_sub(1).ok_or_else(absent)?;
    store.list_operations(before, 1)?.into_iter().find(|found| found.sequence == sequence).ok_or_else(absent)
}
