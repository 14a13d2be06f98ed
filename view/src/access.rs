//! Callers and POSIX permission bits. Access control lists are in [`acl`](crate::acl).

use crate::attributes::{Attributes, Kind};
use crate::error::{Error, Result};
use crate::invalidation::WatchId;

/// The process or client on whose behalf a call is made.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// The user, who becomes the owner of new entries.
    pub uid: u32,
    /// The primary group, which becomes the group of new entries.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Whether the view checks permissions. A kernel that mounts with `default_permissions` has checked them before.
    pub enforce: bool,
    /// The watcher that the call comes from. It is not notified of changes that the call makes.
    pub origin: Option<WatchId>,
    /// Permission bits that new entries do not get, unless their directory has a default access control list.
    pub umask: u32,
}

impl Caller {
    /// Returns a caller with this user and group, without permission checks, origin or umask.
    pub fn owner(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Vec::new(), enforce: false, origin: None, umask: 0 }
    }

    /// Returns whether the caller is in a group. Root is in every group.
    pub fn is_in(&self, gid: u32) -> bool {
        self.uid == 0 || self.gid == gid || self.groups.contains(&gid)
    }
}

/// A set of access rights to an inode: read, write, execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(pub u8);

impl Access {
    /// Read a file, or list a directory.
    pub const READ: Self = Self(4);
    /// Write a file, or change the names in a directory.
    pub const WRITE: Self = Self(2);
    /// Execute a file, or look up names in a directory.
    pub const EXECUTE: Self = Self(1);

    /// Returns the union of two sets of rights.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn has_write(self) -> bool {
        self.0 & Self::WRITE.0 != 0
    }
}

/// Returns whether the permission bits allow a caller an access.
pub fn is_permitted(caller: &Caller, attributes: &Attributes, access: Access) -> bool {
    if caller.uid == 0 {
        // Root executes a file only if it has an execute bit.
        let executes = access.0 & Access::EXECUTE.0 != 0;
        return !executes || attributes.kind == Kind::Directory || attributes.mode & 0o111 != 0;
    }
    let shift = if caller.uid == attributes.uid {
        6
    } else if caller.is_in(attributes.gid) {
        3
    } else {
        0
    };
    let allowed = (attributes.mode >> shift) as u8 & 7;
    allowed & access.0 == access.0
}

/// Refuses to remove a name from a sticky directory, unless the caller owns the entry or the directory.
pub(crate) fn ensure_removable(caller: &Caller, directory: &Attributes, entry: &Attributes) -> Result<()> {
    let sticky = directory.mode & 0o1000 != 0;
    let owns = caller.uid == 0 || caller.uid == entry.uid || caller.uid == directory.uid;
    if caller.enforce && sticky && !owns { Err(Error::NotOwner) } else { Ok(()) }
}

/// Refuses a caller that is not the owner.
pub(crate) fn ensure_owner(caller: &Caller, attributes: &Attributes) -> Result<()> {
    let owns = caller.uid == 0 || caller.uid == attributes.uid;
    if !caller.enforce || owns { Ok(()) } else { Err(Error::NotOwner) }
}

#[cfg(test)]
mod tests {
    use amalgam_engine::Time;

    use super::*;
    use crate::attributes::ROOT;

    fn file(mode: u32, uid: u32, gid: u32) -> Attributes {
        let time = Time::EPOCH;
        Attributes {
            ino: ROOT,
            kind: Kind::File,
            mode,
            links: 1,
            uid,
            gid,
            size: 0,
            blocks: 0,
            device: None,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let caller = |uid, gid| Caller { uid, gid, enforce: true, ..Caller::default() };
        let cases = [
            (0o400, 7, 7, Access::READ, true),
            (0o040, 7, 7, Access::READ, false),
            (0o040, 8, 7, Access::READ, true),
            (0o004, 8, 7, Access::READ, false),
            (0o004, 8, 8, Access::READ, true),
            (0o600, 7, 9, Access::READ.and(Access::WRITE), true),
            (0o400, 7, 9, Access::READ.and(Access::WRITE), false),
            (0o000, 0, 0, Access::WRITE, true),
            (0o000, 0, 0, Access::EXECUTE, false),
            (0o001, 0, 0, Access::EXECUTE, true),
        ];
        for (mode, uid, gid, access, expected) in cases {
            assert_eq!(
                is_permitted(&caller(uid, gid), &file(mode, 7, 7), access),
                expected,
                "{mode:o} {uid}:{gid} {access:?}"
            );
        }
        let further = Caller { groups: vec![7], ..caller(8, 8) };
        assert!(is_permitted(&further, &file(0o040, 7, 7), Access::READ));
    }
}
