//! Where objects and references live. The trait speaks plain data, so that an implementer needs to know nothing of trees;
//! [`Store`](crate::Store) is what everybody else holds.
//!
//! Objects are immutable and puts idempotent. References move only by compare-and-swap, any number at once, all or nothing,
//! together with the operation record that says so. Nothing here deletes but [`Sweep`], and [`Inspect`] when it repairs or
//! purges.

mod check;
mod fault;
#[cfg(feature = "rocksdb")]
mod group;
#[cfg(feature = "rocksdb")]
mod home;
mod inspect;
mod memory;
mod meter;
mod numbers;
mod reclaim;
#[cfg(feature = "rocksdb")]
mod rocks;
pub(crate) mod rows;
mod verify;

pub use fault::{Fault, FaultPlan};
#[cfg(feature = "rocksdb")]
pub use home::RESERVE_FILE;
pub use inspect::{Family, Inspect, Page, PageEnd, RowEdit};
pub use memory::Memory;
pub use meter::{Meter, Metered};
pub use numbers::Numbers;
pub use reclaim::{Named, ReclaimProgress, Reclaimed, WatchReclaim};
#[cfg(feature = "rocksdb")]
pub use rocks::{Rocks, RocksOptions};
pub use verify::Verify;

use bytes::Bytes;

use crate::error::Result;
use crate::id::ObjectId;
use crate::reference::{Operation, OperationDraft, RefName, RefValue, RequestId};
use crate::tombstone::Tombstone;

/// Counts collections. An object carries the epoch in which it was last written, or met by a session that needed it.
/// A later write never carries an earlier epoch.
pub type Epoch = u64;

/// An object as it is stored: a chunk behind its codec byte, anything else in its canonical bytes.
#[derive(Clone, Debug)]
pub struct StoredObject {
    /// Its id, over the canonical bytes.
    pub id: ObjectId,
    /// What is kept.
    pub bytes: Bytes,
}

/// When a transaction counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// On disk: survives a power cut.
    #[default]
    Durable,
    /// In the log: survives the end of the process; a power cut may take the newest ones, never one from the middle.
    Buffered,
}

/// A change of state: objects, and references that move.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// Objects that are not there yet; earlier ones may have gone ahead.
    pub objects: Vec<StoredObject>,
    /// What these references must be for the transaction to happen.
    pub expect: Vec<(RefName, Option<RefValue>)>,
    /// What these become; each must be among the expected ones.
    pub set: Vec<(RefName, Option<RefValue>)>,
    /// The record of it; needed when anything is set.
    pub operation: Option<OperationDraft>,
    /// When it counts as done.
    pub durability: Durability,
}

/// What a transaction came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The operation record, where there is one.
    pub operation: Option<Operation>,
    /// True when the request had been done before: nothing was changed now.
    pub replayed: bool,
}

/// A row of the object index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexRow {
    /// The object.
    pub id: ObjectId,
    /// The bytes kept for it.
    pub stored_bytes: u64,
    /// When it was last written or met.
    pub epoch: Epoch,
    /// The key of its bytes in the family of its kind. Numbers rise in the order of writing.
    pub number: u64,
}

/// What is shown the stored bytes of an object, with its place among those asked for.
pub type Look<'a> = dyn FnMut(usize, Option<&[u8]>) -> Result<()> + 'a;

/// What is shown bytes that may be those of an object, and says whether they are.
pub type Guess<'a> = dyn FnMut(usize, &[u8]) -> bool + 'a;

/// A place for objects and references.
pub trait Backend: Send + Sync + 'static {
    /// The stored bytes of an object.
    fn get(&self, id: ObjectId) -> Result<Option<Bytes>>;

    /// The same for many, in the order asked for; the backend chooses the order of reading.
    fn get_many(&self, ids: &[ObjectId]) -> Result<Vec<Option<Bytes>>>;

    /// Shows the stored bytes of many where they lie, each once, in the order of reading: its place among those asked for, and
    /// nothing when it is not there.
    fn look_at_many(&self, ids: &[ObjectId], look: &mut Look<'_>) -> Result<()> {
        let found = self.get_many(ids)?;
        found.iter().enumerate().try_for_each(|(place, stored)| look(place, stored.as_deref()))
    }

    /// Shows bytes that may be those of chunks which were written one after the other, without asking where each of them is: `look`
    /// says whether they are, which takes a hash. Returns the places of all others: of all, where nothing is guessed.
    fn guess_many(&self, ids: &[ObjectId], _look: &mut Guess<'_>) -> Result<Vec<usize>> {
        Ok((0..ids.len()).collect())
    }

    /// Which of these are there. Each one found carries at least the given epoch afterwards, so that a sweep does not take
    /// it from a session of that epoch.
    fn contains_many(&self, ids: &[ObjectId], at_least: Epoch) -> Result<Vec<bool>>;

    /// Writes objects of a large transaction ahead of it. No name points at them yet.
    fn put_ahead(&self, objects: Vec<StoredObject>) -> Result<()>;

    /// Objects, references and the operation record, all or nothing.
    fn transact(&self, transaction: Transaction) -> Result<Committed>;

    /// Makes everything acknowledged so far durable.
    fn sync(&self) -> Result<()>;

    /// Brings what only the log has to where it is kept for good, so that the log takes no room any more.
    fn empty_log(&self) -> Result<()>;

    /// Gives back memory that only makes things quicker.
    fn release_memory(&self) -> Result<()> {
        Ok(())
    }

    /// The present epoch.
    fn epoch(&self) -> Epoch;

    /// What a reference holds.
    fn read_ref(&self, name: &RefName) -> Result<Option<RefValue>>;

    /// The sequence number of the operation that last moved a reference; 0 when it is not there.
    fn last_move(&self, name: &RefName) -> Result<u64>;

    /// Up to `limit` references whose name starts with `prefix` and follows `after`, by name.
    fn list_refs(&self, prefix: &str, after: Option<&RefName>, limit: usize) -> Result<Vec<(RefName, RefValue)>>;

    /// Up to `limit` operations that follow the one with this sequence number, without a gap. Numbers start at 1, and a log that
    /// was shortened has none before [`first_operation`](Self::first_operation): who asks for those is told.
    fn list_operations(&self, after: u64, limit: usize) -> Result<Vec<Operation>>;

    /// The sequence number of the newest operation; 0 when there is none.
    fn last_operation(&self) -> Result<u64>;

    /// The sequence number of the oldest operation that the log still has; 1 until it is shortened.
    fn first_operation(&self) -> Result<u64>;

    /// The operation that a request came to, if it was done and the log still has it. An error when the one of this scope had other
    /// arguments.
    fn find_request(&self, request: &RequestId) -> Result<Option<Operation>>;

    /// What is left of an object that was purged.
    fn tombstone(&self, id: ObjectId) -> Result<Option<Tombstone>>;
}

/// The deleting half, for collection alone.
pub trait Sweep: Backend {
    /// Begins a new epoch and returns it.
    fn advance_epoch(&self) -> Result<Epoch>;

    /// Up to `limit` rows of the object index that follow `after`, in the order of hashes.
    fn scan(&self, after: Option<ObjectId>, limit: usize) -> Result<Vec<IndexRow>>;

    /// The rows of these objects in the object index, in the order asked for.
    fn look_up(&self, ids: &[ObjectId]) -> Result<Vec<Option<IndexRow>>>;

    /// About how many objects there are.
    fn objects_estimate(&self) -> Result<u64>;

    /// A number above those of all objects so far: every smaller one is in the index by now, or never will be.
    fn numbers_end(&self) -> Result<u64>;

    /// Takes those of the objects out of the index that no session has put or met since `older_than`; says which went.
    /// From then on they are not there. Their room comes back with [`reclaim`](Self::reclaim).
    fn delete(&self, ids: &[ObjectId], older_than: Epoch) -> Result<Vec<bool>>;

    /// Takes operations before this number out of the log, the oldest first and at most so many, with the requests that they
    /// were; returns the number of the oldest that is left. The newest one stays whatever is asked.
    fn trim_operations(&self, before: u64, limit: usize) -> Result<u64>;

    /// Gives back the room of every row of an object that no row of the index names, step by step. May be ended at each
    /// step, and again be begun: it finds by itself what is left to do.
    fn reclaim(&self, named: Named, watch: WatchReclaim<'_>) -> Result<Reclaimed>;
}
