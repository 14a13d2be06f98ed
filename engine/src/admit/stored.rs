//! Objects as another store keeps them: chunks stay in the form they come in.

use bytes::Bytes;
use rayon::prelude::*;

use super::{Gate, Offered};
use crate::backend::StoredObject;
use crate::compress;
use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind};
use crate::malformed::Malformed;
use crate::object;
use crate::store::{Known, WriteSession};

/// An object that was not taken in. Those before it were.
#[derive(Clone, Debug)]
pub struct NotAdmitted {
    /// Its place among those that were offered.
    pub at: usize,
    /// Why.
    pub source: Error,
}

/// An object from another store that was hashed, with what came of it.
#[derive(Debug)]
pub struct Looked {
    object: StoredObject,
    /// Whether it was in the store already.
    there: bool,
    /// How long a chunk is.
    raw_bytes: Result<u64>,
}

impl Looked {
    /// The object.
    pub fn id(&self) -> ObjectId {
        self.object.id
    }

    /// Its bytes as they came.
    pub fn bytes(&self) -> &Bytes {
        &self.object.bytes
    }

    /// Whether the store did not have it.
    pub fn is_new(&self) -> bool {
        !self.there
    }
}

impl WriteSession {
    /// Takes in objects that another store sent, in this order, children before parents. Each is hashed and admitted as any
    /// object from outside; a chunk is stored as it comes. What is in the store already is skipped unseen. Returns
    /// which of them were new.
    pub fn admit_stored(&self, objects: Vec<StoredObject>) -> Result<Vec<bool>, NotAdmitted> {
        let looked = self.look_at_stored(objects).map_err(|source| NotAdmitted { at: 0, source })?;
        self.admit_looked(&looked)
    }

    /// The first half of it: hashes objects, on all cores. Those that come before them need not be taken in yet.
    pub fn look_at_stored(&self, objects: Vec<StoredObject>) -> Result<Vec<Looked>> {
        let ids: Vec<_> = objects.iter().map(|object| object.id).collect();
        let there = self.has_many(&ids)?;
        let look = |(object, there): (StoredObject, bool)| {
            let raw_bytes = if there { Ok(0) } else { look(&object) };
            Looked { object, there, raw_bytes }
        };
        Ok(objects.into_par_iter().zip(there).with_min_len(8).map(look).collect())
    }

    /// The second half: takes them in, in this order.
    pub fn admit_looked(&self, looked: &[Looked]) -> Result<Vec<bool>, NotAdmitted> {
        let mut new = Vec::with_capacity(looked.len());
        for (at, Looked { object, there, raw_bytes }) in looked.iter().enumerate() {
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
        // Twice in a stream, and near each other.
        if self.known().lock().contains_key(id) {
            return Ok(());
        }
        // A form that is larger than need be is not worth its room.
        let stored = match bytes.len() as u64 > raw_bytes + 1 {
            true => compress::store_raw(&compress::unpack_chunk(bytes).map_err(|source| refused(*id, source))?),
            false => bytes.clone(),
        };
        self.put_stored_chunk(*id, stored, raw_bytes as usize)?;
        self.known().lock().insert(*id, Known { depth: 0, bytes: raw_bytes });
        Ok(())
    }

    /// Takes in the record of a snapshot whose tree its store has dropped. Returns whether it was new.
    pub fn admit_thinned(&self, bytes: impl Into<Bytes>) -> Result<(ObjectId, bool)> {
        let (kind, bytes) = (ObjectKind::Snapshot, bytes.into());
        let gate = Gate { session: self, kind };
        object::check(kind, &bytes).map_err(|source| gate.refusal(source))?;
        let id = ObjectId::of(kind, &bytes);
        if self.has(id)? {
            return Ok((id, false));
        }
        let offered = Offered::decode(kind, &bytes).map_err(|source| gate.refusal(source))?;
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

/// Hashes what came; returns how long a chunk is.
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
