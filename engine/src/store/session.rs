//! Write sessions: the only way to add objects to a store.
//!
//! A session has the epoch in which it was opened. Every object that it puts, and every existing object that it checks for, gets
//! at least that epoch, and a sweep deletes nothing from the epoch of any session that was open when the sweep began. So a new
//! object may only refer to an id that was put in this session or is reachable from a pin.

use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use super::cache::Cached;
use super::{CachedSequence, Pin, Store};
use crate::backend::{Committed, Durability, Epoch, StoredObject, Transaction};
use crate::changed_paths::ChangedPaths;
use crate::compress;
use crate::error::{Error, Result};
use crate::id::{ChunkId, ObjectId, ObjectKind, RootId, SnapshotId, XattrsId};
use crate::malformed::Malformed;
use crate::object::{self, Node, Root, SequenceNode, Snapshot, Xattr, Xattrs};
use crate::object::{OBJECT_BYTES_MAX, XATTRS_INLINE_BYTES_MAX};
use crate::reference::{OperationDraft, RefName, RefValue};
use crate::tombstone::Tombstone;

/// Pending objects are held in memory up to this many bytes, including overhead, and then written ahead of their transaction.
const WRITE_AHEAD_BYTES_MIN: usize = 16 << 20;
/// Memory overhead of a pending object, in bytes.
const PENDING_OVERHEAD_BYTES: usize = 128;
/// From this many bytes on, a session counts as an import rather than an edit.
const IMPORT_BYTES_MIN: usize = 256 << 10;

/// Maximum number of objects from outside that are remembered, unless a single tree has more.
const CHECKED_OBJECTS_MAX: usize = 1 << 20;

/// Collects objects and adds them to the store, in one transaction at its end or partly ahead of it.
pub struct WriteSession {
    store: Store,
    epoch: Epoch,
    pin: SessionPin,
    pending: Mutex<Pending>,
    /// Held shared while a thread writes objects ahead: in the meantime those are neither pending nor in the store.
    ahead: RwLock<()>,
    /// Objects from outside that were checked in this session. Everything they refer to has the session's epoch or is in a tree
    /// that the session rests on.
    checked_objects: Mutex<HashMap<ObjectId, CheckedObject>>,
    resting: Mutex<RestingTrees>,
    /// Chunks that the sender of a stream has purged.
    buried: Mutex<HashMap<ObjectId, Tombstone>>,
    /// The number of checked objects from which on they are forgotten; 0 right after that.
    checked_objects_max: AtomicUsize,
    /// Bytes that were written ahead of the transaction, in stored form.
    stored: Arc<AtomicU64>,
}

#[derive(Default)]
struct Pending {
    objects: Vec<PendingObject>,
    ids: HashMap<ObjectId, Presence>,
    bytes: usize,
    /// Total size of all objects so far, before compression.
    bytes_taken: usize,
    /// The error of an earlier write. Objects of this session are missing, so it must not commit.
    failed: Option<Error>,
}

/// A pending object.
struct PendingObject {
    object: StoredObject,
    presence: Presence,
    /// Its position in the write order.
    position: u64,
}

thread_local! {
    /// The write position of objects that this thread puts. Each thread has its own, unless one is set.
    static WRITE_POSITION: Cell<u64> = {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Cell::new(NEXT.fetch_add(1, Ordering::Relaxed))
    };
}

/// The result of checking an object from outside.
#[derive(Clone, Copy, Default)]
pub(crate) struct CheckedObject {
    /// An upper bound of the longest path of names below it.
    pub(crate) depth: usize,
    /// The length of a chunk; 0 if it was not checked.
    pub(crate) bytes: u64,
}

/// Trees that existed before, are pinned, and need not be walked.
#[derive(Default)]
pub(crate) struct RestingTrees {
    pub(crate) pins: Vec<Pin>,
    /// Objects known to be in them, each with an upper bound of the names below it.
    pub(crate) below: HashMap<ObjectId, usize>,
}

/// A hashed and compressed chunk that is to be put in this session.
pub(crate) struct PackedChunk {
    id: ChunkId,
    pub(crate) length: usize,
    /// `None` if the store already has it.
    stored: Option<Bytes>,
}

/// The reason why a node was not put.
enum PutError {
    Store(Error),
    Node(Malformed),
}

impl From<Malformed> for PutError {
    fn from(source: Malformed) -> Self {
        Self::Node(source)
    }
}

/// Whether a pending object is known to be missing from the store. A batched lookup is cheaper, but before compressing a chunk
/// the session looks it up individually.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Not in the store: looked up, or it refers to an object that is not. No stored object refers to a missing one, except for
    /// objects that a sweep is about to delete.
    New,
    Unknown,
}

/// The pin on the tree that a session wrote. Empty until the session ends by a commit or a pin, and for ever if it is
/// dropped without either: so a clone tells later whether the objects of the session became part of the store. It also
/// keeps them there.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionPin(Arc<OnceLock<Pin>>);

impl SessionPin {
    /// Creates the pin of an object that was already in the store and is pinned.
    pub(crate) fn stored(pin: Pin) -> Self {
        Self(Arc::new(OnceLock::from(pin)))
    }

    /// Returns whether the session has ended and its objects are in the store.
    pub(crate) fn is_committed(&self) -> bool {
        self.0.get().is_some()
    }

    /// Returns whether both are pins of one session.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl WriteSession {
    pub(super) fn open(store: Store) -> Self {
        let epoch = {
            let mut sessions = store.inner.sessions.lock();
            let epoch = store.inner.backend.epoch();
            *sessions.0.entry(epoch).or_insert(0) += 1;
            epoch
        };
        Self {
            store,
            epoch,
            pin: SessionPin::default(),
            pending: Mutex::default(),
            ahead: RwLock::default(),
            checked_objects: Mutex::default(),
            resting: Mutex::default(),
            buried: Mutex::default(),
            checked_objects_max: AtomicUsize::new(CHECKED_OBJECTS_MAX),
            stored: Arc::default(),
        }
    }

    /// Returns the store that the session writes to.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the counter of bytes written ahead, in stored form. It stays valid after the end of the session.
    pub(crate) fn stored(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.stored)
    }

    pub(crate) fn pin(&self) -> &SessionPin {
        &self.pin
    }

    /// Sets the write position of all objects that this thread puts during `put`. With it, the results of several threads are
    /// stored in their logical order and not in that of the threads.
    pub fn at_write_position<T>(position: u64, put: impl FnOnce() -> T) -> T {
        let before = WRITE_POSITION.replace(position);
        let done = put();
        WRITE_POSITION.set(before);
        done
    }

    /// Puts a chunk of 1 byte to 128 KiB.
    pub fn put_chunk(&self, raw: &[u8]) -> Result<ChunkId> {
        self.put_packed(self.pack_chunk(raw)?)
    }

    /// Hashes and compresses a chunk without putting it. Several threads can pack chunks and put them in order afterwards, so
    /// that they are stored in that order.
    pub(crate) fn pack_chunk(&self, raw: &[u8]) -> Result<PackedChunk> {
        object::check_chunk(raw.len()).map_err(|source| Error::Refused { kind: ObjectKind::Chunk, source })?;
        let id = ChunkId::of(raw);
        let stored = match self.has(id.object())? {
            true => None,
            false => {
                // A single small file is stored uncompressed; in an import the savings of compression add up.
                let many = self.pending.lock().bytes_taken >= IMPORT_BYTES_MIN;
                Some(compress::pack_chunk(raw, many))
            }
        };
        Ok(PackedChunk { id, length: raw.len(), stored })
    }

    /// Puts a packed chunk.
    pub(crate) fn put_packed(&self, chunk: PackedChunk) -> Result<ChunkId> {
        if let Some(stored) = chunk.stored {
            self.add(chunk.id.object(), Presence::New, chunk.length, || stored)?;
        }
        Ok(chunk.id)
    }

    /// Puts extended attributes inline or as an object, depending on their size.
    pub fn put_xattrs(&self, xattrs: Vec<Xattr>) -> Result<Xattrs> {
        let bytes: usize = xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len()).sum();
        if xattrs.is_empty() {
            return Ok(Xattrs::None);
        }
        if bytes <= XATTRS_INLINE_BYTES_MAX {
            return Ok(Xattrs::Inline(xattrs));
        }
        let id = self.put(ObjectKind::Xattrs, object::encode_xattrs(&xattrs))?;
        Ok(Xattrs::Apart(XattrsId::from_bytes(id.hash)))
    }

    /// Puts the root of a tree.
    pub fn put_root(&self, root: &Root) -> Result<RootId> {
        let bytes = root.encode();
        let length = bytes.len();
        let directory = match &root.directory.node {
            Node::Directory(Some(contents)) => Some(contents.id.object()),
            _ => None,
        };
        let id = self.put_with_presence(self.presence_above(directory), ObjectKind::Root, bytes)?;
        self.store.inner.cache.insert(id, Cached::Root(Arc::new(root.clone())), length);
        Ok(RootId::from_bytes(id.hash))
    }

    /// Puts a snapshot.
    pub fn put_snapshot(&self, snapshot: Snapshot) -> Result<SnapshotId> {
        self.put_snapshot_with_changes(snapshot, None)
    }

    /// Puts a snapshot with the set of paths that it changed, if known.
    pub(crate) fn put_snapshot_with_changes(
        &self,
        snapshot: Snapshot,
        touched: Option<ChangedPaths>,
    ) -> Result<SnapshotId> {
        snapshot.check().map_err(|source| Error::Refused { kind: ObjectKind::Snapshot, source })?;
        let canonical = snapshot.encode();
        let length = canonical.len();
        let presence = self.presence_above(Some(snapshot.root.object()));
        let id = ObjectId::of(ObjectKind::Snapshot, &canonical);
        self.add(id, presence, length, || match &touched {
            Some(touched) => touched.pack(id, &canonical),
            None => canonical.into(),
        })?;
        self.store.inner.cache.insert(id, Cached::Snapshot(Arc::new(snapshot), touched), length);
        Ok(SnapshotId::from_bytes(id.hash))
    }

    /// Puts a node of a sequence and returns the link to it.
    pub(crate) fn put_node<S: CachedSequence>(&self, node: SequenceNode<S>) -> Result<S::Link> {
        self.put_node_with_presence(Presence::Unknown, node)
    }

    /// Puts a node of a sequence, whose presence in the store the caller may know, and returns the link to it.
    pub(crate) fn put_node_with_presence<S: CachedSequence>(
        &self,
        presence: Presence,
        node: SequenceNode<S>,
    ) -> Result<S::Link> {
        let mut length = 0;
        let link = S::encode_and_link(&node, |bytes| {
            length = bytes.len();
            let id = ObjectId::of(S::KIND, bytes);
            self.add(id, presence, length, || Bytes::copy_from_slice(bytes)).map(|()| id).map_err(PutError::Store)
        });
        let link = link.map_err(|why| match why {
            PutError::Store(error) => error,
            PutError::Node(source) => Error::Refused { kind: S::KIND, source },
        })?;
        self.store.inner.cache.insert(S::link_id(&link), S::into_cached(Arc::new(node)), length);
        Ok(link)
    }

    /// Puts the canonical bytes of an object that this process created.
    pub(crate) fn put(&self, kind: ObjectKind, canonical: Vec<u8>) -> Result<ObjectId> {
        self.put_with_presence(Presence::Unknown, kind, canonical)
    }

    fn put_with_presence(&self, presence: Presence, kind: ObjectKind, canonical: Vec<u8>) -> Result<ObjectId> {
        let id = ObjectId::of(kind, &canonical);
        self.add(id, presence, canonical.len(), || canonical.into())?;
        Ok(id)
    }

    /// Returns whether an object was put in this session and known to be missing from the store at that time.
    pub(crate) fn is_new(&self, id: ObjectId) -> bool {
        self.pending.lock().ids.get(&id) == Some(&Presence::New)
    }

    /// Returns the presence of an object that refers to `below`: it is new if `below` is.
    fn presence_above(&self, below: Option<ObjectId>) -> Presence {
        if below.is_some_and(|below| self.is_new(below)) { Presence::New } else { Presence::Unknown }
    }

    /// Returns a node of a sequence that is stored or pending.
    pub(crate) fn node<S: CachedSequence>(&self, id: ObjectId) -> Result<Arc<SequenceNode<S>>> {
        self.reading(|store| store.node::<S>(id))
    }

    /// Reads from the store. If an object is missing, writes all pending objects and reads again.
    pub(crate) fn reading<T>(&self, read: impl Fn(&Store) -> Result<T>) -> Result<T> {
        match read(&self.store) {
            Err(Error::Missing { .. }) => {
                self.write_all_ahead()?;
                read(&self.store)
            }
            other => other,
        }
    }

    /// Writes all pending objects, so that the store can read them.
    pub fn write_all_ahead(&self) -> Result<()> {
        self.write_ahead(true)?;
        drop(self.ahead.write());
        Ok(())
    }

    /// Returns the objects from outside that were checked in this session.
    pub(crate) fn checked_objects(&self) -> &Mutex<HashMap<ObjectId, CheckedObject>> {
        &self.checked_objects
    }

    /// Forgets the checked objects from outside when they take too much memory. Later objects are walked again; the limit is at
    /// least twice the size of that walk, so that this does not repeat over and over.
    pub(crate) fn limit_checked_objects(&self) {
        let mut known = self.checked_objects.lock();
        let max = match self.checked_objects_max.load(Ordering::Relaxed) {
            0 => CHECKED_OBJECTS_MAX.max(2 * known.len()),
            max if known.len() > max => {
                known.clear();
                0
            }
            max => max,
        };
        self.checked_objects_max.store(max, Ordering::Relaxed);
    }

    /// Returns the tombstones of chunks that the sender of a stream has purged.
    pub(crate) fn buried(&self) -> &Mutex<HashMap<ObjectId, Tombstone>> {
        &self.buried
    }

    /// Returns the stored trees that the session rests on: they stay pinned, so that they need not be walked.
    pub(crate) fn resting(&self) -> &Mutex<RestingTrees> {
        &self.resting
    }

    /// Caches a decoded node, so that its parents need not wait until it is written.
    pub(crate) fn remember<S: CachedSequence>(&self, id: ObjectId, node: SequenceNode<S>, length: usize) {
        self.store.inner.cache.insert(id, S::into_cached(Arc::new(node)), length);
    }

    /// Caches a decoded root.
    pub(crate) fn remember_root(&self, id: ObjectId, root: Root, length: usize) {
        self.store.inner.cache.insert(id, Cached::Root(Arc::new(root)), length);
    }

    /// Caches a decoded snapshot.
    pub(crate) fn remember_snapshot(&self, id: ObjectId, snapshot: Snapshot, length: usize) {
        self.store.inner.cache.insert(id, Cached::Snapshot(Arc::new(snapshot), None), length);
    }

    /// Returns which of these objects are stored or pending. From now on the session protects them from collection.
    pub(crate) fn has_many(&self, ids: &[ObjectId]) -> Result<Vec<bool>> {
        let mut found = self.store.inner.backend.contains_many(ids, self.epoch)?;
        let pending = self.pending.lock();
        for (id, found) in ids.iter().zip(&mut found) {
            *found |= pending.ids.contains_key(id);
        }
        Ok(found)
    }

    /// Puts a chunk in the stored form of another store. The caller has unpacked and hashed it.
    pub(crate) fn put_stored_chunk(&self, id: ObjectId, stored: Bytes, raw_bytes: usize) -> Result<()> {
        self.add(id, Presence::Unknown, raw_bytes, || stored)
    }

    /// Returns whether an object is stored or pending. From now on the session protects it from collection.
    pub(crate) fn has(&self, id: ObjectId) -> Result<bool> {
        if self.pending.lock().ids.contains_key(&id) {
            return Ok(true);
        }
        Ok(self.store.inner.backend.contains_many(&[id], self.epoch)?[0])
    }

    /// Adds an object to the pending ones, unless it is pending already. `taken` is its size before compression;
    /// `stored` returns its bytes in stored form.
    fn add(&self, id: ObjectId, presence: Presence, taken: usize, stored: impl FnOnce() -> Bytes) -> Result<()> {
        // A larger object could be stored, but neither sent nor restored.
        if taken > OBJECT_BYTES_MAX {
            return Err(Error::Refused { kind: id.kind, source: Malformed::TooMuch { what: "an object" } });
        }
        {
            let mut pending = self.pending.lock();
            let Entry::Vacant(place) = pending.ids.entry(id) else { return Ok(()) };
            // Purged bytes are rejected until their tombstone is removed. Only chunks can be purged.
            if id.kind == ObjectKind::Chunk
                && let Some(tombstone) = self.store.tombstone(id)?
            {
                return Err(Error::Unwanted { id, tombstone: Box::new(tombstone) });
            }
            place.insert(presence);
            let bytes = stored();
            pending.bytes += bytes.len() + PENDING_OVERHEAD_BYTES;
            pending.bytes_taken += taken;
            let object = StoredObject { id, bytes };
            pending.objects.push(PendingObject { object, presence, position: WRITE_POSITION.get() });
        }
        self.write_ahead(false)
    }

    /// Drops the objects that are in the store already, and returns the others in write order: objects with the same
    /// position are read together later, and read-ahead assumes that chunks are adjacent. The existing ones are
    /// protected from collection from now on.
    fn retain_unstored(&self, mut objects: Vec<PendingObject>) -> Result<Vec<StoredObject>> {
        objects.sort_by_key(|waiting| (waiting.object.id.kind != ObjectKind::Chunk, waiting.position));
        let unknown = objects.iter().filter(|waiting| waiting.presence == Presence::Unknown);
        let unknown: Vec<_> = unknown.map(|waiting| waiting.object.id).collect();
        let mut stored = self.store.inner.backend.contains_many(&unknown, self.epoch)?.into_iter();
        let mut is_stored = |presence| presence == Presence::Unknown && stored.next().expect("an answer for each");
        Ok(objects
            .into_iter()
            .filter_map(|PendingObject { object, presence, .. }| (!is_stored(presence)).then_some(object))
            .collect())
    }

    /// Writes pending objects ahead of their transaction, if there are many or if `now` is set.
    fn write_ahead(&self, now: bool) -> Result<()> {
        let (objects, _writing) = {
            let mut pending = self.pending.lock();
            if pending.objects.is_empty() || (pending.bytes < WRITE_AHEAD_BYTES_MIN && !now) {
                return Ok(());
            }
            pending.bytes = 0;
            (std::mem::take(&mut pending.objects), self.ahead.read_recursive())
        };
        let ids: Vec<_> = objects.iter().map(|waiting| waiting.object.id).collect();
        let written = self.retain_unstored(objects).and_then(|objects| {
            let bytes: usize = objects.iter().map(|object| object.bytes.len()).sum();
            self.store.inner.backend.put_ahead(objects)?;
            self.stored.fetch_add(bytes as u64, Ordering::Relaxed);
            Ok(())
        });
        let mut pending = self.pending.lock();
        // Removed only after the write, so that another thread of this session does not put them again.
        for id in &ids {
            pending.ids.remove(id);
        }
        pending.failed = pending.failed.take().or(written.clone().err());
        written
    }

    /// Ends the session without moving a reference: writes the pending objects and pins `root`. The objects of this session stay
    /// in the store while the returned pin or a clone of the session's own pin exists.
    pub(crate) fn keep(self, root: RootId) -> Result<Pin> {
        self.write_all_ahead()?;
        if let Some(error) = self.pending.lock().failed.take() {
            return Err(error);
        }
        // Pin before the session closes, so that the objects are protected at every moment.
        let pin = self.store.pin(root);
        self.pin.0.get_or_init(|| pin.clone());
        Ok(pin)
    }

    /// Ends the session in one transaction: the pending objects, the references and the operation record.
    ///
    /// `keep`, usually the new root, stays pinned while a clone of this session's pin exists.
    pub fn commit(self, keep: impl Into<ObjectId>, refs: RefMove) -> Result<Committed> {
        let Pending { objects, failed, .. } = std::mem::take(&mut *self.pending.lock());
        if let Some(error) = failed {
            return Err(error);
        }
        let objects = self.retain_unstored(objects)?;
        let RefMove { expect, set, operation, durability } = refs;
        let transaction = Transaction { objects, expect, set, operation: Some(operation), durability };
        let committed = self.store.transact(transaction)?;
        if !committed.replayed {
            // Pin before the session closes, so that the objects are protected at every moment.
            self.pin.0.get_or_init(|| self.store.inner.pins.pin_own(keep.into()));
        }
        Ok(committed)
    }
}

impl Drop for WriteSession {
    fn drop(&mut self) {
        let mut sessions = self.store.inner.sessions.lock();
        let open = sessions.0.get_mut(&self.epoch).expect("a session is in the table while it lives");
        *open -= 1;
        if *open == 0 {
            sessions.0.remove(&self.epoch);
        }
    }
}

/// The reference updates of a session's commit.
#[derive(Clone, Debug, Default)]
pub struct RefMove {
    /// The expected values of references.
    pub expect: Vec<(RefName, Option<RefValue>)>,
    /// The new values of references. Each must be among the expected ones.
    pub set: Vec<(RefName, Option<RefValue>)>,
    /// The author, time and action of the operation.
    pub operation: OperationDraft,
    /// The durability required before the commit is acknowledged.
    pub durability: Durability,
}
