//! The object index in memory: sorted by hash, 48 bytes per object, searched by the first bits of the hash.

use bytes::Bytes;
use rayon::prelude::*;

use crate::backend::rows::IndexValue;
use crate::backend::{Epoch, Family, Inspect, PageEnd};
use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind};

/// Page size for reading rows of the index and of records, in bytes.
const ROOM_BYTES: usize = 1 << 20;
/// Number of first bytes in which numbers and hashes differ.
const DISTINCT_BYTES: usize = 8;
const PARTS: u16 = 16;
const BUCKETS: usize = 1 << 16;

/// The number of an object in the index, counted from 0 in hash order.
pub(super) type ObjectIndex = u32;

pub(super) struct IndexedObject {
    pub(super) hash: [u8; 32],
    pub(super) kind: ObjectKind,
    pub(super) epoch: u32,
    pub(super) stored_bytes: u32,
    pub(super) number: u64,
}

#[derive(Default)]
pub(super) struct Index {
    pub(super) rows: Vec<IndexedObject>,
    /// The start of the hashes with these first two bytes.
    buckets: Vec<u32>,
    /// Rows that cannot be decoded, with the reason.
    pub(super) wrong: Vec<(Bytes, Bytes, String)>,
    /// The error messages of the database for rows that it cannot read.
    pub(super) unreadable: Vec<String>,
}

impl Index {
    pub(super) fn read(inspect: &dyn Inspect) -> Result<Self> {
        let part = |part: u16| {
            let mut index = Self::default();
            let edge = |part: u16| u8::try_from(part * (256 / PARTS)).ok().map(|byte| vec![byte]);
            let (from, until) = (edge(part).unwrap_or_default(), edge(part + 1));
            let from = if part == 0 { Vec::new() } else { from };
            index.unreadable = each_row(inspect, Family::Index, &from, until.as_deref(), &mut |key, value| {
                index_row(&key, &value).map(|row| index.rows.push(row)).unwrap_or_else(|why| {
                    index.wrong.push((key, value, why));
                });
            })?;
            Ok(index)
        };
        let parts: Result<Vec<Self>> = (0..PARTS).into_par_iter().map(part).collect();
        let mut index = Self::default();
        for part in parts? {
            index.rows.extend(part.rows);
            index.wrong.extend(part.wrong);
            index.unreadable.extend(part.unreadable);
        }
        if index.rows.len() >= ObjectIndex::MAX as usize / 2 {
            let (value, max) = (index.rows.len() as u64, u64::from(ObjectIndex::MAX / 2));
            return Err(Error::TooLarge { what: "objects to verify at once", value, max });
        }
        index.buckets = (0..=BUCKETS).map(|_| 0).collect();
        for row in &index.rows {
            index.buckets[bucket(&row.hash) + 1] += 1;
        }
        for at in 0..BUCKETS {
            index.buckets[at + 1] += index.buckets[at];
        }
        Ok(index)
    }

    /// Returns the index of a hash, regardless of its kind.
    pub(super) fn find(&self, hash: &[u8; 32]) -> Option<ObjectIndex> {
        let bucket = bucket(hash);
        let start = *self.buckets.get(bucket)?;
        let among = &self.rows[start as usize..self.buckets[bucket + 1] as usize];
        among.binary_search_by(|row| row.hash.cmp(hash)).ok().map(|at| start + at as u32)
    }

    pub(super) fn id(&self, object_index: ObjectIndex) -> ObjectId {
        let row = &self.rows[object_index as usize];
        ObjectId { kind: row.kind, hash: row.hash }
    }

    /// Returns the indices of the objects in a family, in the order of their rows.
    pub(super) fn in_family(&self, family: Family) -> Vec<ObjectIndex> {
        let object_indices = (0..).zip(&self.rows).filter(|(_, row)| Family::of(row.kind) == family);
        let mut object_indices: Vec<_> = object_indices.map(|(object_index, row)| (row.number, object_index)).collect();
        object_indices.par_sort_unstable();
        object_indices.into_iter().map(|(_, object_index)| object_index).collect()
    }
}

fn bucket(hash: &[u8; 32]) -> usize {
    usize::from(hash[0]) << 8 | usize::from(hash[1])
}

fn index_row(key: &[u8], value: &[u8]) -> Result<IndexedObject, String> {
    let hash = key.try_into().map_err(|_| "a key that is no hash".to_owned())?;
    let IndexValue { kind, epoch, stored_bytes, number } =
        IndexValue::decode(value).map_err(|_| "a row of the wrong form".to_owned())?;
    let small = |value: u64| u32::try_from(value).map_err(|_| "a size or epoch out of range".to_owned());
    Ok(IndexedObject { hash, kind, epoch: small(epoch)?, stored_bytes: small(stored_bytes)?, number })
}

impl IndexedObject {
    pub(super) fn value(&self) -> IndexValue {
        let (epoch, stored_bytes) = (Epoch::from(self.epoch), u64::from(self.stored_bytes));
        IndexValue { kind: self.kind, epoch, stored_bytes, number: self.number }
    }
}

/// Calls `take` for every readable row of a range. Returns the error messages of the database for unreadable rows. Skips those in
/// steps that double until a row can be read again.
pub(super) fn each_row(
    inspect: &dyn Inspect,
    family: Family,
    from: &[u8],
    until: Option<&[u8]>,
    take: &mut dyn FnMut(Bytes, Bytes),
) -> Result<Vec<String>> {
    let (mut from, mut steps, mut unreadable) = (from.to_vec(), 0, Vec::new());
    loop {
        let page = inspect.rows(family, &from, until, ROOM_BYTES)?;
        if let Some((last, _)) = page.rows.last() {
            (from, steps) = ([last, &[0][..]].concat(), 0);
        }
        page.rows.into_iter().for_each(|(key, value)| take(key, value));
        match page.end {
            PageEnd::Range => return Ok(dedup(unreadable)),
            PageEnd::Room => {}
            PageEnd::Damaged { why } => {
                unreadable.push(why);
                // Names can have any number of first bytes in common.
                let distinct = match family {
                    Family::Refs | Family::Requests => from.len(),
                    _ => from.len().min(DISTINCT_BYTES),
                };
                match further(&from[..distinct], steps) {
                    Some(next) if until.is_none_or(|until| &next[..] < until) => from = next,
                    _ => return Ok(dedup(unreadable)),
                }
                steps += 1;
            }
        }
    }
}

fn dedup(mut whys: Vec<String>) -> Vec<String> {
    whys.dedup();
    whys
}

/// Returns a key some distance after another one: 2 to the power of `steps` is added to its bytes as one big-endian number. Returns
/// `None` after the last key.
fn further(key: &[u8], steps: u32) -> Option<Vec<u8>> {
    let mut next = key.to_vec();
    next.resize(key.len().max(DISTINCT_BYTES), 0);
    let mut at = next.len().checked_sub(1 + steps as usize / 8)?;
    let (sum, mut carry) = next[at].overflowing_add(1 << (steps % 8));
    next[at] = sum;
    while carry {
        at = at.checked_sub(1)?;
        (next[at], carry) = next[at].overflowing_add(1);
    }
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distance_is_added_at_the_end_of_a_key() {
        assert_eq!(further(b"", 0), Some(vec![0, 0, 0, 0, 0, 0, 0, 1]));
        assert_eq!(further(&[0, 0, 0, 0, 0, 0, 1, 255], 0), Some(vec![0, 0, 0, 0, 0, 0, 2, 0]));
        assert_eq!(further(b"workspace/a", 8), Some(b"workspace0a".to_vec()));
        assert_eq!(further(&[255; 8], 0), None);
        assert_eq!(further(b"", 64), None);
    }

    #[test]
    fn unreadable_names_hide_few_that_begin_with_the_same_bytes() {
        let mut key = b"workspace/0100\0".to_vec();
        for steps in 0.. {
            key = further(&key, steps).expect("not the last key");
            if key[..] > b"workspace/0200"[..] {
                break;
            }
        }
        assert!(key[..] < b"workspace/0301"[..], "{}", key.escape_ascii());
    }
}
