//! Write sessions: the only way objects enter a store.
//!
//! A session has the epoch in which it was opened. All it puts, and all it meets that was there already, carries at least
//! that epoch, and a sweep takes nothing from the epoch of any session that was open when it began. So an id may enter a new
//! object only if it was put in this session, or is reached from a pin.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;

use super::cache::Cached;
use super::{CachedSequence, Pin, Store};
use crate::backend::{Committed, Durability, Epoch, StoredObject, Transaction};
use crate::compress;
use crate::error::{Error, Result};
use crate::id::{ChunkId, ObjectId, ObjectKind, RootId, SnapshotId, XattrsId};
use crate::object::XATTRS_INLINE_BYTES_MAX;
use crate::object::{self, Root, SequenceNode, Snapshot, Xattr, Xattrs};
use crate::reference::{OperationDraft, RefName, RefValue};

/// Objects wait in memory up to this much, then go ahead of their transaction.
const AHEAD_BYTES: usize = 16 << 20;

/// Takes objects in and makes them part of the store, in one transaction at its end or partly ahead of it.
pub struct WriteSession {
    store: Store,
    epoch: Epoch,
    mark: SessionMark,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    objects: Vec<StoredObject>,
    /// The same by id, and what is on its way ahead.
    by_id: HashMap<ObjectId, Bytes>,
    bytes: usize,
    /// An earlier write failed: what this session promised is not there, so it must not commit.
    failed: Option<Error>,
}

/// Tells, afterwards, whether a session's objects became part of the store, and keeps them there.
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
        Self { store, epoch, mark: SessionMark::default(), pending: Mutex::default() }
    }

    /// The store it writes to.
    pub fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn mark(&self) -> &SessionMark {
        &self.mark
    }

    /// Puts a chunk of 1 byte to 128 KiB.
    pub fn put_chunk(&self, raw: &[u8]) -> Result<ChunkId> {
        let id = ChunkId::of(raw);
        if !self.has(id.object())? {
            self.add(id.object(), || compress::pack_chunk(raw))?;
        }
        Ok(id)
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
        let id = self.put(ObjectKind::Root, bytes)?;
        self.store.inner.cache.insert(id, Cached::Root(Arc::new(root.clone())), length);
        Ok(RootId::from_bytes(id.hash))
    }

    /// Puts a snapshot.
    pub fn put_snapshot(&self, snapshot: Snapshot) -> Result<SnapshotId> {
        snapshot.check().map_err(|source| Error::Refused { kind: ObjectKind::Snapshot, source })?;
        let bytes = snapshot.encode();
        let length = bytes.len();
        let id = self.put(ObjectKind::Snapshot, bytes)?;
        self.store.inner.cache.insert(id, Cached::Snapshot(Arc::new(snapshot)), length);
        Ok(SnapshotId::from_bytes(id.hash))
    }

    /// Puts a node of a sequence and returns the link to it.
    pub(crate) fn put_node<S: CachedSequence>(&self, node: SequenceNode<S>) -> Result<S::Link> {
        let bytes = node.encode();
        let length = bytes.len();
        let id = self.put(S::KIND, bytes)?;
        let link = S::describe(&node, id).map_err(|source| Error::Malformed { id, source })?;
        self.store.inner.cache.insert(id, S::into_cached(Arc::new(node)), length);
        Ok(link)
    }

    /// Puts the canonical bytes of an object that this process made itself.
    pub(crate) fn put(&self, kind: ObjectKind, canonical: Vec<u8>) -> Result<ObjectId> {
        let id = ObjectId::of(kind, &canonical);
        if !self.has(id)? {
            self.add(id, || canonical.into())?;
        }
        Ok(id)
    }

    /// A node that this session may have put and the store does not have yet.
    pub(crate) fn node<S: CachedSequence>(&self, id: ObjectId) -> Result<Arc<SequenceNode<S>>> {
        let pending = self.pending.lock().by_id.get(&id).cloned();
        match pending {
            Some(bytes) => {
                object::decode_node::<S>(&bytes).map(Arc::new).map_err(|source| Error::Malformed { id, source })
            }
            None => self.store.node::<S>(id),
        }
    }

    fn has(&self, id: ObjectId) -> Result<bool> {
        if self.pending.lock().by_id.contains_key(&id) {
            return Ok(true);
        }
        Ok(self.store.inner.backend.contains_many(&[id], self.epoch)?[0])
    }

    fn add(&self, id: ObjectId, stored: impl FnOnce() -> Bytes) -> Result<()> {
        let bytes = stored();
        let ahead = {
            let mut pending = self.pending.lock();
            if pending.by_id.insert(id, bytes.clone()).is_some() {
                return Ok(());
            }
            pending.bytes += bytes.len();
            pending.objects.push(StoredObject { id, bytes });
            if pending.bytes < AHEAD_BYTES {
                return Ok(());
            }
            pending.bytes = 0;
            std::mem::take(&mut pending.objects)
        };
        let ids: Vec<_> = ahead.iter().map(|object| object.id).collect();
        let written = self.store.inner.backend.put_ahead(ahead, self.epoch);
        let mut pending = self.pending.lock();
        match &written {
            Ok(()) => ids.iter().for_each(|id| drop(pending.by_id.remove(id))),
            Err(error) => pending.failed = Some(error.clone()),
        }
        written
    }

    /// Ends the session in one transaction: what is still pending, the references, the operation record.
    ///
    /// `keep`, usually the new root, stays pinned for as long as anything built in this session is remembered.
    pub fn commit(self, keep: impl Into<ObjectId>, refs: RefMove) -> Result<Committed> {
        let Pending { objects, failed, .. } = std::mem::take(&mut *self.pending.lock());
        if let Some(error) = failed {
            return Err(error);
        }
        let RefMove { expect, set, operation, durability } = refs;
        let transaction =
            Transaction { objects, epoch: self.epoch, expect, set, operation: Some(operation), durability };
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
