//! A backend that counts calls and bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::reclaim::{KeptRows, Reclaimed, WatchReclaim};
use super::{
    Backend, Committed, Deletion, Epoch, Family, Holder, IndexRow, Inspect, MatchCallback, Page, ReadCallback, RowEdit,
    SharedCollection, StoredObject, Sweep, Transaction,
};
use crate::error::Result;
use crate::id::ObjectId;
use crate::reference::{Operation, RefName, RefValue, RequestId};
use crate::tombstone::Tombstone;

/// Counters, shared with their readers.
#[derive(Debug, Default)]
pub struct Meter {
    gets: AtomicU64,
    bytes_read: AtomicU64,
    lookups: AtomicU64,
    objects_written: AtomicU64,
    bytes_written: AtomicU64,
    transactions: AtomicU64,
    refs_listed: AtomicU64,
}

impl Meter {
    /// Returns the number of requested objects.
    pub fn gets(&self) -> u64 {
        self.gets.load(Ordering::Relaxed)
    }

    /// Returns the number of stored bytes returned.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Returns the number of ids looked up in the index.
    pub fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::Relaxed)
    }

    /// Returns the number of objects written.
    pub fn objects_written(&self) -> u64 {
        self.objects_written.load(Ordering::Relaxed)
    }

    /// Returns the number of stored bytes written.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written.load(Ordering::Relaxed)
    }

    /// Returns the number of completed transactions.
    pub fn transactions(&self) -> u64 {
        self.transactions.load(Ordering::Relaxed)
    }

    /// References that listings returned.
    pub fn refs_listed(&self) -> u64 {
        self.refs_listed.load(Ordering::Relaxed)
    }

    fn wrote(&self, objects: u64, bytes: u64) {
        self.objects_written.fetch_add(objects, Ordering::Relaxed);
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }

    fn read(&self, asked: usize, bytes: u64) {
        self.gets.fetch_add(asked as u64, Ordering::Relaxed);
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Counts calls and forwards them to a backend.
pub struct Metered<B> {
    inner: B,
    meter: Arc<Meter>,
}

impl<B> Metered<B> {
    /// Wraps a backend with a meter.
    pub fn new(inner: B, meter: Arc<Meter>) -> Self {
        Self { inner, meter }
    }
}

fn size(objects: &[StoredObject]) -> (u64, u64) {
    (objects.len() as u64, objects.iter().map(|object| object.bytes.len() as u64).sum())
}

impl<B: Backend> Backend for Metered<B> {
    fn get(&self, id: ObjectId) -> Result<Option<Bytes>> {
        let found = self.inner.get(id)?;
        self.meter.read(1, found.as_ref().map_or(0, |bytes| bytes.len() as u64));
        Ok(found)
    }

    fn get_many(&self, ids: &[ObjectId]) -> Result<Vec<Option<Bytes>>> {
        let found = self.inner.get_many(ids)?;
        self.meter.read(ids.len(), found.iter().flatten().map(|bytes| bytes.len() as u64).sum());
        Ok(found)
    }

    fn look_at_many(&self, ids: &[ObjectId], look: &mut ReadCallback<'_>) -> Result<()> {
        let mut bytes = 0;
        self.inner.look_at_many(ids, &mut |place, stored| {
            bytes += stored.map_or(0, |stored| stored.len() as u64);
            look(place, stored)
        })?;
        self.meter.read(ids.len(), bytes);
        Ok(())
    }

    fn guess_many(&self, ids: &[ObjectId], look: &mut MatchCallback<'_>) -> Result<Vec<usize>> {
        let mut read = 0;
        let others = self.inner.guess_many(ids, &mut |place, stored| {
            read += stored.len() as u64;
            look(place, stored)
        })?;
        self.meter.read(ids.len() - others.len(), read);
        Ok(others)
    }

    fn contains_many(&self, ids: &[ObjectId], at_least: Epoch) -> Result<Vec<bool>> {
        self.meter.lookups.fetch_add(ids.len() as u64, Ordering::Relaxed);
        self.inner.contains_many(ids, at_least)
    }

    fn put_ahead(&self, objects: Vec<StoredObject>) -> Result<()> {
        let (count, bytes) = size(&objects);
        self.inner.put_ahead(objects)?;
        self.meter.wrote(count, bytes);
        Ok(())
    }

    fn transact(&self, transaction: Transaction) -> Result<Committed> {
        let (count, bytes) = size(&transaction.objects);
        let committed = self.inner.transact(transaction)?;
        if !committed.replayed {
            self.meter.wrote(count, bytes);
            self.meter.transactions.fetch_add(1, Ordering::Relaxed);
        }
        Ok(committed)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn empty_log(&self) -> Result<()> {
        self.inner.empty_log()
    }

    fn release_memory(&self) -> Result<()> {
        self.inner.release_memory()
    }

    fn epoch(&self) -> Epoch {
        self.inner.epoch()
    }

    fn share_holds(&self, holder: Arc<dyn Holder>) {
        self.inner.share_holds(holder);
    }

    fn announce_pin(&self, id: ObjectId) -> Result<()> {
        self.inner.announce_pin(id)
    }

    fn read_ref(&self, name: &RefName) -> Result<Option<RefValue>> {
        self.inner.read_ref(name)
    }

    fn last_move(&self, name: &RefName) -> Result<u64> {
        self.inner.last_move(name)
    }

    fn list_refs(&self, prefix: &str, after: Option<&RefName>, limit: usize) -> Result<Vec<(RefName, RefValue)>> {
        let listed = self.inner.list_refs(prefix, after, limit)?;
        self.meter.refs_listed.fetch_add(listed.len() as u64, Ordering::Relaxed);
        Ok(listed)
    }

    fn list_operations(&self, after: u64, limit: usize) -> Result<Vec<Operation>> {
        self.inner.list_operations(after, limit)
    }

    fn last_operation(&self) -> Result<u64> {
        self.inner.last_operation()
    }

    fn names_of(&self, target: ObjectId) -> Result<Vec<RefName>> {
        self.inner.names_of(target)
    }

    fn greatest_deleted(&self, prefix: &str) -> Result<Option<u64>> {
        self.inner.greatest_deleted(prefix)
    }

    fn first_operation(&self) -> Result<u64> {
        self.inner.first_operation()
    }

    fn find_request(&self, request: &RequestId) -> Result<Option<Operation>> {
        self.inner.find_request(request)
    }

    fn tombstone(&self, id: ObjectId) -> Result<Option<Tombstone>> {
        self.inner.tombstone(id)
    }
}

impl<B: Sweep> Sweep for Metered<B> {
    fn advance_epoch(&self) -> Result<Epoch> {
        self.inner.advance_epoch()
    }

    fn sessions_elsewhere(&self) -> Result<Option<Epoch>> {
        self.inner.sessions_elsewhere()
    }

    fn pins_elsewhere(&self) -> Result<Vec<ObjectId>> {
        self.inner.pins_elsewhere()
    }

    fn last_collection(&self) -> Result<Option<SharedCollection>> {
        self.inner.last_collection()
    }

    fn end_collection(&self) {
        self.inner.end_collection();
    }

    fn scan(&self, after: Option<ObjectId>, limit: usize) -> Result<Vec<IndexRow>> {
        self.inner.scan(after, limit)
    }

    fn look_up(&self, ids: &[ObjectId]) -> Result<Vec<Option<IndexRow>>> {
        self.inner.look_up(ids)
    }

    fn objects_estimate(&self) -> Result<u64> {
        self.inner.objects_estimate()
    }

    fn numbers_end(&self) -> Result<u64> {
        self.inner.numbers_end()
    }

    fn delete(&self, ids: &[ObjectId], older_than: Epoch) -> Result<Deletion> {
        self.inner.delete(ids, older_than)
    }

    fn trim_operations(&self, before: u64, limit: usize) -> Result<u64> {
        self.inner.trim_operations(before, limit)
    }

    fn reclaim(&self, named: KeptRows, watch: WatchReclaim<'_>) -> Result<Reclaimed> {
        self.inner.reclaim(named, watch)
    }
}

impl<B: Inspect> Inspect for Metered<B> {
    fn rows(&self, family: Family, from: &[u8], until: Option<&[u8]>, room_bytes: usize) -> Result<Page> {
        self.inner.rows(family, from, until, room_bytes)
    }

    fn edit(&self, edits: Vec<RowEdit>) -> Result<()> {
        self.inner.edit(edits)
    }

    fn restore_objects(&self) -> Result<Vec<ObjectId>> {
        self.inner.restore_objects()
    }

    fn scrub(&self, removed: &[(Family, Bytes)]) -> Result<()> {
        self.inner.scrub(removed)
    }
}
