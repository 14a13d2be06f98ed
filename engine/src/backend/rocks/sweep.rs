//! The deleting half.

use rocksdb::{Direction, IteratorMode, ReadOptions, WriteBatch};

use super::Rocks;
use super::settings::{EPOCH_KEY, INDEX, META, fault, object_family};
use crate::backend::home::damaged;
use crate::backend::rows::IndexValue;
use crate::backend::{Epoch, IndexRow, Sweep};
use crate::error::Result;
use crate::id::ObjectId;

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
        let mut rows = Vec::new();
        for row in self.database.iterator_cf_opt(self.family(INDEX), options, mode) {
            let (key, value) = row.map_err(|source| fault("scan objects", &source))?;
            if after.is_some_and(|id| id.hash[..] == *key) {
                continue;
            }
            if rows.len() == limit {
                break;
            }
            let hash = key[..].try_into().map_err(|why| damaged("object index", &why))?;
            let value = IndexValue::decode(&value)?;
            let id = ObjectId { kind: value.kind, hash };
            rows.push(IndexRow { id, stored_bytes: value.stored_bytes, epoch: value.epoch });
        }
        Ok(rows)
    }

    fn delete(&self, ids: &[ObjectId], older_than: Epoch) -> Result<u64> {
        let mut deleted = 0;
        for id in ids {
            let _guard = self.stripe(*id).lock();
            let Some(value) = self.index_row(*id)?.filter(|value| value.epoch < older_than) else {
                continue;
            };
            let mut batch = WriteBatch::default();
            batch.delete_cf(self.family(INDEX), id.hash);
            batch.delete_cf(self.family(object_family(id.kind)), value.number.to_be_bytes());
            self.write(batch, false)?;
            deleted += 1;
        }
        Ok(deleted)
    }
}
