//! The names of a stream: under what they are filed here, whether they may be set, and setting them.

use std::collections::HashSet;

use amalgam_engine::episode::check_reference;
use amalgam_engine::reference::{OperationDraft, REFS_PER_TRANSACTION_MAX, RefName, RefValue};
use amalgam_engine::{
    Act, Durability, Error as EngineError, History, ObjectId, ObjectKind, Pin, RefMove, SnapshotId, Store, WriteSession,
};

use super::{ReceiveOptions, not_sent};
use crate::error::{Error, Result, Where};

/// What becomes of a stream's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// They are set as they are.
    #[default]
    AsSent,
    /// `workspace/main` becomes `workspace/WORD/main`, and so on.
    Under(String),
    /// None is set. What was received has only the pins that are returned.
    None,
}

impl Names {
    fn here(&self, name: &RefName) -> Result<Option<RefName>> {
        match self {
            Self::AsSent => Ok(Some(name.clone())),
            Self::None => Ok(None),
            Self::Under(word) => {
                let (kind, rest) = name.as_str().split_once('/').unwrap_or(("", name.as_str()));
                // What is said of a snapshot has its id for a name, wherever it comes from.
                if matches!(kind, "note" | "reward" | "lean") {
                    return Ok(Some(name.clone()));
                }
                let here = RefName::new(format!("{kind}/{word}/{rest}"));
                let why = |why: amalgam_engine::Malformed| EngineError::Invalid { what: "name", why: why.to_string() };
                Ok(Some(here.map_err(why)?))
            }
        }
    }
}

/// Pins a snapshot with its tree, which have to be there.
fn hold_snapshot(store: &Store, id: SnapshotId) -> Result<[Pin; 2]> {
    let pin = store.pin(id);
    let tree = store.hold(store.snapshot(id)?.root)?;
    Ok([pin, tree])
}

/// Sets the names, all or none, and ends the session. Returns those that moved.
pub(super) fn set(
    session: WriteSession,
    names: Vec<(Where, RefName, RefValue)>,
    options: &ReceiveOptions,
    act: &Act,
) -> Result<Vec<RefName>> {
    let store = session.store().clone();
    let history = History::of(&store);
    let (mut moves, mut seen, mut pins) = (Vec::new(), HashSet::new(), Vec::new());
    for (place, name, value) in names {
        let Some(here) = options.names.here(&name)? else { continue };
        let wrong = |why: String| Error::Damaged { place, why: format!("{name}: {why}") };
        check_reference(&here, &value).map_err(|error| wrong(error.to_string()))?;
        if !seen.insert(here.clone()) {
            return Err(wrong("the same name twice".to_owned()));
        }
        for id in value.roots() {
            pins.extend(hold(&store, id).map_err(|error| not_sent(error, place, name.as_str()))?);
        }
        let before = store.read_ref(&here)?;
        if before.as_ref() == Some(&value) {
            continue;
        }
        if let Some(before) = &before
            && !options.replace
            && !is_older(&history, before, &value)?
        {
            return Err(Error::Diverged { name: here.to_string() });
        }
        moves.push((here, before, value));
    }
    let moved = moves.iter().map(|(name, ..)| name.clone()).collect();
    let mut session = Some(session);
    for part in moves.chunks(REFS_PER_TRANSACTION_MAX) {
        let session = session.take().unwrap_or_else(|| store.session());
        let keep = part[0].2.roots().next().unwrap_or_else(|| ObjectId::of(ObjectKind::Chunk, b""));
        session.commit(keep, ref_move(part, act))?;
    }
    if moves.is_empty() && act.durability == Durability::Durable {
        // A transaction would have done it.
        store.sync()?;
    }
    drop(pins);
    Ok(moved)
}

fn ref_move(part: &[(RefName, Option<RefValue>, RefValue)], act: &Act) -> RefMove {
    RefMove {
        expect: part.iter().map(|(name, before, _)| (name.clone(), before.clone())).collect(),
        set: part.iter().map(|(name, _, after)| (name.clone(), Some(after.clone()))).collect(),
        operation: OperationDraft {
            actor: act.actor.clone(),
            time: act.time,
            action: "receive".to_owned(),
            request: act.request.clone(),
            reverts: None,
        },
        durability: act.durability,
    }
}

/// Pins what has to be there.
pub(super) fn hold(store: &Store, id: ObjectId) -> Result<Vec<Pin>> {
    if id.kind == ObjectKind::Snapshot {
        return hold_snapshot(store, SnapshotId::from_bytes(id.hash)).map(Vec::from);
    }
    let pin = store.pin(id);
    store.canonical(id)?;
    Ok(vec![pin])
}

/// Whether one value is an older state of another.
fn is_older(history: &History, before: &RefValue, after: &RefValue) -> Result<bool> {
    match (before.target, after.target) {
        (None, Some(_)) => Ok(true),
        (Some(before), Some(after)) if before.kind == ObjectKind::Snapshot && after.kind == ObjectKind::Snapshot => {
            let (before, after) = (SnapshotId::from_bytes(before.hash), SnapshotId::from_bytes(after.hash));
            match history.is_ancestor(before, after) {
                Ok(is) => Ok(is),
                Err(EngineError::Absent { .. }) => Ok(false),
                Err(error) => Err(error.into()),
            }
        }
        _ => Ok(false),
    }
}
