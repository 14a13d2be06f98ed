//! Undo and redo.

use super::{Act, Step, hold_value, move_refs, operation, recorded};
use crate::error::{Error, Result};
use crate::reference::{Operation, RefChange, RefName, Revert};
use crate::store::Store;

/// Operations read at once on the way back through the log.
const PAGE: u64 = 256;

/// Takes back the operation that made a reference what it is. Again, the one before it, and so on.
pub fn undo(store: &Store, name: &RefName, act: &Act) -> Result<Operation> {
    let last = last_operation_of(store, name, "undo")?;
    match effective(store, name, last)? {
        Some(target) => undo_operation(store, target.sequence, act),
        None => Err(nothing("undo", name)),
    }
}

/// Does again what was taken back last and not done again since. Anything else that moved the reference in between ends that.
pub fn redo(store: &Store, name: &RefName, act: &Act) -> Result<Operation> {
    let last = last_operation_of(store, name, "redo")?;
    let mut redone_again = 0_usize;
    let mut here = Some(last);
    while let Some(found) = here {
        match found.draft.reverts {
            Some(Revert::Redo(_)) => redone_again += 1,
            Some(Revert::Undo(target)) if redone_again == 0 => return redo_operation(store, target, act),
            Some(Revert::Undo(_)) => redone_again -= 1,
            None => break,
        }
        here = previous(store, name, &found)?;
    }
    Err(nothing("redo", name))
}

/// Takes an operation back, whatever it was, if nothing that it touched moved since.
pub fn undo_operation(store: &Store, sequence: u64, act: &Act) -> Result<Operation> {
    let found = operation(store, sequence)?;
    revert(store, &found, Revert::Undo(sequence), act, |change| Step {
        name: change.name.clone(),
        before: change.after.clone(),
        after: change.before.clone(),
    })
}

/// Does an operation again that was taken back.
pub fn redo_operation(store: &Store, sequence: u64, act: &Act) -> Result<Operation> {
    let found = operation(store, sequence)?;
    revert(store, &found, Revert::Redo(sequence), act, |change| Step {
        name: change.name.clone(),
        before: change.before.clone(),
        after: change.after.clone(),
    })
}

fn revert(
    store: &Store,
    found: &Operation,
    how: Revert,
    act: &Act,
    step: impl Fn(&RefChange) -> Step,
) -> Result<Operation> {
    let (word, mut draft) = match how {
        Revert::Undo(_) => ("undo", act.draft("undo")),
        Revert::Redo(_) => ("redo", act.draft("redo")),
    };
    draft.reverts = Some(how);
    let steps: Vec<_> = found.changes.iter().map(step).collect();
    if steps.is_empty() {
        return Err(Error::Invalid { what: "operation", why: format!("{} moved nothing", found.sequence) });
    }
    // Looked at first, so that what was collected is not reported when something moved anyway.
    let mut moved = Vec::new();
    for Step { name, before, .. } in &steps {
        if store.read_ref(name)? != *before {
            moved.push((name.clone(), store.last_move(name)?));
        }
    }
    if moved.is_empty() {
        let mut pins = Vec::new();
        for value in steps.iter().filter_map(|step| step.after.as_ref()) {
            pins.extend(hold_value(store, value)?);
        }
        match move_refs(store, act, draft, steps) {
            Err(Error::Stale { moved: stale }) => {
                for (name, _) in stale {
                    let by = store.last_move(&name)?;
                    moved.push((name, by));
                }
            }
            done => return done.map(recorded),
        }
    } else if let Some(request) = &act.request
        && let Some(done) = store.find_request(request)?
    {
        return Ok(done);
    }
    Err(Error::MovedSince { word, operation: found.sequence, moved })
}

/// The operation whose doing made the reference what it is after `last`: itself, or for an undo what came before that which
/// was taken back.
fn effective(store: &Store, name: &RefName, last: Operation) -> Result<Option<Operation>> {
    let mut here = Some(last);
    while let Some(found) = here {
        match found.draft.reverts {
            None => return Ok(Some(found)),
            Some(Revert::Redo(target)) => return operation(store, target).map(Some),
            Some(Revert::Undo(target)) => here = previous(store, name, &operation(store, target)?)?,
        }
    }
    Ok(None)
}

/// The operation that had moved the reference before this one did.
fn previous(store: &Store, name: &RefName, found: &Operation) -> Result<Option<Operation>> {
    match found.changes.iter().find(|change| change.name == *name).map_or(0, |change| change.previous) {
        // It was not there; what had removed it is further back.
        0 => newest_before(store, name, found.sequence),
        sequence => operation(store, sequence).map(Some),
    }
}

fn last_operation_of(store: &Store, name: &RefName, word: &'static str) -> Result<Operation> {
    let last = match store.last_move(name)? {
        0 => newest_before(store, name, u64::MAX)?,
        sequence => Some(operation(store, sequence)?),
    };
    last.ok_or_else(|| nothing(word, name))
}

/// The newest operation before this number that moved a reference, by reading the log backwards: for those that are not
/// there, and so do not say themselves.
fn newest_before(store: &Store, name: &RefName, before: u64) -> Result<Option<Operation>> {
    let mut end = before.min(store.last_operation()?.saturating_add(1));
    while end > 1 {
        let start = end.saturating_sub(PAGE).max(1);
        let page = store.list_operations(start - 1, usize::try_from(end - start).expect("a page is short"))?;
        let mut newest_first = page.into_iter().rev();
        if let Some(found) = newest_first.find(|found| found.changes.iter().any(|change| change.name == *name)) {
            return Ok(Some(found));
        }
        end = start;
    }
    Ok(None)
}

fn nothing(word: &'static str, name: &RefName) -> Error {
    Error::Absent { what: format!("anything to {word} for {name}"), hint: "list its operations to see why".to_owned() }
}
