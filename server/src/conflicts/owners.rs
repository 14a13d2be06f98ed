//! The workspaces that conflicts belong to: a cache for captions.

use std::collections::HashMap;
use std::sync::Arc;

use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{Bare, TreePath};
use parking_lot::Mutex;

/// The most conflicts whose workspaces are cached.
const OWNERS_MAX: usize = 4_096;

/// The path and the hash of a conflict.
type Key = (TreePath, Bare);

/// A cache of the workspaces of conflicts, by path and hash.
#[derive(Default)]
pub(super) struct Owners {
    known: Mutex<HashMap<Key, Arc<Owner>>>,
}

/// The workspace whose head has a conflict, and the names of the workspaces whose versions compete.
pub(super) struct Owner {
    pub(super) workspace: WorkspaceName,
    pub(super) names: Vec<String>,
}

impl Owners {
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Owner>> {
        self.known.lock().get(key).cloned()
    }

    /// Keeps an owner. A full cache is cleared first.
    pub(super) fn insert(&self, key: Key, owner: &Arc<Owner>) {
        let mut known = self.known.lock();
        if known.len() >= OWNERS_MAX {
            known.clear();
        }
        known.insert(key, Arc::clone(owner));
    }

    pub(super) fn clear(&self) {
        self.known.lock().clear();
    }
}
