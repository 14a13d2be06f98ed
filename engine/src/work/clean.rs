//! A cache of the contents of unmodified directories, by path, so that consecutive lookups in one directory do not each walk from
//! the root.
//!
//! Forks share the cache until one of them is edited; that one starts with an empty cache, because an edit may change the
//! contents behind any path.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::name::TreePath;
use crate::object::DirectoryRef;

/// Number of slots in the cache. A new directory replaces the one in its slot.
const SLOTS: usize = 128;

/// A directory path with its contents. An empty directory has no stored contents.
type CacheSlot = Option<(TreePath, Option<DirectoryRef>)>;

/// The cache for one state of a tree.
#[derive(Clone, Default)]
pub(super) struct CleanDirectories(OnceLock<Arc<Mutex<Vec<CacheSlot>>>>);

impl CleanDirectories {
    pub(super) fn get(&self, path: &TreePath) -> Option<Option<DirectoryRef>> {
        let places = self.0.get()?.lock();
        let (found, contents) = places[place_of(path)].as_ref()?;
        (found == path).then_some(*contents)
    }

    /// Returns whether the cache is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }

    pub(super) fn set(&self, path: &TreePath, contents: Option<DirectoryRef>) {
        let places = self.0.get_or_init(|| Arc::new(Mutex::new(vec![None; SLOTS])));
        places.lock()[place_of(path)] = Some((path.clone(), contents));
    }

    /// Clears the cache. Called before every edit.
    pub(super) fn forget(&mut self) {
        self.0.take();
    }
}

/// Returns the slot of a path. Sibling directories differ at the end of their paths, nested directories in the length.
fn place_of(path: &TreePath) -> usize {
    let bytes = path.as_bytes();
    let end =
        bytes.iter().rev().take(8).fold(bytes.len(), |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    end % SLOTS
}
