//! A snapshot: a tree with its history. Immutable; labels, rewards and notes are references and never part of its hash.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::codec::{Reader, Writer};
use crate::id::{ObjectKind, RootId, SnapshotId};
use crate::malformed::Malformed;
use crate::time::Time;

const PARENTS_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Maximum generation of a snapshot. Commits do not exceed it, and snapshots from other stores are rejected above it.
pub const GENERATION_MAX: u64 = 1 << 53;

/// A tree with its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The id of the tree.
    pub root: RootId,
    /// The snapshots that this one was made from: several after a merge, none for an initial snapshot.
    pub parents: Vec<SnapshotId>,
    /// The author's name.
    pub author: String,
    /// The time of the commit.
    pub time: Time,
    /// The commit message.
    pub message: String,
    /// Further small key-value pairs that the author stores with the snapshot.
    pub metadata: BTreeMap<String, String>,
    /// The distance from an initial snapshot: one more than the greatest generation of its parents, 0 without parents.
    pub generation: u64,
}

impl Snapshot {
    /// Returns the canonical bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::object(ObjectKind::Snapshot);
        out.bytes(1, self.root.as_bytes());
        self.parents.iter().for_each(|parent| out.item(2, parent.as_bytes()));
        out.bytes(3, self.author.as_bytes());
        out.sint(4, self.time.0);
        out.bytes(5, self.message.as_bytes());
        for (key, value) in &self.metadata {
            out.message(6, |out| {
                out.bytes(1, key.as_bytes());
                out.bytes(2, value.as_bytes());
            });
        }
        out.uint(7, self.generation);
        out.finish()
    }

    /// Checks the limits and invariants of a snapshot that a caller has built.
    pub fn check(&self) -> Result<(), Malformed> {
        if self.parents.len() > PARENTS_MAX {
            return Err(Malformed::TooMuch { what: "a snapshot's parents" });
        }
        let metadata: usize = self.metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
        if self.author.len() + self.message.len() + metadata > TEXT_BYTES_MAX {
            return Err(Malformed::TooMuch { what: "a snapshot's texts" });
        }
        let mut parents = self.parents.clone();
        parents.sort();
        if parents.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Malformed::Rule("the same parent twice"));
        }
        if self.parents.is_empty() != (self.generation == 0) {
            return Err(Malformed::Rule("a generation that does not fit the parents"));
        }
        if self.metadata.contains_key("") {
            return Err(Malformed::Rule("metadata with an empty key"));
        }
        Ok(())
    }

    /// Decodes a snapshot.
    pub fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let mut from = Reader::object(ObjectKind::Snapshot, bytes)?;
        let (mut root, mut text_bytes) = (None, 0);
        let mut snapshot = Self {
            root: RootId::from_bytes([0; 32]),
            parents: Vec::new(),
            author: String::new(),
            time: Time::EPOCH,
            message: String::new(),
            metadata: BTreeMap::new(),
            generation: 0,
        };
        while let Some((field, value)) = from.next_field()? {
            match field {
                1 => root = Some(RootId::from_bytes(value.hash(1)?)),
                2 if snapshot.parents.len() == PARENTS_MAX => {
                    return Err(Malformed::TooMuch { what: "a snapshot's parents" });
                }
                2 => snapshot.parents.push(SnapshotId::from_bytes(value.hash(2)?)),
                3 => snapshot.author = value.text(3)?,
                4 => snapshot.time = Time(value.signed(4)?),
                5 => snapshot.message = value.text(5)?,
                6 => {
                    let (key, value) = read_pair(value.message(6)?)?;
                    if snapshot.metadata.last_key_value().is_some_and(|(last, _)| *last >= key) {
                        return Err(Malformed::Order);
                    }
                    text_bytes += key.len() + value.len();
                    if text_bytes > TEXT_BYTES_MAX {
                        return Err(Malformed::TooMuch { what: "a snapshot's texts" });
                    }
                    snapshot.metadata.insert(key, value);
                }
                7 => snapshot.generation = value.number(7)?,
                number => return Err(Malformed::Field { number }),
            }
        }
        snapshot.root = root.ok_or(Malformed::Rule("a snapshot without a root"))?;
        snapshot.check()?;
        Ok(snapshot)
    }
}

fn read_pair(mut from: Reader) -> Result<(String, String), Malformed> {
    let mut pair = (String::new(), String::new());
    while let Some((field, value)) = from.next_field()? {
        match field {
            1 => pair.0 = value.text(1)?,
            2 => pair.1 = value.text(2)?,
            number => return Err(Malformed::Field { number }),
        }
    }
    Ok(pair)
}
