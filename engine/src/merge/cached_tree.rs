//! One of the trees of a merge, with a cache of its lookups.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use super::side::{PathEntry, is_directory};
use crate::directory;
use crate::error::Result;
use crate::id::RootId;
use crate::name::TreePath;
use crate::object::{Entry, Node, Root};
use crate::store::Store;

pub(super) struct CachedTree {
    store: Store,
    root: Arc<Root>,
    /// Cached lookups. The cache grows with the changed paths and the directories above them.
    entries: RefCell<HashMap<TreePath, Option<Entry>>>,
}

impl Deref for CachedTree {
    type Target = Root;

    fn deref(&self) -> &Root {
        &self.root
    }
}

impl CachedTree {
    pub(super) fn new(store: &Store, root: RootId) -> Result<Self> {
        Ok(Self { store: store.clone(), root: store.root(root)?, entries: RefCell::default() })
    }

    /// Returns the entry at a path, or `None` if it does not exist.
    pub(super) fn entry_at(&self, path: &TreePath) -> Result<Option<Entry>> {
        let mut entries = self.entries.borrow_mut();
        // Walks up to the nearest cached ancestor, then down again.
        let mut open = Vec::new();
        let mut above = path.clone();
        let mut here = loop {
            if let Some(found) = entries.get(&above) {
                break found.clone();
            }
            let Some((next, name)) = above.split_last() else { break Some(self.root.directory.clone()) };
            open.push((above, name));
            above = next;
        };
        while let Some((path, name)) = open.pop() {
            here = match here.map(|entry| entry.node) {
                Some(Node::Directory(contents)) => directory::get(&self.store, contents, &name)?,
                _ => None,
            };
            entries.insert(path, here.clone());
        }
        Ok(here)
    }

    /// Returns the entry at a path, unless it is a directory.
    pub(super) fn leaf_at(&self, path: &TreePath) -> Result<Option<PathEntry>> {
        let found = self.entry_at(path)?.filter(|entry| !is_directory(entry));
        Ok(found.map(|entry| PathEntry { path: path.clone(), entry }))
    }
}
