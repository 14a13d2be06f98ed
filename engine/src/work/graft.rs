//! Inserts stored entries into a working tree unchanged.

use std::sync::Arc;

use super::WorkingTree;
use super::node::{Child, Dir, Leaf, Meta, XattrsNow};
use crate::directory::entry_at;
use crate::error::{Error, Result};
use crate::id::{RootId, SnapshotId};
use crate::name::TreePath;
use crate::object::{Entry, EntryKind, Node, Xattr};
use crate::store::SessionPin;
use crate::time::Time;

impl WorkingTree {
    /// Makes another snapshot the parent of the next commit. The contents of the tree do not change.
    pub fn rebase(&mut self, snapshot: Option<SnapshotId>) {
        self.state.base.snapshot = snapshot;
    }

    /// Replaces the entry at a path with the one that another tree of the store has there. The parent directory keeps its mtime.
    /// Fails for a directory.
    pub fn take_over(&mut self, path: &TreePath, root: RootId) -> Result<()> {
        let found = entry_at(&self.store, &*self.store.root(root)?, path)?;
        let entry = found.ok_or_else(|| Error::NotFound { path: path.clone() })?;
        let Some((above, _)) = path.split_last().filter(|_| !matches!(entry.node, Node::Directory(_))) else {
            return Err(Error::IsADirectory { path: path.clone() });
        };
        self.keep(root)?;
        let mtime = self.directory_mut(&above)?.meta.mtime;
        self.put_entry(path, &entry, entry.mtime)?;
        self.directory_mut(&above)?.meta.mtime = mtime;
        Ok(())
    }

    /// Protects another tree from garbage collection while this one may hold entries of it.
    pub(crate) fn keep(&mut self, root: RootId) -> Result<()> {
        self.state.base.older.push(SessionPin::stored(self.store.hold(root)?));
        Ok(())
    }

    /// Puts a stored entry at a path, replacing any existing one. A directory is put without its contents; an existing directory
    /// keeps its contents and only gets the attributes of the entry. A file is put without its other names.
    pub(crate) fn put_entry(&mut self, path: &TreePath, entry: &Entry, mtime: Time) -> Result<()> {
        let Some((parent, name)) = path.split_last() else {
            let root = self.directory_mut(path)?;
            root.meta = Meta { mtime: root.meta.mtime, ..Meta::of(entry) };
            return Ok(());
        };
        let is_directory = matches!(entry.node, Node::Directory(_));
        match self.stat(path.as_bytes())? {
            Some(found) if is_directory && found.kind == EntryKind::Directory => {
                let dir = self.directory_mut(path)?;
                dir.meta = Meta { mtime: dir.meta.mtime, ..Meta::of(entry) };
                return Ok(());
            }
            Some(_) => self.remove_all(path.as_bytes())?,
            None => {}
        }
        let child = if is_directory {
            Child::Dir(Arc::new(Dir::empty(Meta { mtime, ..Meta::of(entry) })))
        } else {
            // A conflict has no time.
            let mtime = if entry.kind() == EntryKind::Conflict { entry.mtime } else { mtime };
            Child::Clean(Entry { mtime, ..entry.clone() }.with_extra(|extra| extra.link = None))
        };
        self.place(&parent, name, child)
    }

    /// Puts a stored directory with its contents at a vacant path. It must not contain files with several names.
    pub(crate) fn put_tree(&mut self, path: &TreePath, entry: &Entry) -> Result<()> {
        let (parent, name) = self.vacant(path)?;
        self.place(&parent, name, Child::Clean(entry.clone()))
    }

    /// Replaces the file at a path, under all its names, with this entry. The path must exist; neither it nor the entry may be a
    /// directory.
    pub(crate) fn replace_leaf(&mut self, path: &TreePath, entry: &Entry) -> Result<()> {
        let leaf = self.leaf_at(path)?;
        *leaf = Leaf::stored(entry);
        Ok(())
    }

    /// Sets all extended attributes of a path. The list must be sorted by name and within the limits.
    pub(crate) fn set_xattrs(&mut self, path: &TreePath, list: Vec<Xattr>) -> Result<()> {
        self.meta_mut(path)?.xattrs = XattrsNow::Edited(Arc::new(list));
        Ok(())
    }
}
