//! Storage of objects and references. The [`Backend`] trait uses plain data only, so that an implementation needs no knowledge of
//! trees; all other code uses [`Store`](crate::Store).
//!
//! Objects are immutable and puts are idempotent. References move only by compare-and-swap, any number of them atomically,
//! together with their operation record. Only [`Sweep`] deletes, and [`Inspect`] during a repair or a purge.

mod check;
mod fault;
mod fold_leases;
mod group;
#[cfg(feature = "rocksdb")]
mod home;
mod inspect;
mod live_trees;
mod memory;
mod meter;
mod numbers;
mod reclaim;
#[cfg(feature = "rocksdb")]
mod rocks;
pub mod rows;
mod shared;
mod verify;

pub use fault::{Fault, FaultPlan};
pub use fold_leases::FoldLeases;
pub use group::Group;
#[cfg(feature = "rocksdb")]
pub use home::RESERVE_FILE;
pub use inspect::{Family, Inspect, Page, PageEnd, RowEdit};
pub use live_trees::{FilePart, LiveTrees, TakenTree};
pub use memory::Memory;
pub use meter::{Meter, Metered};
pub use numbers::NumberSet;
pub use reclaim::{KeptRows, ReclaimProgress, Reclaimed, WatchReclaim};
#[cfg(feature = "rocksdb")]
pub use rocks::{DiskCache, Rocks, RocksOptions, SharedMemory, recover};
pub use shared::{Deletion, Held, Holder, SharedCollection};
pub use verify::Verify;

use std::sync::Arc;

use bytes::Bytes;

use crate::error::Result;
use crate::id::ObjectId;
use crate::reference::{Operation, OperationDraft, RefName, RefValue, RequestId};
use crate::tombstone::Tombstone;

/// The number of collections so far. An object carries the epoch in which it was last written, or checked for by a session that
/// needed it. A later write never carries an earlier epoch.
pub type Epoch = u64;

/// An object in stored form: a chunk with its codec byte, any other object in its canonical bytes.
#[derive(Clone, Debug)]
pub struct StoredObject {
    /// The id, computed from the canonical bytes.
    pub id: ObjectId,
    /// The stored bytes.
    pub bytes: Bytes,
}

/// The durability required before a transaction is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// On disk: survives a power failure.
    #[default]
    Durable,
    /// In the write-ahead log: survives the end of the process. A power failure may lose the newest transactions, never one from
    /// the middle.
    Buffered,
}

/// An atomic change: objects, and references that move.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// Objects that are not in the store yet. Earlier ones may have been written ahead.
    pub objects: Vec<StoredObject>,
    /// The expected values of references. If one differs, the transaction fails.
    pub expect: Vec<(RefName, Option<RefValue>)>,
    /// The new values of references. Each must be among the expected ones.
    pub set: Vec<(RefName, Option<RefValue>)>,
    /// The operation record; required if `set` is not empty.
    pub operation: Option<OperationDraft>,
    /// The durability required before the transaction is acknowledged.
    pub durability: Durability,
}

/// The result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The operation record, if there is one.
    pub operation: Option<Operation>,
    /// Whether this is the result of an earlier transaction with the same request id. Nothing was changed this time.
    pub replayed: bool,
}

/// A row of the object index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexRow {
    /// The id of the object.
    pub id: ObjectId,
    /// The number of stored bytes.
    pub stored_bytes: u64,
    /// The epoch in which it was last written or checked for.
    pub epoch: Epoch,
    /// The key of its bytes in the family of its kind. Numbers ascend in write order.
    pub number: u64,
}

/// Callback that receives the index of a requested object and its stored bytes.
pub type ReadCallback<'a> = dyn FnMut(usize, Option<&[u8]>) -> Result<()> + 'a;

/// Callback that receives bytes that may be those of an object, and returns whether they are.
pub type MatchCallback<'a> = dyn FnMut(usize, &[u8]) -> bool + 'a;

/// Storage for objects and references.
pub trait Backend: Send + Sync + 'static {
    /// Returns the stored bytes of an object.
    fn get(&self, id: ObjectId) -> Result<Option<Bytes>>;

    /// Returns the stored bytes of many objects, in request order. The backend chooses the read order.
    fn get_many(&self, ids: &[ObjectId]) -> Result<Vec<Option<Bytes>>>;

    /// Calls `look` once for each of many objects, in read order, with its index and its stored bytes, or `None` if it does not
    /// exist. Avoids copies where possible.
    fn look_at_many(&self, ids: &[ObjectId], look: &mut ReadCallback<'_>) -> Result<()> {
        let found = self.get_many(ids)?;
        found.iter().enumerate().try_for_each(|(place, stored)| look(place, stored.as_deref()))
    }

    /// Reads chunks that were probably written consecutively without looking up each of them. `look` receives the guessed bytes
    /// and returns whether they are those of the chunk, by checking the hash. Returns the indices of all chunks that were not
    /// found this way; the default implementation guesses nothing and returns all.
    fn guess_many(&self, ids: &[ObjectId], _look: &mut MatchCallback<'_>) -> Result<Vec<usize>> {
        Ok((0..ids.len()).collect())
    }

    /// Returns which of these objects exist. Each existing one carries at least the given epoch afterwards, so that a sweep does
    /// not delete it while a session of that epoch needs it.
    fn contains_many(&self, ids: &[ObjectId], at_least: Epoch) -> Result<Vec<bool>>;

    /// Writes objects of a large transaction ahead of it. No reference points at them yet.
    fn put_ahead(&self, objects: Vec<StoredObject>) -> Result<()>;

    /// Writes objects, references and the operation record atomically.
    fn transact(&self, transaction: Transaction) -> Result<Committed>;

    /// Makes all acknowledged transactions durable.
    fn sync(&self) -> Result<()>;

    /// Flushes the write-ahead log into data files, so that it takes no space any more.
    fn empty_log(&self) -> Result<()>;

    /// Frees memory that only serves as a cache.
    fn release_memory(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the current epoch.
    fn epoch(&self) -> Epoch;

    /// Registers the sessions and pins of a store on this backend, for the collectors of other processes.
    fn share_holds(&self, _holder: Arc<dyn Holder>) {}

    /// Tells the collector of another process that an object is pinned, while there is one. An object that the backend has afterwards
    /// stays while it is pinned. If that fails, every later transaction of this process fails.
    fn announce_pin(&self, _id: ObjectId) -> Result<()> {
        Ok(())
    }

    /// Returns the value of a reference.
    fn read_ref(&self, name: &RefName) -> Result<Option<RefValue>>;

    /// Returns the sequence number of the operation that last moved a reference; 0 if the reference does not exist.
    fn last_move(&self, name: &RefName) -> Result<u64>;

    /// Lists up to `limit` references after `after` whose name starts with `prefix`, by name.
    fn list_refs(&self, prefix: &str, after: Option<&RefName>, limit: usize) -> Result<Vec<(RefName, RefValue)>>;

    /// Returns the names of the labels and workspaces that point at an object, by name.
    fn names_of(&self, target: ObjectId) -> Result<Vec<RefName>> {
        let mut found = Vec::new();
        for prefix in ["label/", "workspace/"] {
            self.each_ref(prefix, &mut |name, value| {
                if value.target == Some(target) {
                    found.push(name);
                }
            })?;
        }
        Ok(found)
    }

    /// Returns the greatest number among the references `PREFIX NUMBER`, where the prefix is `deleted/NAME@`.
    fn greatest_deleted(&self, prefix: &str) -> Result<Option<u64>> {
        let mut greatest = None;
        self.each_ref(prefix, &mut |name, _| {
            let number = name.as_str().strip_prefix(prefix).and_then(|number| number.parse().ok());
            greatest = greatest.max(number);
        })?;
        Ok(greatest)
    }

    /// Calls `show` for each reference whose name starts with `prefix`.
    fn each_ref(&self, prefix: &str, show: &mut dyn FnMut(RefName, RefValue)) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.list_refs(prefix, after.as_ref(), 256)?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = Some(last.clone());
            page.into_iter().for_each(|(name, value)| show(name, value));
        }
    }

    /// Lists up to `limit` operations after this sequence number, without a gap. Numbers start at 1. A request that starts before
    /// [`first_operation`](Self::first_operation) of a trimmed log fails.
    fn list_operations(&self, after: u64, limit: usize) -> Result<Vec<Operation>>;

    /// Returns the sequence number of the newest operation; 0 if there is none.
    fn last_operation(&self) -> Result<u64>;

    /// Returns the sequence number of the oldest operation in the log; 1 until the log is trimmed.
    fn first_operation(&self) -> Result<u64>;

    /// Returns the operation of a request, if it was executed and is still in the log.
    fn find_request(&self, request: &RequestId) -> Result<Option<Operation>>;

    /// Returns the tombstone of a purged object.
    fn tombstone(&self, id: ObjectId) -> Result<Option<Tombstone>>;
}

/// The deletion interface, only for garbage collection.
pub trait Sweep: Backend {
    /// Starts a new epoch and returns it. A collection begins with it: a backend that several processes share admits one collector at
    /// a time, and refuses a second one.
    fn advance_epoch(&self) -> Result<Epoch>;

    /// Waits until every other process announces its pins to this collection, and returns the epoch of their oldest session.
    fn sessions_elsewhere(&self) -> Result<Option<Epoch>> {
        Ok(None)
    }

    /// Returns the objects that other processes have pinned during this collection and that it has not returned yet.
    fn pins_elsewhere(&self) -> Result<Vec<ObjectId>> {
        Ok(Vec::new())
    }

    /// Returns the last collection by any process; `None` for a store of one process.
    fn last_collection(&self) -> Result<Option<SharedCollection>> {
        Ok(None)
    }

    /// Ends the collection that [`advance_epoch`](Self::advance_epoch) began, whether it was completed or not.
    fn end_collection(&self) {}

    /// Returns up to `limit` rows of the object index after `after`, in hash order.
    fn scan(&self, after: Option<ObjectId>, limit: usize) -> Result<Vec<IndexRow>>;

    /// Returns the index rows of these objects, in request order.
    fn look_up(&self, ids: &[ObjectId]) -> Result<Vec<Option<IndexRow>>>;

    /// Returns an estimate of the number of objects.
    fn objects_estimate(&self) -> Result<u64>;

    /// Returns a number greater than those of all objects so far. Every smaller number is in the index by now, or never will be.
    fn numbers_end(&self) -> Result<u64>;

    /// Removes from the index those objects that no session has put or checked for since `older_than`, and returns which were
    /// removed. From then on they do not exist. [`reclaim`](Self::reclaim) frees their space. Removes nothing if other processes
    /// have pinned objects that [`pins_elsewhere`](Self::pins_elsewhere) has not returned yet.
    fn delete(&self, ids: &[ObjectId], older_than: Epoch) -> Result<Deletion>;

    /// Deletes at most `limit` operations before this number from the log, oldest first, with their request ids. Returns the
    /// number of the oldest remaining operation. The newest operation always stays.
    fn trim_operations(&self, before: u64, limit: usize) -> Result<u64>;

    /// Frees the space of every object row that is not in the index, step by step. It may be stopped at each step and started
    /// again: it finds the remaining work by itself.
    fn reclaim(&self, named: KeptRows, watch: WatchReclaim<'_>) -> Result<Reclaimed>;
}
