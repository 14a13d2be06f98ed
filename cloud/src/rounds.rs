//! The state of a node in the collections of other nodes: which one it has answered, and which pins it has announced to it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_engine::backend::Holder;
use amalgam_engine::{ObjectId, ObjectKind};
use parking_lot::Mutex;

/// Answers a collection in another thread.
pub(crate) type Answer = dyn Fn() + Send + Sync;

/// The collection of another node that this node knows of.
#[derive(Default)]
pub(crate) struct Rounds {
    /// The stores whose sessions and pins count.
    holders: Mutex<Vec<Arc<dyn Holder>>>,
    /// The token of the collection that pins are announced to; 0 if there is none.
    pub(crate) token: AtomicU64,
    /// The pins that were announced to it, beside those of the answer.
    pub(crate) announced: Mutex<HashSet<ObjectId>>,
    /// The token of the last collection that was answered. Locked while this node answers.
    pub(crate) answered: Mutex<u64>,
}

impl Rounds {
    /// Begins with the collection that was under way when the node joined, if there is one. The node has answered it by joining.
    pub(crate) fn joined(token: u64) -> Self {
        Self { token: AtomicU64::new(token), answered: Mutex::new(token), ..Self::default() }
    }

    pub(crate) fn add(&self, holder: Arc<dyn Holder>) {
        self.holders.lock().push(holder);
    }

    /// Returns whether this node has to answer a collection, or has to learn of the end of one.
    pub(crate) fn is_news(&self, token: u64) -> bool {
        // While it is locked, the node answers.
        self.answered.try_lock().is_some_and(|answered| *answered != token)
    }

    /// Announces pins to this collection from now on.
    pub(crate) fn set(&self, token: u64) {
        let mut announced = self.announced.lock();
        announced.clear();
        self.token.store(token, Ordering::SeqCst);
    }

    pub(crate) fn held(&self) -> (Option<u64>, Vec<ObjectId>) {
        let (mut oldest, mut pins) = (None, HashSet::new());
        // Not under the lock: the last reference to a store may end here.
        let holders = self.holders.lock().clone();
        let mut gone = Vec::new();
        for holder in holders {
            match holder.held() {
                Some(held) => {
                    oldest = oldest.into_iter().chain(held.oldest).min();
                    pins.extend(held.pins);
                }
                None => gone.push(holder),
            }
        }
        if !gone.is_empty() {
            self.holders.lock().retain(|holder| !gone.iter().any(|gone| Arc::ptr_eq(gone, holder)));
        }
        (oldest, pins.into_iter().collect())
    }
}

/// Encodes an object id for PostgreSQL: the kind in one byte, then the hash.
pub(crate) fn encode(id: &ObjectId) -> Vec<u8> {
    [&[id.kind as u8], &id.hash[..]].concat()
}

pub(crate) fn decode(bytes: &[u8]) -> Option<ObjectId> {
    let (kind, hash) = bytes.split_first()?;
    Some(ObjectId { kind: ObjectKind::from_number(*kind)?, hash: hash.try_into().ok()? })
}
