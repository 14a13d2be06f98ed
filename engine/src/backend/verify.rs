//! A backend that verifies the hash on every put and get. For stores with untrusted input, and for tests.

use std::sync::Arc;

use bytes::Bytes;

use super::reclaim::{KeptRows, Reclaimed, WatchReclaim};
use super::{
    Backend, Committed, Deletion, Epoch, Family, Holder, IndexRow, Inspect, Page, RowEdit, SharedCollection,
    StoredObject, Sweep, Transaction,
};
use crate::compress;
use crate::error::{Error, Result};
use crate::id::ObjectId;
use crate::reference::{Operation, RefName, RefValue, RequestId};
use crate::tombstone::Tombstone;

/// Verifies that all bytes match the hash of their id.
pub struct Verify<B>(pub B);

fn check(id: ObjectId, stored: &Bytes) -> Result<()> {
    let canonical = compress::canonical(id, stored)?;
    if ObjectId::of(id.kind, &canonical) == id { Ok(()) } else { Err(Error::HashMismatch { id }) }
}

fn check_all(objects: &[StoredObject]) -> Result<()> {
    objects.iter().try_for_each(|object| check(object.id, &object.bytes))
}

impl<B: Backend> Backend for Verify<B> {
    fn get(&self, id: ObjectId) -> Result<Option<Bytes>> {
        let found = self.0.get(id)?;
        found.iter().try_for_each(|bytes| check(id, bytes))?;
        Ok(found)
    }

    fn get_many(&self, ids: &[ObjectId]) -> Result<Vec<Option<Bytes>>> {
        let found = self.0.get_many(ids)?;
        for (id, bytes) in ids.iter().zip(&found) {
            bytes.iter().try_for_each(|bytes| check(*id, bytes))?;
        }
        Ok(found)
    }

    fn contains_many(&self, ids: &[ObjectId], at_least: Epoch) -> Result<Vec<bool>> {
        self.0.contains_many(ids, at_least)
    }

    fn put_ahead(&self, objects: Vec<StoredObject>) -> Result<()> {
        check_all(&objects)?;
        self.0.put_ahead(objects)
    }

    fn transact(&self, transaction: Transaction) -> Result<Committed> {
        check_all(&transaction.objects)?;
        self.0.transact(transaction)
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn empty_log(&self) -> Result<()> {
        self.0.empty_log()
    }

    fn release_memory(&self) -> Result<()> {
        self.0.release_memory()
    }

    fn epoch(&self) -> Epoch {
        self.0.epoch()
    }

    fn share_holds(&self, holder: Arc<dyn Holder>) {
        self.0.share_holds(holder);
    }

    fn announce_pin(&self, id: ObjectId) -> Result<()> {
        self.0.announce_pin(id)
    }

    fn read_ref(&self, name: &RefName) -> Result<Option<RefValue>> {
        self.0.read_ref(name)
    }

    fn last_move(&self, name: &RefName) -> Result<u64> {
        self.0.last_move(name)
    }

    fn list_refs(&self, prefix: &str, after: Option<&RefName>, limit: usize) -> Result<Vec<(RefName, RefValue)>> {
        self.0.list_refs(prefix, after, limit)
    }

    fn list_operations(&self, after: u64, limit: usize) -> Result<Vec<Operation>> {
        self.0.list_operations(after, limit)
    }

    fn last_operation(&self) -> Result<u64> {
        self.0.last_operation()
    }

    fn names_of(&self, target: ObjectId) -> Result<Vec<RefName>> {
        self.0.names_of(target)
    }

    fn greatest_deleted(&self, prefix: &str) -> Result<Option<u64>> {
        self.0.greatest_deleted(prefix)
    }

    fn first_operation(&self) -> Result<u64> {
        self.0.first_operation()
    }

    fn find_request(&self, request: &RequestId) -> Result<Option<Operation>> {
        self.0.find_request(request)
    }

    fn tombstone(&self, id: ObjectId) -> Result<Option<Tombstone>> {
        self.0.tombstone(id)
    }
}

impl<B: Sweep> Sweep for Verify<B> {
    fn advance_epoch(&self) -> Result<Epoch> {
        self.0.advance_epoch()
    }

    fn sessions_elsewhere(&self) -> Result<Option<Epoch>> {
        self.0.sessions_elsewhere()
    }

    fn pins_elsewhere(&self) -> Result<Vec<ObjectId>> {
        self.0.pins_elsewhere()
    }

    fn last_collection(&self) -> Result<Option<SharedCollection>> {
        self.0.last_collection()
    }

    fn end_collection(&self) {
        self.0.end_collection();
    }

    fn scan(&self, after: Option<ObjectId>, limit: usize) -> Result<Vec<IndexRow>> {
        self.0.scan(after, limit)
    }

    fn look_up(&self, ids: &[ObjectId]) -> Result<Vec<Option<IndexRow>>> {
        self.0.look_up(ids)
    }

    fn objects_estimate(&self) -> Result<u64> {
        self.0.objects_estimate()
    }

    fn numbers_end(&self) -> Result<u64> {
        self.0.numbers_end()
    }

    fn delete(&self, ids: &[ObjectId], older_than: Epoch) -> Result<Deletion> {
        self.0.delete(ids, older_than)
    }

    fn trim_operations(&self, before: u64, limit: usize) -> Result<u64> {
        self.0.trim_operations(before, limit)
    }

    fn reclaim(&self, named: KeptRows, watch: WatchReclaim<'_>) -> Result<Reclaimed> {
        self.0.reclaim(named, watch)
    }
}

impl<B: Inspect> Inspect for Verify<B> {
    fn rows(&self, family: Family, from: &[u8], until: Option<&[u8]>, room_bytes: usize) -> Result<Page> {
        self.0.rows(family, from, until, room_bytes)
    }

    fn edit(&self, edits: Vec<RowEdit>) -> Result<()> {
        self.0.edit(edits)
    }

    fn restore_objects(&self) -> Result<Vec<ObjectId>> {
        self.0.restore_objects()
    }

    fn scrub(&self, removed: &[(Family, Bytes)]) -> Result<()> {
        self.0.scrub(removed)
    }
}
