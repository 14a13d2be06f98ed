//! Attributes that grant rights: set-ID bits, file capabilities and POSIX access control lists.

use amalgam_engine::{Entry, EntryKind};

use crate::stamp::Stamp;

/// The set-user-ID and set-group-ID bits.
pub(crate) const SET_ID: u32 = 0o6000;
/// Extended attribute with the capabilities of a program.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";
/// Extended attribute with the access control list of a file.
pub(crate) const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// Extended attribute with the access control list that new files of a directory inherit.
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Returns whether a file has the mode of its entry except for set-ID bits that were withheld from it.
pub(crate) fn lacks_set_id(stamp: &Stamp, entry: &Entry) -> bool {
    entry.kind() == EntryKind::File && entry.mode & SET_ID != 0 && stamp.permissions() == entry.mode & !SET_ID
}
