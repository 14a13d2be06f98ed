//! Admits objects in the stored form of another store. Chunks keep the form that they arrive in.

use bytes::Bytes;
use rayon::prelude::*;

use super::{AdmissionCheck, DecodedObject};
use crate::backend::StoredObject;
use crate::compress;
use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind};
use crate::malformed::Malformed;
use crate::object;
use crate::store::{CheckedObject, WriteSession};

/// An object that was refused. The objects before it were admitted.
#[derive(Clone, Debug)]
pub struct NotAdmitted {
    /// Its index among the offered objects.
    pub at: usize,
    /// The error.
    pub source: Error,
}

/// An object from another store that has been hashed, with the result.
#[derive(Debug)]
pub struct HashedObject {
    object: StoredObject,
    /// Whether the store already has it.
    there: bool,
    /// The uncompressed length of a chunk.
    raw_bytes: Result<u64>,
}

impl HashedObject {
    /// Returns the id.
    pub fn id(&self) -> ObjectId {
        self.object.id
    }

    /// Returns the bytes in the form that they arrived in.
    pub fn bytes(&self) -> &Bytes {
        &self.object.bytes
    }

    /// Returns whether the store did not have it.
    pub fn is_new(&self) -> bool {
        !self.there
    }
}

impl WriteSession {
    /// Admits objects that another store sent, in this order, children before parents. Each is hashed and checked like any object
    /// from outside; a chunk is stored in the form that it arrives in. Objects that are already in the store are skipped without
    /// a check. Returns which of them were new.
    pub fn admit_stored(&self, objects: Vec<StoredObject>) -> Result<Vec<bool>, NotAdmitted> {
        let looked = self.look_at_stored(objects).map_err(|source| NotAdmitted { at: 0, source })?;
        self.admit_looked(&looked)
    }

    /// Hashes objects on all cores: the first phase of [`admit_stored`](Self::admit_stored). Earlier objects need not be admitted
    /// yet.
    pub fn look_at_stored(&self, objects: Vec<StoredObject>) -> Result<Vec<HashedObject>> {
        let ids: Vec<_> = objects.iter().map(|object| object.id).collect();
        let there = self.has_many(&ids)?;
        let look = |(object, there): (StoredObject, bool)| {
            let raw_bytes = if there { Ok(0) } else { look(&object) };
            HashedObject { object, there, raw_bytes }
        };
        Ok(objects.into_par_iter().zip(there).with_min_len(8).map(look).collect())
    }

    /// Admits the hashed objects in this order: the second phase of [`admit_stored`](Self::admit_stored).
    pub fn admit_looked(&self, looked: &[HashedObject]) -> Result<Vec<bool>, NotAdmitted> {
        let mut new = Vec::with_capacity(looked.len());
        for (at, HashedObject { object, there, raw_bytes }) in looked.iter().enumerate() {
            if !there {
                let taken = raw_bytes.clone().and_then(|bytes| self.take(object, bytes));
                taken.map_err(|source| NotAdmitted { at, source })?;
            }
            new.push(!there);
        }
        Ok(new)
    }

    fn take(&self, StoredObject { id, bytes }: &StoredObject, raw_bytes: u64) -> Result<()> {
        if id.kind != ObjectKind::Chunk {
            return self.admit(id.kind, bytes.clone()).map(drop);
        }
        // The chunk occurred before in the same stream.
        if self.checked_objects().lock().contains_key(id) {
            return Ok(());
        }
        // Repack a form that is larger than the raw chunk.
        let stored = match bytes.len() as u64 > raw_bytes + 1 {
            true => compress::store_raw(&compress::unpack_chunk(bytes).map_err(|source| refused(*id, source))?),
            false => bytes.clone(),
        };
        self.put_stored_chunk(*id, stored, raw_bytes as usize)?;
        self.checked_objects().lock().insert(*id, CheckedObject { depth: 0, bytes: raw_bytes });
        Ok(())
    }

    /// Admits the record of a snapshot whose tree the sender has thinned. Returns its id and whether it was new.
    pub fn admit_thinned(&self, bytes: impl Into<Bytes>) -> Result<(ObjectId, bool)> {
        let (kind, bytes) = (ObjectKind::Snapshot, bytes.into());
        let gate = AdmissionCheck { session: self, kind };
        object::check(kind, &bytes).map_err(|source| gate.refusal(source))?;
        let id = ObjectId::of(kind, &bytes);
        if self.has(id)? {
            return Ok((id, false));
        }
        let offered = DecodedObject::decode(kind, &bytes).map_err(|source| gate.refusal(source))?;
        gate.check(&offered)?;
        let length = bytes.len();
        self.put(kind, bytes.into())?;
        offered.remember(self, id, length);
        Ok((id, true))
    }
}

fn refused(id: ObjectId, source: Malformed) -> Error {
    Error::Refused { kind: id.kind, source }
}

/// Verifies the hash of an object and returns the uncompressed length of a chunk.
fn look(StoredObject { id, bytes }: &StoredObject) -> Result<u64> {
    let (found, length) = match id.kind {
        ObjectKind::Chunk => {
            let look = |raw: &[u8]| (ObjectId::of(id.kind, raw), raw.len() as u64);
            compress::look_at_chunk(bytes, look).map_err(|source| refused(*id, source))?
        }
        kind => (ObjectId::of(kind, bytes), 0),
    };
    if found == *id { Ok(length) } else { Err(Error::HashMismatch { id: *id }) }
}
