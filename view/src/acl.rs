//! POSIX access control lists: the extended attributes `system.posix_acl_access` and `system.posix_acl_default`, in the form that Linux
//! gives and takes (version 2).
//!
//! The kernel of a FUSE mount enforces the lists; for callers with [`Caller::enforce`] the view does. The view also keeps lists and
//! permission bits consistent: setting either one updates the other, and a new entry inherits the default list of its directory.

use crate::access::{Access, Caller};

/// Name of the list that is checked on access.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the list that new entries of a directory inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;
/// Entries of a minimal list (owner, owning group, others), which permission bits can express.
const MINIMAL_ENTRIES: usize = 3;

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
    /// Parses a list. Returns `None` for invalid bytes.
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

    /// Encodes the list in the kernel's format.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for AclEntry { tag, rights, id } in &self.entries {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&rights.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    /// Returns whether permission bits can express the list.
    pub(crate) fn is_minimal(&self) -> bool {
        self.entries.len() == MINIMAL_ENTRIES
    }

    /// Returns the permission bits of the list. The group bits are the mask, if the list has one.
    pub(crate) fn mode(&self) -> u32 {
        let rights =
            |tag| u32::from(self.entries.iter().find(|entry| entry.tag == tag).map_or(0, |entry| entry.rights));
        rights(OWNER) << 6 | rights(self.group_tag()) << 3 | rights(OTHERS)
    }

    /// Returns the list after permission bits were set.
    #[must_use]
    pub(crate) fn with_mode(&self, mode: u32) -> Self {
        self.map_minimal(|_, bits| bits, mode)
    }

    /// Returns the access list of a new entry that is created with these permission bits: the rights that both allow.
    #[must_use]
    pub(crate) fn inherited(&self, mode: u32) -> Self {
        self.map_minimal(|rights, bits| rights & bits, mode)
    }

    fn map_minimal(&self, change: impl Fn(u16, u16) -> u16, mode: u32) -> Self {
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

    /// Returns whether the list gives these rights to a caller who is neither root nor the owner. `gid` is the owning group.
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

    /// Returns the tag of the entry that the group's permission bits show.
    fn group_tag(&self) -> u16 {
        if self.entries.iter().any(|entry| entry.tag == MASK) { MASK } else { OWNING_GROUP }
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
        assert!(!list.is_minimal());
        let narrow = list.with_mode(0o640);
        assert_eq!(narrow.mode(), 0o640);
        assert_eq!(narrow.entries[2].rights, 0, "the owning group has what it had");
        assert_eq!(list.inherited(0o777).mode(), 0o660);
        assert_eq!(list.inherited(0o600).mode(), 0o600);
        let plain = acl(&[(OWNER, 7, ANY), (OWNING_GROUP, 5, ANY), (OTHERS, 1, ANY)]);
        assert!(plain.is_minimal());
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
