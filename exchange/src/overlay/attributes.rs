//! Sets owner, mode, times and extended attributes of exported files. Refusals of the kernel become notices.

use std::os::fd::BorrowedFd;

use amalgam_engine::object::{Entry, Node, Xattr, Xattrs};
use amalgam_engine::{Name, Time, TreePath};
use rustix::fs::{self as sys, AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::report::Report;

/// The attribute that gives a program capabilities.
pub(super) const CAPABILITY: &[u8] = b"security.capability";
/// Prefixes of attributes by which the overlay file system marks entries.
pub(super) const OVERLAY_PREFIXES: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];

const NOTE_OWNER: &str = "owners were left out: only root can give files to others";
const NOTE_XATTR: &str = "extended attributes were left out: the file system or the kernel refused them";

/// Returns whether an attribute belongs to the overlay file system.
pub(super) fn is_of_overlay(name: &[u8]) -> bool {
    OVERLAY_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

fn failed(path: &TreePath, errno: Errno) -> Error {
    Error::host(format!("set the attributes of {path} of the upper directory"), errno.into())
}

fn times(mtime: Time) -> Timestamps {
    const SECOND: i64 = 1_000_000_000;
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.0.div_euclid(SECOND), tv_nsec: mtime.0.rem_euclid(SECOND) },
    }
}

/// Sets the owner of an open file or directory. This removes capabilities and set-ID bits, so it comes before extended attributes
/// and the mode.
pub(super) fn set_owner(handle: BorrowedFd<'_>, path: &TreePath, entry: &Entry, report: &mut Report) -> Result<()> {
    let Some(owner) = entry.owner() else { return Ok(()) };
    let (user, group) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    note_refusal(sys::fchown(handle, Some(user), Some(group)), NOTE_OWNER, path, report)
}

/// Sets mode and time of an open file or directory, after its owner and its extended attributes.
pub(super) fn set_mode_and_time(handle: BorrowedFd<'_>, path: &TreePath, entry: &Entry, mode: u32) -> Result<()> {
    sys::fchmod(handle, Mode::from_raw_mode(mode)).map_err(|errno| failed(path, errno))?;
    sys::futimens(handle, &times(entry.mtime)).map_err(|errno| failed(path, errno))
}

/// Sets owner, mode and time of a symlink, a FIFO or a device by its name. Their extended attributes are left out.
pub(super) fn set_link_attributes(
    above: BorrowedFd<'_>,
    name: &Name,
    path: &TreePath,
    entry: &Entry,
    report: &mut Report,
) -> Result<()> {
    let name = name.as_bytes();
    if let Some(owner) = entry.owner() {
        let (user, group) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
        let done = sys::chownat(above, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW);
        note_refusal(done, NOTE_OWNER, path, report)?;
    }
    if *entry.xattrs() != Xattrs::None {
        report.note(NOTE_XATTR, path.as_bytes());
    }
    if !matches!(entry.node, Node::Symlink(_)) {
        // The entry was just made and is no symlink, which `chmodat` would follow.
        let done = sys::chmodat(above, name, Mode::from_raw_mode(entry.mode), AtFlags::empty());
        done.map_err(|errno| failed(path, errno))?;
    }
    let done = sys::utimensat(above, name, &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW);
    done.map_err(|errno| failed(path, errno))
}

/// Sets an extended attribute of an open file or directory.
pub(super) fn set_xattr(handle: BorrowedFd<'_>, path: &TreePath, xattr: &Xattr, report: &mut Report) -> Result<()> {
    let set = sys::fsetxattr(handle, &xattr.name[..], &xattr.value, XattrFlags::empty());
    note_refusal(set, NOTE_XATTR, path, report)
}

fn note_refusal(done: Result<(), Errno>, why: &'static str, path: &TreePath, report: &mut Report) -> Result<()> {
    match done {
        Ok(()) => Ok(()),
        Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSPC | Errno::TOOBIG) => {
            report.note(why, path.as_bytes());
            Ok(())
        }
        Err(errno) => Err(failed(path, errno)),
    }
}
