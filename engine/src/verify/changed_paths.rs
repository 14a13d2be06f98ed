//! Checks the marks of snapshots, which list the paths that they changed: their checksum, and that they omit no path. Excess
//! marks are allowed.

use bytes::Bytes;
use rayon::prelude::*;

use super::graph::Graph;
use super::index::ObjectIndex;
use super::report::{Record, RecordProblem};
use crate::backend::rows::IndexValue;
use crate::backend::{Family, RowEdit};
use crate::changed_paths::{ChangedPaths, PathMarks, SnapshotSuffix, canonical_start};
use crate::diff::{DiffOptions, diff};
use crate::error::Result;
use crate::id::SnapshotId;
use crate::name::TreePath;
use crate::store::Store;

/// A snapshot with incorrect marks.
pub(super) struct Flaw {
    pub(super) object_index: ObjectIndex,
    pub(super) problem: RecordProblem,
}

/// Finds damaged marks and, if `compare` is set, marks that omit a path that differs.
pub(super) fn flaws(store: &Store, graph: &Graph, found: &[(ObjectIndex, SnapshotSuffix)], compare: bool) -> Vec<Flaw> {
    let why = |object_index: ObjectIndex, beside: &SnapshotSuffix| match beside {
        SnapshotSuffix::Nothing => None,
        SnapshotSuffix::Damaged => Some("they are not as they were written".to_owned()),
        SnapshotSuffix::Marks(_) if !compare => None,
        // Unreadable trees are reported elsewhere, and thinned ones can no longer be compared.
        SnapshotSuffix::Marks(touched) => {
            let left_out = left_out(store, snapshot_at(graph, object_index), touched).ok().flatten();
            left_out.map(|path| format!("they leave out {path}"))
        }
    };
    let flaw = |(object_index, beside): &(ObjectIndex, SnapshotSuffix)| {
        let record = Record::ChangedPaths(snapshot_at(graph, *object_index));
        why(*object_index, beside)
            .map(|why| Flaw { object_index: *object_index, problem: RecordProblem { record, why } })
    };
    found.par_iter().filter_map(flaw).collect()
}

fn snapshot_at(graph: &Graph, object_index: ObjectIndex) -> SnapshotId {
    SnapshotId::from_bytes(graph.id(object_index).hash)
}

fn left_out(store: &Store, id: SnapshotId, touched: &ChangedPaths) -> Result<Option<TreePath>> {
    let Some(first) = store.snapshot(id)?.parents.first().copied() else { return Ok(None) };
    for change in diff(store, first, id, DiffOptions::default())? {
        let path = change?.path;
        if PathMarks::of(&path).is_some_and(|asked| !touched.may(&asked)) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Returns the edits that remove the marks from a snapshot's record.
pub(super) fn without(stored: &Bytes, hash: [u8; 32], mut index: IndexValue) -> Vec<RowEdit> {
    let start = canonical_start(stored).expect("its canonical bytes were found before");
    let canonical = stored.slice(start..);
    index.stored_bytes = canonical.len() as u64;
    let key = Bytes::copy_from_slice(&index.number.to_be_bytes());
    vec![
        RowEdit { family: Family::Snapshots, key, value: Some(canonical) },
        RowEdit { family: Family::Index, key: Bytes::copy_from_slice(&hash), value: Some(index.encode().into()) },
    ]
}
