//! Operations on attributes, extended attributes and access control lists.

use amalgam_engine::object::Owner;
use amalgam_engine::{Error as EngineError, Time, TreePath};

use crate::access::{Access, Caller, ensure_owner};
use crate::acl::{self, Acl};
use crate::attributes::{Attributes, Ino, Kind, SetAttributes, TimeSet};
use crate::error::{Error, Result};
use crate::file_data::truncate;
use crate::file_system::FileSystem;
use crate::inodes::{ExtraTimes, Location};
use crate::invalidation::Invalidation;
use crate::journal::Edit;

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
/// Limits of the name and the value of an extended attribute, as on Linux.
const XATTR_NAME_BYTES_MAX: usize = 255;
const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;

/// Whether an extended attribute may or must exist when it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrSet {
    /// It may exist.
    #[default]
    Either,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

/// Sets attributes. All permissions are checked before the first change. If the disk is full, attributes that were set before stay set.
pub(crate) fn set_attributes(
    fs: &mut FileSystem,
    caller: &Caller,
    ino: Ino,
    set: &SetAttributes,
) -> Result<Attributes> {
    fs.ensure_writable()?;
    fs.ensure_not_local(ino)?;
    // Times of the last read are not stored: an agent that may read may set them.
    if set.is_atime_only() {
        fs.ensure_read_permitted(ino)?
    } else {
        fs.ensure_change_permitted(ino)?
    }
    let before = fs.attributes(ino)?;
    ensure_settable(fs, caller, &before, set)?;
    fs.inodes.cache_attributes(&before);
    let now = fs.now();
    let done = set_each(fs, caller, &before, set, now);
    if done.is_err() {
        fs.inodes.invalidate(ino);
    }
    let after = done?;
    fs.inodes.cache_attributes(&after);
    let stale = if set.size.is_some() { Invalidation::Contents(ino) } else { Invalidation::Attributes(ino) };
    fs.notify(caller, || stale.clone());
    Ok(after)
}

fn set_each(
    fs: &mut FileSystem,
    caller: &Caller,
    before: &Attributes,
    set: &SetAttributes,
    now: Time,
) -> Result<Attributes> {
    let ino = before.ino;
    if let Some(size) = set.size {
        if before.kind == Kind::Directory {
            return Err(EngineError::IsADirectory { path: TreePath::root() }.into());
        }
        fs.check_access(caller, before, Access::WRITE)?;
        if size > before.size {
            fs.ensure_quota(0)?;
        }
        truncate(fs, ino, size, now)?;
        fs.inodes.invalidate(ino);
    }
    let mode = new_mode(caller, before, set);
    if mode != before.mode && before.kind != Kind::Symlink {
        if set.mode.is_some() {
            update_acl(fs, ino, now, mode)?;
        }
        change_attributes(fs, ino, now, AttributeChange::Mode(mode))?;
    }
    let (uid, gid) = (set.uid.unwrap_or(before.uid), set.gid.unwrap_or(before.gid));
    if (uid, gid) != (before.uid, before.gid) {
        let owner = fs.stored_owner(uid, gid);
        change_attributes(fs, ino, now, AttributeChange::Owner(owner))?;
    }
    if let Some(mtime) = set.mtime {
        change_attributes(fs, ino, now, AttributeChange::Mtime(mtime.resolve(now)))?;
    }
    // Not in the cache: the size changed, or the file of a conflict was replaced. Unlinked inodes have their own attributes.
    let is_cached = fs.inodes.cached_attributes(ino).is_some() && fs.inodes.is_linked(ino);
    let after = if is_cached {
        let mtime = set.mtime.map_or(before.mtime, |mtime| mtime.resolve(now));
        let mode = if before.kind == Kind::Symlink { before.mode } else { mode };
        Attributes { mode, uid, gid, mtime, ..*before }
    } else {
        fs.attributes(ino)?
    };
    let mtime = after.mtime;
    if let Some(atime) = set.atime {
        let times = fs.inodes.times(ino);
        fs.inodes.set_times(ino, ExtraTimes { atime: Some(atime.resolve(now)), ..times });
    } else if set.mtime.is_some() || set.size.is_some() {
        // The access time does not follow a modification time that is set.
        let times = fs.inodes.times(ino);
        fs.inodes.set_times(ino, ExtraTimes { atime: Some(before.atime).filter(|atime| *atime != mtime), ..times });
    }
    fs.attributes_changed(ino, now, mtime);
    if !is_cached {
        return fs.attributes(ino);
    }
    let ExtraTimes { ctime, atime } = fs.inodes.times(ino);
    Ok(Attributes { ctime: ctime.unwrap_or(mtime), atime: atime.unwrap_or(mtime), ..after })
}

/// Returns all extended attributes of an inode.
pub(crate) fn xattrs(fs: &FileSystem, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    fs.ensure_read_permitted(ino)?;
    let list = match &fs.inodes.get(ino)?.location {
        Location::RemovedDirectory(_) => Vec::new(),
        Location::Unlinked(file) => file.xattrs()?,
        Location::Linked(_) => {
            let path = fs.linked_path(ino)?;
            if fs.local.contains(&path) { Vec::new() } else { fs.tree.xattrs(&path)? }
        }
    };
    Ok(list.into_iter().map(|xattr| (xattr.name.to_vec(), xattr.value.to_vec())).collect())
}

/// Sets an extended attribute.
pub(crate) fn set_xattr(
    fs: &mut FileSystem,
    caller: &Caller,
    ino: Ino,
    (name, value): (&[u8], &[u8]),
    mode: XattrSet,
) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        return Err(Error::Invalid("the name of an extended attribute has 1 to 255 bytes"));
    }
    if value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(EngineError::TooLarge {
            what: "an extended attribute",
            value: value.len() as u64,
            max: XATTR_VALUE_BYTES_MAX as u64,
        }
        .into());
    }
    if name == acl::ACCESS || name == acl::DEFAULT {
        return set_acl(fs, caller, ino, name, value);
    }
    change_xattr(fs, caller, ino, |path, existing| {
        match (mode, existing.iter().any(|other| other == name)) {
            (XattrSet::Create, true) => return Err(Error::AttributeExists),
            (XattrSet::Replace, false) => return Err(Error::NoAttribute),
            _ => {}
        }
        Ok(Edit::SetXattr { path, name: name.to_vec(), value: value.to_vec() })
    })
}

/// Sets an access control list and its permission bits. A minimal access list is not stored, because the bits express it.
fn set_acl(fs: &mut FileSystem, caller: &Caller, ino: Ino, name: &[u8], value: &[u8]) -> Result<()> {
    let list = Acl::parse(value).ok_or(Error::Invalid("not an access control list"))?;
    fs.ensure_writable()?;
    fs.ensure_not_local(ino)?;
    fs.ensure_change_permitted(ino)?;
    let before = fs.attributes(ino)?;
    ensure_owner(caller, &before)?;
    let path = fs.linked_path(ino)?;
    let is_access = name == acl::ACCESS;
    if !is_access && before.kind != Kind::Directory {
        return Err(Error::Access);
    }
    let mut edits = Vec::new();
    if !(is_access && list.is_minimal()) {
        edits.push(Edit::SetXattr { path: path.clone(), name: name.to_vec(), value: list.encode() });
    } else if fs.tree.xattr(&path, name)?.is_some() {
        edits.push(Edit::RemoveXattr { path: path.clone(), name: name.to_vec() });
    }
    if is_access {
        let dropped = if caller.is_in(before.gid) { 0 } else { SET_GROUP };
        let mode = (before.mode & 0o7000 | list.mode()) & !dropped;
        edits.extend((mode != before.mode).then_some(Edit::SetMode { path, mode }));
    }
    let now = fs.now();
    fs.edit_all(&edits, now)?;
    fs.attributes_changed(ino, now, before.mtime);
    fs.notify(caller, || Invalidation::Attributes(ino));
    Ok(())
}

/// Removes an extended attribute.
pub(crate) fn remove_xattr(fs: &mut FileSystem, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
    change_xattr(fs, caller, ino, |path, existing| {
        if !existing.iter().any(|other| other == name) {
            return Err(Error::NoAttribute);
        }
        Ok(Edit::RemoveXattr { path, name: name.to_vec() })
    })
}

/// Applies an edit of extended attributes. `edit` gets the path and the names of the existing ones.
fn change_xattr(
    fs: &mut FileSystem,
    caller: &Caller,
    ino: Ino,
    edit: impl FnOnce(TreePath, &[Vec<u8>]) -> Result<Edit>,
) -> Result<()> {
    fs.ensure_writable()?;
    fs.ensure_not_local(ino)?;
    fs.ensure_change_permitted(ino)?;
    let before = fs.attributes(ino)?;
    fs.check_access(caller, &before, Access::WRITE)?;
    let path = fs.linked_path(ino)?;
    let existing: Vec<_> = fs.tree.xattrs(&path)?.iter().map(|xattr| xattr.name.to_vec()).collect();
    let edit = edit(path, &existing)?;
    let now = fs.now();
    fs.edit(&edit, now, &[])?;
    fs.attributes_changed(ino, now, before.mtime);
    fs.notify(caller, || Invalidation::Attributes(ino));
    Ok(())
}

/// Updates the access control list of an inode whose permission bits are about to be set.
fn update_acl(fs: &mut FileSystem, ino: Ino, now: Time, mode: u32) -> Result<()> {
    // An unlinked inode cannot be opened any more.
    let Some(path) = fs.inodes.path(ino)? else { return Ok(()) };
    let Some(list) = fs.tree.xattr(&path, acl::ACCESS)?.and_then(|list| Acl::parse(&list)) else { return Ok(()) };
    let value = list.with_mode(mode).encode();
    fs.edit(&Edit::SetXattr { path, name: acl::ACCESS.to_vec(), value }, now, &[])
}

/// One attribute to change.
#[derive(Clone, Copy)]
enum AttributeChange {
    Mode(u32),
    Owner(Option<Owner>),
    Mtime(Time),
}

/// Changes an attribute of an inode, whether it has a name or not.
fn change_attributes(fs: &mut FileSystem, ino: Ino, now: Time, change: AttributeChange) -> Result<()> {
    use AttributeChange::{Mode, Mtime, Owner};
    match &mut fs.inodes.get_mut(ino)?.location {
        Location::Unlinked(file) => {
            match change {
                Mode(mode) => file.set_attributes(Some(mode), None, None),
                Owner(owner) => file.set_attributes(None, Some(owner), None),
                Mtime(mtime) => file.set_attributes(None, None, Some(mtime)),
            }
            return Ok(());
        }
        Location::RemovedDirectory(attributes) => {
            match change {
                Mode(mode) => attributes.mode = mode,
                Mtime(mtime) => attributes.mtime = mtime,
                Owner(_) => {}
            }
            return Ok(());
        }
        Location::Linked(_) => {}
    }
    let path = fs.linked_path(ino)?;
    let edit = match change {
        Mode(mode) => Edit::SetMode { path, mode },
        Owner(owner) => Edit::SetOwner { path, owner },
        Mtime(mtime) => Edit::SetMtime { path, mtime },
    };
    fs.edit(&edit, now, &[])
}

/// Checks the permissions of chmod, chown and utimes.
fn ensure_settable(fs: &FileSystem, caller: &Caller, before: &Attributes, set: &SetAttributes) -> Result<()> {
    if !caller.enforce {
        return Ok(());
    }
    let changes_owner = set.uid.is_some_and(|uid| uid != before.uid);
    let is_foreign_group = set.gid.is_some_and(|gid| gid != before.gid && !caller.is_in(gid));
    if (changes_owner || is_foreign_group) && caller.uid != 0 {
        return Err(Error::NotOwner);
    }
    if set.mode.is_some() || set.gid.is_some() || set.uid.is_some() {
        ensure_owner(caller, before)?;
    }
    let is_explicit = |time: Option<TimeSet>| matches!(time, Some(TimeSet::At(_)));
    if is_explicit(set.mtime) || is_explicit(set.atime) {
        return ensure_owner(caller, before);
    }
    if (set.mtime.is_some() || set.atime.is_some()) && caller.uid != before.uid {
        return fs.check_access(caller, before, Access::WRITE);
    }
    Ok(())
}

/// Returns the permission bits after a change. A file that gets another owner, or that another user truncates, loses set-ID bits.
fn new_mode(caller: &Caller, before: &Attributes, set: &SetAttributes) -> u32 {
    if let Some(mode) = set.mode {
        let is_foreign = caller.enforce && caller.uid != 0 && !caller.is_in(set.gid.unwrap_or(before.gid));
        let dropped = if is_foreign && before.kind != Kind::Directory { SET_GROUP } else { 0 };
        return mode & 0o7777 & !dropped;
    }
    let changes_owner = set.uid.is_some() || set.gid.is_some();
    match before.kind {
        Kind::File if set.size.is_some() && caller.uid != 0 => without_set_id_bits(caller, before),
        Kind::Directory | Kind::Symlink | Kind::Conflict => before.mode,
        _ if changes_owner => before.mode & !SET_USER & !executable_set_group(before.mode),
        _ => before.mode,
    }
}

/// Returns the permission bits of a file after a write by this caller: without set-user-ID, and without set-group-ID if the group may
/// execute the file or the caller is not in the group.
pub(crate) fn without_set_id_bits(caller: &Caller, before: &Attributes) -> u32 {
    let group = if caller.is_in(before.gid) { executable_set_group(before.mode) } else { SET_GROUP };
    before.mode & !SET_USER & !group
}

/// Returns the set-group-ID bit if the group may execute the file. Otherwise the bit has another meaning.
fn executable_set_group(mode: u32) -> u32 {
    if mode & 0o010 != 0 { SET_GROUP } else { 0 }
}
