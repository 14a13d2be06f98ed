//! The workspaces that conflicts belong to: a cache for captions.

use std::collections::HashMap;
use std::sync::Arc;

use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{Bare, SnapshotId, TreePath};
use parking_lot::Mutex;

use super::caption_source::CaptionSource;

/// The most conflicts whose workspaces are cached.
const OWNERS_MAX: usize = 4_096;

/// The source of a caption, and the path and the hash of the conflict.
type Key = (CaptionSource, TreePath, Bare);

/// A cache of the workspaces of conflicts, by source, path and hash.
#[derive(Default)]
pub(super) struct Owners {
    known: Mutex<HashMap<Key, Arc<Owner>>>,
}

/// The workspace that has a conflict, if there is one, and the names of the workspaces whose versions compete.
pub(super) struct Owner {
    pub(super) workspace: Option<WorkspaceName>,
    /// The snapshot whose history the names come from.
    pub(super) named_by: SnapshotId,
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
