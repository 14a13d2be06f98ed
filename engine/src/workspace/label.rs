//! Annotations of snapshots: labels, which keep the snapshot alive, and notes and rewards, which do not.

use std::fmt;

use bytes::Bytes;

use super::name::{self, WorkspaceName};
use crate::error::{Error, Result};
use crate::id::SnapshotId;
use crate::operation::{OperationContext, Step, hold_snapshot, move_refs, recorded, snapshot_of, trying};
use crate::reference::{Operation, RefName, RefValue};
use crate::store::Store;

pub(super) const LABEL_PREFIX: &str = "label/";
pub(super) const NOTE_PREFIX: &str = "note/";
pub(super) const REWARD_PREFIX: &str = "reward/";
pub(super) const NOTE_BYTES_MAX: usize = 32 << 10;

/// The name of a label. It follows the rules of workspace names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelName(String);

impl LabelName {
    /// Creates a name after checking it.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        match name::check(&name) {
            None => Ok(Self(name)),
            Some(why) => Err(Error::Invalid { what: "label", why: format!("`{name}` {why}") }),
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the reference of the label.
    pub fn reference(&self) -> RefName {
        RefName::new(format!("{LABEL_PREFIX}{}", self.0)).expect("a label's name is a part of a reference's")
    }
}

impl fmt::Display for LabelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The labels, notes and rewards of a store.
#[derive(Clone)]
pub struct Labels {
    store: Store,
}

impl Labels {
    /// Returns the labels of a store.
    pub fn of(store: &Store) -> Self {
        Self { store: store.clone() }
    }

    /// Returns the snapshot of a label.
    pub fn find(&self, label: &LabelName) -> Result<Option<SnapshotId>> {
        Ok(self.store.read_ref(&label.reference())?.and_then(|value| value.target).and_then(snapshot_of))
    }

    /// Sets a label on a snapshot, moving it from another one if necessary, or removes it.
    pub fn set(
        &self,
        label: &LabelName,
        snapshot: Option<SnapshotId>,
        context: &OperationContext,
    ) -> Result<Operation> {
        let _pins = snapshot.map(|snapshot| hold_snapshot(&self.store, snapshot)).transpose()?;
        self.set_reference(&label.reference(), snapshot.map(RefValue::to).as_ref(), "label", context)
    }

    /// Puts a label on a snapshot if it is on an expected one, or if there is none and none is expected.
    ///
    /// # Errors
    /// [`Error::Stale`] if the label is elsewhere.
    pub fn set_expecting(
        &self,
        label: &LabelName,
        expected: Option<SnapshotId>,
        snapshot: SnapshotId,
        context: &OperationContext,
    ) -> Result<Operation> {
        let _pins = hold_snapshot(&self.store, snapshot)?;
        let step =
            Step { name: label.reference(), before: expected.map(RefValue::to), after: Some(RefValue::to(snapshot)) };
        move_refs(&self.store, context, context.draft("label"), vec![step]).map(recorded)
    }

    /// Sets or removes a label as part of the history of a workspace: an undo in that workspace reverts it.
    pub fn set_in(
        &self,
        workspace: &WorkspaceName,
        label: &LabelName,
        snapshot: Option<SnapshotId>,
        context: &OperationContext,
    ) -> Result<Operation> {
        let _pins = snapshot.map(|snapshot| hold_snapshot(&self.store, snapshot)).transpose()?;
        let after = snapshot.map(RefValue::to);
        trying(|| {
            let name = label.reference();
            let mut steps = vec![Step { before: self.store.read_ref(&name)?, name, after: after.clone() }];
            // The workspace's reference keeps its value but takes part in the operation, so that the operation is the last one on
            // it.
            let name = workspace.reference();
            if let Some(value) = self.store.read_ref(&name)? {
                steps.push(Step { name, before: Some(value.clone()), after: Some(value) });
            }
            move_refs(&self.store, context, context.draft("label"), steps).map(recorded)
        })
    }

    /// Lists up to `limit` labels after `after` whose name starts with `prefix`, by name.
    pub fn list(&self, prefix: &str, after: Option<&LabelName>, limit: usize) -> Result<Vec<(LabelName, SnapshotId)>> {
        let after = after.map(LabelName::reference);
        let found = self.store.list_refs(&format!("{LABEL_PREFIX}{prefix}"), after.as_ref(), limit)?;
        let read = |(name, value): (RefName, RefValue)| {
            let label = name.as_str().strip_prefix(LABEL_PREFIX).unwrap_or_default();
            let snapshot = value.target.and_then(snapshot_of).ok_or_else(|| Error::DamagedRecord {
                what: format!("label {label}"),
                why: "it is on no snapshot".to_owned(),
            })?;
            Ok((LabelName(label.to_owned()), snapshot))
        };
        found.into_iter().map(read).collect()
    }

    /// Returns the note about a snapshot.
    pub fn note(&self, snapshot: SnapshotId) -> Result<Option<String>> {
        let value = self.store.read_ref(&note_reference(snapshot))?;
        Ok(value.map(|value| String::from_utf8_lossy(&value.note).into_owned()))
    }

    /// Sets or removes the note about a snapshot.
    pub fn set_note(&self, snapshot: SnapshotId, note: Option<&str>, context: &OperationContext) -> Result<Operation> {
        let value = note.map(note_value).transpose()?;
        self.set_reference(&note_reference(snapshot), value.as_ref(), "note", context)
    }

    /// Returns the reward of a snapshot.
    pub fn reward(&self, snapshot: SnapshotId) -> Result<Option<f64>> {
        let Some(value) = self.store.read_ref(&reward_reference(snapshot))? else { return Ok(None) };
        let bytes = value.note[..].try_into().map_err(|_| Error::DamagedRecord {
            what: format!("reward of {}", snapshot.short()),
            why: "it is not a number".to_owned(),
        })?;
        Ok(Some(f64::from_be_bytes(bytes)))
    }

    /// Sets or removes the reward of a snapshot.
    pub fn set_reward(
        &self,
        snapshot: SnapshotId,
        reward: Option<f64>,
        context: &OperationContext,
    ) -> Result<Operation> {
        let value = reward.map(reward_value).transpose()?;
        self.set_reference(&reward_reference(snapshot), value.as_ref(), "reward", context)
    }

    /// Sets a reference. The last writer wins.
    fn set_reference(
        &self,
        name: &RefName,
        after: Option<&RefValue>,
        word: &str,
        context: &OperationContext,
    ) -> Result<Operation> {
        trying(|| {
            let step = Step { name: name.clone(), before: self.store.read_ref(name)?, after: after.cloned() };
            move_refs(&self.store, context, context.draft(word), vec![step]).map(recorded)
        })
    }
}

pub(super) fn note_reference(snapshot: SnapshotId) -> RefName {
    RefName::new(format!("{NOTE_PREFIX}{snapshot}")).expect("hex digits are a name")
}

pub(super) fn note_value(note: &str) -> Result<RefValue> {
    if note.len() > NOTE_BYTES_MAX {
        return Err(Error::TooLarge { what: "a note", value: note.len() as u64, max: NOTE_BYTES_MAX as u64 });
    }
    Ok(RefValue::noting(Bytes::copy_from_slice(note.as_bytes())))
}

pub(super) fn reward_reference(snapshot: SnapshotId) -> RefName {
    RefName::new(format!("{REWARD_PREFIX}{snapshot}")).expect("hex digits are a name")
}

pub(super) fn reward_value(reward: f64) -> Result<RefValue> {
    if reward.is_nan() {
        return Err(Error::Invalid { what: "reward", why: "it is not a number, and could not be compared".to_owned() });
    }
    Ok(RefValue::noting(reward.to_be_bytes().to_vec()))
}
