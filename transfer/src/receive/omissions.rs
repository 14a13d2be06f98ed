//! Omissions of a restore: objects that break a rule of the format, and the names that held them.

use std::collections::HashMap;

use amalgam_engine::object::Snapshot;
use amalgam_engine::{Error as EngineError, ObjectId, ObjectKind, SnapshotId};
use bytes::Bytes;

use crate::error::FramePosition;

/// Most objects and names in the list; the others are counted.
const LISTED_MAX: usize = 1_000;
/// Most snapshots whose parents are remembered.
const SNAPSHOTS_MAX: usize = 1 << 20;

/// Objects and names that a restore skipped or changed, with reasons.
#[derive(Clone, Debug, Default)]
pub struct Omissions {
    listed: Vec<(String, String)>,
    more: u64,
    /// Parents of skipped snapshots: a workspace falls back to them.
    parents: HashMap<SnapshotId, Vec<SnapshotId>>,
    /// The file of the backup that is being read.
    file: String,
}

impl Omissions {
    /// Returns whether everything was restored as it was.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Returns objects and names, each with the reason, up to a limit.
    pub fn listed(&self) -> &[(String, String)] {
        &self.listed
    }

    /// Returns how many more there are.
    pub fn more(&self) -> u64 {
        self.more
    }

    /// Sets the file of the backup that is read next, which later omissions name.
    pub(crate) fn reading(self, file: String) -> Self {
        Self { file, ..self }
    }

    /// Adds damage of the file, in one frame or as a whole.
    pub(super) fn add_damage(&mut self, place: Option<FramePosition>, why: String) {
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

    /// Returns the first parent of a skipped snapshot.
    pub(super) fn first_parent(&self, id: SnapshotId) -> Option<SnapshotId> {
        self.parents.get(&id)?.first().copied()
    }
}
