//! Write sessions: the only way objects enter a store.
//!
//! A session has the epoch in which it was opened. All it puts, and all it meets that was there already, carries at least
//! that epoch, and a sweep takes nothing from the epoch of any session that was open when it began. So an id may enter a new
//! object only if it was put in this session, or is reached from a pin.

use std::cell::Cell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use super::cache::Cached;
use super::{CachedSequence, Pin, Store};
use crate::backend::{Committed, Durability, Epoch, StoredObject, Transaction};
use crate::compress;
use crate::error::{Error, Result};
use crate::id::{ChunkId, ObjectId, ObjectKind, RootId, SnapshotId, XattrsId};
use crate::malformed::Malformed;
use crate::object::{self, Node, Root, SequenceNode, Snapshot, Xattr, Xattrs};
use crate::object::{OBJECT_BYTES_MAX, XATTRS_INLINE_BYTES_MAX};
use crate::reference::{OperationDraft, RefName, RefValue};
use crate::tombstone::Tombstone;
use crate::touched::Touched;

/// Objects wait in memory up to this much, what they take beside their bytes included, then go ahead of their transaction.
const AHEAD_BYTES: usize = 16 << 20;
/// What a waiting object takes beside its bytes.
const WAITING_BYTES: usize = 128;
/// From this much on a session is an import rather than an edit.
const MANY_BYTES: usize = 256 << 10;

/// So many objects from outside are known before they are forgotten, unless a single tree has more.
const KNOWN_MAX: usize = 1 << 20;

/// Takes objects in and makes them part of the store, in one transaction at its end or partly ahead of it.
pub struct WriteSession {
    store: Store,
    epoch: Epoch,
    mark: SessionMark,
    pending: Mutex<Pending>,
    /// Held shared by whoever writes objects ahead: in the meantime they are neither pending nor in the store.
    ahead: RwLock<()>,
    /// Objects from outside that were looked at in this session. All that they refer to carries the session's epoch, or
    /// lies in a tree that the session rests on.
    known: Mutex<HashMap<ObjectId, Known>>,
    resting: Mutex<Resting>,
    /// Chunks that are purged where a stream comes from.
    buried: Mutex<HashMap<ObjectId, Tombstone>>,
    /// From this many known objects on they are forgotten; 0 right after that.
    known_max: AtomicUsize,
    /// Bytes that went to the store ahead of the end, as they are stored.
    stored: Arc<AtomicU64>,
}

#[derive(Default)]
struct Pending {
    objects: Vec<Waiting>,
    ids: HashMap<ObjectId, Is>,
    bytes: usize,
    /// Of all objects so far, before compression.
    bytes_taken: usize,
    /// An earlier write failed: what this session promised is not there, so it must not commit.
    failed: Option<Error>,
}

/// An object that is to be written.
struct Waiting {
    object: StoredObject,
    is: Is,
    /// Where it is to lie among others.
    place: u64,
}

thread_local! {
    /// Where that is for what this thread puts: each has a place of its own, unless it is given one.
    static PLACE: Cell<u64> = {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Cell::new(NEXT.fetch_add(1, Ordering::Relaxed))
    };
}

/// What was found out of an object from outside.
#[derive(Clone, Copy, Default)]
pub(crate) struct Known {
    /// The longest path of names below it, or more.
    pub(crate) depth: usize,
    /// A chunk's length; 0 where it was not looked at.
    pub(crate) bytes: u64,
}

/// Trees that were there before, are kept, and need not be walked again.
#[derive(Default)]
pub(crate) struct Resting {
    pub(crate) pins: Vec<Pin>,
    /// Objects that are known to be in them, each with the most names that may lie below it.
    pub(crate) below: HashMap<ObjectId, usize>,
}

/// A chunk that was hashed and packed, and is to be put in this session.
pub(crate) struct PackedChunk {
    id: ChunkId,
    pub(crate) length: usize,
    /// Nothing for one that is there.
    stored: Option<Bytes>,
}

/// Why a node was not put.
enum NotPut {
    Store(Error),
    Node(Malformed),
}

impl From<Malformed> for NotPut {
    fn from(source: Malformed) -> Self {
        Self::Node(source)
    }
}

/// What is known of an object that waits. Asking costs less for many at once, but who is to compress a chunk asks first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Is {
    /// Not in the store: asked, or it refers to something that is not. Nothing in a store refers to what is missing, but
    /// for what a sweep is about to take.
    New,
    Unknown,
}

/// Tells, afterwards, whether a session's objects became part of the store, by a commit or by a pin, and keeps them there.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionMark(Arc<OnceLock<Pin>>);

impl SessionMark {
    /// The mark of something that was in the store before, and is kept there.
    pub(crate) fn stored(pin: Pin) -> Self {
        Self(Arc::new(OnceLock::from(pin)))
    }

    pub(crate) fn is_committed(&self) -> bool {
        self.0.get().is_some()
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The epochs of the open sessions.
#[derive(Default)]
pub(super) struct SessionTable(BTreeMap<Epoch, usize>);

impl SessionTable {
    pub(super) fn oldest(&self) -> Option<Epoch> {
        self.0.keys().next().copied()
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
            mark: SessionMark::default(),
            pending: Mutex::default(),
            ahead: RwLock::default(),
            known: Mutex::default(),
            resting: Mutex::default(),
            buried: Mutex::default(),
            known_max: AtomicUsize::new(KNOWN_MAX),
            stored: Arc::default(),
        }
    }

    /// The store it writes to.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// How many bytes went to the store ahead of the end so far, as they are stored; goes on counting when the session is over.
    pub(crate) fn stored(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.stored)
    }

    pub(crate) fn mark(&self) -> &SessionMark {
        &self.mark
    }

    /// What this thread puts meanwhile lies by this number among all that is written at once. Work that is done by several
    /// threads lies in its own order then, not in theirs.
    pub fn in_place<T>(place: u64, put: impl FnOnce() -> T) -> T {
        let before = PLACE.replace(place);
        let done = put();
        PLACE.set(before);
        done
    }

    /// Puts a chunk of 1 byte to 128 KiB.
    pub fn put_chunk(&self, raw: &[u8]) -> Result<ChunkId> {
        self.put_packed(self.pack_chunk(raw)?)
    }

    /// Does the work of putting a chunk, all but putting it: those who do that on several threads put them in order afterwards,
    /// so that they lie in that order.
    pub(crate) fn pack_chunk(&self, raw: &[u8]) -> Result<PackedChunk> {
        object::check_chunk(raw.len()).map_err(|source| Error::Refused { kind: ObjectKind::Chunk, source })?;
        let id = ChunkId::of(raw);
        let stored = match self.has(id.object())? {
            true => None,
            false => {
                // A lone small file is stored as it is; among many, the bytes that compression saves add up.
                let many = self.pending.lock().bytes_taken >= MANY_BYTES;
                Some(compress::pack_chunk(raw, many))
            }
        };
        Ok(PackedChunk { id, length: raw.len(), stored })
    }

    /// Puts a chunk that was packed.
    pub(crate) fn put_packed(&self, chunk: PackedChunk) -> Result<ChunkId> {
        if let Some(stored) = chunk.stored {
            self.add(chunk.id.object(), Is::New, chunk.length, || stored)?;
        }
        Ok(chunk.id)
    }

    /// Puts attributes where they belong by their size.
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

    /// Puts a tree's root.
    pub fn put_root(&self, root: &Root) -> Result<RootId> {
        let bytes = root.encode();
        let length = bytes.len();
        let directory = match &root.directory.node {
            Node::Directory(Some(contents)) => Some(contents.id.object()),
            _ => None,
        };
        let id = self.put_that(self.above(directory), ObjectKind::Root, bytes)?;
        self.store.inner.cache.insert(id, Cached::Root(Arc::new(root.clone())), length);
        Ok(RootId::from_bytes(id.hash))
    }

    /// Puts a snapshot.
    pub fn put_snapshot(&self, snapshot: Snapshot) -> Result<SnapshotId> {
        self.put_snapshot_touching(snapshot, None)
    }

    /// The same, with what is known of the paths that it changed.
    pub(crate) fn put_snapshot_touching(&self, snapshot: Snapshot, touched: Option<Touched>) -> Result<SnapshotId> {
        snapshot.check().map_err(|source| Error::Refused { kind: ObjectKind::Snapshot, source })?;
        let canonical = snapshot.encode();
        let length = canonical.len();
        let is = self.above(Some(snapshot.root.object()));
        let id = ObjectId::of(ObjectKind::Snapshot, &canonical);
        self.add(id, is, length, || match &touched {
            Some(touched) => touched.pack(id, &canonical),
            None => canonical.into(),
        })?;
        self.store.inner.cache.insert(id, Cached::Snapshot(Arc::new(snapshot), touched), length);
        Ok(SnapshotId::from_bytes(id.hash))
    }

    /// Puts a node of a sequence and returns the link to it.
    pub(crate) fn put_node<S: CachedSequence>(&self, node: SequenceNode<S>) -> Result<S::Link> {
        self.put_node_that(Is::Unknown, node)
    }

    /// The same, with what is known of the node.
    pub(crate) fn put_node_that<S: CachedSequence>(&self, is: Is, node: SequenceNode<S>) -> Result<S::Link> {
        let mut length = 0;
        let link = S::look_and_describe(&node, |bytes| {
            length = bytes.len();
            let id = ObjectId::of(S::KIND, bytes);
            self.add(id, is, length, || Bytes::copy_from_slice(bytes)).map(|()| id).map_err(NotPut::Store)
        });
        let link = link.map_err(|why| match why {
            NotPut::Store(error) => error,
            NotPut::Node(source) => Error::Refused { kind: S::KIND, source },
        })?;
        self.store.inner.cache.insert(S::link_id(&link), S::into_cached(Arc::new(node)), length);
        Ok(link)
    }

    /// Puts the canonical bytes of an object that this process made itself.
    pub(crate) fn put(&self, kind: ObjectKind, canonical: Vec<u8>) -> Result<ObjectId> {
        self.put_that(Is::Unknown, kind, canonical)
    }

    fn put_that(&self, is: Is, kind: ObjectKind, canonical: Vec<u8>) -> Result<ObjectId> {
        let id = ObjectId::of(kind, &canonical);
        self.add(id, is, canonical.len(), || canonical.into())?;
        Ok(id)
    }

    /// Whether an object was put in this session and known not to be in the store then.
    pub(crate) fn is_new(&self, id: ObjectId) -> bool {
        self.pending.lock().ids.get(&id) == Some(&Is::New)
    }

    /// What is known of an object that refers to this one.
    fn above(&self, below: Option<ObjectId>) -> Is {
        if below.is_some_and(|below| self.is_new(below)) { Is::New } else { Is::Unknown }
    }

    /// A node of a sequence, whether it is in the store or on its way there.
    pub(crate) fn node<S: CachedSequence>(&self, id: ObjectId) -> Result<Arc<SequenceNode<S>>> {
        self.reading(|store| store.node::<S>(id))
    }

    /// Reads through the store and, if something is missing there, once more with all that is pending written.
    pub(crate) fn reading<T>(&self, read: impl Fn(&Store) -> Result<T>) -> Result<T> {
        match read(&self.store) {
            Err(Error::Missing { .. }) => {
                self.write_all_ahead()?;
                read(&self.store)
            }
            other => other,
        }
    }

    /// Writes all that was put so far, so that the store can read it.
    pub fn write_all_ahead(&self) -> Result<()> {
        self.write_ahead(true)?;
        drop(self.ahead.write());
        Ok(())
    }

    pub(crate) fn known(&self) -> &Mutex<HashMap<ObjectId, Known>> {
        &self.known
    }

    /// Forgets what is known of objects from outside once it takes too much memory. What follows is walked again; the bound
    /// is twice what that walk takes, so that it does not happen over and over.
    pub(crate) fn bound_known(&self) {
        let mut known = self.known.lock();
        let max = match self.known_max.load(Ordering::Relaxed) {
            0 => KNOWN_MAX.max(2 * known.len()),
            max if known.len() > max => {
                known.clear();
                0
            }
            max => max,
        };
        self.known_max.store(max, Ordering::Relaxed);
    }

    pub(crate) fn buried(&self) -> &Mutex<HashMap<ObjectId, Tombstone>> {
        &self.buried
    }

    pub(crate) fn resting(&self) -> &Mutex<Resting> {
        &self.resting
    }

    /// Keeps a decoded node at hand, so that those above it need not wait until it is written.
    pub(crate) fn remember<S: CachedSequence>(&self, id: ObjectId, node: SequenceNode<S>, length: usize) {
        self.store.inner.cache.insert(id, S::into_cached(Arc::new(node)), length);
    }

    /// The same of a root.
    pub(crate) fn remember_root(&self, id: ObjectId, root: Root, length: usize) {
        self.store.inner.cache.insert(id, Cached::Root(Arc::new(root)), length);
    }

    /// The same of a snapshot.
    pub(crate) fn remember_snapshot(&self, id: ObjectId, snapshot: Snapshot, length: usize) {
        self.store.inner.cache.insert(id, Cached::Snapshot(Arc::new(snapshot), None), length);
    }

    /// Which of these are in the store or on their way there; from now on the session keeps them from collection.
    pub(crate) fn has_many(&self, ids: &[ObjectId]) -> Result<Vec<bool>> {
        let mut found = self.store.inner.backend.contains_many(ids, self.epoch)?;
        let pending = self.pending.lock();
        for (id, found) in ids.iter().zip(&mut found) {
            *found |= pending.ids.contains_key(id);
        }
        Ok(found)
    }

    /// Puts a chunk in the form in which another store keeps it; it was unpacked and hashed.
    pub(crate) fn put_stored_chunk(&self, id: ObjectId, stored: Bytes, raw_bytes: usize) -> Result<()> {
        self.add(id, Is::Unknown, raw_bytes, || stored)
    }

    /// Whether an object is in the store or on its way there; from now on the session keeps it from collection.
    pub(crate) fn has(&self, id: ObjectId) -> Result<bool> {
        if self.pending.lock().ids.contains_key(&id) {
            return Ok(true);
        }
        Ok(self.store.inner.backend.contains_many(&[id], self.epoch)?[0])
    }

    fn add(&self, id: ObjectId, is: Is, taken: usize, stored: impl FnOnce() -> Bytes) -> Result<()> {
        // What is larger could be stored, and neither sent nor restored.
        if taken > OBJECT_BYTES_MAX {
            return Err(Error::Refused { kind: id.kind, source: Malformed::TooMuch { what: "an object" } });
        }
        {
            let mut pending = self.pending.lock();
            let Entry::Vacant(place) = pending.ids.entry(id) else { return Ok(()) };
            // Purged bytes stay away until somebody says otherwise. Only chunks are purged.
            if id.kind == ObjectKind::Chunk
                && let Some(tombstone) = self.store.tombstone(id)?
            {
                return Err(Error::Unwanted { id, tombstone: Box::new(tombstone) });
            }
            place.insert(is);
            let bytes = stored();
            pending.bytes += bytes.len() + WAITING_BYTES;
            pending.bytes_taken += taken;
            pending.objects.push(Waiting { object: StoredObject { id, bytes }, is, place: PLACE.get() });
        }
        self.write_ahead(false)
    }

    /// Those of the objects that are not in the store yet, in the order in which they are to lie: what was put in one place is
    /// read together later, and chunks are guessed to lie side by side. The others are kept from collection from now on.
    fn new_ones(&self, mut objects: Vec<Waiting>) -> Result<Vec<StoredObject>> {
        objects.sort_by_key(|waiting| (waiting.object.id.kind != ObjectKind::Chunk, waiting.place));
        let unknown = objects.iter().filter(|waiting| waiting.is == Is::Unknown);
        let unknown: Vec<_> = unknown.map(|waiting| waiting.object.id).collect();
        let mut there = self.store.inner.backend.contains_many(&unknown, self.epoch)?.into_iter();
        let mut is_there = |is| is == Is::Unknown && there.next().expect("an answer for each");
        Ok(objects.into_iter().filter_map(|Waiting { object, is, .. }| (!is_there(is)).then_some(object)).collect())
    }

    /// Writes pending objects ahead of their transaction: when they are many, or all of them now.
    fn write_ahead(&self, now: bool) -> Result<()> {
        let (objects, _writing) = {
            let mut pending = self.pending.lock();
            if pending.objects.is_empty() || (pending.bytes < AHEAD_BYTES && !now) {
                return Ok(());
            }
            pending.bytes = 0;
            (std::mem::take(&mut pending.objects), self.ahead.read_recursive())
        };
        let ids: Vec<_> = objects.iter().map(|waiting| waiting.object.id).collect();
        let written = self.new_ones(objects).and_then(|objects| {
            let bytes: usize = objects.iter().map(|object| object.bytes.len()).sum();
            self.store.inner.backend.put_ahead(objects)?;
            self.stored.fetch_add(bytes as u64, Ordering::Relaxed);
            Ok(())
        });
        let mut pending = self.pending.lock();
        // Known until they are in the store, so that another thread of this session does not put them once more.
        for id in &ids {
            pending.ids.remove(id);
        }
        pending.failed = pending.failed.take().or(written.clone().err());
        written
    }

    /// Ends the session without moving a reference: writes what is still pending, and pins `root`. What was built in this session
    /// stays in the store for as long as the pin lives or any of it is remembered.
    pub(crate) fn keep(self, root: RootId) -> Result<Pin> {
        self.write_all_ahead()?;
        if let Some(error) = self.pending.lock().failed.take() {
            return Err(error);
        }
        // Pinned before the session closes, so that there is no moment without protection.
        let pin = self.store.pin(root);
        self.mark.0.get_or_init(|| pin.clone());
        Ok(pin)
    }

    /// Ends the session in one transaction: what is still pending, the references, the operation record.
    ///
    /// `keep`, usually the new root, stays pinned for as long as anything built in this session is remembered.
    pub fn commit(self, keep: impl Into<ObjectId>, refs: RefMove) -> Result<Committed> {
        let Pending { objects, failed, .. } = std::mem::take(&mut *self.pending.lock());
        if let Some(error) = failed {
            return Err(error);
        }
        let objects = self.new_ones(objects)?;
        let RefMove { expect, set, operation, durability } = refs;
        let transaction = Transaction { objects, expect, set, operation: Some(operation), durability };
        let committed = self.store.transact(transaction)?;
        if !committed.replayed {
            // Pinned before the session closes, so that there is no moment without protection.
            self.mark.0.get_or_init(|| self.store.inner.pins.pin_own(keep.into()));
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

/// The references that a session's end moves.
#[derive(Clone, Debug, Default)]
pub struct RefMove {
    /// What these must be.
    pub expect: Vec<(RefName, Option<RefValue>)>,
    /// What these become; each among the expected ones.
    pub set: Vec<(RefName, Option<RefValue>)>,
    /// Who, when, what.
    pub operation: OperationDraft,
    /// When it counts as done.
    pub durability: Durability,
}
