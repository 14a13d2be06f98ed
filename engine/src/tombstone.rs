//! The record of a purged object: time, actor and reason. A plain value with its encoding.

use std::fmt;

use bytes::Bytes;

use crate::malformed::Malformed;
use crate::object::codec::{Reader, Writer};
use crate::time::Time;

const TEXT_BYTES_MAX: usize = 4 << 10;

/// The record of a purge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tombstone {
    /// The time.
    pub time: Time,
    /// The actor.
    pub actor: String,
    /// The reason.
    pub reason: String,
}

impl Tombstone {
    /// Checks the limits.
    pub(crate) fn check(&self) -> Result<(), Malformed> {
        if self.actor.len() + self.reason.len() > TEXT_BYTES_MAX {
            return Err(Malformed::TooMuch { what: "a tombstone's texts" });
        }
        Ok(())
    }

    /// Encodes the tombstone for the store.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::record();
        out.sint(1, self.time.0);
        out.bytes(2, self.actor.as_bytes());
        out.bytes(3, self.reason.as_bytes());
        out.finish()
    }

    /// Decodes a stored tombstone.
    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut from = Reader::record(bytes);
        let mut tombstone = Self::default();
        while let Some((field, value)) = from.next_field()? {
            match field {
                1 => tombstone.time = Time(value.signed(1)?),
                2 => tombstone.actor = value.text(2)?,
                3 => tombstone.reason = value.text(3)?,
                number => return Err(Malformed::Field { number }),
            }
        }
        tombstone.check()?;
        Ok(tombstone)
    }
}

impl fmt::Display for Tombstone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "on {}", self.time.date())?;
        if !self.actor.is_empty() {
            write!(f, " by {}", self.actor)?;
        }
        if self.reason.is_empty() { Ok(()) } else { write!(f, ": {}", self.reason) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tombstone_has_golden_bytes_and_words() {
        let tombstone = Tombstone {
            time: Time::from_seconds(1_700_000_000, 0),
            actor: "ada".to_owned(),
            reason: "a key".to_owned(),
        };
        let bytes = tombstone.encode();
        assert_eq!(bytes, b"\x08\x80\x80\xd0\xe2\xc6\xbf\xce\x97\x2f\x12\x03ada\x1a\x05a key");
        assert_eq!(Tombstone::decode(bytes.into()), Ok(tombstone.clone()));
        assert_eq!(tombstone.to_string(), "on 2023-11-14 by ada: a key");
    }
}
