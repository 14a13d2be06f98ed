//! The rows of the store on disk, as plain bytes. Knows nothing of the database they lie in.

use bytes::Bytes;

use super::Epoch;
use super::home::damaged;
use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind};

/// The value of a row of the object index.
pub(super) struct IndexValue {
    pub(super) kind: ObjectKind,
    pub(super) epoch: Epoch,
    pub(super) stored_bytes: u64,
    /// The key in the family of its kind.
    pub(super) number: u64,
}

impl IndexValue {
    pub(super) const BYTES: usize = 25;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = self.kind as u8;
        bytes[1..9].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[9..17].copy_from_slice(&self.stored_bytes.to_be_bytes());
        bytes[17..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong = || damaged("object index", &"a row of the wrong form");
        let bytes: &[u8; Self::BYTES] = bytes.try_into().map_err(|_| wrong())?;
        let part = |from: usize| u64::from_be_bytes(bytes[from..from + 8].try_into().expect("eight bytes"));
        let kind = ObjectKind::from_number(bytes[0]).ok_or_else(wrong)?;
        Ok(Self { kind, epoch: part(1), stored_bytes: part(9), number: part(17) })
    }
}

/// An object's row: its hash, so that a row found by number is known to be the right one, and what is stored.
pub(super) fn object_row(id: ObjectId, stored: &Bytes) -> Bytes {
    let mut row = Vec::with_capacity(32 + stored.len());
    row.extend_from_slice(&id.hash);
    row.extend_from_slice(stored);
    row.into()
}

/// What is stored, out of an object's row.
pub(super) fn object_bytes(id: ObjectId, row: &Bytes) -> Result<Bytes> {
    if row.starts_with(&id.hash) { Ok(row.slice(32..)) } else { Err(Error::HashMismatch { id }) }
}

/// A number that is a key or a value.
pub(super) fn number(bytes: &[u8], what: &str) -> Result<u64> {
    bytes.try_into().map(u64::from_be_bytes).map_err(|_| damaged(what, &"a key of the wrong length"))
}
