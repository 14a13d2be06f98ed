//! What marking needs of a stretch of rows: who they are and whom they refer to. Making it is most of the work, and has nothing
//! to do with what is marked; so it is done on all cores, ahead of the marking.

use std::ops::Range;

use amalgam_engine::backend::Family;
use amalgam_engine::object::{Snapshot, refers};
use amalgam_engine::{Error, ObjectId, ObjectKind, Result, SnapshotId, SweepRound};
use bytes::Bytes;

use crate::filter::{Fingerprint, fingerprint, of_hash};

/// A row of the trees: its id, and where in the digest its references are.
pub(crate) struct Row {
    pub(crate) number: u64,
    pub(crate) id: Fingerprint,
    pub(crate) chunks: Range<usize>,
    pub(crate) nodes: Range<usize>,
}

/// A stretch of the trees.
#[derive(Default)]
pub(crate) struct Digest {
    /// In the order of writing.
    pub(crate) rows: Vec<Row>,
    /// Chunks and attributes, which refer to nothing.
    pub(crate) chunks: Vec<Fingerprint>,
    /// Everything that may refer to others, or whose row must be found.
    pub(crate) nodes: Vec<ObjectId>,
}

impl Digest {
    /// Reads the trees with numbers in a range.
    pub(crate) fn of_trees(round: &SweepRound, range: Range<u64>) -> Result<Self> {
        let mut digest = Self::default();
        round.rows(Family::Trees, range, &mut |number, canonical| {
            let kind = kind_of(number, canonical)?;
            let id = ObjectId::of(kind, canonical);
            let (chunks, nodes) = (digest.chunks.len(), digest.nodes.len());
            references(id, canonical, &mut |kind, hash| match kind {
                ObjectKind::Chunk => digest.chunks.push(of_hash(hash)),
                _ => digest.nodes.push(ObjectId { kind, hash: *hash }),
            })?;
            let row = Row {
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

/// The snapshots with numbers in a range.
pub(crate) fn snapshots(round: &SweepRound, range: Range<u64>) -> Result<Vec<(u64, SnapshotId, Snapshot)>> {
    let mut found = Vec::new();
    round.rows(Family::Snapshots, range, &mut |number, canonical| {
        let id = SnapshotId::of(canonical);
        let snapshot = Snapshot::decode(canonical).map_err(|source| Error::Malformed { id: id.object(), source })?;
        found.push((number, id, snapshot));
        Ok(())
    })?;
    Ok(found)
}

/// Tells what a node refers to.
pub(crate) fn references(id: ObjectId, canonical: &Bytes, tell: &mut dyn FnMut(ObjectKind, &[u8; 32])) -> Result<()> {
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
