//! Checks and sets the names of a stream.

use std::collections::HashSet;

use amalgam_engine::episode::check_reference;
use amalgam_engine::reference::{OperationDraft, REFS_PER_TRANSACTION_MAX, RefName, RefValue};
use amalgam_engine::workspace::receive_workspace;
use amalgam_engine::{
    Durability, Error as EngineError, History, ObjectId, ObjectKind, OperationContext, Pin, RefMove, SnapshotId, Store,
    WriteSession,
};

use super::omissions::Omissions;
use super::options::ReceiveOptions;
use crate::error::{Error, FramePosition, Result};
use crate::ref_kinds::Origin;

/// Pins a snapshot and its tree, which must exist.
fn hold_snapshot(store: &Store, id: SnapshotId) -> Result<[Pin; 2]> {
    let pin = store.pin(id);
    let tree = store.hold(store.snapshot(id)?.root)?;
    Ok([pin, tree])
}

/// Parameters of setting names.
pub(super) struct NameUpdate<'a> {
    pub(super) origin: Origin,
    pub(super) options: &'a ReceiveOptions,
    pub(super) act: &'a OperationContext,
}

/// Sets all names or none, and ends the session. Returns those that moved. Names of a backup that cannot be set are omitted.
pub(super) fn set_names(
    session: WriteSession,
    names: Vec<(FramePosition, RefName, RefValue)>,
    setting: &NameUpdate<'_>,
    left_out: &mut Omissions,
) -> Result<Vec<RefName>> {
    let store = session.store().clone();
    let NameUpdate { origin, options, act } = setting;
    let history = History::of(&store);
    let (mut moves, mut seen, mut pins) = (Vec::new(), HashSet::new(), Vec::new());
    for (place, name, value) in names {
        let Some(here) = options.names.local_name(&name)? else { continue };
        let before = store.read_ref(&here)?;
        let checked = match check_name(&store, *origin, &here, value, before.as_ref(), left_out) {
            Ok((value, held)) => {
                pins.extend(held);
                Ok(value)
            }
            Err(Rejected::Name(why)) => Err(why),
            Err(Rejected::Store(error)) => return Err(error),
        };
        let value = match checked {
            Ok(value) => value,
            Err(why) if *origin == Origin::Backup => {
                left_out.add(name.to_string(), why);
                continue;
            }
            Err(why) => return Err(Error::Damaged { place, why: format!("{name}: {why}") }),
        };
        if !seen.insert(here.clone()) {
            return Err(Error::Damaged { place, why: format!("{name}: the same name twice") });
        }
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
        // A transaction would have synced.
        store.sync()?;
    }
    drop(pins);
    Ok(moved)
}

/// Why a name cannot be set.
enum Rejected {
    /// It breaks a rule, or its target did not arrive.
    Name(String),
    /// The store failed.
    Store(Error),
}

/// Checks a name by the rules of its kind, and pins its targets. Returns the value to set.
fn check_name(
    store: &Store,
    origin: Origin,
    here: &RefName,
    value: RefValue,
    before: Option<&RefValue>,
    left_out: &mut Omissions,
) -> Result<(RefValue, Vec<Pin>), Rejected> {
    let rejected = |error: EngineError| Rejected::Name(error.to_string());
    if !origin.admits(here) {
        return Err(Rejected::Name(match origin {
            Origin::Stream => {
                "a stream sets workspaces, labels, notes, rewards, episodes and steps, and no other names; \
                               receive it without names, or let its sender send it again"
                    .to_owned()
            }
            Origin::Backup => "names of this kind are not restored".to_owned(),
        }));
    }
    check_reference(here, &value).map_err(rejected)?;
    let mut value = receive_workspace(here, value, before).map_err(rejected)?;
    if origin == Origin::Backup {
        fall_back(store, here, &mut value, left_out);
    }
    let mut pins = Vec::new();
    for id in value.roots() {
        match hold(store, id) {
            Ok(held) => pins.extend(held),
            Err(Error::Engine(EngineError::Missing { id })) => {
                return Err(Rejected::Name(format!("it holds {id}, which was not sent")));
            }
            Err(error) => return Err(Rejected::Store(error)),
        }
    }
    Ok((value, pins))
}

/// Replaces an omitted head or base of a workspace by the nearest first parent that was restored.
fn fall_back(store: &Store, name: &RefName, value: &mut RefValue, left_out: &mut Omissions) {
    if !name.as_str().starts_with("workspace/") && !name.as_str().starts_with("deleted/") {
        return;
    }
    let mut nearest = |id: ObjectId| {
        let mut at = SnapshotId::from_bytes(id.hash);
        while let Some(parent) = left_out.first_parent(at) {
            at = parent;
        }
        if at.object() != id {
            let why = format!("{id} could not be restored; it holds {} instead", at.short());
            left_out.add(name.to_string(), why);
        }
        at.object()
    };
    value.target = value.target.map(&mut nearest);
    value.keeps = value.keeps.iter().copied().map(nearest).collect();
    // A workspace is usable without its base.
    let kept_before = value.keeps.len();
    value.keeps.retain(|id| hold(store, *id).is_ok());
    if value.keeps.len() < kept_before {
        left_out.add(name.to_string(), "the snapshot that it began with could not be restored".to_owned());
    }
}

fn ref_move(part: &[(RefName, Option<RefValue>, RefValue)], act: &OperationContext) -> RefMove {
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

/// Pins an object, which must exist.
pub(super) fn hold(store: &Store, id: ObjectId) -> Result<Vec<Pin>> {
    if id.kind == ObjectKind::Snapshot {
        return hold_snapshot(store, SnapshotId::from_bytes(id.hash)).map(Vec::from);
    }
    let pin = store.pin(id);
    store.canonical(id)?;
    Ok(vec![pin])
}

/// Returns whether one value is an older state of another.
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
