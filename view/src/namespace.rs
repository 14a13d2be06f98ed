//! Operations on names: lookup, create, link, unlink, rename.

use amalgam_engine::object::Owner;
use amalgam_engine::work::{LooseFile, RenameMode, Special};
use amalgam_engine::{DEPTH_MAX, Error as EngineError, Name, Time, TreePath};

use crate::access::{Access, Caller, ensure_removable};
use crate::acl::{self, Acl};
use crate::attributes::{Attributes, Ino, Kind, ROOT};
use crate::dentry::Dentry;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::inodes::Location;
use crate::invalidation::Invalidation;
use crate::journal::Edit;

/// The set-group-ID bit, which a new directory inherits.
const SET_GROUP: u32 = 0o2000;

/// A directory in which names are looked up or changed.
struct Parent {
    ino: Ino,
    path: TreePath,
    attributes: Attributes,
}

impl Parent {
    /// Returns the path of a name that is created, moved or removed here. Fails if it is too deep.
    fn child(&self, name: &Name) -> Result<TreePath> {
        Ok(self.path.child(name).map_err(EngineError::from)?)
    }
}

/// The type of a new entry.
pub(crate) enum NewEntry<'a> {
    File { mode: u32 },
    Directory { mode: u32 },
    Symlink { target: &'a [u8] },
    Special { special: Special, mode: u32 },
}

impl NewEntry<'_> {
    fn kind(&self) -> Kind {
        match self {
            Self::File { .. } => Kind::File,
            Self::Directory { .. } => Kind::Directory,
            Self::Symlink { .. } => Kind::Symlink,
            Self::Special { special: Special::Fifo, .. } => Kind::Fifo,
            Self::Special { special: Special::Socket, .. } => Kind::Socket,
            Self::Special { special: Special::CharDevice(_), .. } => Kind::CharDevice,
            Self::Special { special: Special::BlockDevice(_), .. } => Kind::BlockDevice,
        }
    }

    /// Returns the requested permission bits.
    fn mode(&self) -> u32 {
        match self {
            Self::File { mode } | Self::Directory { mode } | Self::Special { mode, .. } => *mode,
            Self::Symlink { .. } => 0o777,
        }
    }

    fn edit(&self, path: TreePath, mode: u32, owner: Option<Owner>) -> Edit {
        match *self {
            Self::File { .. } => Edit::Create { path, mode, owner },
            Self::Directory { .. } => Edit::CreateDirectory { path, mode, owner },
            Self::Symlink { target } => Edit::Symlink { path, target: target.to_vec(), owner },
            Self::Special { special, .. } => Edit::Special { path, special, mode, owner },
        }
    }
}

/// Looks up a name and adds one reference to its inode.
pub(crate) fn lookup(fs: &mut FileSystem, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attributes> {
    let name = checked_name(name)?;
    let directory = open_parent(fs, parent)?;
    fs.check_access(caller, &directory.attributes, Access::EXECUTE)?;
    let dentry = Dentry { parent, name };
    match fs.lookup(&directory.path, dentry.clone())? {
        Some(found) => {
            fs.inodes.hold(found.ino);
            fs.inodes.cache_attributes(&found);
            Ok(found)
        }
        None => Err(EngineError::NotFound { path: directory.path.join(&dentry.name) }.into()),
    }
}

/// Creates an entry and adds one reference to its inode.
pub(crate) fn create(
    fs: &mut FileSystem,
    caller: &Caller,
    parent: Ino,
    name: &[u8],
    new: &NewEntry<'_>,
) -> Result<Attributes> {
    let name = checked_name(name)?;
    let directory = open_changeable(fs, caller, parent)?;
    let path = directory.child(&name)?;
    ensure_visible_if_there(fs, &path)?;
    if fs.local.contains(&path) || fs.tree.exists(&path)? {
        return Err(EngineError::Exists { path }.into());
    }
    fs.permissions().add(&path)?;
    fs.ensure_quota(0)?;
    let (kind, mode) = (new.kind(), new.mode());
    let inherits_group = directory.attributes.mode & SET_GROUP != 0;
    let gid = if inherits_group { directory.attributes.gid } else { caller.gid };
    let inherited_bit = if inherits_group && kind == Kind::Directory { SET_GROUP } else { 0 };
    let now = fs.now();
    let lists = inherited_acls(fs, &directory.path, kind, mode)?;
    let mode = match &lists {
        Some(lists) => mode & 0o7000 | lists.mode,
        None => mode & 0o7777 & !caller.umask,
    };
    let owner = fs.stored_owner(caller.uid, gid);
    match lists {
        None => fs.edit(&new.edit(path, mode | inherited_bit, owner), now, &[])?,
        Some(lists) => {
            let set = lists.xattrs.into_iter().map(|(name, value)| Edit::SetXattr {
                path: path.clone(),
                name: name.to_vec(),
                value,
            });
            let set: Vec<_> = set.collect();
            fs.edit_all([new.edit(path, mode | inherited_bit, owner)].iter().chain(&set), now)?;
        }
    }
    let dentry = Dentry { parent, name };
    debug_assert!(fs.inodes.ino_at(&dentry).is_none(), "nothing was there");
    fs.inodes.retire_handle_at(&dentry);
    let ino = fs.inodes.insert(dentry.clone(), kind);
    fs.inodes.hold(ino);
    fs.inodes.set_times(ino, Default::default());
    if kind == Kind::Directory {
        fs.inodes.start_subdirectory_count(ino);
        fs.inodes.subdirectory_added(parent);
    }
    fs.names_changed(parent, now, directory.attributes.atime);
    notify_changed(fs, caller, &dentry);
    let created = fs.attributes(ino)?;
    fs.inodes.cache_attributes(&created);
    Ok(created)
}

/// Adds a hard link to a file, and one reference to its inode.
pub(crate) fn link(fs: &mut FileSystem, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attributes> {
    let name = checked_name(name)?;
    let directory = open_changeable(fs, caller, parent)?;
    let before = fs.attributes(ino)?;
    if before.kind == Kind::Directory {
        return Err(Error::NotOwner);
    }
    let existing = fs.linked_path(ino)?;
    let new = directory.child(&name)?;
    ensure_visible_if_there(fs, &new)?;
    if fs.local.contains(&new) || fs.tree.exists(&new)? {
        return Err(EngineError::Exists { path: new }.into());
    }
    fs.ensure_read_permitted(ino)?;
    fs.permissions().link(&existing, &new)?;
    let now = fs.now();
    fs.edit(&Edit::Link { existing, new }, now, &[])?;
    let dentry = Dentry { parent, name };
    fs.inodes.add_dentry(ino, dentry.clone());
    fs.inodes.hold(ino);
    fs.attributes_changed(ino, now, before.mtime);
    fs.names_changed(parent, now, directory.attributes.atime);
    notify_changed(fs, caller, &dentry);
    fs.notify(caller, || Invalidation::Attributes(ino));
    fs.attributes(ino)
}

/// Removes a name of a file. Callers that hold its inode can still use it.
pub(crate) fn unlink(fs: &mut FileSystem, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
    let name = checked_name(name)?;
    let directory = open_changeable(fs, caller, parent)?;
    let dentry = Dentry { parent, name };
    let path = directory.child(&dentry.name)?;
    let found = lookup_removable(fs, caller, &directory, dentry.clone())?;
    fs.ensure_none_local_below(&path)?;
    if found.kind == Kind::Directory {
        return Err(EngineError::IsADirectory { path }.into());
    }
    fs.permissions().remove(&path)?;
    let now = fs.now();
    let remaining = remaining_name(fs, found.ino, &path)?;
    fs.edit(&Edit::Remove { path }, now, &[]).inspect_err(|_| evict_unused(fs, Some(&remaining)))?;
    remove_dentry(fs, &dentry, now, found.mtime, remaining);
    fs.names_changed(parent, now, directory.attributes.atime);
    notify_changed(fs, caller, &dentry);
    fs.notify(caller, || Invalidation::Attributes(found.ino));
    Ok(())
}

/// Removes an empty directory.
pub(crate) fn remove_directory(fs: &mut FileSystem, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
    let name = checked_name(name)?;
    let directory = open_changeable(fs, caller, parent)?;
    let dentry = Dentry { parent, name };
    let path = directory.child(&dentry.name)?;
    let found = lookup_removable(fs, caller, &directory, dentry.clone())?;
    fs.ensure_none_local_below(&path)?;
    if found.kind != Kind::Directory {
        return Err(EngineError::NotADirectory { path }.into());
    }
    // Before it is found not to be empty: its entries may be hidden.
    fs.permissions().remove(&path)?;
    ensure_empty(fs, &path)?;
    let now = fs.now();
    fs.edit(&Edit::RemoveDirectory { path }, now, &[])?;
    fs.inodes.remove_dentry(&dentry);
    fs.inodes.detach(found.ino, removed_directory(found, now), now);
    fs.inodes.subdirectory_removed(parent);
    fs.names_changed(parent, now, directory.attributes.atime);
    notify_changed(fs, caller, &dentry);
    Ok(())
}

/// Renames an entry, replaces another one by it, or exchanges both.
pub(crate) fn rename(
    fs: &mut FileSystem,
    caller: &Caller,
    from: (Ino, &[u8]),
    to: (Ino, &[u8]),
    mode: RenameMode,
) -> Result<()> {
    let source = Dentry { parent: from.0, name: checked_name(from.1)? };
    let target = Dentry { parent: to.0, name: checked_name(to.1)? };
    let source_directory = open_changeable(fs, caller, source.parent)?;
    let target_directory = open_changeable(fs, caller, target.parent)?;
    let (from, to) = (source_directory.child(&source.name)?, target_directory.child(&target.name)?);
    let moved = lookup_removable(fs, caller, &source_directory, source.clone())?;
    fs.ensure_none_local_below(&from)?;
    fs.ensure_none_local_below(&to)?;
    let replaced = fs.lookup(&target_directory.path, target.clone())?;
    if let Some(replaced) = &replaced {
        if mode == RenameMode::NoReplace {
            return Err(EngineError::Exists { path: to }.into());
        }
        ensure_removable(caller, &target_directory.attributes, replaced)?;
        if replaced.ino == moved.ino {
            return Ok(());
        }
    }
    fs.permissions().rename(&from, &to, mode)?;
    // A directory that moves to another parent gets another `..`, so it must be writable itself.
    if moved.kind == Kind::Directory && source.parent != target.parent {
        fs.check_access(caller, &moved, Access::WRITE)?;
    }
    let now = fs.now();
    let remaining = match &replaced {
        Some(replaced) if mode != RenameMode::Exchange => match (moved.kind, replaced.kind) {
            (Kind::Directory, Kind::Directory) => ensure_empty(fs, &to).map(|()| None)?,
            (Kind::Directory, _) => return Err(EngineError::NotADirectory { path: to }.into()),
            (_, Kind::Directory) => return Err(EngineError::IsADirectory { path: to }.into()),
            _ => Some(remaining_name(fs, replaced.ino, &to)?),
        },
        _ => None,
    };
    fs.edit(&Edit::Rename { from, to, mode }, now, &[]).inspect_err(|_| evict_unused(fs, remaining.as_ref()))?;
    count_subdirectories(fs, mode, (&source, &moved), (&target, replaced.as_ref()));
    match (mode, replaced) {
        (RenameMode::Exchange, Some(other)) => {
            fs.inodes.exchange_dentries(&source, &target);
            fs.attributes_changed(other.ino, now, other.mtime);
        }
        (_, replaced) => {
            match (replaced, remaining) {
                (Some(replaced), Some(remaining)) => {
                    remove_dentry(fs, &target, now, replaced.mtime, remaining);
                    fs.notify(caller, || Invalidation::Attributes(replaced.ino));
                }
                (Some(replaced), None) => {
                    fs.inodes.remove_dentry(&target);
                    fs.inodes.detach(replaced.ino, removed_directory(replaced, now), now);
                }
                (None, _) => {}
            }
            fs.inodes.move_dentry(&source, target.clone());
        }
    }
    fs.attributes_changed(moved.ino, now, moved.mtime);
    for directory in [&source_directory, &target_directory] {
        fs.names_changed(directory.ino, now, directory.attributes.atime);
    }
    for dentry in [&source, &target] {
        notify_changed(fs, caller, dentry);
    }
    // A caller that renames by path holds neither of them.
    for found in [Some(moved), replaced].into_iter().flatten() {
        fs.inodes.evict_if_unheld(found.ino);
    }
    Ok(())
}

/// Looks up the inode of an issued handle by its dentries, from the nearest directory in the table down.
pub(crate) fn lookup_issued(fs: &mut FileSystem, ino: Ino) -> Result<()> {
    let mut chain: Vec<(Ino, Dentry)> = Vec::new();
    let mut here = ino;
    while here != ROOT && fs.inodes.get(here).is_err() {
        let dentry = fs.inodes.handles().and_then(|handles| handles.issued_dentry(here)).ok_or(Error::Stale(ino))?;
        chain.push((here, dentry.clone()));
        here = dentry.parent;
        if chain.len() > DEPTH_MAX {
            return Err(Error::Stale(ino));
        }
    }
    let mut above = here;
    for (expected, dentry) in chain.into_iter().rev() {
        let found = match fs.inodes.path(above)? {
            Some(path) => fs.lookup(&path, dentry),
            None => Ok(None),
        };
        match found {
            Ok(Some(found)) if found.ino == expected => above = expected,
            found => {
                // No caller holds the directories on the way.
                let other = found.as_ref().ok().and_then(Option::as_ref).map_or(above, |found| found.ino);
                fs.inodes.evict_if_unheld(other);
                return match found {
                    Err(Error::Engine(error)) if !is_absence(&error) => Err(error.into()),
                    _ => Err(Error::Stale(ino)),
                };
            }
        }
    }
    Ok(())
}

fn is_absence(error: &EngineError) -> bool {
    matches!(error, EngineError::NotFound { .. } | EngineError::NotADirectory { .. } | EngineError::Absent { .. })
}

fn notify_changed(fs: &FileSystem, caller: &Caller, dentry: &Dentry) {
    fs.notify(caller, || Invalidation::Entry { parent: dentry.parent, name: dentry.name.clone() });
    fs.notify(caller, || Invalidation::Contents(dentry.parent));
}

/// Returns a directory for lookups.
fn open_parent(fs: &mut FileSystem, ino: Ino) -> Result<Parent> {
    let attributes = fs.attributes(ino)?;
    fs.inodes.cache_attributes(&attributes);
    let path = fs.linked_path(ino)?;
    if attributes.kind != Kind::Directory {
        return Err(EngineError::NotADirectory { path }.into());
    }
    Ok(Parent { ino, path, attributes })
}

/// Refuses a name at which a hidden entry is, as any other name that may not be added.
fn ensure_visible_if_there(fs: &FileSystem, path: &TreePath) -> Result<()> {
    match fs.permissions().read(path) {
        Err(_) => fs.permissions().add(path).and(Err(Error::Access)),
        Ok(()) => Ok(()),
    }
}

/// Returns a directory in which the caller may change names.
fn open_changeable(fs: &mut FileSystem, caller: &Caller, ino: Ino) -> Result<Parent> {
    fs.ensure_writable()?;
    let directory = open_parent(fs, ino)?;
    if fs.local.covers(&directory.path) {
        return Err(Error::Local { path: directory.path });
    }
    fs.check_access(caller, &directory.attributes, Access::WRITE.and(Access::EXECUTE))?;
    Ok(directory)
}

/// Looks up an entry whose name the caller may remove.
fn lookup_removable(fs: &mut FileSystem, caller: &Caller, directory: &Parent, dentry: Dentry) -> Result<Attributes> {
    debug_assert_eq!(directory.ino, dentry.parent);
    let path = directory.path.join(&dentry.name);
    let found = fs.lookup(&directory.path, dentry)?.ok_or(EngineError::NotFound { path })?;
    ensure_removable(caller, &directory.attributes, &found)?;
    Ok(found)
}

/// The name that a file keeps when one of its names is removed.
enum RemainingName {
    /// None: the file is unlinked, and callers that hold it go on with this copy.
    None(Box<LooseFile>),
    /// Other names, none of which is in the inode table: this is one of them.
    NotCached(Dentry),
    /// Other names that are in the inode table.
    Cached,
}

/// Returns the name that a file keeps when this one is removed. Does all that can fail before the removal.
fn remaining_name(fs: &mut FileSystem, ino: Ino, path: &TreePath) -> Result<RemainingName> {
    if fs.inodes.has_several_dentries(ino) {
        return Ok(RemainingName::Cached);
    }
    let other = fs.tree.names_of(path)?.into_iter().find(|other| other != path);
    Ok(match other {
        Some(other) => RemainingName::NotCached(dentry_of(fs, &other)?),
        None => RemainingName::None(Box::new(fs.file(ino)?)),
    })
}

/// Removes a name of a file from the inode table, after it was removed from the tree.
fn remove_dentry(fs: &mut FileSystem, dentry: &Dentry, now: Time, mtime: Time, remaining: RemainingName) {
    let Some((ino, _)) = fs.inodes.remove_dentry(dentry) else { return };
    match remaining {
        RemainingName::None(file) => return fs.inodes.detach(ino, Location::Unlinked(file), now),
        RemainingName::NotCached(other) => fs.inodes.add_dentry(ino, other),
        RemainingName::Cached => {}
    }
    fs.attributes_changed(ino, now, mtime);
}

/// Evicts the directories that [`remaining_name`] looked up for a removal that then failed.
fn evict_unused(fs: &mut FileSystem, remaining: Option<&RemainingName>) {
    if let Some(RemainingName::NotCached(dentry)) = remaining {
        fs.inodes.evict_if_unheld(dentry.parent);
    }
}

/// Returns the dentry of a path, and adds the directories above it to the inode table.
pub(crate) fn dentry_of(fs: &mut FileSystem, path: &TreePath) -> Result<Dentry> {
    let (above, name) = path.split_last().ok_or(Error::Invalid("the root has no name"))?;
    let mut parent = ROOT;
    let mut here = TreePath::root();
    for name in above.names() {
        let below = here.join(&name);
        let stat = fs.tree.stat(&below).map_err(Error::from);
        let stat = stat.and_then(|stat| Ok(stat.ok_or_else(|| EngineError::NotFound { path: below.clone() })?));
        let found = stat.and_then(|stat| fs.inode_for(Dentry { parent, name }, &here, &stat));
        // No caller holds the directories above it.
        parent = found.inspect_err(|_| fs.inodes.evict_if_unheld(parent))?;
        here = below;
    }
    Ok(Dentry { parent, name })
}

/// Access control lists that a new entry inherits.
struct InheritedAcls {
    /// Permission bits of the new entry.
    mode: u32,
    /// The lists, as extended attributes.
    xattrs: Vec<(&'static [u8], Vec<u8>)>,
}

/// Returns the lists that a new entry inherits, or `None` if its directory has no default list.
fn inherited_acls(fs: &FileSystem, directory: &TreePath, kind: Kind, mode: u32) -> Result<Option<InheritedAcls>> {
    if kind == Kind::Symlink {
        return Ok(None);
    }
    let Some(default) = fs.tree.xattr(directory, acl::DEFAULT)?.and_then(|list| Acl::parse(&list)) else {
        return Ok(None);
    };
    let access = default.inherited(mode);
    let mut xattrs = Vec::new();
    if !access.is_minimal() {
        xattrs.push((acl::ACCESS, access.encode()));
    }
    if kind == Kind::Directory {
        xattrs.push((acl::DEFAULT, default.encode()));
    }
    Ok(Some(InheritedAcls { mode: access.mode(), xattrs }))
}

fn removed_directory(found: Attributes, now: Time) -> Location {
    Location::RemovedDirectory(Box::new(Attributes { links: 0, ctime: now, ..found }))
}

/// Updates the subdirectory counts of the parents after a rename.
fn count_subdirectories(
    fs: &mut FileSystem,
    mode: RenameMode,
    from: (&Dentry, &Attributes),
    to: (&Dentry, Option<&Attributes>),
) {
    let (source, target) = (from.0.parent, to.0.parent);
    if from.1.kind == Kind::Directory {
        fs.inodes.subdirectory_removed(source);
        fs.inodes.subdirectory_added(target);
    }
    if to.1.is_some_and(|replaced| replaced.kind == Kind::Directory) {
        fs.inodes.subdirectory_removed(target);
        if mode == RenameMode::Exchange {
            fs.inodes.subdirectory_added(source);
        }
    }
}

fn ensure_empty(fs: &FileSystem, path: &TreePath) -> Result<()> {
    match fs.tree.list(path)?.next().transpose()? {
        Some(_) => Err(EngineError::NotEmpty { path: path.clone() }.into()),
        None => Ok(()),
    }
}

fn checked_name(name: &[u8]) -> Result<Name> {
    Ok(Name::new(name).map_err(EngineError::from)?)
}
