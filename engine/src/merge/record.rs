//! The record of a merge: its sources and target, and the decision for each contested path. It is stored as JSON in the metadata
//! of the merge snapshot, which has the author and the time. Its size is limited; it counts the omitted paths.

use serde_json::{Value, json};

use super::undecided::Undecided;
use super::{FileMerged, PathConflict};
use crate::id::SnapshotId;

/// The metadata key of the record.
pub const MERGE_RECORD_KEY: &str = "merge";
/// Maximum size of the paths in a record, in bytes.
const RECORD_BYTES_MAX: usize = 64 << 10;
/// Maximum size of the undecided conflicts in a record, in bytes: they contain complete attribute values.
const UNDECIDED_BYTES_MAX: usize = 256 << 10;

/// The record of a merge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeRecord {
    /// The name of the target workspace.
    pub target: String,
    /// The source workspaces, each with the id of its snapshot.
    pub sources: Vec<(String, String)>,
    /// The ids of the merge bases.
    pub bases: Vec<String>,
    /// The files whose bytes both sides changed.
    pub files: Vec<RecordedPath>,
    /// The conflicts.
    pub conflicts: Vec<RecordedPath>,
    /// The conflicts that are not entries in the tree, with the data needed to decide them.
    pub undecided: Vec<Undecided>,
    /// Number of paths that were omitted to limit the size.
    pub left_out: u64,
}

/// A path in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedPath {
    /// The path in readable form.
    pub path: String,
    /// The strategy that decided it; for a conflict that is not in the tree, the value of theirs.
    pub strategy: String,
    /// The result: `merged`, `ours`, `theirs` or `conflict`; for a conflict, its kind.
    pub result: String,
}

impl MergeRecord {
    pub(crate) fn add(&mut self, bases: &[SnapshotId], files: &[FileMerged], conflicts: &[PathConflict]) {
        self.bases.extend(bases.iter().map(SnapshotId::to_string));
        let paths = self.files.iter().chain(&self.conflicts);
        let mut bytes: usize = paths.map(|one| one.path.len() + one.strategy.len()).sum();
        let mut fits = |one: &RecordedPath| {
            bytes += one.path.len() + one.strategy.len() + 64;
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
            let (path, strategy) = (conflict.path.to_string(), conflict.kind.detail());
            let one = RecordedPath { path, strategy, result: conflict.kind.word().to_owned() };
            if fits(&one) { self.conflicts.push(one) } else { self.left_out += 1 }
        }
        for file in files {
            let (path, strategy) = (file.path.to_string(), file.strategy.clone());
            let one = RecordedPath { path, strategy, result: file.result.word().to_owned() };
            if fits(&one) { self.files.push(one) } else { self.left_out += 1 }
        }
    }

    /// Encodes the record as JSON.
    pub fn to_json(&self) -> String {
        let path = |one: &RecordedPath| json!({ "path": one.path, "way": one.strategy, "result": one.result });
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

    /// Decodes a record. Returns `None` if the text is not a record. Unknown fields are ignored.
    pub fn from_json(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let word = |value: &Value, key: &str| value.get(key)?.as_str().map(str::to_owned);
        let list = |key: &str| value.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let path = |one: &Value| {
            Some(RecordedPath { path: word(one, "path")?, strategy: word(one, "way")?, result: word(one, "result")? })
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
