//! Reads extended attributes: user attributes, access control lists and capabilities. Others belong to the machine.

use std::io;
use std::os::fd::BorrowedFd;

use amalgam_engine::object::{XATTR_VALUE_BYTES_MAX, Xattr};
use bytes::Bytes;
use rustix::fs::{fgetxattr, flistxattr};
use rustix::io::Errno;

/// First buffer size, enough for most; the kernel allocates as much as it is offered.
const FEW_BYTES: usize = 512;
/// Linux's limit for the list of names.
const LIST_BYTES_MAX: usize = 64 << 10;

/// Returns all attributes that are part of a tree, sorted by name.
pub(crate) fn read_xattrs(open: BorrowedFd<'_>) -> io::Result<Vec<Xattr>> {
    let list = match fill(LIST_BYTES_MAX, |buffer| flistxattr(open, buffer)) {
        Ok(list) => list,
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    for name in list.split(|byte| *byte == 0).filter(|name| is_kept(name)) {
        match fill(XATTR_VALUE_BYTES_MAX, |buffer| fgetxattr(open, name, buffer)) {
            Ok(value) => found.push(Xattr { name: Bytes::copy_from_slice(name), value: value.into() }),
            // Removed in the meantime, or not readable by this user.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Returns whether an attribute is part of a tree.
fn is_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_") || name == b"security.capability"
}

fn fill(max: usize, ask: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut few = [0; FEW_BYTES];
    match ask(&mut few) {
        Ok(length) => Ok(few[..length].to_vec()),
        Err(Errno::RANGE) => {
            let mut buffer = vec![0; max];
            let length = ask(&mut buffer)?;
            buffer.truncate(length);
            Ok(buffer)
        }
        Err(error) => Err(error),
    }
}
