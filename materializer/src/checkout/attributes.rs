//! Sets owner, extended attributes, mode and times of an inode, in an order in which the kernel does not reset them.

use std::os::fd::{AsRawFd, BorrowedFd};

use amalgam_engine::object::{Owner, Xattr};
use amalgam_engine::{Entry, EntryKind, Time, TreePath};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags};
use rustix::io::{Errno, Result as KernelResult};

use super::context::Context;
use crate::error::{Error, Result};
use crate::plan::EntryPair;
use crate::report::Why;
use crate::rights::{ACCESS_ACL, CAPABILITY, DEFAULT_ACL, SET_ID};
use crate::stamp::Stamp;

/// A handle to the inode whose attributes are set.
#[derive(Clone, Copy)]
pub(super) enum Handle<'a> {
    /// Opened for reading or writing.
    Open(BorrowedFd<'a>),
    /// Opened with `O_PATH`: FIFOs, devices, symlinks and files without permission. Its inode is reached through
    /// `/proc/self/fd`, so that no name is resolved again.
    PathOnly(BorrowedFd<'a>),
}

impl Handle<'_> {
    fn fd_path(handle: BorrowedFd<'_>) -> String {
        format!("/proc/self/fd/{}", handle.as_raw_fd())
    }

    pub(super) fn stamp(self) -> std::io::Result<Stamp> {
        match self {
            Self::Open(handle) | Self::PathOnly(handle) => Stamp::of(handle),
        }
    }

    fn set_owner(self, owner: Owner) -> KernelResult<()> {
        let (user, group) = (Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)));
        match self {
            Self::Open(handle) => rustix::fs::fchown(handle, user, group),
            Self::PathOnly(handle) => rustix::fs::chownat(handle, c"", user, group, AtFlags::EMPTY_PATH),
        }
    }

    pub(super) fn set_mode(self, mode: u32) -> KernelResult<()> {
        let mode = Mode::from_raw_mode(mode);
        match self {
            Self::Open(handle) => rustix::fs::fchmod(handle, mode),
            Self::PathOnly(handle) => rustix::fs::chmodat(CWD, Self::fd_path(handle), mode, AtFlags::empty()),
        }
    }

    pub(super) fn set_xattr(self, xattr: &Xattr) -> KernelResult<()> {
        let flags = XattrFlags::empty();
        match self {
            Self::Open(handle) => rustix::fs::fsetxattr(handle, &xattr.name[..], &xattr.value, flags),
            Self::PathOnly(handle) => rustix::fs::setxattr(Self::fd_path(handle), &xattr.name[..], &xattr.value, flags),
        }
    }

    fn remove_xattr(self, name: &[u8]) -> KernelResult<()> {
        match self {
            Self::Open(handle) => rustix::fs::fremovexattr(handle, name),
            Self::PathOnly(handle) => rustix::fs::removexattr(Self::fd_path(handle), name),
        }
    }

    pub(super) fn set_time(self, mtime: Time) -> KernelResult<()> {
        const SECOND: i64 = 1_000_000_000;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: mtime.0.div_euclid(SECOND), tv_nsec: mtime.0.rem_euclid(SECOND) },
        };
        match self {
            Self::Open(handle) => rustix::fs::futimens(handle, &times),
            Self::PathOnly(handle) => rustix::fs::utimensat(handle, c"", &times, AtFlags::EMPTY_PATH),
        }
    }
}

/// Sets the attributes of an entry. `before` are the present ones, `None` for a new inode. Refusals become notices.
pub(super) fn apply_attributes(
    cx: &Context<'_>,
    handle: Handle<'_>,
    path: &TreePath,
    before: Option<&Entry>,
    after: &Entry,
    mtime: Option<Time>,
) -> Result<()> {
    let present = handle.stamp().map_err(|source| Error::host("look at", path, source))?;
    let mode = mode_of(cx, path, after);
    let mut mode_is_set = present.permissions() == mode;
    if before.is_none_or(|before| before.owner() != after.owner()) {
        let owner = after.owner().unwrap_or(cx.process.owner);
        if (present.uid, present.gid) != (owner.uid, owner.gid) {
            match handle.set_owner(owner) {
                // The kernel clears the set-user-ID bit.
                Ok(()) => mode_is_set = false,
                Err(Errno::PERM | Errno::INVAL) if after.owner().is_some() || present.uid != cx.process.owner.uid => {
                    cx.notice(path, Why::OwnerNotSet);
                }
                // A user without the right to give files away stays their owner.
                Err(Errno::PERM | Errno::INVAL) => {}
                Err(errno) => return Err(Error::host("set the owner of", path, errno)),
            }
        }
    }
    if before.map_or(after.extra.is_some(), |before| before.xattrs() != after.xattrs()) {
        set_xattrs(cx, handle, path, before, after)?;
        // An access control list changes the mode, too.
        mode_is_set = false;
    }
    if !mode_is_set && after.kind() != EntryKind::Symlink {
        handle.set_mode(mode).map_err(|errno| Error::host("set the mode of", path, errno))?;
    }
    if let Some(mtime) = mtime
        && present.mtime != mtime
    {
        handle.set_time(mtime).map_err(|errno| Error::host("set the time of", path, errno))?;
    }
    Ok(())
}

/// Returns the mode to set, without withheld bits.
fn mode_of(cx: &Context<'_>, path: &TreePath, entry: &Entry) -> u32 {
    if cx.options.withholds && entry.kind() == EntryKind::File && entry.mode & SET_ID != 0 {
        cx.notice(path, Why::Withheld);
        return entry.mode & !SET_ID;
    }
    entry.mode
}

/// Removes the access control lists that a new inode inherited from its directory; its entry holds its own.
pub(super) fn remove_inherited_acls(cx: &Context<'_>, handle: Handle<'_>, path: &TreePath) -> Result<()> {
    for name in [ACCESS_ACL, DEFAULT_ACL] {
        match handle.remove_xattr(name) {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(errno) => {
                let action = "remove the rules of access that it took over from its directory";
                report_xattr_failure(cx, path, errno, Why::Failed { action, error: errno.to_string() })?;
            }
        }
    }
    Ok(())
}

fn set_xattrs(
    cx: &Context<'_>,
    handle: Handle<'_>,
    path: &TreePath,
    before: Option<&Entry>,
    after: &Entry,
) -> Result<()> {
    let wanted = cx.store.xattrs(after.xattrs())?;
    let present = before.map(|before| cx.store.xattrs(before.xattrs())).transpose()?.unwrap_or_default();
    let refused = |errno: Errno| Why::Failed { action: "set an extended attribute", error: errno.to_string() };
    for xattr in present.iter().filter(|xattr| wanted.iter().all(|other| other.name != xattr.name)) {
        match handle.remove_xattr(&xattr.name) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(errno) => report_xattr_failure(cx, path, errno, refused(errno))?,
        }
    }
    for xattr in wanted.iter().filter(|xattr| !present.contains(xattr)) {
        if cx.options.withholds && &xattr.name[..] == CAPABILITY {
            cx.notice(path, Why::Withheld);
            continue;
        }
        if let Err(errno) = handle.set_xattr(xattr) {
            report_xattr_failure(cx, path, errno, refused(errno))?;
        }
    }
    Ok(())
}

fn report_xattr_failure(cx: &Context<'_>, path: &TreePath, errno: Errno, why: Why) -> Result<()> {
    // Space for attributes may be full while the disk is not; the next file write will tell.
    if errno == Errno::IO {
        return Err(Error::host("set an extended attribute of", path, errno));
    }
    cx.notice(path, why);
    Ok(())
}

/// Sets the attributes of a directory that exists in the target.
pub(super) fn apply_directory_attributes(
    cx: &Context<'_>,
    handle: Handle<'_>,
    path: &TreePath,
    pair: &EntryPair,
) -> Result<()> {
    let after = pair.after.as_ref().expect("the directory is in the target");
    let mtime = cx.scope.is_exact().then_some(after.mtime);
    let applied = apply_attributes(cx, handle, path, pair.before.as_ref(), after, mtime);
    cx.tolerate(path, applied).map(|_| ())
}

/// Sets a directory's time to that of the target, because each change of a name in it changed its time.
pub(super) fn set_directory_time(cx: &Context<'_>, handle: Handle<'_>, path: &TreePath, after: &Entry) -> Result<()> {
    if !cx.scope.is_exact() {
        return Ok(());
    }
    let set = handle.set_time(after.mtime).map_err(|errno| Error::host("set the time of", path, errno));
    cx.tolerate(path, set).map(|_| ())
}
