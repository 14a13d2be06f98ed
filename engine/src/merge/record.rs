//! The record of a merge: what was merged into what, and how each contested path was decided. It is kept as JSON among the
//! metadata of the merge's snapshot, which says who and when; it is small, and says how much was left out.

use serde_json::{Value, json};

use super::undecided::Undecided;
use super::{FileMerged, PathConflict};
use crate::id::SnapshotId;

/// The metadata key of the record.
pub const MERGE_RECORD_KEY: &str = "merge";
/// The most bytes of paths in a record.
const RECORD_BYTES_MAX: usize = 64 << 10;
/// The most bytes of what is undecided in a record: values of attributes stand in it whole.
const UNDECIDED_BYTES_MAX: usize = 256 << 10;

/// What is recorded of a merge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeRecord {
    /// The workspace that was merged into.
    pub target: String,
    /// The workspaces that were merged, each with the id of its snapshot.
    pub sources: Vec<(String, String)>,
    /// The ids of the common ancestors.
    pub bases: Vec<String>,
    /// Files whose bytes both sides had changed.
    pub files: Vec<RecordedPath>,
    /// What could not be merged.
    pub conflicts: Vec<RecordedPath>,
    /// Of these, what is not in the tree as an entry, with all that is needed to decide it.
    pub undecided: Vec<Undecided>,
    /// How many of all these were left out to keep it small.
    pub left_out: u64,
}

/// A path in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedPath {
    /// The path, as people read it.
    pub path: String,
    /// How it was decided; for a conflict that is not in the tree, what theirs is.
    pub way: String,
    /// What came of it: `merged`, `ours`, `theirs`, `conflict`; for a conflict, its kind.
    pub result: String,
}

impl MergeRecord {
    pub(crate) fn add(&mut self, bases: &[SnapshotId], files: &[FileMerged], conflicts: &[PathConflict]) {
        self.bases.extend(bases.iter().map(SnapshotId::to_string));
        let paths = self.files.iter().chain(&self.conflicts);
        let mut bytes: usize = paths.map(|one| one.path.len() + one.way.len()).sum();
        let mut fits = |one: &RecordedPath| {
            bytes += one.path.len() + one.way.len() + 64;
            bytes <= RECORD_BYTES_MAX
        };
        let mut undecided_bytes: usize = self.undecided.iter().map(Undecided::bytes).sum();
        for one in conflicts.iter().filter(|conflict| !conflict.is_entry).filter_map(Undecided::of) {
            undecided_bytes += one.bytes();
            match undecided_bytes <= UNDECIDED_BYTES_MAX {
                true => self.undecided.push(one),
                false => self.left_out += 1,
            }
        }
        for conflict in conflicts {
            let (path, way) = (conflict.path.to_string(), conflict.kind.detail());
            let one = RecordedPath { path, way, result: conflict.kind.word().to_owned() };
            if fits(&one) { self.conflicts.push(one) } else { self.left_out += 1 }
        }
        for file in files {
            let (path, way) = (file.path.to_string(), file.way.clone());
            let one = RecordedPath { path, way, result: file.result.word().to_owned() };
            if fits(&one) { self.files.push(one) } else { self.left_out += 1 }
        }
    }

    /// As it is kept.
    pub fn to_json(&self) -> String {
        let path = |one: &RecordedPath| json!({ "path": one.path, "way": one.way, "result": one.result });
        let sources = self.sources.iter().map(|(name, snapshot)| json!({ "workspace": name, "snapshot": snapshot }));
        let mut value = json!({
            "target": self.target,
            "sources": sources.collect::<Vec<_>>(),
            "bases": self.bases,
            "files": self.files.iter().map(path).collect::<Vec<_>>(),
            "conflicts": self.conflicts.iter().map(path).collect::<Vec<_>>(),
            "left_out": self.left_out,
        });
        if !self.undecided.is_empty() {
            value["undecided"] = self.undecided.iter().map(Undecided::to_json).collect();
        }
        value.to_string()
    }

    /// Reads it back; nothing when the text is no record. What is not known is passed over.
    pub fn from_json(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let word = |value: &Value, key: &str| value.get(key)?.as_str().map(str::to_owned);
        let list = |key: &str| value.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let path = |one: &Value| {
            Some(RecordedPath { path: word(one, "path")?, way: word(one, "way")?, result: word(one, "result")? })
        };
        Some(Self {
            target: word(&value, "target")?,
            sources: list("sources")
                .iter()
                .filter_map(|one| word(one, "workspace").zip(word(one, "snapshot")))
                .collect(),
            bases: list("bases").iter().filter_map(|id| id.as_str().map(str::to_owned)).collect(),
            files: list("files").iter().filter_map(path).collect(),
            conflicts: list("conflicts").iter().filter_map(path).collect(),
            undecided: list("undecided").iter().filter_map(Undecided::from_json).collect(),
            left_out: value.get("left_out").and_then(Value::as_u64).unwrap_or_default(),
        })
    }
}
