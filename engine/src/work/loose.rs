//! A file detached from its tree. An open file handle reads and writes it after the file's last name was removed, and readers use
//! it so that they need not hold a lock on the tree.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::file::FileData;
use super::lookup::{Lookup, Stat, not_a_file};
use super::node::{Body, Leaf, Meta, leaf_mut};
use super::segment::SegmentRange;
use super::{Base, WorkingTree};
use crate::error::{Error, Result};
use crate::name::{AsTreePath, TreePath};
use crate::object::{EntryKind, Node, Owner, Xattr};
use crate::store::Store;
use crate::time::Time;

/// An entry other than a directory, as it was when it was detached from its tree. It is independent from then on; cloning it
/// copies a pointer.
#[derive(Clone)]
pub struct LooseFile {
    pub(super) store: Store,
    pub(super) leaf: Arc<Leaf>,
    /// Protects the objects that the file reads from garbage collection.
    _base: Base,
}

impl WorkingTree {
    /// Returns the entry at a path, detached from the tree. Fails for directories and conflicts.
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

    /// Returns a stored entry as a detached file; an empty file for `None`. The tree must keep the entry alive: it is a side of a
    /// conflict in this tree.
    pub fn loose_entry(&self, entry: Option<&crate::object::Entry>) -> LooseFile {
        let leaf = match entry {
            Some(entry) => Leaf::stored(entry),
            None => Leaf::new(Body::File(FileData::empty()), Meta::new(0o444, Time::EPOCH)),
        };
        LooseFile { store: self.store.clone(), leaf: Arc::new(leaf), _base: self.state.base.clone() }
    }
}

impl LooseFile {
    /// Returns the store that the file reads from.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the metadata. The number of names is 0.
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

    /// Returns the target of a symlink.
    pub fn target(&self) -> Option<Bytes> {
        match &self.leaf.body {
            Body::Other(Node::Symlink(target)) => Some(target.clone()),
            _ => None,
        }
    }

    /// Returns the device number of a device.
    pub fn device(&self) -> Option<crate::object::Device> {
        match &self.leaf.body {
            Body::Other(Node::CharDevice(device) | Node::BlockDevice(device)) => Some(*device),
            _ => None,
        }
    }

    /// Returns up to `length` bytes from an offset; fewer at the end.
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

    /// Returns the stored content and size if the file has no edits.
    pub fn stored(&self) -> Option<(crate::object::Content, u64)> {
        match &self.leaf.body {
            Body::File(data) => data.as_stored(),
            Body::Other(_) => None,
        }
    }

    /// Returns how many bytes from this offset on lie in a hole; 0 in data.
    pub fn hole_at(&self, offset: u64) -> Result<u64> {
        self.data()?.hole_at(&self.store, offset)
    }

    /// Returns how many bytes from this offset on both files have from the same stored content, at the same offset. They are equal
    /// and need not be read.
    pub fn shared_at(&self, other: &Self, offset: u64) -> Result<u64> {
        let (ours, theirs) = (self.data()?.base_at(offset), other.data()?.base_at(offset));
        Ok(match (ours, theirs) {
            (Some((content, length)), Some((their_content, their_length))) if content == their_content => {
                length.min(their_length)
            }
            _ => 0,
        })
    }

    /// Returns how many bytes from this offset on are data, up to the next hole or the end; 0 in a hole.
    pub fn data_at(&self, offset: u64) -> Result<u64> {
        self.data()?.data_at(&self.store, offset)
    }

    /// Returns the extended attributes, sorted by name.
    pub fn xattrs(&self) -> Result<Vec<Xattr>> {
        match &self.leaf.meta.xattrs {
            super::node::XattrsNow::Stored(xattrs) => self.store.xattrs(xattrs),
            super::node::XattrsNow::Edited(list) => Ok(list.to_vec()),
        }
    }

    /// Writes bytes that are already in a segment.
    pub fn write_range(&mut self, offset: u64, range: SegmentRange, length: u64, now: Time) -> Result<()> {
        self.change(now, |data| data.write_range(offset, range, length))
    }

    /// Truncates the file, or extends it with zeros.
    pub fn truncate(&mut self, size: u64, now: Time) -> Result<()> {
        self.change(now, |data| data.truncate(size))
    }

    /// Replaces a range with zeros. The size does not change.
    pub fn punch_hole(&mut self, range: Range<u64>, now: Time) -> Result<()> {
        self.change(now, |data| {
            data.punch_hole(range);
            Ok(())
        })
    }

    /// Sets the permission bits, owner and mtime that are given.
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
