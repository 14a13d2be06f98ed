//! The names of a stream: under what they are filed here, whether they may be set, and setting them.

use std::collections::HashSet;

use amalgam_engine::episode::check_reference;
use amalgam_engine::reference::{OperationDraft, REFS_PER_TRANSACTION_MAX, RefName, RefValue};
use amalgam_engine::workspace::receive_workspace;
use amalgam_engine::{
    Durability, Error as EngineError, History, ObjectId, ObjectKind, OperationContext, Pin, RefMove, SnapshotId, Store,
    WriteSession,
};

use super::{LeftOut, ReceiveOptions};
use crate::error::{Error, Result, Where};
use crate::kinds::Origin;

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
                if matches!(kind, "note" | "reward") {
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

/// How names are set.
pub(super) struct Setting<'a> {
    pub(super) origin: Origin,
    pub(super) options: &'a ReceiveOptions,
    pub(super) act: &'a OperationContext,
}

/// Sets the names, all or none, and ends the session. Returns those that moved. Names of a backup that cannot be set are left out.
pub(super) fn set(
    session: WriteSession,
    names: Vec<(Where, RefName, RefValue)>,
    setting: &Setting<'_>,
    left_out: &mut LeftOut,
) -> Result<Vec<RefName>> {
    let store = session.store().clone();
    let Setting { origin, options, act } = setting;
    let history = History::of(&store);
    let (mut moves, mut seen, mut pins) = (Vec::new(), HashSet::new(), Vec::new());
    for (place, name, value) in names {
        let Some(here) = options.names.here(&name)? else { continue };
        let before = store.read_ref(&here)?;
        let checked = match checked(&store, *origin, &here, value, before.as_ref(), left_out) {
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
        // A transaction would have done it.
        store.sync()?;
    }
    drop(pins);
    Ok(moved)
}

/// Why a name cannot be set.
enum Rejected {
    /// It breaks a rule, or holds what did not come.
    Name(String),
    /// The store failed.
    Store(Error),
}

/// Checks a name by the rules of its kind, and pins what it holds. Returns what it is to hold here.
fn checked(
    store: &Store,
    origin: Origin,
    here: &RefName,
    value: RefValue,
    before: Option<&RefValue>,
    left_out: &mut LeftOut,
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

/// Lets a workspace whose head or base was left out of a restore hold the nearest first parent that came back.
fn fall_back(store: &Store, name: &RefName, value: &mut RefValue, left_out: &mut LeftOut) {
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
    // Without the base that it began with, a workspace is still one.
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
