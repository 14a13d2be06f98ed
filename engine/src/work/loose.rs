//! A file apart from its tree: what an open handle goes on reading and writing when the file's last name is gone, and what is
//! read without holding the tree still.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::file::FileData;
use super::look::{Lookup, Stat, not_a_file};
use super::node::{Body, Leaf, Meta, leaf_mut};
use super::segment::SegmentRange;
use super::{Base, WorkingTree};
use crate::error::{Error, Result};
use crate::name::{AsTreePath, TreePath};
use crate::object::{EntryKind, Node, Owner, Xattr};
use crate::store::Store;
use crate::time::Time;

/// Anything but a directory, as it was when it was taken out of its tree. Its own from then on; cloning it is a pointer.
#[derive(Clone)]
pub struct LooseFile {
    store: Store,
    leaf: Arc<Leaf>,
    /// Keeps in the store what the file reads from.
    _base: Base,
}

impl WorkingTree {
    /// What is at a path, apart from the tree. Directories and conflicts cannot be had this way.
    pub fn loose(&self, path: impl AsTreePath) -> Result<LooseFile> {
        let path = path.tree_path()?;
        let path: &TreePath = &path;
        let leaf = match self.existing(path)? {
            Lookup::Clean(entry) if !matches!(entry.node, Node::Directory(_) | Node::Conflict(_)) => {
                Arc::new(Leaf::stored(&entry))
            }
            Lookup::Leaf(leaf, _) => Arc::clone(leaf),
            other => return Err(not_a_file(path, other.kind())),
        };
        Ok(LooseFile { store: self.store.clone(), leaf, _base: self.state.base.clone() })
    }

    /// A stored entry apart from any tree, an empty file for none. It is one that this tree holds in the store: a side of a
    /// conflict in it.
    pub fn loose_entry(&self, entry: Option<&crate::object::Entry>) -> LooseFile {
        let leaf = match entry {
            Some(entry) => Leaf::stored(entry),
            None => Leaf::new(Body::File(FileData::empty()), Meta::new(0o444, Time::EPOCH)),
        };
        LooseFile { store: self.store.clone(), leaf: Arc::new(leaf), _base: self.state.base.clone() }
    }
}

impl LooseFile {
    /// Where what is stored of it lies.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What there is to know of it. It has no names.
    pub fn stat(&self) -> Stat {
        let Leaf { meta, body, .. } = &*self.leaf;
        let size = match body {
            Body::File(data) => data.size(),
            Body::Other(Node::Symlink(target)) => target.len() as u64,
            Body::Other(_) => 0,
        };
        let Meta { mode, mtime, owner, .. } = meta;
        Stat { kind: self.leaf.kind(), mode: *mode, mtime: *mtime, size, links: 0, owner: *owner, entry: None }
    }

    /// Where a symlink points.
    pub fn target(&self) -> Option<Bytes> {
        match &self.leaf.body {
            Body::Other(Node::Symlink(target)) => Some(target.clone()),
            _ => None,
        }
    }

    /// The number of a device.
    pub fn device(&self) -> Option<crate::object::Device> {
        match &self.leaf.body {
            Body::Other(Node::CharDevice(device) | Node::BlockDevice(device)) => Some(*device),
            _ => None,
        }
    }

    /// Up to `length` bytes from an offset; fewer at the end.
    pub fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let data = self.data()?;
        let length = (length as u64).min(data.size().saturating_sub(offset));
        if let Some((content, size)) = data.as_stored().filter(|_| length > 0) {
            return crate::content::read(&self.store, &content, size, offset, length);
        }
        let mut bytes = vec![0; length as usize];
        if length > 0 {
            data.read_at(&self.store, offset, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// What is stored of its bytes, if all of them are.
    pub fn stored(&self) -> Option<(crate::object::Content, u64)> {
        match &self.leaf.body {
            Body::File(data) => data.as_stored(),
            Body::Other(_) => None,
        }
    }

    /// How many bytes from this offset on lie in a hole; 0 in data.
    pub fn hole_at(&self, offset: u64) -> Result<u64> {
        self.data()?.hole_at(&self.store, offset)
    }

    /// How many bytes from this offset on are data, up to the next hole or the end; 0 in a hole.
    pub fn data_at(&self, offset: u64) -> Result<u64> {
        self.data()?.data_at(&self.store, offset)
    }

    /// Extended attributes, sorted by name.
    pub fn xattrs(&self) -> Result<Vec<Xattr>> {
        match &self.leaf.meta.xattrs {
            super::node::XattrsNow::Stored(xattrs) => self.store.xattrs(xattrs),
            super::node::XattrsNow::Edited(list) => Ok(list.to_vec()),
        }
    }

    /// Writes bytes that lie in a segment.
    pub fn write_range(&mut self, offset: u64, range: SegmentRange, length: u64, now: Time) -> Result<()> {
        self.change(now, |data| data.write_range(offset, range, length))
    }

    /// Cuts it, or lengthens it with zeros.
    pub fn truncate(&mut self, size: u64, now: Time) -> Result<()> {
        self.change(now, |data| data.truncate(size))
    }

    /// Makes a range zeros; its size stays.
    pub fn punch_hole(&mut self, range: Range<u64>, now: Time) -> Result<()> {
        self.change(now, |data| {
            data.punch_hole(range);
            Ok(())
        })
    }

    /// Sets permission bits, owner and time, as far as they are given.
    pub fn set_attributes(&mut self, mode: Option<u32>, owner: Option<Option<Owner>>, mtime: Option<Time>) {
        let meta = &mut leaf_mut(&mut self.leaf).meta;
        meta.mode = mode.unwrap_or(meta.mode);
        meta.owner = owner.unwrap_or(meta.owner);
        meta.mtime = mtime.unwrap_or(meta.mtime);
    }

    fn data(&self) -> Result<&FileData> {
        match &self.leaf.body {
            Body::File(data) => Ok(data),
            Body::Other(_) => Err(self.no_file()),
        }
    }

    fn change(&mut self, now: Time, change: impl FnOnce(&mut FileData) -> Result<()>) -> Result<()> {
        let error = self.no_file();
        let leaf = leaf_mut(&mut self.leaf);
        let Body::File(data) = &mut leaf.body else { return Err(error) };
        change(data)?;
        leaf.meta.mtime = now;
        Ok(())
    }

    fn no_file(&self) -> Error {
        let found = self.leaf.kind();
        debug_assert_ne!(found, EntryKind::Directory, "directories are never loose");
        Error::WrongKind { path: TreePath::root(), wanted: "a file", found: found.word() }
    }
}
