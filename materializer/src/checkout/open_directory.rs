//! A directory in which a checkout works, and the system calls on names in it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use amalgam_engine::{Name, TreePath};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, Result as KernelResult};

use crate::host::c_name;
use crate::rights::DEFAULT_ACL;
use crate::stamp::Stamp;

/// Flags of a handle that refers to an inode without opening it.
const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open directory.
pub(super) struct OpenDirectory {
    pub(super) path: TreePath,
    pub(super) handle: OwnedFd,
    pub(super) inode: u64,
    /// Whether this checkout created it, so that no other program expects anything in it yet.
    pub(super) is_fresh: bool,
    /// Whether new files inherit an access control list from it.
    pub(super) has_default_acl: bool,
    is_touched: AtomicBool,
}

impl OpenDirectory {
    /// Wraps a directory that existed before this checkout, or that is opened again.
    pub(super) fn existing(path: TreePath, handle: OwnedFd, inode: u64) -> Self {
        Self::new(path, handle, inode, false)
    }

    /// Wraps a directory that this checkout created.
    pub(super) fn created(path: TreePath, handle: OwnedFd, inode: u64) -> Self {
        Self::new(path, handle, inode, true)
    }

    fn new(path: TreePath, handle: OwnedFd, inode: u64, is_fresh: bool) -> Self {
        let has_default_acl = has_default_acl(handle.as_fd());
        Self { path, handle, inode, is_fresh, has_default_acl, is_touched: AtomicBool::new(false) }
    }

    /// Records that names in it changed.
    pub(super) fn touch(&self) {
        self.is_touched.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_touched(&self) -> bool {
        self.is_touched.load(Ordering::Relaxed)
    }

    pub(super) fn stamp(&self, name: &Name) -> io::Result<Stamp> {
        Stamp::at(self.handle.as_fd(), name)
    }

    /// Returns a handle that refers to the inode of a name without opening it.
    pub(super) fn hold(&self, name: &Name) -> KernelResult<OwnedFd> {
        open_path_only(self.handle.as_fd(), name)
    }

    pub(super) fn unlink(&self, name: &Name) -> KernelResult<()> {
        rustix::fs::unlinkat(&self.handle, c_name(name), AtFlags::empty())
    }

    pub(super) fn make_directory(&self, name: &Name, mode: Mode) -> KernelResult<()> {
        rustix::fs::mkdirat(&self.handle, c_name(name), mode)
    }

    pub(super) fn remove_directory(&self, name: &Name) -> KernelResult<()> {
        rustix::fs::unlinkat(&self.handle, c_name(name), AtFlags::REMOVEDIR)
    }

    pub(super) fn rename(&self, from: &Name, to: &Name) -> KernelResult<()> {
        rustix::fs::renameat(&self.handle, c_name(from), &self.handle, c_name(to))
    }

    /// Exchanges two names in one step. Not all file systems can (`EINVAL`, `ENOSYS`).
    pub(super) fn exchange(&self, one: &Name, other: &Name) -> KernelResult<()> {
        self.rename_with(one, other, RenameFlags::EXCHANGE)
    }

    fn rename_with(&self, from: &Name, to: &Name, flags: RenameFlags) -> KernelResult<()> {
        rustix::fs::renameat_with(&self.handle, c_name(from), &self.handle, c_name(to), flags)
    }

    /// Renames to a name that must not exist.
    pub(super) fn rename_to_free(&self, from: &Name, to: &Name) -> KernelResult<()> {
        match self.rename_with(from, to, RenameFlags::NOREPLACE) {
            // A file system without this flag has hard links; for a directory, a rename replaces only an empty one.
            Err(Errno::INVAL | Errno::NOSYS) => {
                match rustix::fs::linkat(&self.handle, c_name(from), &self.handle, c_name(to), AtFlags::empty()) {
                    Ok(()) => self.unlink(from),
                    Err(Errno::PERM) => self.rename(from, to),
                    Err(errno) => Err(errno),
                }
            }
            other => other,
        }
    }

    /// Returns whether the directory under this name is empty.
    pub(super) fn is_empty(&self, name: &Name) -> KernelResult<bool> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&self.handle, c_name(name), flags, Mode::empty())?;
        for item in Dir::read_from(&directory)? {
            if !matches!(item?.file_name().to_bytes(), b"." | b"..") {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns a handle that refers to the inode of a name without opening it.
pub(super) fn open_path_only(directory: BorrowedFd<'_>, name: &Name) -> KernelResult<OwnedFd> {
    rustix::fs::openat(directory, c_name(name), PATH_ONLY, Mode::empty())
}

/// Returns whether new files in a directory inherit an access control list. False where the file system has none.
pub(super) fn has_default_acl(directory: BorrowedFd<'_>) -> bool {
    rustix::fs::fgetxattr(directory, DEFAULT_ACL, &mut [0_u8; 0][..]).is_ok()
}
