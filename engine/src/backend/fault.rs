//! A backend that injects faults. Tests use it to simulate a failing disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bytes::Bytes;

use super::reclaim::{KeptRows, Reclaimed, WatchReclaim};
use super::{
    Backend, Committed, Deletion, Epoch, Family, Holder, IndexRow, Inspect, Page, RowEdit, SharedCollection,
    StoredObject, Sweep, Transaction,
};
use crate::error::{Error, Result};
use crate::id::ObjectId;
use crate::reference::{Operation, RefName, RefValue, RequestId};
use crate::tombstone::Tombstone;

/// The fault plan, shared by the test and the backend. Counts the injected faults.
#[derive(Debug)]
pub struct FaultPlan {
    writes_left: AtomicI64,
    reads_left: AtomicI64,
    hits: AtomicU64,
}

impl Default for FaultPlan {
    fn default() -> Self {
        Self { writes_left: AtomicI64::new(i64::MAX), reads_left: AtomicI64::new(i64::MAX), hits: AtomicU64::new(0) }
    }
}

impl FaultPlan {
    /// Lets this many writes succeed, then fails all of them as on a full disk.
    pub fn full_after_writes(&self, writes: i64) {
        self.writes_left.store(writes, Ordering::SeqCst);
    }

    /// Lets this many reads succeed, then fails all of them.
    pub fn fail_after_reads(&self, reads: i64) {
        self.reads_left.store(reads, Ordering::SeqCst);
    }

    /// Stops injecting faults.
    pub fn heal(&self) {
        self.writes_left.store(i64::MAX, Ordering::SeqCst);
        self.reads_left.store(i64::MAX, Ordering::SeqCst);
    }

    /// Returns the number of failed calls so far.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::SeqCst)
    }

    fn write(&self, action: &'static str) -> Result<()> {
        self.spend(&self.writes_left, Error::Full { action, why: "injected: no space left on device".to_owned() })
    }

    fn read(&self, action: &'static str) -> Result<()> {
        self.spend(&self.reads_left, Error::Fault { action, why: "injected: input/output error".to_owned() })
    }

    fn spend(&self, left: &AtomicI64, error: Error) -> Result<()> {
        if left.fetch_sub(1, Ordering::SeqCst) > 0 {
            return Ok(());
        }
        self.hits.fetch_add(1, Ordering::SeqCst);
        Err(error)
    }
}

/// Forwards calls to a backend until its plan injects a fault.
pub struct Fault<B> {
    inner: B,
    plan: Arc<FaultPlan>,
}

impl<B> Fault<B> {
    /// Wraps a backend with a fault plan.
    pub fn new(inner: B, plan: Arc<FaultPlan>) -> Self {
        Self { inner, plan }
    }
}

impl<B: Backend> Backend for Fault<B> {
    fn get(&self, id: ObjectId) -> Result<Option<Bytes>> {
        self.plan.read("read an object")?;
        self.inner.get(id)
    }

    fn get_many(&self, ids: &[ObjectId]) -> Result<Vec<Option<Bytes>>> {
        self.plan.read("read objects")?;
        self.inner.get_many(ids)
    }

    fn contains_many(&self, ids: &[ObjectId], at_least: Epoch) -> Result<Vec<bool>> {
        self.plan.read("look objects up")?;
        self.inner.contains_many(ids, at_least)
    }

    fn put_ahead(&self, objects: Vec<StoredObject>) -> Result<()> {
        self.plan.write("write objects")?;
        self.inner.put_ahead(objects)
    }

    fn transact(&self, transaction: Transaction) -> Result<Committed> {
        self.plan.write("commit")?;
        self.inner.transact(transaction)
    }

    fn sync(&self) -> Result<()> {
        self.plan.write("sync")?;
        self.inner.sync()
    }

    fn empty_log(&self) -> Result<()> {
        self.plan.write("empty the log")?;
        self.inner.empty_log()
    }

    fn release_memory(&self) -> Result<()> {
        self.plan.write("empty the log")?;
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
        self.plan.read("read a reference")?;
        self.inner.read_ref(name)
    }

    fn last_move(&self, name: &RefName) -> Result<u64> {
        self.plan.read("read a reference")?;
        self.inner.last_move(name)
    }

    fn list_refs(&self, prefix: &str, after: Option<&RefName>, limit: usize) -> Result<Vec<(RefName, RefValue)>> {
        self.plan.read("list references")?;
        self.inner.list_refs(prefix, after, limit)
    }

    fn list_operations(&self, after: u64, limit: usize) -> Result<Vec<Operation>> {
        self.plan.read("list operations")?;
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
        self.plan.read("look a request up")?;
        self.inner.find_request(request)
    }

    fn tombstone(&self, id: ObjectId) -> Result<Option<Tombstone>> {
        self.plan.read("look a tombstone up")?;
        self.inner.tombstone(id)
    }
}

impl<B: Sweep> Sweep for Fault<B> {
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
        self.plan.write("delete objects")?;
        self.inner.delete(ids, older_than)
    }

    fn trim_operations(&self, before: u64, limit: usize) -> Result<u64> {
        self.plan.write("shorten the log")?;
        self.inner.trim_operations(before, limit)
    }

    fn reclaim(&self, named: KeptRows, watch: WatchReclaim<'_>) -> Result<Reclaimed> {
        self.plan.write("reclaim")?;
        self.inner.reclaim(named, watch)
    }
}

impl<B: Inspect> Inspect for Fault<B> {
    fn rows(&self, family: Family, from: &[u8], until: Option<&[u8]>, room_bytes: usize) -> Result<Page> {
        self.plan.read("read rows")?;
        self.inner.rows(family, from, until, room_bytes)
    }

    fn edit(&self, edits: Vec<RowEdit>) -> Result<()> {
        self.plan.write("repair")?;
        self.inner.edit(edits)
    }

    fn restore_objects(&self) -> Result<Vec<ObjectId>> {
        self.inner.restore_objects()
    }

    fn scrub(&self, removed: &[(Family, Bytes)]) -> Result<()> {
        self.plan.write("scrub")?;
        self.inner.scrub(removed)
    }
}
