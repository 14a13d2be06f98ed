//! An index of references beside the references: which labels and workspaces point at an object, and the greatest number under which
//! a name was deleted.
//!
//! Its rows lie in the default family and are written with the references that they index, in one batch. A row beside them holds
//! the operation up to which they are complete. If that is not the last one (an older version wrote, or a repair), they are rebuilt
//! when they are first needed.

use std::sync::atomic::Ordering;

use rocksdb::{Direction, IteratorMode, ReadOptions, WriteBatch};

use super::Rocks;
use super::settings::{META, REFS, fault};
use crate::backend::Backend;
use crate::backend::rows::{RefRow, after_prefix, damaged, number};
use crate::error::Result;
use crate::id::ObjectId;
use crate::reference::{RefName, RefValue};

/// The operation up to which the index is complete.
const INDEXED_UNTIL_KEY: &[u8] = b"references indexed until";
const BY_TARGET: &[u8] = b"reference by target ";
const BY_NUMBER: &[u8] = b"reference by number ";
/// Bounds of the index rows: the prefix of their keys, and the first key behind them.
const FIRST: &[u8] = b"reference by ";
const END: &[u8] = b"reference by!";
/// Prefixes of the references that are indexed by their target.
const TARGETED: [&str; 2] = ["label/", "workspace/"];
/// Prefix of the references that are indexed by the number at their end.
const NUMBERED: &str = "deleted/";
/// Number of rows in one batch when the index is rebuilt.
const ROWS_AT_ONCE: usize = 4_096;

impl Rocks {
    /// Checks when the store is opened whether the index is complete, and remembers the result.
    pub(super) fn load_indexed(&self, last_operation: u64) -> Result<()> {
        let until = self.read(META, INDEXED_UNTIL_KEY)?.map(|bytes| number(&bytes, "index of references"));
        // An index whose row cannot be read is rebuilt.
        let is_complete = until.map_or(last_operation == 0, |until| until.is_ok_and(|until| until == last_operation));
        self.names_are_indexed.store(is_complete, Ordering::SeqCst);
        Ok(())
    }

    /// Adds the changes of the index for a reference that moves to a batch.
    pub(super) fn index_move(
        &self,
        batch: &mut WriteBatch,
        name: &RefName,
        before: Option<&RefValue>,
        after: Option<&RefValue>,
    ) {
        if !self.names_are_indexed.load(Ordering::SeqCst) {
            return;
        }
        let key = |value: Option<&RefValue>| value.and_then(|value| key_of(name.as_str(), value));
        let (before, after) = (key(before), key(after));
        if before == after {
            return;
        }
        let meta = self.family(META);
        before.iter().for_each(|key| batch.delete_cf(meta, key));
        after.iter().for_each(|key| batch.put_cf(meta, key, []));
    }

    /// Adds the mark that the index is complete up to an operation to a batch. Does nothing if the index is not complete.
    pub(super) fn note_indexed(&self, batch: &mut WriteBatch, last_operation: u64) {
        if self.names_are_indexed.load(Ordering::SeqCst) {
            batch.put_cf(self.family(META), INDEXED_UNTIL_KEY, last_operation.to_be_bytes());
        }
    }

    /// Marks the index as incomplete, because rows of references changed without a transaction.
    pub(super) fn forget_indexed(&self, batch: &mut WriteBatch) {
        self.names_are_indexed.store(false, Ordering::SeqCst);
        batch.delete_cf(self.family(META), INDEXED_UNTIL_KEY);
    }

    /// Returns the names of labels and workspaces that point at an object.
    pub(super) fn indexed_names(&self, target: ObjectId) -> Result<Vec<RefName>> {
        self.ensure_indexed()?;
        let prefix = target_key(target, "");
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(after_prefix(&prefix));
        let start = IteratorMode::From(&prefix, Direction::Forward);
        let mut found = Vec::new();
        for row in self.database.iterator_cf_opt(self.family(META), options, start) {
            let (key, _) = row.map_err(|source| fault("list references", &source))?;
            let name = std::str::from_utf8(&key[prefix.len()..]).map_err(|why| damaged("index of references", &why))?;
            found.push(RefName::new(name).map_err(|why| damaged("index of references", &why))?);
        }
        Ok(found)
    }

    /// Returns the greatest number of the references with this prefix; `None` if there are none.
    pub(super) fn indexed_number(&self, prefix: &str) -> Result<Option<u64>> {
        self.ensure_indexed()?;
        let start = [BY_NUMBER, prefix.as_bytes()].concat();
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(start.clone());
        let mut rows = self.database.raw_iterator_cf_opt(self.family(META), options);
        rows.seek_for_prev([&start[..], &u64::MAX.to_be_bytes()].concat());
        let found =
            rows.key().and_then(|key| key.strip_prefix(&start[..])).map(|key| number(key, "index of references"));
        rows.status().map_err(|source| fault("list references", &source))?;
        found.transpose()
    }

    fn ensure_indexed(&self) -> Result<()> {
        if self.names_are_indexed.load(Ordering::SeqCst) {
            return Ok(());
        }
        // The lock keeps references from moving meanwhile.
        let _alone = self.numbering.write();
        if self.names_are_indexed.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut batch = WriteBatch::default();
        batch.delete_range_cf(self.family(META), FIRST, END);
        for prefix in [NUMBERED, TARGETED[0], TARGETED[1]] {
            let mut options = ReadOptions::default();
            options.set_iterate_upper_bound(after_prefix(prefix.as_bytes()));
            options.fill_cache(false);
            let start = IteratorMode::From(prefix.as_bytes(), Direction::Forward);
            for row in self.database.iterator_cf_opt(self.family(REFS), options, start) {
                let (key, value) = row.map_err(|source| fault("list references", &source))?;
                let name = std::str::from_utf8(&key).map_err(|why| damaged("reference", &why))?;
                let row = RefRow::decode(value.into_vec().into())?;
                if let Some(key) = key_of(name, &row.value) {
                    batch.put_cf(self.family(META), key, []);
                }
                if batch.len() >= ROWS_AT_ONCE {
                    self.write(std::mem::take(&mut batch), false)?;
                }
            }
        }
        batch.put_cf(self.family(META), INDEXED_UNTIL_KEY, self.last_operation()?.to_be_bytes());
        self.write(batch, false)?;
        self.names_are_indexed.store(true, Ordering::SeqCst);
        Ok(())
    }
}

/// Returns the key of a reference's row in the index; `None` if the reference is not indexed.
fn key_of(name: &str, value: &RefValue) -> Option<Vec<u8>> {
    if TARGETED.iter().any(|kind| name.starts_with(kind)) {
        return value.target.map(|target| target_key(target, name));
    }
    let (before, number) = name.strip_prefix(NUMBERED).and(name.rsplit_once('@'))?;
    let number: u64 = number.parse().ok()?;
    Some([BY_NUMBER, before.as_bytes(), b"@", &number.to_be_bytes()].concat())
}

fn target_key(target: ObjectId, name: &str) -> Vec<u8> {
    [BY_TARGET, &[target.kind as u8], &target.hash, name.as_bytes()].concat()
}
