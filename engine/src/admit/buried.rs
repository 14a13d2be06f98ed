//! Objects that the sender has purged: what refers to them is taken in, and their tombstones come with it.

use bytes::Bytes;

use crate::backend::rows::tombstone_key;
use crate::backend::{Family, RowEdit};
use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind};
use crate::store::WriteSession;
use crate::tombstone::Tombstone;

impl WriteSession {
    /// Takes note of a chunk that is purged where it comes from. What refers to it is admitted without it from now on; the
    /// tombstone is part of the store once [`write_tombstones`](Self::write_tombstones) is called.
    pub fn bury(&self, id: ObjectId, tombstone: Tombstone) -> Result<()> {
        let refused = |source| Error::Refused { kind: id.kind, source };
        tombstone.check().map_err(refused)?;
        if id.kind != ObjectKind::Chunk {
            return Err(Error::Invalid {
                what: "tombstone",
                why: format!("{id} is no chunk, and only those are purged"),
            });
        }
        self.buried().lock().insert(id, tombstone);
        Ok(())
    }

    /// Writes the tombstones of chunks that are not in the store.
    pub fn write_tombstones(&self) -> Result<()> {
        let mut edits = Vec::new();
        for (id, tombstone) in self.buried().lock().iter() {
            if !self.has(*id)? {
                let key = Bytes::copy_from_slice(&tombstone_key(*id));
                edits.push(RowEdit { family: Family::Tombstones, key, value: Some(tombstone.encode().into()) });
            }
        }
        if edits.is_empty() { Ok(()) } else { self.store().inspect().edit(edits) }
    }

    /// Whether an object that is not there was purged, here or where it comes from.
    pub(super) fn is_buried(&self, id: ObjectId) -> Result<bool> {
        Ok(self.buried().lock().contains_key(&id) || self.store().tombstone(id)?.is_some())
    }
}
