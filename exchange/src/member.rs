//! A member of a foreign tree in terms of a store, and the checks that all formats share.

use amalgam_engine::object::{
    Content, Node, Owner, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX, Xattr,
};
use amalgam_engine::{Time, TreePath};
use bytes::Bytes;

use crate::error::{Error, Result};
use crate::report::Report;

/// Attributes of a member.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes {
    pub(crate) mode: u32,
    pub(crate) mtime: Time,
    pub(crate) owner: Option<Owner>,
    /// Checked and sorted.
    pub(crate) xattrs: Vec<Xattr>,
}

/// The bytes of a file.
pub(crate) enum Body {
    /// In memory, to be stored.
    Bytes(Vec<u8>),
    /// In the store.
    Stored { size: u64, content: Content },
}

/// The change that a member makes to a tree.
pub(crate) enum Edit {
    File {
        attributes: Attributes,
        body: Body,
    },
    Directory {
        attributes: Attributes,
    },
    /// A symlink, a device or a FIFO.
    Other {
        attributes: Attributes,
        node: Node,
    },
    /// A further name of a file that is in the tree.
    Link {
        existing: TreePath,
    },
    /// Removes the entry of lower layers at the path.
    Whiteout,
    /// Removes the entries of lower layers below the path.
    Opaque,
}

pub(crate) const NOTE_ABSOLUTE: &str = "absolute names were taken as names below the root";
pub(crate) const NOTE_TIME: &str = "times outside of the years 1677 to 2262 became the nearest time inside";
pub(crate) const NOTE_XATTRS: &str = "extended attributes that a tree cannot hold were left out";

/// Converts a member's name to a path below the root: without `.`, double slashes and leading slashes. Refuses `..` at any place,
/// because extracting programs disagree about its meaning.
pub(crate) fn tree_path(name: &[u8], report: &mut Report) -> Result<TreePath> {
    let mut path = Vec::with_capacity(name.len());
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(Error::refused(name, "its name leaves the archive's root by `..`")),
            part => {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(part);
            }
        }
    }
    if name.first() == Some(&b'/') {
        report.note(NOTE_ABSOLUTE, name);
    }
    TreePath::new(&path).map_err(|why| Error::refused(name, why.to_string()))
}

/// Returns the extended attributes that a tree can hold, sorted by name. Of two with the same name the last counts; others get a
/// note.
pub(crate) fn checked_xattrs(xattrs: Vec<(Vec<u8>, Vec<u8>)>, member: &[u8], report: &mut Report) -> Vec<Xattr> {
    let mut checked: Vec<Xattr> = Vec::with_capacity(xattrs.len());
    let mut total = 0;
    for (name, value) in xattrs {
        let is_name = !name.is_empty() && name.len() <= XATTR_NAME_BYTES_MAX && !name.contains(&0);
        if !is_name || value.len() > XATTR_VALUE_BYTES_MAX || total + name.len() + value.len() > XATTRS_BYTES_MAX {
            report.note(NOTE_XATTRS, member);
            continue;
        }
        total += name.len() + value.len();
        let xattr = Xattr { name: Bytes::from(name), value: Bytes::from(value) };
        match checked.binary_search_by(|other| other.name.cmp(&xattr.name)) {
            Ok(at) => checked[at] = xattr,
            Err(at) => checked.insert(at, xattr),
        }
    }
    checked
}

/// Converts nanoseconds to a [`Time`]. A time out of range becomes the nearest one in range, with a note.
pub(crate) fn time(nanoseconds: i128, member: &[u8], report: &mut Report) -> Time {
    i64::try_from(nanoseconds).map(Time).unwrap_or_else(|_| {
        report.note(NOTE_TIME, member);
        Time(if nanoseconds < 0 { i64::MIN } else { i64::MAX })
    })
}
