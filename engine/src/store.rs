//! The store: typed objects, verified on read, decoded once and cached.
//!
//! [`Store`] is the handle that all other modules use. It adds types, verification, a cache, pins and write sessions to a
//! [`Backend`](crate::backend::Backend), which stores plain bytes. It knows no workspaces: those are references with a meaning of
//! their own ([`workspace`](crate::workspace)).

mod cache;
mod pin;
mod rows;
mod session;
mod session_table;
mod sweep;
mod waiting;

pub(crate) use cache::CachedSequence;
pub use pin::Pin;
pub use rows::Rows;
pub(crate) use session::{CheckedObject, PackedChunk, Presence, SessionPin};
pub use session::{RefMove, WriteSession};
pub use sweep::{SweepRound, SweepScope, Swept, Tallies, Tally};

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rayon::prelude::*;

use crate::backend::{Committed, Held, Holder, IndexRow, Inspect, Memory, SharedCollection, Transaction};
use crate::changed_paths::{ChangedPaths, SnapshotSuffix};
use crate::compress;
use crate::error::{Error, Result};
use crate::id::{ChunkId, ObjectId, RootId, SnapshotId};
use crate::limit::{self, PathCount};
use crate::malformed::Malformed;
use crate::name::Name;
use crate::object::{self, NodeLookup, Root, SequenceNode, Snapshot, Xattr, Xattrs};
use crate::reference::{Operation, RefName, RefValue, RequestId};
use crate::tombstone::Tombstone;
use cache::{Cached, ObjectCache};
use pin::PinTable;
use session_table::SessionTable;
use waiting::Waiters;

/// Number of objects that a thread reads and decodes at once.
const MANY_PAGE: usize = 128;

/// A store. Cheap to clone, and shared by threads.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    backend: Arc<dyn Inspect>,
    cache: ObjectCache,
    paths_max: u64,
    pins: Arc<PinTable>,
    sessions: Mutex<SessionTable>,
    waiting: Waiters,
}

/// Wakes the threads that wait for operations of a store. Does not keep the store open.
#[derive(Clone)]
pub struct OperationWaker {
    inner: Weak<Inner>,
}

impl OperationWaker {
    /// Wakes the waiting threads, which look at the log: another process may have added an operation.
    pub fn wake(&self) {
        if let Some(inner) = self.inner.upgrade() {
            inner.waiting.tell();
        }
    }
}

/// The sessions and pins of a store, for the collectors of other processes. Does not keep the store open.
struct StoreHolder(Weak<Inner>);

impl Holder for StoreHolder {
    fn held(&self) -> Option<Held> {
        let inner = self.0.upgrade()?;
        // Sessions first: what a session that ends meanwhile kept is pinned by then.
        let oldest = inner.sessions.lock().oldest();
        Some(Held { oldest, pins: inner.pins.pinned() })
    }
}

/// Settings of a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Memory for decoded directories, ropes, roots and snapshots, in bytes.
    pub cache_bytes: u64,
    /// Maximum number of paths that one walk over a tree, or over the difference of two trees, visits.
    pub paths_max: u64,
    /// Settings of the RocksDB backend.
    #[cfg(feature = "rocksdb")]
    pub rocks: crate::backend::RocksOptions,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            paths_max: limit::PATHS_MAX,
            #[cfg(feature = "rocksdb")]
            rocks: crate::backend::RocksOptions::default(),
        }
    }
}

impl Store {
    /// Creates a store over any backend.
    pub fn new(backend: Arc<dyn Inspect>, options: &StoreOptions) -> Self {
        let cache = ObjectCache::new(options.cache_bytes);
        let inner = Inner {
            backend,
            cache,
            paths_max: options.paths_max,
            pins: Arc::default(),
            sessions: Mutex::default(),
            waiting: Waiters::default(),
        };
        let inner = Arc::new(inner);
        inner.backend.share_holds(Arc::new(StoreHolder(Arc::downgrade(&inner))));
        Self { inner }
    }

    /// Creates a path counter for one walk, with the limit of this store.
    pub fn path_count(&self) -> PathCount {
        PathCount::new(self.inner.paths_max)
    }

    /// Creates a path counter for one walk that holds all its paths in memory.
    pub fn held_path_count(&self) -> PathCount {
        PathCount::held(self.inner.paths_max)
    }

    /// Creates a store in memory.
    pub fn in_memory() -> Self {
        Self::new(Arc::new(Memory::default()), &StoreOptions::default())
    }

    /// Opens the store in a directory. Creates it if it does not exist.
    #[cfg(feature = "rocksdb")]
    pub fn open(directory: impl AsRef<std::path::Path>) -> Result<Self> {
        Self::open_with(directory, &StoreOptions::default())
    }

    /// Opens the store in a directory with settings. Creates it if it does not exist.
    #[cfg(feature = "rocksdb")]
    pub fn open_with(directory: impl AsRef<std::path::Path>, options: &StoreOptions) -> Result<Self> {
        let rocks = crate::backend::Rocks::open(directory.as_ref(), &options.rocks)?;
        Ok(Self::new(Arc::new(rocks), options))
    }

    /// Opens a write session. All puts go through a session.
    pub fn session(&self) -> WriteSession {
        WriteSession::open(self.clone())
    }

    /// Protects an object and everything it refers to from collection while the pin exists. Does not check that they exist.
    pub fn pin(&self, id: impl Into<ObjectId>) -> Pin {
        let pin = self.inner.pins.pin(id.into());
        // If this fails, no transaction of this process succeeds any more.
        let _ = self.inner.backend.announce_pin(pin.id());
        pin
    }

    /// Pins a tree and checks that it exists. Collections delete roots first: if the root exists, so does the whole tree.
    pub fn hold(&self, root: RootId) -> Result<Pin> {
        let pin = self.inner.pins.pin(root.object());
        self.inner.backend.announce_pin(pin.id())?;
        // The cache may contain a tree that was deleted long ago.
        if self.inner.backend.contains_many(&[root.object()], 0)?[0] {
            return Ok(pin);
        }
        Err(Error::Missing { id: root.object() })
    }

    /// Returns a snapshot.
    pub fn snapshot(&self, id: SnapshotId) -> Result<Arc<Snapshot>> {
        self.snapshot_and_changed_paths(id).map(|(snapshot, _)| snapshot)
    }

    /// Returns a snapshot, and the set of paths that it changed, if known.
    pub(crate) fn snapshot_and_changed_paths(&self, id: SnapshotId) -> Result<(Arc<Snapshot>, Option<ChangedPaths>)> {
        let id = id.object();
        match self.inner.cache.get(id) {
            Some(Cached::Snapshot(snapshot, touched)) => return Ok((snapshot, touched)),
            Some(_) => unreachable!("an id names its kind"),
            None => {}
        }
        let stored = self.stored(id)?;
        let touched = SnapshotSuffix::of(id, &stored).marks();
        let bytes = verified(id, Some(stored))?;
        let snapshot = Snapshot::decode(&bytes).map_err(|source| Error::Malformed { id, source })?;
        let snapshot = Arc::new(snapshot);
        self.inner.cache.insert(id, Cached::Snapshot(Arc::clone(&snapshot), touched.clone()), bytes.len());
        Ok((snapshot, touched))
    }

    /// Returns the root object of a tree.
    pub fn root(&self, id: RootId) -> Result<Arc<Root>> {
        let decode = |bytes: &Bytes| Root::decode(bytes).map(|root| Cached::Root(Arc::new(root)));
        match self.cached(id.object(), decode)? {
            Cached::Root(root) => Ok(root),
            _ => unreachable!("an id names its kind"),
        }
    }

    /// Returns the extended attributes of an entry.
    pub fn xattrs(&self, xattrs: &Xattrs) -> Result<Vec<Xattr>> {
        match xattrs {
            Xattrs::None => Ok(Vec::new()),
            Xattrs::Inline(list) => Ok(list.clone()),
            Xattrs::Apart(id) => {
                let bytes = self.canonical(id.object())?;
                object::decode_xattrs(&bytes).map_err(|source| Error::Malformed { id: id.object(), source })
            }
        }
    }

    /// Returns a chunk and checks its length.
    pub fn chunk(&self, id: ChunkId, length: u64) -> Result<Bytes> {
        let bytes = self.canonical(id.object())?;
        expect_length(id.object(), &bytes, length)?;
        Ok(bytes)
    }

    /// Returns many chunks with their lengths, in request order. Reads them in an order that is efficient for the disk.
    pub fn chunks(&self, wanted: &[(ChunkId, u64)]) -> Result<Vec<Bytes>> {
        let mut chunks = vec![Bytes::new(); wanted.len()];
        self.look_at_stored(wanted, |place, id, stored| {
            let bytes = compress::copy_chunk(stored).map_err(|source| Error::Malformed { id, source })?;
            expect(id, &bytes, wanted[place].1)?;
            chunks[place] = bytes;
            Ok(())
        })?;
        Ok(chunks)
    }

    /// Calls `look` with the index and the bytes of many chunks, in read order, without copying them.
    pub(crate) fn look_at_chunks(&self, wanted: &[(ChunkId, u64)], look: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        self.look_at_stored(wanted, |place, id, stored| {
            let looked = compress::look_at_chunk(stored, |bytes| {
                expect(id, bytes, wanted[place].1)?;
                look(place, bytes);
                Ok(())
            });
            looked.map_err(|source| Error::Malformed { id, source })?
        })
    }

    /// Calls `look` with stored chunks. `look` must not have side effects if it fails: guessed bytes may be those of another
    /// chunk.
    fn look_at_stored(
        &self,
        wanted: &[(ChunkId, u64)],
        mut look: impl FnMut(usize, ObjectId, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut ids: Vec<_> = wanted.iter().map(|(id, _)| id.object()).collect();
        let others = self.inner.backend.guess_many(&ids, &mut |place, stored| {
            // Purged bytes may still be on disk.
            compress::chunk_bytes(stored) == Ok(wanted[place].1)
                && matches!(self.tombstone(ids[place]), Ok(None))
                && look(place, ids[place], stored).is_ok()
        })?;
        if others.is_empty() {
            return Ok(());
        }
        ids = others.iter().map(|place| ids[*place]).collect();
        self.inner.backend.look_at_many(&ids, &mut |at, stored| match stored {
            Some(stored) => look(others[at], ids[at], stored),
            None => Err(self.gone(ids[at])?),
        })
    }

    /// Returns many objects in stored form, without verifying their hash, in request order; `None` for missing ones.
    pub fn stored_many(&self, ids: &[ObjectId]) -> Result<Vec<Option<Bytes>>> {
        self.inner.backend.get_many(ids)
    }

    /// Returns an object in stored form, without verifying its hash.
    pub(crate) fn stored(&self, id: ObjectId) -> Result<Bytes> {
        match self.inner.backend.get(id)? {
            Some(stored) => Ok(stored),
            None => Err(self.gone(id)?),
        }
    }

    /// Returns the tombstone of a purged object.
    pub fn tombstone(&self, id: ObjectId) -> Result<Option<Tombstone>> {
        self.inner.backend.tombstone(id)
    }

    /// Returns the error for an object that does not exist: purged or missing.
    fn gone(&self, id: ObjectId) -> Result<Error> {
        Ok(match self.tombstone(id)? {
            Some(tombstone) => Error::Purged { id, tombstone: Box::new(tombstone) },
            None => Error::Missing { id },
        })
    }

    /// Returns the canonical bytes of any object, with a verified hash.
    pub fn canonical(&self, id: ObjectId) -> Result<Bytes> {
        limit::check_cancelled()?;
        verified(id, Some(self.stored(id)?))
    }

    /// Returns the value of a reference.
    pub fn read_ref(&self, name: &RefName) -> Result<Option<RefValue>> {
        self.inner.backend.read_ref(name)
    }

    /// Returns the sequence number of the operation that last moved a reference; 0 if the reference does not exist.
    pub fn last_move(&self, name: &RefName) -> Result<u64> {
        self.inner.backend.last_move(name)
    }

    /// Lists up to `limit` references after `after` whose name starts with `prefix`, by name.
    pub fn list_refs(&self, prefix: &str, after: Option<&RefName>, limit: usize) -> Result<Vec<(RefName, RefValue)>> {
        self.inner.backend.list_refs(prefix, after, limit)
    }

    /// Returns the names of the labels and workspaces that point at a snapshot, by name.
    pub fn names_of(&self, snapshot: SnapshotId) -> Result<Vec<RefName>> {
        self.inner.backend.names_of(snapshot.object())
    }

    /// Returns the greatest number among the references `deleted/NAME@NUMBER` with this prefix before the number.
    pub(crate) fn greatest_deleted(&self, prefix: &str) -> Result<Option<u64>> {
        self.inner.backend.greatest_deleted(prefix)
    }

    /// Lists up to `limit` operations after this sequence number. Numbers start at 1. If the log was trimmed, the request must
    /// not start before [`first_operation`](Self::first_operation).
    pub fn list_operations(&self, after: u64, limit: usize) -> Result<Vec<Operation>> {
        self.inner.backend.list_operations(after, limit)
    }

    /// Returns the sequence number of the newest operation; 0 if there is none.
    pub fn last_operation(&self) -> Result<u64> {
        self.inner.backend.last_operation()
    }

    /// Returns the sequence number of the oldest operation in the log; 1 until the log is trimmed.
    pub fn first_operation(&self) -> Result<u64> {
        self.inner.backend.first_operation()
    }

    /// Returns the operation of a request, if it was executed and is still in the log.
    pub fn find_request(&self, request: &RequestId) -> Result<Option<Operation>> {
        self.inner.backend.find_request(request)
    }

    /// Makes every acknowledged commit durable.
    pub fn sync(&self) -> Result<()> {
        self.inner.backend.sync()
    }

    /// Flushes the backend's write-ahead log into data files. Duplicate and dead data in the log is dropped.
    pub fn empty_log(&self) -> Result<()> {
        self.inner.backend.empty_log()
    }

    /// Frees memory that only improves performance: the caches of decoded objects and database blocks, and the write buffer,
    /// which is flushed. Later requests read from disk again.
    pub fn release_memory(&self) -> Result<()> {
        self.inner.cache.clear();
        self.inner.backend.release_memory()
    }

    /// Returns raw access to the stored rows.
    pub fn rows(&self) -> Result<Rows> {
        Rows::of(self.clone())
    }

    /// Starts a collection; see [`SweepRound`].
    pub fn begin_sweep(&self) -> Result<SweepRound> {
        self.begin_sweep_with(SweepScope::default())
    }

    /// Starts a collection with additional or fewer roots.
    pub fn begin_sweep_with(&self, scope: SweepScope) -> Result<SweepRound> {
        SweepRound::begin(self.clone(), scope)
    }

    /// Returns the raw rows of the backend, for verification and repair.
    pub(crate) fn inspect(&self) -> &dyn Inspect {
        &*self.inner.backend
    }

    /// Fails if sessions or pins exist, for operations that need exclusive access, and clears the cache.
    pub(crate) fn alone(&self, what: &'static str) -> Result<()> {
        let sessions = self.inner.sessions.lock();
        if sessions.oldest().is_some() || self.inner.pins.has_pin_or_sweep() {
            let why = "the store is in use; end its write sessions and drop its trees and pins first".to_owned();
            return Err(Error::Invalid { what, why });
        }
        self.inner.cache.clear();
        Ok(())
    }

    /// Returns a node of a sequence, decoded once.
    pub(crate) fn node<S: CachedSequence>(&self, id: ObjectId) -> Result<Arc<SequenceNode<S>>> {
        let decode = |bytes: &Bytes| object::decode_node::<S>(bytes).map(|node| S::into_cached(Arc::new(node)));
        let cached = self.cached(id, decode)?;
        Ok(S::from_cached(cached).expect("an id names its kind"))
    }

    /// Looks up a name in many directory nodes; `None` for missing ones. The nodes are read in an order that is efficient for the
    /// disk, on all cores, and are not cached, because such a query is about old history.
    pub(crate) fn look_up_in_directories(&self, ids: &[ObjectId], name: &Name) -> Result<Vec<Option<Arc<NodeLookup>>>> {
        let known = |cached| match cached {
            Cached::Directory(node) => Arc::new(node.say(name)),
            _ => unreachable!("an id names its kind"),
        };
        self.many(ids, known, |bytes| object::say(bytes, name))
    }

    /// Returns many roots; `None` for missing ones.
    pub(crate) fn roots(&self, ids: &[RootId]) -> Result<Vec<Option<Arc<Root>>>> {
        let ids: Vec<_> = ids.iter().map(|id| id.object()).collect();
        let known = |cached| match cached {
            Cached::Root(root) => root,
            _ => unreachable!("an id names its kind"),
        };
        let mut roots = self.many(&ids, known, Root::decode)?;
        // The cache may contain a tree that was deleted long ago.
        for (root, is_there) in roots.iter_mut().zip(self.inner.backend.contains_many(&ids, 0)?) {
            if !is_there {
                *root = None;
            }
        }
        Ok(roots)
    }

    fn many<T: Send + Sync>(
        &self,
        ids: &[ObjectId],
        known: impl Fn(Cached) -> Arc<T>,
        decode: impl Fn(&Bytes) -> Result<T, Malformed> + Sync,
    ) -> Result<Vec<Option<Arc<T>>>> {
        let mut found: Vec<_> = ids.iter().map(|id| self.inner.cache.get(*id).map(&known)).collect();
        // Each id once, in request order: related objects were written together.
        let mut places = HashMap::new();
        let mut missing = Vec::new();
        for (id, _) in ids.iter().zip(&found).filter(|(_, found)| found.is_none()) {
            places.entry(*id).or_insert_with(|| {
                missing.push(*id);
                missing.len() - 1
            });
        }
        let read = |ids: &[ObjectId]| -> Result<Vec<Option<Arc<T>>>> {
            let stored = self.inner.backend.get_many(ids)?;
            let decoded = stored.into_iter().zip(ids).map(|(stored, id)| {
                let Some(stored) = stored else { return Ok(None) };
                let bytes = verified(*id, Some(stored))?;
                let object = decode(&bytes).map_err(|source| Error::Malformed { id: *id, source })?;
                Ok(Some(Arc::new(object)))
            });
            decoded.collect()
        };
        let pages: Vec<_> = missing.par_chunks(MANY_PAGE).map(read).collect::<Result<_>>()?;
        let read: Vec<_> = pages.into_iter().flatten().collect();
        for (id, place) in ids.iter().zip(&mut found) {
            if place.is_none() {
                place.clone_from(&read[places[id]]);
            }
        }
        Ok(found)
    }

    fn cached(&self, id: ObjectId, decode: impl Fn(&Bytes) -> Result<Cached, Malformed>) -> Result<Cached> {
        if let Some(cached) = self.inner.cache.get(id) {
            limit::check_cancelled()?;
            return Ok(cached);
        }
        let bytes = self.canonical(id)?;
        let cached = decode(&bytes).map_err(|source| Error::Malformed { id, source })?;
        self.inner.cache.insert(id, cached.clone(), bytes.len());
        Ok(cached)
    }

    pub(crate) fn transact(&self, transaction: Transaction) -> Result<Committed> {
        let committed = self.inner.backend.transact(transaction)?;
        self.inner.waiting.tell();
        Ok(committed)
    }

    /// Returns whether an object exists. A collection may delete it at any moment, unless it is pinned.
    pub(crate) fn has(&self, id: ObjectId) -> Result<bool> {
        Ok(self.inner.backend.contains_many(&[id], 0)?[0])
    }

    /// Returns rows of the object index, in hash order.
    pub(crate) fn scan_index(&self, after: Option<ObjectId>, limit: usize) -> Result<Vec<IndexRow>> {
        self.inner.backend.scan(after, limit)
    }

    /// Returns a handle by which a backend that several processes share tells of their operations.
    pub fn operation_waker(&self) -> OperationWaker {
        OperationWaker { inner: Arc::downgrade(&self.inner) }
    }

    /// Returns the last collection by any process that shares the store; `None` for a store of one process.
    pub fn last_collection(&self) -> Result<Option<SharedCollection>> {
        self.inner.backend.last_collection()
    }

    /// Waits until the log has an operation after this one, or until the timeout.
    pub(crate) fn wait_for_operation(&self, after: u64, at_most: Duration) -> Result<()> {
        self.inner.waiting.wait(at_most, || Ok(self.last_operation()? > after))
    }
}

/// Verifies the hash of an object. Any damaged byte becomes an error, never wrong data.
fn verified(id: ObjectId, stored: Option<Bytes>) -> Result<Bytes> {
    let stored = stored.ok_or(Error::Missing { id })?;
    let canonical = compress::canonical(id, &stored)?;
    if ObjectId::of(id.kind, &canonical) != id {
        return Err(Error::HashMismatch { id });
    }
    Ok(canonical.into_owned())
}

/// Checks the hash and the expected length of an object.
fn expect(id: ObjectId, canonical: &[u8], length: u64) -> Result<()> {
    if ObjectId::of(id.kind, canonical) != id {
        return Err(Error::HashMismatch { id });
    }
    expect_length(id, canonical, length)
}

fn expect_length(id: ObjectId, bytes: &[u8], length: u64) -> Result<()> {
    if bytes.len() as u64 == length {
        return Ok(());
    }
    Err(Error::Malformed { id, source: Malformed::Link })
}
