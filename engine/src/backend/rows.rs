//! The encoding of a store's rows as plain bytes. Independent of the database.

use bytes::Bytes;

use super::{Epoch, IndexRow};
use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind};
use crate::reference::RefValue;
use crate::tombstone::Tombstone;

/// The value of a row of the object index.
pub(crate) struct IndexValue {
    pub(crate) kind: ObjectKind,
    pub(crate) epoch: Epoch,
    pub(crate) stored_bytes: u64,
    /// The key in the family of its kind.
    pub(crate) number: u64,
}

impl IndexValue {
    /// Returns the index row of the object with this hash.
    pub(crate) fn row(&self, hash: [u8; 32]) -> IndexRow {
        let Self { kind, epoch, stored_bytes, number } = *self;
        IndexRow { id: ObjectId { kind, hash }, stored_bytes, epoch, number }
    }

    /// Encodes the kind and three varints. Kept compact, because there is one for every object.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(16);
        bytes.push(self.kind as u8);
        for mut part in [self.epoch, self.stored_bytes, self.number] {
            while part >= 0x80 {
                bytes.push((part & 0x7f) as u8 | 0x80);
                part >>= 7;
            }
            bytes.push(part as u8);
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong = || damaged("object index", &"a row of the wrong form");
        let (kind, mut rest) = bytes.split_first().ok_or_else(wrong)?;
        let kind = ObjectKind::from_number(*kind).ok_or_else(wrong)?;
        let mut part = || -> Result<u64> {
            let mut value = 0;
            for shift in (0..64).step_by(7) {
                let (byte, after) = rest.split_first().ok_or_else(wrong)?;
                rest = after;
                value |= u64::from(byte & 0x7f) << shift;
                if *byte < 0x80 {
                    return Ok(value);
                }
            }
            Err(wrong())
        };
        let value = Self { kind, epoch: part()?, stored_bytes: part()?, number: part()? };
        if rest.is_empty() { Ok(value) } else { Err(wrong()) }
    }
}

impl IndexRow {
    /// Encodes the value of the row. Its key is the hash of the object.
    pub fn encode_value(&self) -> Vec<u8> {
        let Self { id, stored_bytes, epoch, number } = *self;
        IndexValue { kind: id.kind, epoch, stored_bytes, number }.encode()
    }
}

/// The row of a reference: its value, and the operation that last moved it.
pub struct RefRow {
    /// The value.
    pub value: RefValue,
    /// The operation that last moved it.
    pub operation: u64,
}

impl RefRow {
    /// Encodes a row.
    pub fn encode(operation: u64, value: &RefValue) -> Vec<u8> {
        let mut bytes = operation.to_be_bytes().to_vec();
        bytes.extend(value.encode());
        bytes
    }

    /// Decodes a row.
    pub fn decode(mut bytes: Bytes) -> Result<Self> {
        if bytes.len() < 8 {
            return Err(damaged("reference", &"a row of the wrong form"));
        }
        let operation = number(&bytes.split_to(8), "reference")?;
        let value = RefValue::decode(bytes).map_err(|why| damaged("reference", &why))?;
        Ok(Self { value, operation })
    }
}

/// Decodes a number that is a key or a value.
pub fn number(bytes: &[u8], what: &str) -> Result<u64> {
    bytes.try_into().map(u64::from_be_bytes).map_err(|_| damaged(what, &"a key of the wrong length"))
}

/// Returns the error for a record of the store that cannot be read.
pub fn damaged(what: &str, why: &dyn std::fmt::Display) -> Error {
    Error::DamagedRecord { what: what.to_owned(), why: why.to_string() }
}

/// Returns the key of a tombstone.
pub fn tombstone_key(id: ObjectId) -> [u8; 33] {
    let mut key = [id.kind as u8; 33];
    key[1..].copy_from_slice(&id.hash);
    key
}

/// Decodes a tombstone.
pub fn read_tombstone(bytes: Bytes) -> Result<Tombstone> {
    Tombstone::decode(bytes).map_err(|why| damaged("tombstone", &why))
}

/// A quarantined row: the reason, and the bytes as found.
pub(crate) struct Quarantined {
    /// The kind of an object; 0 for any other row.
    pub(crate) kind: u8,
    pub(crate) reason: String,
    pub(crate) bytes: Bytes,
}

impl Quarantined {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let length = u32::try_from(self.reason.len()).unwrap_or(u32::MAX) as usize;
        let mut bytes = vec![self.kind];
        bytes.extend((length as u32).to_be_bytes());
        bytes.extend(&self.reason.as_bytes()[..length]);
        bytes.extend(&self.bytes);
        bytes
    }

    /// Decodes a quarantined row. Returns `None` if the bytes have another form.
    pub(crate) fn decode(bytes: &Bytes) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = u32::from_be_bytes(*length) as usize;
        let reason = String::from_utf8_lossy(rest.get(..length)?).into_owned();
        Some(Self { kind: *kind, reason, bytes: bytes.slice(5 + length..) })
    }
}

/// Returns the first key after all keys with a prefix.
pub fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // The prefix is empty or consists of the greatest bytes.
    vec![u8::MAX; prefix.len() + 1]
}
