//! The deleting half.

use std::sync::atomic::Ordering;

use rocksdb::{Direction, IteratorMode, ReadOptions, WriteBatch};

use super::Rocks;
use super::settings::{EPOCH_KEY, INDEX, META, fault};
use crate::backend::home::damaged;
use crate::backend::rows::IndexValue;
use crate::backend::{Epoch, IndexRow, Named, Reclaimed, Sweep, WatchReclaim};
use crate::error::Result;
use crate::id::ObjectId;

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
        let mode = match &after {
            None => IteratorMode::Start,
            Some(id) => IteratorMode::From(&id.hash, Direction::Forward),
        };
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        if limit > 1_000 {
            options.set_readahead_size(READAHEAD_BYTES);
        }
        let mut rows = Vec::with_capacity(limit.min(8_192));
        for row in self.database.iterator_cf_opt(self.family(INDEX), options, mode) {
            let (key, value) = row.map_err(|source| fault("scan objects", &source))?;
            if after.is_some_and(|id| id.hash[..] == *key) {
                continue;
            }
            if rows.len() == limit {
                break;
            }
            let hash = key[..].try_into().map_err(|why| damaged("object index", &why))?;
            rows.push(IndexValue::decode(&value)?.row(hash));
        }
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
        // Whoever has taken numbers and not yet written the index is waited for.
        let _alone = self.numbering.write();
        Ok(self.next_object.load(Ordering::SeqCst))
    }

    fn delete(&self, ids: &[ObjectId], older_than: Epoch) -> Result<Vec<bool>> {
        let _stripes = self.lock_stripes(ids.iter().copied());
        let mut batch = WriteBatch::default();
        let mut gone = Vec::with_capacity(ids.len());
        for (id, value) in ids.iter().zip(self.index_rows(ids)?) {
            let goes = value.is_some_and(|value| value.kind == id.kind && value.epoch < older_than);
            if goes {
                batch.delete_cf(self.family(INDEX), id.hash);
            }
            gone.push(goes);
        }
        if !batch.is_empty() {
            self.write(batch, false)?;
        }
        Ok(gone)
    }

    fn reclaim(&self, named: Named, watch: WatchReclaim<'_>) -> Result<Reclaimed> {
        self.reclaim_rows(named, watch)
    }
}
