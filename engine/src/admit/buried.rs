//! Objects that the sender has purged: objects that refer to them are admitted, and their tombstones are written.

use bytes::Bytes;

use crate::backend::rows::tombstone_key;
use crate::backend::{Family, RowEdit};
use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind};
use crate::store::WriteSession;
use crate::tombstone::Tombstone;

impl WriteSession {
    /// Records that the sender has purged a chunk. From now on objects that refer to it are admitted without it.
    /// [`write_tombstones`](Self::write_tombstones) stores the tombstone.
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

    /// Removes the tombstone of a chunk, so that its bytes can be admitted: the sender has stored them again.
    pub fn unbury(&self, id: ObjectId) -> Result<()> {
        self.buried().lock().remove(&id);
        let key = Bytes::copy_from_slice(&tombstone_key(id));
        self.store().inspect().edit(vec![RowEdit { family: Family::Tombstones, key, value: None }])
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

    /// Returns whether a missing object was purged, in this store or by the sender.
    pub(super) fn is_buried(&self, id: ObjectId) -> Result<bool> {
        Ok(self.buried().lock().contains_key(&id) || self.store().tombstone(id)?.is_some())
    }
}
