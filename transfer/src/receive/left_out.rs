//! What a restore could not bring back: objects that break a rule of the format, and the names that held them.

use std::collections::HashMap;

use amalgam_engine::object::Snapshot;
use amalgam_engine::{Error as EngineError, ObjectId, ObjectKind, SnapshotId};
use bytes::Bytes;

use crate::error::Where;

/// The most objects and names that are listed; the others are counted.
const LISTED_MAX: usize = 1_000;
/// The most snapshots whose parents are remembered.
const SNAPSHOTS_MAX: usize = 1 << 20;

/// What was left out of a restore, and why.
#[derive(Clone, Debug, Default)]
pub struct LeftOut {
    listed: Vec<(String, String)>,
    more: u64,
    /// Parents of snapshots that were left out: a workspace falls back to what is left of its history.
    parents: HashMap<SnapshotId, Vec<SnapshotId>>,
    /// The file of the backup that is being read.
    file: String,
}

impl LeftOut {
    /// Whether all came back as it was.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Objects and names, each with the reason, up to a number.
    pub fn listed(&self) -> &[(String, String)] {
        &self.listed
    }

    /// How many there are beside those that are listed.
    pub fn more(&self) -> u64 {
        self.more
    }

    /// Names the file of the backup that is read next.
    pub(crate) fn reading(self, file: String) -> Self {
        Self { file, ..self }
    }

    /// Adds damage of the file, in one frame or as a whole.
    pub(super) fn add_damage(&mut self, place: Option<Where>, why: String) {
        let what = match place {
            Some(place) => format!("{}, {place}", self.file),
            None => self.file.clone(),
        };
        self.add(what, why);
    }

    pub(super) fn add(&mut self, what: String, why: String) {
        if self.listed.len() < LISTED_MAX {
            self.listed.push((what, why));
        } else {
            self.more += 1;
        }
    }

    pub(super) fn add_object(&mut self, id: ObjectId, bytes: &Bytes, why: &EngineError) {
        if id.kind == ObjectKind::Snapshot
            && self.parents.len() < SNAPSHOTS_MAX
            && let Ok(snapshot) = Snapshot::decode(bytes)
        {
            self.parents.insert(SnapshotId::from_bytes(id.hash), snapshot.parents);
        }
        self.add(id.to_string(), why.to_string());
    }

    /// The first parent of a snapshot that was left out.
    pub(super) fn first_parent(&self, id: SnapshotId) -> Option<SnapshotId> {
        self.parents.get(&id)?.first().copied()
    }
}
