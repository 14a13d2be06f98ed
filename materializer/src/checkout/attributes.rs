//! Owner, extended attributes, mode and times of something that is open, in the order in which the kernel does not undo them.

use std::os::fd::{AsRawFd, BorrowedFd};

use amalgam_engine::object::{Owner, Xattr};
use amalgam_engine::{Entry, EntryKind, Time, TreePath};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags};
use rustix::io::{Errno, Result as KernelResult};

use super::Run;
use crate::error::{Error, Result};
use crate::report::Why;
use crate::stamp::Stamp;

/// Who may do what beside the mode, and what of that a directory lends to whatever is made in it.
const ACCESS_RULES: &[u8] = b"system.posix_acl_access";
pub(crate) const LENT_RULES: &[u8] = b"system.posix_acl_default";

/// What lets a program do more than its caller may.
const SET_ID: u32 = 0o6000;
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// Whether a file is as its entry says, but for set-ID bits that were withheld from it.
pub(crate) fn lacks_set_id(stamp: &Stamp, entry: &Entry) -> bool {
    entry.kind() == EntryKind::File && entry.mode & SET_ID != 0 && stamp.permissions() == entry.mode & !SET_ID
}

/// Whether what is made in a directory takes rules of access over from it.
pub(super) fn lends_rules(directory: BorrowedFd<'_>) -> bool {
    // A file system without such rules has none to lend.
    rustix::fs::fgetxattr(directory, LENT_RULES, &mut [0_u8; 0][..]).is_ok()
}

/// Something whose attributes are set.
#[derive(Clone, Copy)]
pub(super) enum Handle<'a> {
    /// Open for reading or writing.
    Open(BorrowedFd<'a>),
    /// Open as a place only, as FIFOs, devices, symlinks and files without permission are. Its inode is reached through the
    /// process's own table of handles, so that no name is resolved again.
    Place(BorrowedFd<'a>),
}

impl Handle<'_> {
    fn table_path(handle: BorrowedFd<'_>) -> String {
        format!("/proc/self/fd/{}", handle.as_raw_fd())
    }

    pub(super) fn stamp(self) -> std::io::Result<Stamp> {
        match self {
            Self::Open(handle) | Self::Place(handle) => Stamp::of(handle),
        }
    }

    fn set_owner(self, owner: Owner) -> KernelResult<()> {
        let (user, group) = (Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)));
        match self {
            Self::Open(handle) => rustix::fs::fchown(handle, user, group),
            Self::Place(handle) => rustix::fs::chownat(handle, c"", user, group, AtFlags::EMPTY_PATH),
        }
    }

    pub(super) fn set_mode(self, mode: u32) -> KernelResult<()> {
        let mode = Mode::from_raw_mode(mode);
        match self {
            Self::Open(handle) => rustix::fs::fchmod(handle, mode),
            Self::Place(handle) => rustix::fs::chmodat(CWD, Self::table_path(handle), mode, AtFlags::empty()),
        }
    }

    pub(super) fn set_xattr(self, xattr: &Xattr) -> KernelResult<()> {
        let flags = XattrFlags::empty();
        match self {
            Self::Open(handle) => rustix::fs::fsetxattr(handle, &xattr.name[..], &xattr.value, flags),
            Self::Place(handle) => rustix::fs::setxattr(Self::table_path(handle), &xattr.name[..], &xattr.value, flags),
        }
    }

    fn remove_xattr(self, name: &[u8]) -> KernelResult<()> {
        match self {
            Self::Open(handle) => rustix::fs::fremovexattr(handle, name),
            Self::Place(handle) => rustix::fs::removexattr(Self::table_path(handle), name),
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
            Self::Place(handle) => rustix::fs::utimensat(handle, c"", &times, AtFlags::EMPTY_PATH),
        }
    }
}

impl Run<'_> {
    /// Gives something the attributes of its entry. `before` is what it has already; nothing for what was just made. What the
    /// machine refuses is reported.
    pub(super) fn dress(
        &self,
        handle: Handle<'_>,
        path: &TreePath,
        before: Option<&Entry>,
        after: &Entry,
        mtime: Option<Time>,
    ) -> Result<()> {
        let present = handle.stamp().map_err(|source| Error::host("look at", path, source))?;
        let mode = self.mode_of(path, after);
        let mut mode_is_set = present.permissions() == mode;
        if before.is_none_or(|before| before.owner() != after.owner()) {
            let owner = after.owner().unwrap_or(self.process.owner);
            if (present.uid, present.gid) != (owner.uid, owner.gid) {
                match handle.set_owner(owner) {
                    // The kernel takes the set-user bit away.
                    Ok(()) => mode_is_set = false,
                    Err(Errno::PERM | Errno::INVAL) if after.owner().is_some() => {
                        self.notice(path, Why::OwnerNotSet);
                    }
                    // A user who may not give files away keeps the new ones.
                    Err(Errno::PERM | Errno::INVAL) => {}
                    Err(errno) => return Err(Error::host("set the owner of", path, errno)),
                }
            }
        }
        if before.map_or(after.extra.is_some(), |before| before.xattrs() != after.xattrs()) {
            self.set_xattrs(handle, path, before, after)?;
            // An access list among them speaks of the mode too.
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

    /// The mode that something gets, without what is withheld.
    fn mode_of(&self, path: &TreePath, entry: &Entry) -> u32 {
        if self.job.withholds && entry.kind() == EntryKind::File && entry.mode & SET_ID != 0 {
            self.notice(path, Why::Withheld);
            return entry.mode & !SET_ID;
        }
        entry.mode
    }

    /// Takes away what something new took over from its directory. Its entry says which rules it has.
    pub(super) fn remove_lent_rules(&self, handle: Handle<'_>, path: &TreePath) -> Result<()> {
        for name in [ACCESS_RULES, LENT_RULES] {
            match handle.remove_xattr(name) {
                Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
                Err(errno) => {
                    let action = "remove the rules of access that it took over from its directory";
                    self.xattr_refused(path, errno, Why::Failed { action, error: errno.to_string() })?;
                }
            }
        }
        Ok(())
    }

    fn set_xattrs(&self, handle: Handle<'_>, path: &TreePath, before: Option<&Entry>, after: &Entry) -> Result<()> {
        let wanted = self.store.xattrs(after.xattrs())?;
        let present = before.map(|before| self.store.xattrs(before.xattrs())).transpose()?.unwrap_or_default();
        let refused = |errno: Errno| Why::Failed { action: "set an extended attribute", error: errno.to_string() };
        for xattr in present.iter().filter(|xattr| wanted.iter().all(|other| other.name != xattr.name)) {
            match handle.remove_xattr(&xattr.name) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(errno) => self.xattr_refused(path, errno, refused(errno))?,
            }
        }
        for xattr in wanted.iter().filter(|xattr| !present.contains(xattr)) {
            if self.job.withholds && &xattr.name[..] == CAPABILITY {
                self.notice(path, Why::Withheld);
                continue;
            }
            if let Err(errno) = handle.set_xattr(xattr) {
                self.xattr_refused(path, errno, refused(errno))?;
            }
        }
        Ok(())
    }

    fn xattr_refused(&self, path: &TreePath, errno: Errno, why: Why) -> Result<()> {
        // Attributes have room of their own, which may be full while the disk is not; the write of the next file tells.
        if errno == Errno::IO {
            return Err(Error::host("set an extended attribute of", path, errno));
        }
        self.notice(path, why);
        Ok(())
    }
}
