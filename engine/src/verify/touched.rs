//! Checks the marks of snapshots, which list the paths that they changed: their checksum, and that they omit no path. Excess
//! marks are allowed.

use bytes::Bytes;
use rayon::prelude::*;

use super::graph::Graph;
use super::index::Seat;
use super::report::{Record, RecordProblem};
use crate::backend::rows::IndexValue;
use crate::backend::{Family, RowEdit};
use crate::diff::{DiffOptions, diff};
use crate::error::Result;
use crate::id::SnapshotId;
use crate::name::TreePath;
use crate::store::Store;
use crate::touched::{Asked, Beside, Touched, canonical_start};

/// A snapshot with incorrect marks.
pub(super) struct Flaw {
    pub(super) seat: Seat,
    pub(super) problem: RecordProblem,
}

/// Finds damaged marks and, if `compare` is set, marks that omit a path that differs.
pub(super) fn flaws(store: &Store, graph: &Graph, found: &[(Seat, Beside)], compare: bool) -> Vec<Flaw> {
    let why = |seat: Seat, beside: &Beside| match beside {
        Beside::Nothing => None,
        Beside::Damaged => Some("they are not as they were written".to_owned()),
        Beside::Marks(_) if !compare => None,
        // Unreadable trees are reported elsewhere, and thinned ones can no longer be compared.
        Beside::Marks(touched) => {
            let left_out = left_out(store, snapshot_at(graph, seat), touched).ok().flatten();
            left_out.map(|path| format!("they leave out {path}"))
        }
    };
    let flaw = |(seat, beside): &(Seat, Beside)| {
        let record = Record::Touched(snapshot_at(graph, *seat));
        why(*seat, beside).map(|why| Flaw { seat: *seat, problem: RecordProblem { record, why } })
    };
    found.par_iter().filter_map(flaw).collect()
}

fn snapshot_at(graph: &Graph, seat: Seat) -> SnapshotId {
    SnapshotId::from_bytes(graph.id(seat).hash)
}

fn left_out(store: &Store, id: SnapshotId, touched: &Touched) -> Result<Option<TreePath>> {
    let Some(first) = store.snapshot(id)?.parents.first().copied() else { return Ok(None) };
    for change in diff(store, first, id, DiffOptions::default())? {
        let path = change?.path;
        if Asked::of(&path).is_some_and(|asked| !touched.may(&asked)) {
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
