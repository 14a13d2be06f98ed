//! Read access to a working tree: its edits first, then the stored base.

use std::iter::Peekable;
use std::sync::Arc;

use bytes::Bytes;

use super::WorkingTree;
use super::node::{Body, Child, Dir, Group, GroupKey, Leaf, Meta, XattrsNow};
use super::ordmap;
use crate::content;
use crate::directory;
use crate::error::{Error, Result};
use crate::merkle::{Items, find};
use crate::name::{AsTreePath, Name, TreePath};
use crate::object::{
    Conflict, Device, Directories, DirectoryItem, DirectoryRef, Entry, EntryKind, Node, Owner, States, Xattr,
};
use crate::time::Time;

/// Maximum number of bytes that [`WorkingTree::read`] returns.
const READ_BYTES_MAX: u64 = 1 << 30;

/// The metadata of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The kind of the entry.
    pub kind: EntryKind,
    /// Permission bits.
    pub mode: u32,
    /// The modification time.
    pub mtime: Time,
    /// The length of a file or of a symlink's target, in bytes; 0 for other kinds.
    pub size: u64,
    /// The number of names (hard links) of a file.
    pub links: u64,
    /// The owner, if it differs from the workspace's.
    pub owner: Option<Owner>,
    /// The stored entry, if the path has no edits of its own.
    pub entry: Option<Entry>,
}

/// A node of the tree, stored or edited.
pub(super) enum Lookup<'a> {
    Clean(Entry),
    Dir(&'a Arc<Dir>),
    /// A leaf without a group is in its directory, which is edited, as are all directories above it.
    Leaf(&'a Arc<Leaf>, Option<(GroupKey, &'a Group)>),
}

impl WorkingTree {
    pub(super) fn lookup(&self, path: &TreePath) -> Result<Option<Lookup<'_>>> {
        if !self.state.clean.is_empty()
            && let Some((above, name)) = path.split_last()
            && let Some(contents) = self.state.clean.get(&above)
        {
            return Ok(directory::get(&self.store, contents, &name)?.map(|entry| self.stored(entry)));
        }
        let mut here = Lookup::Dir(&self.state.root);
        let mut names = path.letters().peekable();
        while let Some(letters) = names.next() {
            let contents = match here {
                Lookup::Dir(dir) => match dir.edits.get(letters) {
                    Some(None) => return Ok(None),
                    Some(Some(child)) => {
                        here = self.resolve(child);
                        continue;
                    }
                    None => dir.base,
                },
                Lookup::Clean(Entry { node: Node::Directory(contents), .. }) => {
                    if names.peek().is_none()
                        && let Some((above, _)) = path.split_last()
                    {
                        self.state.clean.set(&above, contents);
                    }
                    contents
                }
                // Only a directory can answer whether the rest of the path exists.
                Lookup::Clean(_) | Lookup::Leaf(..) => {
                    return Err(Error::NotADirectory { path: path.clone() });
                }
            };
            match directory::get(&self.store, contents, &Name::checked(letters))? {
                Some(entry) => here = self.stored(entry),
                None => return Ok(None),
            }
        }
        Ok(Some(here))
    }

    pub(super) fn existing(&self, path: &TreePath) -> Result<Lookup<'_>> {
        self.lookup(path)?.ok_or_else(|| Error::NotFound { path: path.clone() })
    }

    fn resolve<'a>(&'a self, child: &'a Child) -> Lookup<'a> {
        match child {
            Child::Clean(entry) => self.stored(entry.clone()),
            Child::Dir(dir) => Lookup::Dir(dir),
            Child::Leaf(leaf) => Lookup::Leaf(leaf, None),
            Child::Linked(key) => {
                let group = self.state.groups.get(key).expect("a linked name has its group in the table");
                Lookup::Leaf(&group.leaf, Some((*key, group)))
            }
        }
    }

    /// Returns a stored entry, or the edited file if the entry is a name of one.
    fn stored(&self, entry: Entry) -> Lookup<'_> {
        let key = entry.link().map(GroupKey::Known);
        match key.and_then(|key| Some((key, self.state.groups.get(&key)?))) {
            Some((key, group)) => Lookup::Leaf(&group.leaf, Some((key, group))),
            None => Lookup::Clean(entry),
        }
    }

    /// Returns the metadata of a path, or `None` if it does not exist.
    pub fn stat(&self, path: impl AsTreePath) -> Result<Option<Stat>> {
        let found = match self.lookup(&*path.tree_path()?) {
            Err(Error::NotADirectory { .. }) => None,
            found => found?,
        };
        found.map(|found| self.stat_of(&found)).transpose()
    }

    /// Returns the metadata of a name in a directory, or `None` if it does not exist. Faster than [`stat`](Self::stat) in a
    /// cached directory.
    pub fn stat_in(&self, directory: &TreePath, name: &Name) -> Result<Option<Stat>> {
        let Some(contents) = self.state.clean.get(directory) else { return self.stat(&directory.join(name)) };
        let found = directory::get(&self.store, contents, name)?.map(|entry| self.stored(entry));
        found.map(|found| self.stat_of(&found)).transpose()
    }

    fn stat_of(&self, found: &Lookup<'_>) -> Result<Stat> {
        let of_meta = |kind, meta: &Meta, size| Stat {
            kind,
            mode: meta.mode,
            mtime: meta.mtime,
            size,
            links: 1,
            owner: meta.owner,
            entry: None,
        };
        Ok(match found {
            Lookup::Clean(entry) => {
                let links = match entry.link() {
                    Some(link) => self.stored_members(link)?.len() as u64,
                    None => 1,
                };
                let (kind, size) = (entry.kind(), size_of(&entry.node));
                let (mode, mtime, owner) = (entry.mode, entry.mtime, entry.owner());
                Stat { kind, mode, mtime, size, links, owner, entry: Some(entry.clone()) }
            }
            Lookup::Dir(dir) => of_meta(EntryKind::Directory, &dir.meta, 0),
            Lookup::Leaf(leaf, group) => {
                let size = match &leaf.body {
                    Body::File(data) => data.size(),
                    Body::Other(node) => size_of(node),
                };
                let mut stat = of_meta(leaf.kind(), &leaf.meta, size);
                if let Some((_, group)) = group {
                    stat.links = group.members.iter().count() as u64;
                }
                stat
            }
        })
    }

    /// Returns the conflict at a path, or `None` if the path does not exist or is not a conflict.
    pub fn conflict_at(&self, path: impl AsTreePath) -> Result<Option<Arc<Conflict>>> {
        match self.lookup(&*path.tree_path()?) {
            Ok(Some(Lookup::Clean(Entry { node: Node::Conflict(conflict), .. }))) => Ok(Some(conflict)),
            Ok(_) | Err(Error::NotADirectory { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a path exists.
    pub fn exists(&self, path: impl AsTreePath) -> Result<bool> {
        match self.lookup(&*path.tree_path()?) {
            Ok(found) => Ok(found.is_some()),
            Err(Error::NotADirectory { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns all bytes of a file of up to 1 GiB. [`read_at`](Self::read_at) reads larger files in parts.
    pub fn read(&self, path: impl AsTreePath) -> Result<Vec<u8>> {
        let path = path.tree_path()?;
        let path: &TreePath = &path;
        let size = self.file_size(path)?;
        if size > READ_BYTES_MAX {
            return Err(Error::TooLarge { what: "a file read in one piece", value: size, max: READ_BYTES_MAX });
        }
        self.read_range(path, 0, size)
    }

    /// Returns up to `length` bytes of a file from an offset; fewer at its end.
    pub fn read_at(&self, path: impl AsTreePath, offset: u64, length: usize) -> Result<Vec<u8>> {
        self.read_range(&*path.tree_path()?, offset, length as u64)
    }

    fn read_range(&self, path: &TreePath, offset: u64, length: u64) -> Result<Vec<u8>> {
        let size = self.file_size(path)?;
        let length = length.min(size.saturating_sub(offset));
        // Reads in steps, so that a hostile file size does not cause an allocation before any bytes were read.
        const STEP: u64 = 16 << 20;
        let mut bytes = Vec::new();
        let mut done = 0;
        while done < length {
            let step = (length - done).min(STEP);
            bytes.resize((done + step) as usize, 0);
            let target = &mut bytes[done as usize..];
            match self.existing(path)? {
                Lookup::Clean(Entry { node: Node::File { size, content }, .. }) => {
                    content::read_at(&self.store, &content, size, offset + done, target)?;
                }
                Lookup::Leaf(leaf, _) => match &leaf.body {
                    Body::File(data) => data.read_at(&self.store, offset + done, target)?,
                    Body::Other(_) => unreachable!("the size was asked of a file"),
                },
                _ => unreachable!("the size was asked of a file"),
            }
            done += step;
        }
        Ok(bytes)
    }

    fn file_size(&self, path: &TreePath) -> Result<u64> {
        match self.existing(path)? {
            Lookup::Clean(Entry { node: Node::File { size, .. }, .. }) => Ok(size),
            Lookup::Leaf(leaf, _) if let Body::File(data) = &leaf.body => Ok(data.size()),
            other => Err(not_a_file(path, other.kind())),
        }
    }

    /// Returns how many bytes from this offset on lie in a hole; 0 in data.
    pub fn hole_at(&self, path: impl AsTreePath, offset: u64) -> Result<u64> {
        let path = path.tree_path()?;
        let path: &TreePath = &path;
        match self.existing(path)? {
            Lookup::Clean(Entry { node: Node::File { size, content }, .. }) => {
                content::hole_at(&self.store, &content, size, offset)
            }
            Lookup::Leaf(leaf, _) if let Body::File(data) = &leaf.body => data.hole_at(&self.store, offset),
            other => Err(not_a_file(path, other.kind())),
        }
    }

    /// Returns the target of a symlink.
    pub fn read_link(&self, path: impl AsTreePath) -> Result<Bytes> {
        let path = path.tree_path()?;
        let path: &TreePath = &path;
        match self.existing(path)? {
            Lookup::Clean(Entry { node: Node::Symlink(target), .. }) => Ok(target),
            Lookup::Leaf(leaf, _) if let Body::Other(Node::Symlink(target)) = &leaf.body => Ok(target.clone()),
            other => Err(Error::WrongKind { path: path.clone(), wanted: "a symlink", found: other.kind().word() }),
        }
    }

    /// Lists the names in a directory with their metadata, sorted by name.
    pub fn list(&self, path: impl AsTreePath) -> Result<Listing<'_>> {
        let path = path.tree_path()?;
        let path: &TreePath = &path;
        match self.existing(path)? {
            Lookup::Dir(dir) => Listing::of(self, dir.base, Some(dir)),
            Lookup::Clean(Entry { node: Node::Directory(contents), .. }) => {
                self.state.clean.set(path, contents);
                Listing::of(self, contents, None)
            }
            _ => Err(Error::NotADirectory { path: path.clone() }),
        }
    }

    /// Lists the names in a directory from this name on, inclusive.
    pub fn list_from(&self, path: impl AsTreePath, name: &Name) -> Result<Listing<'_>> {
        let path = path.tree_path()?;
        let path: &TreePath = &path;
        let (contents, dir) = match self.existing(path)? {
            Lookup::Dir(dir) => (dir.base, Some(dir)),
            Lookup::Clean(Entry { node: Node::Directory(contents), .. }) => (contents, None),
            _ => return Err(Error::NotADirectory { path: path.clone() }),
        };
        let stored = directory::list_from(&self.store, contents, name)?.peekable();
        Ok(Listing { tree: self, stored, edits: dir.map(|dir| dir.edits.iter_from(name).peekable()) })
    }

    /// Returns all paths of the file at a path: its own and those of its other hard links.
    pub fn names_of(&self, path: impl AsTreePath) -> Result<Vec<TreePath>> {
        let path = path.tree_path()?;
        let path: &TreePath = &path;
        match self.existing(path)? {
            Lookup::Leaf(_, Some((_, group))) => Ok(group.members.iter().map(|(member, ())| member.clone()).collect()),
            Lookup::Clean(entry) if let Some(link) = entry.link() => self.stored_members(link),
            _ => Ok(vec![path.clone()]),
        }
    }

    /// Returns the device number of a device.
    pub fn device(&self, path: impl AsTreePath) -> Result<Option<Device>> {
        Ok(match self.existing(&*path.tree_path()?)? {
            Lookup::Clean(Entry { node: Node::CharDevice(device) | Node::BlockDevice(device), .. }) => Some(device),
            Lookup::Leaf(leaf, _) => match &leaf.body {
                Body::Other(Node::CharDevice(device) | Node::BlockDevice(device)) => Some(*device),
                _ => None,
            },
            _ => None,
        })
    }

    /// Returns the paths that were edited since the base and the directories above them, sorted. Includes paths whose edits were
    /// reverted.
    pub fn edited(&self) -> Vec<TreePath> {
        let mut found = Vec::new();
        let root = (!self.has_stored_root()).then_some((TreePath::root(), &self.state.root));
        let mut open: Vec<_> = root.into_iter().collect();
        while let Some((path, dir)) = open.pop() {
            found.push(path.clone());
            for (name, child) in dir.edits.iter() {
                match child {
                    Some(Child::Dir(below)) => open.push((path.join(name), below)),
                    _ => found.push(path.join(name)),
                }
            }
        }
        for (_, group) in self.state.groups.iter() {
            found.extend(group.members.iter().map(|(member, ())| member.clone()));
        }
        found.sort();
        found.dedup();
        found
    }

    /// Returns the directories that edits put where the directory above them has stored other contents, with their own stored
    /// contents. For example those that were renamed, or created in place of a removed one. Their unedited entries are not those
    /// of the base at the same paths.
    pub fn moved_directories(&self) -> Result<Vec<(TreePath, Option<DirectoryRef>)>> {
        let mut found = Vec::new();
        let mut open = vec![(TreePath::root(), &self.state.root)];
        while let Some((path, dir)) = open.pop() {
            for (name, child) in dir.edits.iter() {
                let contents = match child {
                    Some(Child::Dir(below)) => {
                        open.push((path.join(name), below));
                        below.base
                    }
                    Some(Child::Clean(Entry { node: Node::Directory(contents), .. })) => *contents,
                    _ => continue,
                };
                let expected = match directory::get(&self.store, dir.base, name)? {
                    Some(Entry { node: Node::Directory(expected), .. }) => expected,
                    _ => None,
                };
                if contents != expected {
                    found.push((path.join(name), contents));
                }
            }
        }
        Ok(found)
    }

    /// Returns all extended attributes of a path, sorted by name.
    pub fn xattrs(&self, path: impl AsTreePath) -> Result<Vec<Xattr>> {
        let path = path.tree_path()?;
        let path: &TreePath = &path;
        match self.existing(path)? {
            Lookup::Clean(entry) => self.store.xattrs(entry.xattrs()),
            Lookup::Dir(dir) => self.xattrs_of(&dir.meta),
            Lookup::Leaf(leaf, _) => self.xattrs_of(&leaf.meta),
        }
    }

    pub(super) fn xattrs_of(&self, meta: &Meta) -> Result<Vec<Xattr>> {
        match &meta.xattrs {
            XattrsNow::Stored(xattrs) => self.store.xattrs(xattrs),
            XattrsNow::Edited(list) => Ok(list.to_vec()),
        }
    }

    /// Returns the value of one extended attribute.
    pub fn xattr(&self, path: impl AsTreePath, name: &[u8]) -> Result<Option<Bytes>> {
        let list = self.xattrs(path)?;
        Ok(list.into_iter().find(|xattr| xattr.name == name).map(|xattr| xattr.value))
    }

    /// Returns a state value as JSON text.
    pub fn state(&self, key: &str) -> Result<Option<String>> {
        let value = match self.state.values.get(key.as_bytes()) {
            Some(value) => value.clone(),
            None => match self.state.base.root.as_ref().and_then(|root| root.state) {
                Some(top) => find::<States>(&self.store, top.object(), key.as_bytes())?.item.map(|item| item.value),
                None => None,
            },
        };
        Ok(value.map(|value| String::from_utf8_lossy(&value).into_owned()))
    }
}

impl Lookup<'_> {
    pub(super) fn kind(&self) -> EntryKind {
        match self {
            Self::Clean(entry) => entry.kind(),
            Self::Dir(_) => EntryKind::Directory,
            Self::Leaf(leaf, _) => leaf.kind(),
        }
    }
}

fn size_of(node: &Node) -> u64 {
    match node {
        Node::File { size, .. } => *size,
        Node::Symlink(target) => target.len() as u64,
        _ => 0,
    }
}

pub(super) fn not_a_file(path: &TreePath, found: EntryKind) -> Error {
    match found {
        EntryKind::Directory => Error::IsADirectory { path: path.clone() },
        other => Error::WrongKind { path: path.clone(), wanted: "a file", found: other.word() },
    }
}

/// Iterates over the names of a directory, stored and edited ones merged. Reads nodes on demand.
pub struct Listing<'a> {
    tree: &'a WorkingTree,
    stored: Peekable<Items<Directories>>,
    edits: Option<Peekable<ordmap::Iter<'a, Name, Option<Child>>>>,
}

impl<'a> Listing<'a> {
    pub(super) fn of(tree: &'a WorkingTree, contents: Option<DirectoryRef>, dir: Option<&'a Arc<Dir>>) -> Result<Self> {
        let stored = directory::list(&tree.store, contents)?.peekable();
        Ok(Self { tree, stored, edits: dir.map(|dir| dir.edits.iter().peekable()) })
    }

    fn next_lookup(&mut self) -> Option<Result<(Name, Lookup<'a>)>> {
        loop {
            let stored = match self.stored.peek() {
                Some(Ok(item)) => Some(&item.name),
                Some(Err(_)) => {
                    return self.stored.next().map(|error| error.map(|_| unreachable!("just seen")));
                }
                None => None,
            };
            let edited = self.edits.as_mut().and_then(|edits| edits.peek().copied());
            match (stored, edited) {
                (None, None) => return None,
                (Some(stored), Some((name, child))) if name <= stored => {
                    if name == stored {
                        self.stored.next();
                    }
                    self.edits.as_mut().expect("it was just looked at").next();
                    if let Some(child) = child {
                        return Some(Ok((name.clone(), self.tree.resolve(child))));
                    }
                }
                (None, Some((name, child))) => {
                    self.edits.as_mut().expect("it was just looked at").next();
                    if let Some(child) = child {
                        return Some(Ok((name.clone(), self.tree.resolve(child))));
                    }
                }
                (Some(_), _) => {
                    let item = self.stored.next().expect("it was just looked at");
                    return Some(item.map(|DirectoryItem { name, entry }| (name, self.tree.stored(entry))));
                }
            }
        }
    }

    /// Iterates over the names without computing their metadata.
    pub(super) fn lookups(mut self) -> impl Iterator<Item = Result<(Name, Lookup<'a>)>> {
        std::iter::from_fn(move || self.next_lookup())
    }
}

impl Iterator for Listing<'_> {
    type Item = Result<(Name, Stat)>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_lookup()?;
        Some(next.and_then(|(name, found)| Ok((name, self.tree.stat_of(&found)?))))
    }
}
