//! POSIX access control lists: the extended attributes `system.posix_acl_access` and `system.posix_acl_default`, in the form that Linux
//! gives and takes (version 2).
//!
//! The kernel of a FUSE mount enforces them; for callers that no kernel has checked ([`Caller::checked`]) the view does. What a kernel
//! leaves to the file system is here, too: a list that is set changes the permission bits, permission
//! bits that are set change the list, and what is made in a directory takes over its default list.

use crate::access::{Access, may};
use crate::attributes::{Attributes, Caller};
use crate::error::{Error, Result};
use crate::view::Live;

/// The list that says who may do what.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The list that new entries of a directory take over.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;
/// An owner, a group and others: no more than permission bits say.
const PLAIN_ENTRIES: usize = 3;

/// An access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    entries: Vec<AclEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    rights: u16,
    id: u32,
}

impl Acl {
    /// Reads one; nothing for what is none.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != VERSION || rest.len() % 8 != 0 {
            return None;
        }
        let entries = rest.chunks_exact(8).map(|entry| AclEntry {
            tag: u16::from_le_bytes([entry[0], entry[1]]),
            rights: u16::from_le_bytes([entry[2], entry[3]]),
            id: u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]),
        });
        let acl = Self { entries: entries.collect() };
        let count = |tag| acl.entries.iter().filter(|entry| entry.tag == tag).count();
        let is_known = |entry: &AclEntry| {
            matches!(entry.tag, OWNER | USER | OWNING_GROUP | GROUP | MASK | OTHERS) && entry.rights <= 7
        };
        let names = count(USER) + count(GROUP);
        let is_whole = [OWNER, OWNING_GROUP, OTHERS].map(count) == [1; 3] && count(MASK) <= 1;
        (is_whole && (names == 0 || count(MASK) == 1) && acl.entries.iter().all(is_known)).then_some(acl)
    }

    /// Its bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for AclEntry { tag, rights, id } in &self.entries {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&rights.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    /// Whether permission bits say all of it.
    pub(crate) fn is_plain(&self) -> bool {
        self.entries.len() == PLAIN_ENTRIES
    }

    /// The permission bits that belong to it: those of the group are the mask, where there is one.
    pub(crate) fn mode(&self) -> u32 {
        let rights =
            |tag| u32::from(self.entries.iter().find(|entry| entry.tag == tag).map_or(0, |entry| entry.rights));
        rights(OWNER) << 6 | rights(self.group_tag()) << 3 | rights(OTHERS)
    }

    /// The same list after permission bits were set.
    #[must_use]
    pub(crate) fn with_mode(&self, mode: u32) -> Self {
        self.map_plain(|_, bits| bits, mode)
    }

    /// What something takes over of it that is made with these permission bits: no more than both allow.
    #[must_use]
    pub(crate) fn inherited(&self, mode: u32) -> Self {
        self.map_plain(|rights, bits| rights & bits, mode)
    }

    fn map_plain(&self, change: impl Fn(u16, u16) -> u16, mode: u32) -> Self {
        let (group, bits) = (self.group_tag(), |shift: u32| (mode >> shift & 7) as u16);
        let entries = self.entries.iter().map(|entry| {
            let rights = match entry.tag {
                OWNER => change(entry.rights, bits(6)),
                OTHERS => change(entry.rights, bits(0)),
                tag if tag == group => change(entry.rights, bits(3)),
                _ => entry.rights,
            };
            AclEntry { rights, ..*entry }
        });
        Self { entries: entries.collect() }
    }

    /// Whether the list gives a caller these rights, who is neither root nor the owner. `gid` is the owning group.
    pub(crate) fn allows(&self, caller: &Caller, gid: u32, access: Access) -> bool {
        let wanted = u16::from(access.0);
        let find = |tag| self.entries.iter().find(move |entry| entry.tag == tag);
        let mask = find(MASK).map_or(7, |entry| entry.rights);
        let gives = |entry: &AclEntry| entry.rights & mask & wanted == wanted;
        if let Some(entry) = self.entries.iter().find(|entry| entry.tag == USER && entry.id == caller.uid) {
            return gives(entry);
        }
        let mut groups = self.entries.iter().filter(|entry| match entry.tag {
            OWNING_GROUP => caller.is_in(gid),
            GROUP => caller.is_in(entry.id),
            _ => false,
        });
        let Some(first) = groups.next() else {
            return find(OTHERS).is_some_and(|entry| entry.rights & wanted == wanted);
        };
        gives(first) || groups.any(gives)
    }

    /// The entry that the group's permission bits stand for.
    fn group_tag(&self) -> u16 {
        if self.entries.iter().any(|entry| entry.tag == MASK) { MASK } else { OWNING_GROUP }
    }
}

impl Live {
    /// Whether permission bits and the access control list allow an access.
    pub(crate) fn may(&self, caller: &Caller, attributes: &Attributes, access: Access) -> Result<bool> {
        if caller.uid == 0 || caller.uid == attributes.uid {
            return Ok(may(caller, attributes, access));
        }
        let list = match self.path(attributes.ino)? {
            Some(path) if !self.is_placed(&path) => self.tree.xattr(&path, ACCESS)?,
            _ => None,
        };
        match list.and_then(|list| Acl::parse(&list)) {
            Some(list) => Ok(list.allows(caller, attributes.gid, access)),
            None => Ok(may(caller, attributes, access)),
        }
    }

    /// Refuses an access that permission bits or the access control list do not allow, unless a kernel has checked it.
    pub(crate) fn demand(&self, caller: &Caller, attributes: &Attributes, access: Access) -> Result<()> {
        if !caller.checked || self.may(caller, attributes, access)? { Ok(()) } else { Err(Error::Access) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl {
            entries: entries.iter().map(|(tag, rights, id)| AclEntry { tag: *tag, rights: *rights, id: *id }).collect(),
        }
    }

    const ANY: u32 = u32::MAX;

    #[test]
    fn a_list_and_its_permission_bits_follow_each_other() {
        let list = acl(&[(OWNER, 6, ANY), (USER, 6, 7), (OWNING_GROUP, 0, ANY), (MASK, 6, ANY), (OTHERS, 0, ANY)]);
        assert_eq!(Acl::parse(&list.encode()), Some(list.clone()));
        assert_eq!(list.mode(), 0o660, "the group's bits are the mask");
        assert!(!list.is_plain());
        let narrow = list.with_mode(0o640);
        assert_eq!(narrow.mode(), 0o640);
        assert_eq!(narrow.entries[2].rights, 0, "the owning group has what it had");
        assert_eq!(list.inherited(0o777).mode(), 0o660);
        assert_eq!(list.inherited(0o600).mode(), 0o600);
        let plain = acl(&[(OWNER, 7, ANY), (OWNING_GROUP, 5, ANY), (OTHERS, 1, ANY)]);
        assert!(plain.is_plain());
        assert_eq!((plain.mode(), plain.with_mode(0o640).mode()), (0o751, 0o640));
    }

    #[test]
    fn what_is_no_list_is_not_read() {
        let without_mask = acl(&[(OWNER, 6, ANY), (USER, 6, 7), (OWNING_GROUP, 0, ANY), (OTHERS, 0, ANY)]);
        let without_owner = acl(&[(OWNING_GROUP, 0, ANY), (OTHERS, 0, ANY)]);
        let strange = acl(&[(OWNER, 9, ANY), (OWNING_GROUP, 0, ANY), (OTHERS, 0, ANY)]);
        for list in [without_mask, without_owner, strange] {
            assert_eq!(Acl::parse(&list.encode()), None);
        }
        assert_eq!(Acl::parse(b""), None);
        assert_eq!(Acl::parse(&[1, 0, 0, 0]), None);
        assert_eq!(Acl::parse(&[2, 0, 0, 0, 1]), None);
    }
}
