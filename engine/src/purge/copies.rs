//! Every row that holds the bytes of a chunk: the one that the index names, and others. Two commits of one new chunk at a time store it
//! twice, a crash may leave a row that nothing names, and a repair puts rows aside.

use std::collections::HashSet;

use bytes::Bytes;
use rayon::prelude::*;

use crate::backend::rows::Quarantined;
use crate::backend::{Family, PageEnd};
use crate::compress;
use crate::error::{Error, Result};
use crate::id::{ChunkId, ObjectId, ObjectKind};
use crate::store::Store;

const PAGE_BYTES: usize = 8 << 20;

/// The chunks that are searched for.
pub(super) struct Wanted {
    /// Their ids.
    pub(super) chunks: HashSet<ChunkId>,
    /// Their lengths; `None` if one of them is not known. Rows of other lengths are not hashed.
    pub(super) lengths: Option<HashSet<u64>>,
}

impl Wanted {
    fn holds(&self, stored: &[u8]) -> bool {
        let is_of_length = |length| self.lengths.as_ref().is_none_or(|lengths| lengths.contains(&length));
        if !compress::chunk_bytes(stored).is_ok_and(is_of_length) {
            return false;
        }
        let id = compress::look_at_chunk(stored, |bytes| ObjectId::of(ObjectKind::Chunk, bytes));
        id.is_ok_and(|id| self.chunks.contains(&ChunkId::from_bytes(id.hash)))
    }
}

/// Finds every row that holds one of the chunks. Reads all chunks of the store.
pub(super) fn find_copies(store: &Store, wanted: &Wanted) -> Result<Vec<(Family, Bytes)>> {
    let mut found = Vec::new();
    for family in [Family::Chunks, Family::Quarantine] {
        let mut from = Bytes::new();
        loop {
            let page = store.inspect().rows(family, &from, None, PAGE_BYTES)?;
            let holds = |(_, value): &&(Bytes, Bytes)| match family {
                // A quarantined row is a chunk or a row of another family.
                Family::Quarantine => Quarantined::decode(value).is_some_and(|kept| wanted.holds(&kept.bytes)),
                _ => wanted.holds(value),
            };
            found.par_extend(page.rows.par_iter().filter(holds).map(|(key, _)| (family, key.clone())));
            match (page.end, page.rows.last()) {
                (PageEnd::Room, Some((last, _))) => from = [&last[..], &[0]].concat().into(),
                (PageEnd::Damaged { why }, _) => {
                    let why = format!(
                        "{why}; whether the bytes lie there cannot be seen: `amalgam verify --repair` first, then purge again"
                    );
                    return Err(Error::DamagedRecord { what: family.name().to_owned(), why });
                }
                _ => break,
            }
        }
    }
    Ok(found)
}
