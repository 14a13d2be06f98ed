//! Attributes: reading and setting them; extended attributes; the room below.

use amalgam_engine::object::Owner;
use amalgam_engine::{Error as EngineError, Time, TreePath};

use crate::access::{Access, demand_owner};
use crate::acl::{self, Acl};
use crate::attributes::{Attributes, Caller, Kind, Set, TimeSet};
use crate::error::{Error, Result};
use crate::inodes::{Ino, Kept, Whereabouts};
use crate::journal::Edit;
use crate::notice::Notice;
use crate::view::{Live, View};

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
/// The longest name of an extended attribute, and the largest value, as on Linux.
const XATTR_NAME_BYTES_MAX: usize = 255;
const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;

/// What the disk below has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// All its bytes.
    pub total_bytes: u64,
    /// Those that are free.
    pub free_bytes: u64,
    /// Those of the free ones that mounts leave alone, so that undoing and collecting have room.
    pub floor_bytes: u64,
}

impl Room {
    /// What files may still take.
    pub fn usable_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.floor_bytes)
    }
}

/// How an extended attribute is to be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrSet {
    /// Whether or not it is there.
    #[default]
    Either,
    /// Only if it is not there.
    Create,
    /// Only if it is there.
    Replace,
}

impl View {
    /// The attributes of an inode.
    pub fn attributes(&self, ino: Ino) -> Result<Attributes> {
        if let Some(seen) = self.shared.live.read().inodes.seen(ino) {
            return Ok(seen);
        }
        let mut live = self.shared.live.write();
        let attributes = live.attributes(self, ino)?;
        live.inodes.see(&attributes);
        Ok(attributes)
    }

    /// Whether the caller may do this with an inode.
    pub fn access(&self, caller: &Caller, ino: Ino, access: Access) -> Result<()> {
        let attributes = self.attributes(ino)?;
        if access.0 & Access::WRITE.0 != 0 && self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        if self.shared.live.read().may(caller, &attributes, access)? { Ok(()) } else { Err(Error::Access) }
    }

    /// Where a symlink points.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let file = self.shared.live.read().file(ino)?;
        file.target().map(|target| target.to_vec()).ok_or(Error::Invalid("not a symlink"))
    }

    /// Sets attributes. What the caller may not do is refused before anything is set; they are set one after the other, so where
    /// there is no room for one those before it stay set.
    pub fn set_attributes(&self, caller: &Caller, ino: Ino, set: &Set) -> Result<Attributes> {
        let live = &mut *self.shared.live.write();
        live.demand_writable()?;
        live.demand_in_tree(ino)?;
        let before = live.attributes(self, ino)?;
        demand_settable(live, caller, &before, set)?;
        live.inodes.see(&before);
        let now = self.now();
        let done = self.set_each(live, caller, ino, &before, set, now);
        if done.is_err() {
            live.inodes.changed(ino);
        }
        let after = done?;
        live.inodes.see(&after);
        let what = if set.size.is_some() { Notice::Contents(ino) } else { Notice::Attributes(ino) };
        self.tell(caller, || what.clone());
        Ok(after)
    }

    fn set_each(
        &self,
        live: &mut Live,
        caller: &Caller,
        ino: Ino,
        before: &Attributes,
        set: &Set,
        now: Time,
    ) -> Result<Attributes> {
        if let Some(size) = set.size {
            if before.kind == Kind::Directory {
                return Err(EngineError::IsADirectory { path: TreePath::root() }.into());
            }
            live.demand(caller, before, Access::WRITE)?;
            if size > before.size {
                self.demand_quota(live, 0)?;
            }
            self.truncate_in(live, ino, size, now)?;
            live.inodes.changed(ino);
        }
        let mode = new_mode(caller, before, set);
        if mode != before.mode && before.kind != Kind::Symlink {
            if set.mode.is_some() {
                live.follow_mode(ino, now, mode)?;
            }
            live.change_attributes(ino, now, Some(mode), None, None)?;
        }
        let (uid, gid) = (set.uid.unwrap_or(before.uid), set.gid.unwrap_or(before.gid));
        if (uid, gid) != (before.uid, before.gid) {
            live.change_attributes(ino, now, None, Some(self.stored_owner(uid, gid)), None)?;
        }
        if let Some(mtime) = set.mtime {
            live.change_attributes(ino, now, None, None, Some(mtime.resolve(now)))?;
        }
        // What stood for a conflict is another file now, and what has no name is a matter of its own.
        let is_seen = live.inodes.seen(ino).is_some() && live.inodes.is_named(ino);
        let after = if is_seen {
            let mtime = set.mtime.map_or(before.mtime, |mtime| mtime.resolve(now));
            let mode = if before.kind == Kind::Symlink { before.mode } else { mode };
            Attributes { mode, uid, gid, mtime, ..*before }
        } else {
            live.attributes(self, ino)?
        };
        let mtime = after.mtime;
        if let Some(atime) = set.atime {
            let kept = live.inodes.kept(ino);
            live.inodes.keep(ino, Kept { atime: Some(atime.resolve(now)), ..kept });
        } else if set.mtime.is_some() || set.size.is_some() {
            // The time of reading does not follow that of writing when the latter is set.
            let kept = live.inodes.kept(ino);
            live.inodes.keep(ino, Kept { atime: Some(before.atime).filter(|atime| *atime != mtime), ..kept });
        }
        live.touch(ino, now, mtime);
        if !is_seen {
            return live.attributes(self, ino);
        }
        let Kept { ctime, atime } = live.inodes.kept(ino);
        Ok(Attributes { ctime: ctime.unwrap_or(mtime), atime: atime.unwrap_or(mtime), ..after })
    }

    /// An extended attribute.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let found = self.xattr_list(ino)?.into_iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value).ok_or(Error::NoAttribute)
    }

    /// The names of all extended attributes.
    pub fn xattr_names(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(self.xattr_list(ino)?.into_iter().map(|(name, _)| name).collect())
    }

    fn xattr_list(&self, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let live = self.shared.live.read();
        let list = match &live.inodes.get(ino)?.whereabouts {
            Whereabouts::Gone(_) => Vec::new(),
            Whereabouts::Loose(file) => file.xattrs()?,
            Whereabouts::Named(_) => {
                let path = live.directory_path(ino)?;
                if live.is_placed(&path) { Vec::new() } else { live.tree.xattrs(&path)? }
            }
        };
        Ok(list.into_iter().map(|xattr| (xattr.name.to_vec(), xattr.value.to_vec())).collect())
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], how: XattrSet) -> Result<()> {
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
            return self.set_acl(caller, ino, name, value);
        }
        self.change_xattr(caller, ino, |path, there| {
            match (how, there.iter().any(|other| other == name)) {
                (XattrSet::Create, true) => return Err(Error::AttributeExists),
                (XattrSet::Replace, false) => return Err(Error::NoAttribute),
                _ => {}
            }
            Ok(Edit::SetXattr { path, name: name.to_vec(), value: value.to_vec() })
        })
    }

    /// Sets an access control list, and the permission bits that belong to it. One that these say all of is not kept.
    fn set_acl(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8]) -> Result<()> {
        let list = Acl::parse(value).ok_or(Error::Invalid("not an access control list"))?;
        let live = &mut *self.shared.live.write();
        live.demand_writable()?;
        live.demand_in_tree(ino)?;
        let before = live.attributes(self, ino)?;
        demand_owner(caller, &before)?;
        let path = live.directory_path(ino)?;
        let is_access = name == acl::ACCESS;
        if !is_access && before.kind != Kind::Directory {
            return Err(Error::Access);
        }
        let mut edits = Vec::new();
        if !(is_access && list.is_plain()) {
            edits.push(Edit::SetXattr { path: path.clone(), name: name.to_vec(), value: list.encode() });
        } else if live.tree.xattr(&path, name)?.is_some() {
            edits.push(Edit::RemoveXattr { path: path.clone(), name: name.to_vec() });
        }
        if is_access {
            let dropped = if caller.is_in(before.gid) { 0 } else { SET_GROUP };
            let mode = (before.mode & 0o7000 | list.mode()) & !dropped;
            edits.extend((mode != before.mode).then_some(Edit::SetMode { path, mode }));
        }
        let now = self.now();
        live.edit_all(&edits, now)?;
        live.touch(ino, now, before.mtime);
        self.tell(caller, || Notice::Attributes(ino));
        Ok(())
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.change_xattr(caller, ino, |path, there| {
            if !there.iter().any(|other| other == name) {
                return Err(Error::NoAttribute);
            }
            Ok(Edit::RemoveXattr { path, name: name.to_vec() })
        })
    }

    fn change_xattr(
        &self,
        caller: &Caller,
        ino: Ino,
        edit: impl FnOnce(TreePath, &[Vec<u8>]) -> Result<Edit>,
    ) -> Result<()> {
        let live = &mut *self.shared.live.write();
        live.demand_writable()?;
        live.demand_in_tree(ino)?;
        let before = live.attributes(self, ino)?;
        live.demand(caller, &before, Access::WRITE)?;
        let path = live.directory_path(ino)?;
        let there: Vec<_> = live.tree.xattrs(&path)?.iter().map(|xattr| xattr.name.to_vec()).collect();
        let edit = edit(path, &there)?;
        let now = self.now();
        live.edit(&edit, now, &[])?;
        live.touch(ino, now, before.mtime);
        self.tell(caller, || Notice::Attributes(ino));
        Ok(())
    }

    /// What the disk below has.
    pub fn room(&self) -> Room {
        self.shared.options.room.as_ref().map(|room| room()).unwrap_or_default()
    }
}

impl Live {
    /// Permission bits are about to be set: the access control list follows them.
    fn follow_mode(&mut self, ino: Ino, now: Time, mode: u32) -> Result<()> {
        // What has no name any more is opened by nobody.
        let Some(path) = self.path(ino)? else { return Ok(()) };
        let Some(list) = self.tree.xattr(&path, acl::ACCESS)?.and_then(|list| Acl::parse(&list)) else { return Ok(()) };
        let value = list.with_mode(mode).encode();
        self.edit(&Edit::SetXattr { path, name: acl::ACCESS.to_vec(), value }, now, &[])
    }

    /// Sets what is given, whether the inode has a name or not.
    fn change_attributes(
        &mut self,
        ino: Ino,
        now: Time,
        mode: Option<u32>,
        owner: Option<Option<Owner>>,
        mtime: Option<Time>,
    ) -> Result<()> {
        match &mut self.inodes.get_mut(ino)?.whereabouts {
            Whereabouts::Loose(file) => {
                file.set_attributes(mode, owner, mtime);
                return Ok(());
            }
            Whereabouts::Gone(attributes) => {
                attributes.mode = mode.unwrap_or(attributes.mode);
                attributes.mtime = mtime.unwrap_or(attributes.mtime);
                return Ok(());
            }
            Whereabouts::Named(_) => {}
        }
        let path = self.directory_path(ino)?;
        if let Some(mode) = mode {
            self.edit(&Edit::SetMode { path: path.clone(), mode }, now, &[])?;
        }
        if let Some(owner) = owner {
            self.edit(&Edit::SetOwner { path: path.clone(), owner }, now, &[])?;
        }
        match mtime {
            Some(mtime) => self.edit(&Edit::SetMtime { path, mtime }, now, &[]),
            None => Ok(()),
        }
    }
}

/// The rules of chmod, chown and utimes.
fn demand_settable(live: &Live, caller: &Caller, before: &Attributes, set: &Set) -> Result<()> {
    if !caller.checked {
        return Ok(());
    }
    let gives_away = set.uid.is_some_and(|uid| uid != before.uid);
    let foreign_group = set.gid.is_some_and(|gid| gid != before.gid && !caller.is_in(gid));
    if (gives_away || foreign_group) && caller.uid != 0 {
        return Err(Error::NotOwner);
    }
    if set.mode.is_some() || set.gid.is_some() || set.uid.is_some() {
        demand_owner(caller, before)?;
    }
    let at = |time: Option<TimeSet>| matches!(time, Some(TimeSet::At(_)));
    if at(set.mtime) || at(set.atime) {
        return demand_owner(caller, before);
    }
    if (set.mtime.is_some() || set.atime.is_some()) && caller.uid != before.uid {
        return live.demand(caller, before, Access::WRITE);
    }
    Ok(())
}

/// The permission bits afterwards: a file that changes hands, or is cut by somebody else, loses what lets others act for it.
fn new_mode(caller: &Caller, before: &Attributes, set: &Set) -> u32 {
    if let Some(mode) = set.mode {
        let foreign = caller.checked && caller.uid != 0 && !caller.is_in(set.gid.unwrap_or(before.gid));
        let dropped = if foreign && before.kind != Kind::Directory { SET_GROUP } else { 0 };
        return mode & 0o7777 & !dropped;
    }
    let changes_hands = set.uid.is_some() || set.gid.is_some();
    match before.kind {
        Kind::File if set.size.is_some() && caller.uid != 0 => without_privilege(caller, before),
        Kind::Directory | Kind::Symlink | Kind::Conflict => before.mode,
        _ if changes_hands => before.mode & !SET_USER & !executed_group(before.mode),
        _ => before.mode,
    }
}

/// The permission bits of a file that somebody wrote to: without set-user-ID, and without set-group-ID where the group may execute, or
/// whoever wrote is not in it.
pub(crate) fn without_privilege(caller: &Caller, before: &Attributes) -> u32 {
    let group = if caller.is_in(before.gid) { executed_group(before.mode) } else { SET_GROUP };
    before.mode & !SET_USER & !group
}

/// Set-group-ID, where it lets somebody act for the group.
fn executed_group(mode: u32) -> u32 {
    if mode & 0o010 != 0 { SET_GROUP } else { 0 }
}
