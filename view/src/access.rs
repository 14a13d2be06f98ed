//! Who may do what: the permission bits of POSIX, as a function of values.

use crate::attributes::{Attributes, Caller, Kind};
use crate::error::{Error, Result};

/// What somebody wants to do with an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(pub u8);

impl Access {
    /// To read it, or list it.
    pub const READ: Self = Self(4);
    /// To write it, or change its names.
    pub const WRITE: Self = Self(2);
    /// To execute it, or pass through it.
    pub const EXECUTE: Self = Self(1);

    /// Both of two.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Whether a caller may.
pub fn may(caller: &Caller, attributes: &Attributes, access: Access) -> bool {
    if caller.uid == 0 {
        // Root executes a file only if somebody may.
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

/// Refuses to take a name out of a sticky directory unless it is the caller's, or the directory is.
pub(crate) fn demand_removable(caller: &Caller, directory: &Attributes, entry: &Attributes) -> Result<()> {
    let sticky = directory.mode & 0o1000 != 0;
    let owns = caller.uid == 0 || caller.uid == entry.uid || caller.uid == directory.uid;
    if caller.checked && sticky && !owns { Err(Error::NotOwner) } else { Ok(()) }
}

/// Refuses unless the caller is the owner.
pub(crate) fn demand_owner(caller: &Caller, attributes: &Attributes) -> Result<()> {
    let owns = caller.uid == 0 || caller.uid == attributes.uid;
    if !caller.checked || owns { Ok(()) } else { Err(Error::NotOwner) }
}

#[cfg(test)]
mod tests {
    use amalgam_engine::Time;

    use super::*;
    use crate::inodes::ROOT;

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
        let caller = |uid, gid| Caller { uid, gid, checked: true, ..Caller::default() };
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
            assert_eq!(may(&caller(uid, gid), &file(mode, 7, 7), access), expected, "{mode:o} {uid}:{gid} {access:?}");
        }
        let further = Caller { groups: vec![7], ..caller(8, 8) };
        assert!(may(&further, &file(0o040, 7, 7), Access::READ));
    }
}
