//! Undo and redo.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{OperationContext, Step, hold_value, move_refs, operation, recorded};
use crate::error::{Error, Result};
use crate::reference::{DELETED_WORKSPACES, FORGET, Operation, OperationDraft, RefChange, RefName, Revert, WORKSPACES};
use crate::store::Store;

/// Prefix of references to remembered resolutions. A commit that resolves a conflict sets such a reference together with its
/// head.
pub(crate) const RESOLUTIONS: &str = "resolution/";

/// The action name of an operation that sets or removes a label.
pub(crate) const LABEL: &str = "label";

/// Number of operations read at once when walking back through the log.
const PAGE: u64 = 256;

/// Undoes the operation that set the current value of a reference. A second call undoes the one before it, and so on. A retry
/// with the same request id returns the operation of the first attempt.
pub fn undo(store: &Store, name: &RefName, context: &OperationContext) -> Result<Operation> {
    // After the first attempt, the reference has something else to undo, or nothing.
    if let Some(done) = context.done_before(store)? {
        return Ok(done);
    }
    match Chain::new(store).next_undo(name)? {
        Some(target) => undo_operation(store, target, context),
        None => Err(nothing(store, "undo", name)?),
    }
}

/// Returns the operation that [`undo`] would undo, or `None` if there is none.
pub fn next_to_undo(store: &Store, name: &RefName) -> Result<Option<Operation>> {
    let mut chain = Chain::new(store);
    match chain.next_undo(name)? {
        Some(sequence) => operation(store, sequence).map(Some),
        None => Ok(None),
    }
}

/// Returns the operation that [`redo`] would redo, or `None` if there is none.
pub fn next_to_redo(store: &Store, name: &RefName) -> Result<Option<Operation>> {
    match Chain::new(store).next_redo(name)? {
        Some(sequence) => operation(store, sequence).map(Some),
        None => Ok(None),
    }
}

/// Redoes the operation that was undone last and not redone since. Any other move of the reference in between prevents that. A
/// retry with the same request id returns the operation of the first attempt.
pub fn redo(store: &Store, name: &RefName, context: &OperationContext) -> Result<Operation> {
    if let Some(done) = context.done_before(store)? {
        return Ok(done);
    }
    match Chain::new(store).next_redo(name)? {
        Some(target) => redo_operation(store, target, context),
        None => Err(nothing(store, "redo", name)?),
    }
}

/// Undoes an operation of any kind, if no reference of it has moved since, not even away and back. An undo is undone by redoing
/// the operation that it undid, and the other way round. A retry with the same request id returns the operation of the first
/// attempt.
pub fn undo_operation(store: &Store, sequence: u64, context: &OperationContext) -> Result<Operation> {
    if let Some(done) = context.done_before(store)? {
        return Ok(done);
    }
    let mut chain = Chain::new(store);
    let found = chain.operation(sequence)?;
    if let Some(reverts) = found.draft.reverts {
        let mut moved = Vec::new();
        for change in found.changes.iter().filter(|change| !is_beside(&change.name, &found)) {
            match chain.last(&change.name)? {
                Some(last) if last.sequence == sequence => {}
                last => moved.push((change.name.clone(), last.map_or(0, |last| last.sequence))),
            }
        }
        return match (moved.is_empty(), reverts) {
            (false, _) => Err(Error::MovedSince { word: "undo", operation: sequence, moved }),
            (true, Revert::Undo(target)) => redo_operation(store, target, context),
            (true, Revert::Redo(target)) => undo_operation(store, target, context),
        };
    }
    let step = |change: &RefChange| Step {
        name: change.name.clone(),
        before: change.after.clone(),
        after: change.before.clone(),
    };
    revert(store, Revert::Undo(sequence), sequence, context, step)
}

/// Redoes an operation that was undone, if no reference of it has moved since.
pub fn redo_operation(store: &Store, sequence: u64, context: &OperationContext) -> Result<Operation> {
    let step = |change: &RefChange| Step {
        name: change.name.clone(),
        before: change.before.clone(),
        after: change.after.clone(),
    };
    revert(store, Revert::Redo(sequence), sequence, context, step)
}

fn revert(
    store: &Store,
    how: Revert,
    sequence: u64,
    context: &OperationContext,
    step: impl Fn(&RefChange) -> Step,
) -> Result<Operation> {
    if let Some(done) = context.done_before(store)? {
        return Ok(done);
    }
    let mut chain = Chain::new(store);
    let found = chain.operation(sequence)?;
    let word = match how {
        Revert::Undo(_) => "undo",
        Revert::Redo(_) => "redo",
    };
    let draft = OperationDraft { reverts: Some(how), ..context.draft(word) };
    if found.changes.is_empty() {
        return Err(Error::Invalid { what: "operation", why: format!("{sequence} moved nothing") });
    }
    let (mut steps, mut moved) = (Vec::new(), Vec::new());
    for step in found.changes.iter().map(step) {
        let Step { name, before, .. } = &step;
        let is_next = store.read_ref(name)? == *before
            && match how {
                Revert::Undo(_) => store.last_move(name)? == sequence || chain.next_undo(name)? == Some(sequence),
                Revert::Redo(_) => chain.next_redo(name)? == Some(sequence),
            };
        match is_next {
            true => steps.push(step),
            false if is_beside(name, &found) => {}
            false => moved.push((name.clone(), store.last_move(name)?)),
        }
    }
    leave_ended(&found, &mut steps, &mut moved);
    if moved.is_empty() {
        let mut pins = Vec::new();
        for value in steps.iter().filter_map(|step| step.after.as_ref()) {
            pins.extend(hold_value(store, value).map_err(|error| collected(word, sequence, error))?);
        }
        match move_refs(store, context, draft, steps) {
            Err(Error::Stale { moved: stale }) => {
                for (name, _) in stale {
                    let by = store.last_move(&name)?;
                    moved.push((name, by));
                }
            }
            done => return done.map(recorded),
        }
    }
    for (name, by) in &moved {
        let last = newest_before(store, name, u64::MAX)?.filter(|_| *by == 0);
        if last.is_some_and(|last| last.draft.action == FORGET) {
            let why = Error::Absent { what: name.to_string(), hint: "it was forgotten".to_owned() };
            return Err(collected(word, sequence, why));
        }
    }
    Err(Error::MovedSince { word, operation: sequence, moved })
}

/// Returns whether an operation set a reference only in addition to another one: a resolution with a commit, a label in a
/// workspace. If such a reference was changed since, it stays as it is and does not prevent the revert of the others.
fn is_beside(name: &RefName, found: &Operation) -> bool {
    let is_label = found.draft.action == LABEL && name.as_str().starts_with("label/");
    found.changes.len() > 1 && (is_label || name.as_str().starts_with(RESOLUTIONS))
}

/// Leaves the workspaces that an operation ended as they are, if they were changed since: their names were used again, or they were
/// undeleted or forgotten. They do not prevent the revert of the workspace that they were merged into.
fn leave_ended(found: &Operation, steps: &mut Vec<Step>, moved: &mut Vec<(RefName, u64)>) {
    if moved.is_empty() {
        return;
    }
    let deleted = |name: &RefName| Some(name.as_str().strip_prefix(DELETED_WORKSPACES)?.rsplit_once('@')?.0.to_owned());
    let all_ended: HashSet<_> = found.changes.iter().filter_map(|change| deleted(&change.name)).collect();
    // Both references of such a workspace stay: its head, and the one that keeps it for an undeletion.
    let ended = |name: &RefName| {
        let head = || name.as_str().strip_prefix(WORKSPACES).map(str::to_owned);
        deleted(name).or_else(head).filter(|workspace| all_ended.contains(workspace))
    };
    let changed: HashSet<_> = moved.iter().filter_map(|(name, _)| ended(name)).collect();
    let is_changed = |name: &RefName| ended(name).is_some_and(|workspace| changed.contains(&workspace));
    let is_other_head = |step: &Step| step.name.as_str().starts_with(WORKSPACES) && ended(&step.name).is_none();
    if moved.iter().all(|(name, _)| is_changed(name)) && steps.iter().any(is_other_head) {
        steps.retain(|step| !is_changed(&step.name));
        moved.clear();
    }
}

/// Converts the error for objects that an undo needs and that were collected.
fn collected(word: &str, sequence: u64, error: Error) -> Error {
    match error {
        Error::Absent { what, hint } => Error::Absent {
            what: format!("way to {word} operation {sequence}"),
            hint: format!("it needs {what}: {hint}; collections keep what can be undone for the grace time only"),
        },
        other => other,
    }
}

/// The operations on a reference, from the newest back. Caches operations: one operation may have moved thousands.
struct Chain<'a> {
    store: &'a Store,
    read: HashMap<u64, Arc<Operation>>,
}

impl<'a> Chain<'a> {
    fn new(store: &'a Store) -> Self {
        Self { store, read: HashMap::new() }
    }

    fn operation(&mut self, sequence: u64) -> Result<Arc<Operation>> {
        if let Some(found) = self.read.get(&sequence) {
            return Ok(Arc::clone(found));
        }
        let found = Arc::new(operation(self.store, sequence)?);
        self.read.insert(sequence, Arc::clone(&found));
        Ok(found)
    }

    /// Returns the operation that produced the current value of a reference: the last one or, if that is an undo, the one before
    /// the undone operation.
    fn next_undo(&mut self, name: &RefName) -> Result<Option<u64>> {
        let mut here = self.last(name)?;
        while let Some(found) = here {
            match found.draft.reverts {
                None => return Ok(Some(found.sequence)),
                Some(Revert::Redo(target)) => return Ok(Some(target)),
                Some(Revert::Undo(target)) => {
                    let undone = self.operation(target)?;
                    here = self.previous(name, &undone)?;
                }
            }
        }
        Ok(None)
    }

    /// Returns the operation that was undone last and not redone since.
    fn next_redo(&mut self, name: &RefName) -> Result<Option<u64>> {
        let mut redone = 0_usize;
        let mut here = self.last(name)?;
        while let Some(found) = here {
            match found.draft.reverts {
                Some(Revert::Redo(_)) => redone += 1,
                Some(Revert::Undo(target)) if redone == 0 => return Ok(Some(target)),
                Some(Revert::Undo(_)) => redone -= 1,
                None => break,
            }
            here = self.previous(name, &found)?;
        }
        Ok(None)
    }

    fn last(&mut self, name: &RefName) -> Result<Option<Arc<Operation>>> {
        match self.store.last_move(name)? {
            0 => newest_before(self.store, name, u64::MAX),
            sequence => self.operation(sequence).map(Some),
        }
    }

    /// Returns the operation that moved the reference before this one.
    fn previous(&mut self, name: &RefName, found: &Operation) -> Result<Option<Arc<Operation>>> {
        match found.changes.iter().find(|change| change.name == *name).map_or(0, |change| change.previous) {
            // The reference did not exist; the operation that had removed it is further back.
            0 => newest_before(self.store, name, found.sequence),
            sequence => self.operation(sequence).map(Some),
        }
    }
}

/// Finds the newest operation before this number that moved a reference, by reading the log backwards. Needed for references that
/// do not exist and so do not record their last operation.
fn newest_before(store: &Store, name: &RefName, before: u64) -> Result<Option<Arc<Operation>>> {
    let mut end = before.min(store.last_operation()?.saturating_add(1));
    let first = store.first_operation()?;
    while end > first {
        let start = end.saturating_sub(PAGE).max(first);
        let page = store.list_operations(start - 1, usize::try_from(end - start).expect("a page is short"))?;
        let mut newest_first = page.into_iter().rev();
        if let Some(found) = newest_first.find(|found| found.changes.iter().any(|change| change.name == *name)) {
            return Ok(Some(Arc::new(found)));
        }
        end = start;
    }
    Ok(None)
}

fn nothing(store: &Store, word: &'static str, name: &RefName) -> Result<Error> {
    let first = store.first_operation()?;
    let hint = match first {
        1 => String::new(),
        _ => format!("; the log reaches back to operation {first} of {}", operation(store, first)?.draft.time.date()),
    };
    Ok(Error::NothingToRevert { word, name: name.as_str().replacen('/', " ", 1), hint })
}
