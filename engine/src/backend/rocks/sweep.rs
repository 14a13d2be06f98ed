//! Deletion for garbage collection in RocksDB.

use std::sync::atomic::Ordering;

use rocksdb::{ReadOptions, WriteBatch};

use super::Rocks;
use super::settings::{EPOCH_KEY, INDEX, META, UNRECLAIMED_KEY, fault};
use crate::backend::home::damaged;
use crate::backend::rows::IndexValue;
use crate::backend::{Deletion, Epoch, IndexRow, KeptRows, Reclaimed, Sweep, WatchReclaim};
use crate::error::Result;
use crate::id::ObjectId;

/// From this many objects per page on, a sequential read of the index is faster than individual lookups.
const RUN_ROWS: usize = 256;
/// A scan with a larger limit is a full scan of the index and uses read-ahead.
const READAHEAD_ROWS: usize = 1_000;
const READAHEAD_BYTES: usize = 256 << 10;

impl Sweep for Rocks {
    fn advance_epoch(&self) -> Result<Epoch> {
        let mut epoch = self.epoch.write();
        let mut batch = WriteBatch::default();
        batch.put_cf(self.family(META), EPOCH_KEY, (*epoch + 1).to_be_bytes());
        self.write(batch, true)?;
        *epoch += 1;
        Ok(*epoch)
    }

    fn scan(&self, after: Option<ObjectId>, limit: usize) -> Result<Vec<IndexRow>> {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        if limit > READAHEAD_ROWS {
            options.set_readahead_size(READAHEAD_BYTES);
        }
        let mut cursor = self.database.raw_iterator_cf_opt(self.family(INDEX), options);
        match &after {
            None => cursor.seek_to_first(),
            Some(id) => cursor.seek(id.hash),
        }
        let mut rows = Vec::with_capacity(limit.min(READAHEAD_ROWS));
        while let Some((key, value)) = cursor.item().filter(|_| rows.len() < limit) {
            if after.is_none_or(|id| id.hash[..] != *key) {
                let hash = key.try_into().map_err(|why| damaged("object index", &why))?;
                rows.push(IndexValue::decode(value)?.row(hash));
            }
            cursor.next();
        }
        cursor.status().map_err(|source| fault("scan objects", &source))?;
        Ok(rows)
    }

    fn look_up(&self, ids: &[ObjectId]) -> Result<Vec<Option<IndexRow>>> {
        let row = |(id, value): (&ObjectId, Option<IndexValue>)| {
            value.filter(|value| value.kind == id.kind).map(|value| value.row(id.hash))
        };
        Ok(ids.iter().zip(self.index_rows(ids)?).map(row).collect())
    }

    fn objects_estimate(&self) -> Result<u64> {
        let rows = self.database.property_int_value_cf(self.family(INDEX), "rocksdb.estimate-num-keys");
        Ok(rows.map_err(|source| fault("count objects", &source))?.unwrap_or(0))
    }

    fn numbers_end(&self) -> Result<u64> {
        // Waits for threads that have taken numbers but not written the index yet.
        let _alone = self.numbering.write();
        Ok(self.next_object.load(Ordering::SeqCst))
    }

    fn delete(&self, ids: &[ObjectId], older_than: Epoch) -> Result<Deletion> {
        let _stripes = self.lock_stripes(ids.iter().copied());
        let is_run = ids.len() >= RUN_ROWS && ids.is_sorted_by(|one, two| one.hash < two.hash);
        let values = if is_run { self.index_run(ids)? } else { self.index_rows(ids)? };
        let mut batch = WriteBatch::default();
        let mut gone = Vec::with_capacity(ids.len());
        for (id, value) in ids.iter().zip(values) {
            let goes = value.is_some_and(|value| value.kind == id.kind && value.epoch < older_than);
            if goes {
                batch.delete_cf(self.family(INDEX), id.hash);
            }
            gone.push(goes);
        }
        if !batch.is_empty() {
            let deleted = batch.len() as u64;
            if self.unreclaimed.load(Ordering::SeqCst) == 0 {
                batch.put_cf(self.family(META), UNRECLAIMED_KEY, []);
            }
            // Counted before the write: a count that is too high is safe, one that is too low is not.
            self.unreclaimed.fetch_add(deleted, Ordering::SeqCst);
            self.write(batch, false)?;
        }
        Ok(Deletion::Done(gone))
    }

    fn trim_operations(&self, before: u64, limit: usize) -> Result<u64> {
        self.trim_log(before, limit)
    }

    fn reclaim(&self, named: KeptRows, watch: WatchReclaim<'_>) -> Result<Reclaimed> {
        self.reclaim_rows(named, watch)
    }
}

impl Rocks {
    /// Returns the index rows of many objects that are close together, in ascending order, with one sequential read.
    fn index_run(&self, ids: &[ObjectId]) -> Result<Vec<Option<IndexValue>>> {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        let mut cursor = self.database.raw_iterator_cf_opt(self.family(INDEX), options);
        if let Some(first) = ids.first() {
            cursor.seek(first.hash);
        }
        let mut values = Vec::with_capacity(ids.len());
        for id in ids {
            while cursor.key().is_some_and(|key| *key < id.hash[..]) {
                cursor.next();
            }
            let found = cursor.item().filter(|(key, _)| **key == id.hash[..]);
            values.push(found.map(|(_, value)| IndexValue::decode(value)).transpose()?);
        }
        cursor.status().map_err(|source| fault("read", &source))?;
        Ok(values)
    }
}
