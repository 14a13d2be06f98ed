//! Decodes a batch of rows into ids and references. Decoding is most of the work of the mark phase and does not depend on
//! the marks, so it runs ahead on all cores.

use std::ops::Range;

use amalgam_engine::backend::Family;
use amalgam_engine::object::{Snapshot, refers};
use amalgam_engine::{Error, ObjectId, ObjectKind, Result, SnapshotId, SweepRound};
use bytes::Bytes;

use crate::bloom::{Fingerprint, fingerprint, fingerprint_of_hash};

/// A row of the tree family: its id, and the ranges of its references in the batch.
pub(crate) struct NodeRow {
    pub(crate) number: u64,
    pub(crate) id: Fingerprint,
    pub(crate) chunks: Range<usize>,
    pub(crate) nodes: Range<usize>,
}

/// Decoded rows of the tree family.
#[derive(Default)]
pub(crate) struct NodeBatch {
    /// The rows in the order of writing.
    pub(crate) rows: Vec<NodeRow>,
    /// References to chunks, which refer to nothing.
    pub(crate) chunks: Vec<Fingerprint>,
    /// References to nodes and extended attributes.
    pub(crate) nodes: Vec<ObjectId>,
}

impl NodeBatch {
    /// Reads the rows of the tree family with numbers in a range.
    pub(crate) fn read(round: &SweepRound, range: Range<u64>) -> Result<Self> {
        let mut digest = Self::default();
        round.rows(Family::Trees, range, &mut |number, canonical| {
            let kind = kind_of(number, canonical)?;
            let id = ObjectId::of(kind, canonical);
            let (chunks, nodes) = (digest.chunks.len(), digest.nodes.len());
            for_each_reference(id, canonical, &mut |kind, hash| match kind {
                ObjectKind::Chunk => digest.chunks.push(fingerprint_of_hash(hash)),
                _ => digest.nodes.push(ObjectId { kind, hash: *hash }),
            })?;
            let row = NodeRow {
                number,
                id: fingerprint(&id),
                chunks: chunks..digest.chunks.len(),
                nodes: nodes..digest.nodes.len(),
            };
            digest.rows.push(row);
            Ok(())
        })?;
        Ok(digest)
    }
}

/// Reads the snapshots with numbers in a range.
pub(crate) fn read_snapshots(round: &SweepRound, range: Range<u64>) -> Result<Vec<(u64, SnapshotId, Snapshot)>> {
    let mut found = Vec::new();
    round.rows(Family::Snapshots, range, &mut |number, canonical| {
        let id = SnapshotId::of(canonical);
        let snapshot = Snapshot::decode(canonical).map_err(|source| Error::Malformed { id: id.object(), source })?;
        found.push((number, id, snapshot));
        Ok(())
    })?;
    Ok(found)
}

/// Calls `tell` with each object that a node refers to.
pub(crate) fn for_each_reference(
    id: ObjectId,
    canonical: &Bytes,
    tell: &mut dyn FnMut(ObjectKind, &[u8; 32]),
) -> Result<()> {
    refers(id.kind, canonical, tell).map_err(|source| Error::Malformed { id, source })
}

pub(crate) fn kind_of(number: u64, canonical: &[u8]) -> Result<ObjectKind> {
    let kind = canonical.first().and_then(|number| ObjectKind::from_number(*number));
    let kind = kind.filter(|kind| Family::of(*kind) == Family::Trees);
    kind.ok_or_else(|| Error::DamagedRecord {
        what: format!("row {number} of trees"),
        why: "this version does not know its kind of node".to_owned(),
    })
}
