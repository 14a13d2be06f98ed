//! Edits of a working tree. Each call is atomic: on an error it changes nothing.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::WorkingTree;
use super::file::FileData;
use super::freeze::check_linked_path;
use super::lookup::{Listing, Lookup, not_a_file};
use super::node::{Body, Child, Dir, GroupKey, Leaf, Meta, XattrsNow, dir_mut, leaf_mut};
use super::segment::SegmentRange;
use crate::directory;
use crate::error::{Error, Result};
use crate::malformed::Malformed;
use crate::name::{AsTreePath, DEPTH_MAX, InvalidName, Name, TreePath};
use crate::object::{Device, Entry, EntryKind, Node, Owner, SYMLINK_TARGET_BYTES_MAX, StateItem, Xattr, check_xattrs};
use crate::time::Time;

/// Behaviour of a rename if the target exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces the target, as POSIX does: a file replaces a file, a directory replaces an empty directory.
    #[default]
    Replace,
    /// Fails with an error.
    NoReplace,
    /// Exchanges the two.
    Exchange,
}

/// Kinds of entries that are neither files, directories nor symlinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// A named pipe.
    Fifo,
    /// A Unix domain socket.
    Socket,
    /// A character device.
    CharDevice(Device),
    /// A block device.
    BlockDevice(Device),
}

impl WorkingTree {
    /// Creates an empty file.
    pub fn create(&mut self, path: impl AsTreePath, mode: u32) -> Result<()> {
        self.add_leaf(path, Body::File(FileData::empty()), mode)
    }

    /// Writes a whole file, creating it or replacing its contents. A new file gets mode `0o644`.
    pub fn write(&mut self, path: impl AsTreePath, bytes: &[u8]) -> Result<()> {
        let path = path.tree_path()?;
        let path: &TreePath = &path;
        let mut data = FileData::empty();
        data.write_at(&*self.log, 0, bytes)?;
        if self.lookup(path)?.is_none() {
            return self.add_leaf(path, Body::File(data), 0o644);
        }
        self.change_file(path, |file, _| {
            *file = data;
            Ok(())
        })
    }

    /// Writes at an offset of an existing file. A gap between its end and the offset becomes zeros.
    pub fn write_at(&mut self, path: impl AsTreePath, offset: u64, bytes: &[u8]) -> Result<()> {
        let log = Arc::clone(&self.log);
        self.change_file(&*path.tree_path()?, |file, _| file.write_at(&*log, offset, bytes))
    }

    /// Writes bytes that are already in a segment at an offset of an existing file.
    pub fn write_range(&mut self, path: impl AsTreePath, offset: u64, range: SegmentRange, length: u64) -> Result<()> {
        self.change_file(&*path.tree_path()?, |file, _| file.write_range(offset, range, length))
    }

    /// Appends to an existing file and returns the offset of the appended bytes.
    pub fn append(&mut self, path: impl AsTreePath, bytes: &[u8]) -> Result<u64> {
        let log = Arc::clone(&self.log);
        self.change_file(&*path.tree_path()?, |file, _| {
            let offset = file.size();
            file.write_at(&*log, offset, bytes)?;
            Ok(offset)
        })
    }

    /// Truncates a file, or extends it with zeros.
    pub fn truncate(&mut self, path: impl AsTreePath, size: u64) -> Result<()> {
        self.change_file(&*path.tree_path()?, |file, _| file.truncate(size))
    }

    /// Replaces a range of a file with zeros. The size does not change.
    pub fn punch_hole(&mut self, path: impl AsTreePath, range: Range<u64>) -> Result<()> {
        self.change_file(&*path.tree_path()?, |file, _| {
            file.punch_hole(range);
            Ok(())
        })
    }

    /// Creates a directory.
    pub fn create_directory(&mut self, path: impl AsTreePath, mode: u32) -> Result<()> {
        check_mode(mode)?;
        let (parent, name) = self.vacant(&*path.tree_path()?)?;
        let dir = Arc::new(Dir::empty(Meta::new(mode, self.now)));
        self.place_in_known(&parent, name, Child::Dir(dir))
    }

    /// Creates a directory and its missing parents, with mode `0o755`.
    pub fn create_directories(&mut self, path: impl AsTreePath) -> Result<()> {
        let mut here = TreePath::root();
        for name in path.tree_path()?.names() {
            here = here.join(&name);
            match self.lookup(&here)? {
                None => self.create_directory(here.as_bytes(), 0o755)?,
                Some(found) if found.kind() == EntryKind::Directory => {}
                Some(_) => return Err(Error::NotADirectory { path: here }),
            }
        }
        Ok(())
    }

    /// Creates a symlink.
    pub fn symlink(&mut self, path: impl AsTreePath, target: impl AsRef<[u8]>) -> Result<()> {
        let target = target.as_ref();
        if target.is_empty() || target.contains(&0) {
            return Err(Error::Invalid { what: "symlink target", why: "it is empty or holds a NUL".to_owned() });
        }
        if target.len() > SYMLINK_TARGET_BYTES_MAX {
            let (value, max) = (target.len() as u64, SYMLINK_TARGET_BYTES_MAX as u64);
            return Err(Error::TooLarge { what: "a symlink target", value, max });
        }
        let node = Node::Symlink(Bytes::copy_from_slice(target));
        self.add_leaf(path, Body::Other(node), 0o777)
    }

    /// Creates a FIFO, a socket or a device.
    pub fn create_special(&mut self, path: impl AsTreePath, special: Special, mode: u32) -> Result<()> {
        let node = match special {
            Special::Fifo => Node::Fifo,
            Special::Socket => Node::Socket,
            Special::CharDevice(device) => Node::CharDevice(device),
            Special::BlockDevice(device) => Node::BlockDevice(device),
        };
        self.add_leaf(path, Body::Other(node), mode)
    }

    /// Creates a hard link: adds the name `new` to an existing file.
    pub fn link(&mut self, existing: impl AsTreePath, new: impl AsTreePath) -> Result<()> {
        let existing = existing.tree_path()?;
        let existing: &TreePath = &existing;
        match self.existing(existing)?.kind() {
            EntryKind::Directory => return Err(Error::IsADirectory { path: existing.clone() }),
            EntryKind::Conflict => {
                return Err(Error::WrongKind {
                    path: existing.clone(),
                    wanted: "a file",
                    found: EntryKind::Conflict.word(),
                });
            }
            _ => {}
        }
        let (parent, name) = self.vacant(&*new.tree_path()?)?;
        let path = parent.join(&name);
        check_linked_path(existing)?;
        check_linked_path(&path)?;
        let key = self.group_of(existing)?;
        self.place(&parent, name, Child::Linked(key))?;
        self.group_mut(key).members.insert(path, ());
        Ok(())
    }

    /// Removes an entry that is not a directory.
    pub fn remove(&mut self, path: impl AsTreePath) -> Result<()> {
        let path = path.tree_path()?;
        let path: &TreePath = &path;
        if self.existing(path)?.kind() == EntryKind::Directory {
            return Err(Error::IsADirectory { path: path.clone() });
        }
        self.remove_tree(path)
    }

    /// Removes an empty directory.
    pub fn remove_directory(&mut self, path: impl AsTreePath) -> Result<()> {
        let path = path.tree_path()?;
        let path: &TreePath = &path;
        if self.existing(path)?.kind() != EntryKind::Directory {
            return Err(Error::NotADirectory { path: path.clone() });
        }
        if self.list(path.as_bytes())?.next().transpose()?.is_some() {
            return Err(Error::NotEmpty { path: path.clone() });
        }
        self.remove_tree(path)
    }

    /// Removes an entry of any kind, a directory with everything in it.
    pub fn remove_all(&mut self, path: impl AsTreePath) -> Result<()> {
        let path = path.tree_path()?;
        let path: &TreePath = &path;
        self.existing(path)?;
        self.remove_tree(path)
    }

    fn remove_tree(&mut self, path: &TreePath) -> Result<()> {
        let (parent, name) = split(path)?;
        let links = self.links_below(path)?;
        self.vacate(&parent, &name)?;
        for (path, key) in links {
            self.remove_member(key, &path);
        }
        Ok(())
    }

    /// Renames an entry.
    pub fn rename(&mut self, from: impl AsTreePath, to: impl AsTreePath, mode: RenameMode) -> Result<()> {
        let (from, to) = (from.tree_path()?, to.tree_path()?);
        let (from, to): (&TreePath, &TreePath) = (&from, &to);
        let (from_parent, from_name) = split(from)?;
        let (to_parent, to_name) = split(to)?;
        let moving = self.existing(from)?.kind();
        self.existing_directory(&to_parent)?;
        let target = self.lookup(to)?.map(|found| found.kind());
        if mode == RenameMode::Exchange && target.is_none() {
            return Err(Error::NotFound { path: to.clone() });
        }
        if mode == RenameMode::NoReplace && target.is_some() {
            return Err(Error::Exists { path: to.clone() });
        }
        if from == to {
            return Ok(());
        }
        if to.below(from).is_some() || (mode == RenameMode::Exchange && from.below(to).is_some()) {
            return Err(Error::IntoItself { path: from.clone() });
        }
        if mode != RenameMode::Exchange {
            self.check_replace(moving, target, to)?;
        }
        self.check_depth(from, to)?;
        if mode == RenameMode::Exchange {
            self.check_depth(to, from)?;
        }
        let moved_links = self.links_below(from)?;
        let target_links = if target.is_some() { self.links_below(to)? } else { Vec::new() };
        if let ([(_, ours)], [(_, theirs)]) = (&moved_links[..], &target_links[..])
            && ours == theirs
            && moving != EntryKind::Directory
            && target != Some(EntryKind::Directory)
        {
            // Both paths are names of the same file: POSIX requires that rename does nothing.
            return Ok(());
        }
        let moved_links = renamed_links(moved_links, from, to)?;
        let target_links = renamed_links(target_links, to, from)?;
        let moved = self.child_at(&from_parent, &from_name)?;
        if mode == RenameMode::Exchange {
            let displaced = self.child_at(&to_parent, &to_name)?;
            self.place(&from_parent, from_name, displaced)?;
        } else {
            self.vacate(&from_parent, &from_name)?;
        }
        self.place(&to_parent, to_name, moved)?;
        for link in moved_links.iter().chain(&target_links) {
            self.group_mut(link.key).members.remove(&link.before);
        }
        for link in moved_links {
            self.group_mut(link.key).members.insert(link.after, ());
        }
        for link in target_links {
            match mode {
                RenameMode::Exchange => drop(self.group_mut(link.key).members.insert(link.after, ())),
                RenameMode::Replace | RenameMode::NoReplace => self.remove_member(link.key, &link.before),
            }
        }
        Ok(())
    }

    fn check_replace(&self, moving: EntryKind, target: Option<EntryKind>, to: &TreePath) -> Result<()> {
        match (moving, target) {
            (_, None) => Ok(()),
            (EntryKind::Directory, Some(EntryKind::Directory)) => {
                match self.list(to.as_bytes())?.next().transpose()? {
                    Some(_) => Err(Error::NotEmpty { path: to.clone() }),
                    None => Ok(()),
                }
            }
            (EntryKind::Directory, Some(_)) => Err(Error::NotADirectory { path: to.clone() }),
            (_, Some(EntryKind::Directory)) => Err(Error::IsADirectory { path: to.clone() }),
            _ => Ok(()),
        }
    }

    /// Checks that a rename makes no path too deep. Only a move to a deeper level is checked, and of the moved entry only its
    /// directories are read.
    fn check_depth(&self, from: &TreePath, to: &TreePath) -> Result<()> {
        demand_depth(to)?;
        let (before, after) = (from.depth(), to.depth());
        if after <= before {
            return Ok(());
        }
        let mut open = vec![(after, self.existing(from)?)];
        while let Some((depth, here)) = open.pop() {
            let listing = match here {
                Lookup::Dir(dir) => Listing::of(self, dir.base, Some(dir))?,
                Lookup::Clean(Entry { node: Node::Directory(contents), .. }) => Listing::of(self, contents, None)?,
                _ => continue,
            };
            for child in listing.lookups() {
                let (_, child) = child?;
                if depth == DEPTH_MAX {
                    return Err(Error::Name { source: InvalidName::TooDeep });
                }
                if child.kind() == EntryKind::Directory {
                    open.push((depth + 1, child));
                }
            }
        }
        Ok(())
    }

    /// Sets the permission bits.
    pub fn set_mode(&mut self, path: impl AsTreePath, mode: u32) -> Result<()> {
        check_mode(mode)?;
        let path = path.tree_path()?;
        let path: &TreePath = &path;
        let demand = |kind| match kind {
            EntryKind::Symlink | EntryKind::Conflict => Err(Error::WrongKind {
                path: path.clone(),
                wanted: "an entry with permission bits",
                found: kind.word(),
            }),
            _ => Ok(()),
        };
        self.meta_of_mut(path, demand)?.mode = mode;
        Ok(())
    }

    /// Sets the modification time.
    pub fn set_mtime(&mut self, path: impl AsTreePath, mtime: Time) -> Result<()> {
        let path = path.tree_path()?;
        self.meta_of_mut(&path, has_attributes(&path))?.mtime = mtime;
        Ok(())
    }

    /// Sets the owner; `None` stands for the workspace's owner.
    pub fn set_owner(&mut self, path: impl AsTreePath, owner: Option<Owner>) -> Result<()> {
        let path = path.tree_path()?;
        self.meta_of_mut(&path, has_attributes(&path))?.owner = owner;
        Ok(())
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, path: impl AsTreePath, name: &[u8], value: &[u8]) -> Result<()> {
        let path = path.tree_path()?;
        let path: &TreePath = &path;
        has_attributes(path)(self.existing(path)?.kind())?;
        let mut list = self.xattrs(path)?;
        let xattr = Xattr { name: Bytes::copy_from_slice(name), value: Bytes::copy_from_slice(value) };
        match list.binary_search_by(|other| other.name[..].cmp(name)) {
            Ok(at) => list[at] = xattr,
            Err(at) => list.insert(at, xattr),
        }
        check_xattrs(&list).map_err(|why| Error::Invalid { what: "extended attribute", why: why.to_string() })?;
        self.meta_mut(path)?.xattrs = XattrsNow::Edited(Arc::new(list));
        Ok(())
    }

    /// Removes an extended attribute. Returns whether it existed.
    pub fn remove_xattr(&mut self, path: impl AsTreePath, name: &[u8]) -> Result<bool> {
        let path = path.tree_path()?;
        let path: &TreePath = &path;
        let mut list = self.xattrs(path.as_bytes())?;
        let Ok(at) = list.binary_search_by(|other| other.name[..].cmp(name)) else {
            return Ok(false);
        };
        list.remove(at);
        self.meta_mut(path)?.xattrs = XattrsNow::Edited(Arc::new(list));
        Ok(true)
    }

    /// Sets a state value: JSON text of up to 64 KiB.
    pub fn set_state(&mut self, key: &str, json: &str) -> Result<()> {
        let item = StateItem::new(key, json).map_err(|why| state_refused(&why))?;
        self.state.values.insert(item.key, Some(item.value));
        Ok(())
    }

    /// Removes a state value. Returns whether it existed.
    pub fn remove_state(&mut self, key: &str) -> Result<bool> {
        let was_there = self.state(key)?.is_some();
        if was_there {
            self.state.values.insert(Bytes::copy_from_slice(key.as_bytes()), None);
        }
        Ok(was_there)
    }

    fn add_leaf(&mut self, path: impl AsTreePath, body: Body, mode: u32) -> Result<()> {
        check_mode(mode)?;
        let (parent, name) = self.vacant(&*path.tree_path()?)?;
        let leaf = Arc::new(Leaf::new(body, Meta::new(mode, self.now)));
        self.place_in_known(&parent, name, Child::Leaf(leaf))
    }

    /// Checks that a path does not exist and is not too deep, and that its parent directory exists. Returns the parent and the name.
    pub(super) fn vacant(&self, path: &TreePath) -> Result<(TreePath, Name)> {
        let Some((parent, name)) = path.split_last() else {
            return Err(Error::Exists { path: path.clone() });
        };
        demand_depth(path)?;
        let is_there = match self.existing(&parent)? {
            Lookup::Dir(dir) => match dir.edits.get(&name) {
                Some(child) => child.is_some(),
                None => directory::get(&self.store, dir.base, &name)?.is_some(),
            },
            Lookup::Clean(Entry { node: Node::Directory(contents), .. }) => {
                directory::get(&self.store, contents, &name)?.is_some()
            }
            _ => return Err(Error::NotADirectory { path: parent }),
        };
        if is_there { Err(Error::Exists { path: path.clone() }) } else { Ok((parent, name)) }
    }

    fn existing_directory(&self, path: &TreePath) -> Result<()> {
        match self.existing(path)?.kind() {
            EntryKind::Directory => Ok(()),
            _ => Err(Error::NotADirectory { path: path.clone() }),
        }
    }

    pub(super) fn place(&mut self, parent: &TreePath, name: Name, child: Child) -> Result<()> {
        self.existing_directory(parent)?;
        self.place_in_known(parent, name, child)
    }

    /// Adds a child to a directory that the caller has already looked up.
    fn place_in_known(&mut self, parent: &TreePath, name: Name, child: Child) -> Result<()> {
        let now = self.now;
        let dir = self.known_directory_mut(parent)?;
        dir.set(name, child);
        dir.meta.mtime = now;
        Ok(())
    }

    /// Removes a name from its directory.
    fn vacate(&mut self, parent: &TreePath, name: &Name) -> Result<()> {
        let now = self.now;
        let store = self.store.clone();
        let dir = self.directory_mut(parent)?;
        if directory::get(&store, dir.base, name)?.is_some() {
            dir.edits.insert(name.clone(), None);
        } else {
            dir.edits.remove(name);
        }
        dir.meta.mtime = now;
        Ok(())
    }

    /// Returns the child with this name in a form that can be placed elsewhere. Linked files have been loaded into the group
    /// table.
    fn child_at(&mut self, parent: &TreePath, name: &Name) -> Result<Child> {
        let path = parent.join(name);
        if let Some(entry) = self.unloaded_link(&path)? {
            let link = entry.link().expect("it is a link");
            return Ok(Child::Linked(self.load_group(link, &entry)?));
        }
        let store = self.store.clone();
        let dir = self.directory_mut(parent)?;
        if let Some(Some(child)) = dir.edits.get(name) {
            return Ok(linked_child(child.clone()));
        }
        let stored = directory::get(&store, dir.base, name)?;
        stored.map(|entry| linked_child(Child::Clean(entry))).ok_or(Error::NotFound { path })
    }

    fn unloaded_link(&self, path: &TreePath) -> Result<Option<Entry>> {
        Ok(match self.lookup(path)? {
            Some(Lookup::Clean(entry)) if entry.link().is_some() => Some(entry),
            _ => None,
        })
    }

    /// Returns the directory at a path for editing. The directories above it become edited too.
    pub(super) fn directory_mut(&mut self, path: &TreePath) -> Result<&mut Dir> {
        // Checks before it edits: a path that is invalid at its end must not change anything at its beginning.
        self.existing_directory(path)?;
        self.known_directory_mut(path)
    }

    /// Returns the directory at a path for editing. The caller has already looked up the path.
    fn known_directory_mut(&mut self, path: &TreePath) -> Result<&mut Dir> {
        let store = &self.store;
        self.state.clean.forget();
        let mut dir = dir_mut(&mut self.state.root);
        for letters in path.letters() {
            let edited = dir.edits.get(letters);
            if !matches!(edited, Some(Some(Child::Dir(_)))) {
                let name = Name::checked(letters);
                let entry = match edited {
                    Some(Some(Child::Clean(entry))) => Some(entry.clone()),
                    Some(_) => None,
                    None => directory::get(store, dir.base, &name)?,
                };
                let Some((entry, contents)) = entry.and_then(|entry| match entry.node {
                    Node::Directory(contents) => Some((entry, contents)),
                    _ => None,
                }) else {
                    return Err(Error::NotADirectory { path: path.clone() });
                };
                dir.set(name, Child::Dir(Arc::new(Dir::stored(&entry, contents))));
            }
            let Some(Some(Child::Dir(below))) = dir.edits.known_mut(letters) else {
                unreachable!("it was just made a directory under edit");
            };
            dir = dir_mut(below);
        }
        Ok(dir)
    }

    /// Returns the leaf at a path for editing. The caller has looked it up and found a leaf without a group, so the leaf and all
    /// directories above it are already edited.
    fn known_leaf_mut(&mut self, path: &TreePath) -> &mut Leaf {
        self.state.clean.forget();
        let mut dir = dir_mut(&mut self.state.root);
        let mut names = path.letters();
        let last = names.next_back().expect("the root is no leaf");
        for letters in names {
            let Some(Some(Child::Dir(below))) = dir.edits.known_mut(letters) else {
                unreachable!("what is under edit is in directories under edit");
            };
            dir = dir_mut(below);
        }
        match dir.edits.known_mut(last) {
            Some(Some(Child::Leaf(leaf))) => leaf_mut(leaf),
            _ => unreachable!("a leaf without links is in its directory"),
        }
    }

    /// Returns the leaf (any entry except a directory) at a path for editing.
    pub(super) fn leaf_at(&mut self, path: &TreePath) -> Result<&mut Leaf> {
        let key = match self.existing(path)? {
            Lookup::Leaf(_, None) => return Ok(self.known_leaf_mut(path)),
            Lookup::Leaf(_, Some((key, _))) => key,
            Lookup::Clean(entry) => match entry.link() {
                Some(link) => self.load_group(link, &entry)?,
                None => {
                    let (parent, name) = split(path)?;
                    let leaf = Child::Leaf(Arc::new(Leaf::stored(&entry)));
                    self.known_directory_mut(&parent)?.set(name, leaf);
                    return Ok(self.known_leaf_mut(path));
                }
            },
            Lookup::Dir(_) => return Err(Error::IsADirectory { path: path.clone() }),
        };
        Ok(leaf_mut(&mut self.group_mut(key).leaf))
    }

    pub(super) fn meta_mut(&mut self, path: &TreePath) -> Result<&mut Meta> {
        self.meta_of_mut(path, |_| Ok(()))
    }

    /// Returns the metadata at a path for editing, if `demand` accepts the kind of the entry.
    fn meta_of_mut(&mut self, path: &TreePath, demand: impl FnOnce(EntryKind) -> Result<()>) -> Result<&mut Meta> {
        let found = self.existing(path)?;
        demand(found.kind())?;
        Ok(match found {
            Lookup::Leaf(_, None) => &mut self.known_leaf_mut(path).meta,
            Lookup::Dir(_) | Lookup::Clean(Entry { node: Node::Directory(_), .. }) => {
                &mut self.known_directory_mut(path)?.meta
            }
            Lookup::Leaf(..) | Lookup::Clean(_) => &mut self.leaf_at(path)?.meta,
        })
    }

    /// Changes the bytes and the mtime of a file. If `change` fails, neither changes.
    fn change_file<T>(
        &mut self,
        path: &TreePath,
        change: impl FnOnce(&mut FileData, &TreePath) -> Result<T>,
    ) -> Result<T> {
        let found = self.existing(path)?;
        if found.kind() != EntryKind::File {
            return Err(not_a_file(path, found.kind()));
        }
        let now = self.now;
        let leaf = match found {
            Lookup::Leaf(_, None) => self.known_leaf_mut(path),
            _ => self.leaf_at(path)?,
        };
        let Body::File(data) = &mut leaf.body else { unreachable!("its kind was checked") };
        let changed = change(data, path)?;
        leaf.meta.mtime = now;
        Ok(changed)
    }
}

/// A path of a linked file, before and after a rename.
struct RenamedLink {
    key: GroupKey,
    before: TreePath,
    after: TreePath,
}

/// Returns the new paths of the links below a renamed path. Computed before anything is changed, because a path can become too
/// deep.
fn renamed_links(links: Vec<(TreePath, GroupKey)>, from: &TreePath, to: &TreePath) -> Result<Vec<RenamedLink>> {
    let renamed = |(before, key): (TreePath, GroupKey)| {
        let after = match before.below(from).expect("links were collected below it") {
            [] => to.clone(),
            rest => TreePath::new([to.as_bytes(), b"/", rest].concat())?,
        };
        if after.as_bytes().len() > before.as_bytes().len() {
            check_linked_path(&after)?;
        }
        Ok(RenamedLink { key, before, after })
    };
    links.into_iter().map(renamed).collect()
}

/// Converts a stored entry whose group is in the table into a link to that group.
fn linked_child(child: Child) -> Child {
    match child {
        Child::Clean(entry) => match entry.link() {
            Some(link) => Child::Linked(GroupKey::Known(link)),
            None => Child::Clean(entry),
        },
        other => other,
    }
}

/// Refuses a path with too many names: it may have been joined from parts that were checked one by one.
fn demand_depth(path: &TreePath) -> Result<()> {
    if path.depth() <= DEPTH_MAX { Ok(()) } else { Err(Error::Name { source: InvalidName::TooDeep }) }
}

fn split(path: &TreePath) -> Result<(TreePath, Name)> {
    path.split_last()
        .ok_or_else(|| Error::Invalid { what: "path", why: "the root cannot be moved, removed or replaced".to_owned() })
}

/// Rejects entries without attributes of their own.
fn has_attributes(path: &TreePath) -> impl FnOnce(EntryKind) -> Result<()> {
    move |kind| match kind {
        EntryKind::Conflict => Err(Error::WrongKind {
            path: path.clone(),
            wanted: "an entry with attributes",
            found: EntryKind::Conflict.word(),
        }),
        _ => Ok(()),
    }
}

fn check_mode(mode: u32) -> Result<()> {
    if mode <= 0o7777 {
        return Ok(());
    }
    Err(Error::Invalid { what: "mode", why: format!("{mode:o} has more than permission bits") })
}

fn state_refused(why: &Malformed) -> Error {
    Error::Invalid { what: "state value", why: why.to_string() }
}
