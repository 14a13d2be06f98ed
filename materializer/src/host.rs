//! A directory of the host. Everything in it is opened beneath its handle, through no symlink and across no mount.
//!
//! A path component that is swapped for a symlink in the meantime leads nowhere: the kernel resolves every path from the
//! handle and refuses to leave it.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use amalgam_engine::{Name, TreePath};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::stamp::Stamp;

/// The kernel accepts paths below 4,096 bytes; longer ones are opened in several steps.
const STRIDE_BYTES_MAX: usize = 3_500;

/// Flags of an open directory.
pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Identity of a directory, independent of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device number of the file system.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Creation time in nanoseconds since 1970; 0 if the file system has none.
    pub birth: i64,
}

/// A directory that is captured or checked out.
#[derive(Debug)]
pub struct HostDir {
    path: PathBuf,
    handle: OwnedFd,
    identity: Identity,
}

impl HostDir {
    /// Opens a directory by its path. Only here symlinks are followed: those on the way to it are the user's own.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let failed =
            |source: Errno| Error::Host { action: "open", path: path.display().to_string(), source: source.into() };
        let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
        let handle = rustix::fs::openat(CWD, &path, flags, Mode::empty()).map_err(failed)?;
        let identity = identity(handle.as_fd()).map_err(failed)?;
        Ok(Self { path, handle, identity })
    }

    /// Returns the path by which it was opened, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its identity.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns its handle.
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Opens a sub-directory for reading. Fails with `ELOOP` or `ENOTDIR` at a symlink, with `EXDEV` at a mount.
    pub fn directory(&self, path: &TreePath) -> io::Result<OwnedFd> {
        open_beneath(self.handle.as_fd(), path.as_bytes(), DIRECTORY)
    }

    /// Opens a file for reading, without waiting for the writer of a FIFO. Fails with `ELOOP` at a symlink anywhere in the path,
    /// and with `EXDEV` at a mount.
    pub fn open_file(&self, path: &TreePath) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        open_beneath(self.handle.as_fd(), path.as_bytes(), flags).map(File::from)
    }

    /// Removes a file or a symlink.
    pub fn remove_file(&self, path: &TreePath) -> io::Result<()> {
        let Some((parent, name)) = self.parent(path)? else { return Err(Errno::ISDIR.into()) };
        Ok(rustix::fs::unlinkat(parent, c_name(&name), AtFlags::empty())?)
    }

    /// Opens the parent directory of a path. Returns it with the last name of the path; `None` for the root.
    pub fn parent(&self, path: &TreePath) -> io::Result<Option<(OwnedFd, Name)>> {
        path.split_last().map(|(parent, name)| Ok((self.directory(&parent)?, name))).transpose()
    }

    /// Returns the stamp of a path without following symlinks; `None` if it does not exist.
    pub fn stamp(&self, path: &TreePath) -> io::Result<Option<Stamp>> {
        let found = match self.parent(path) {
            Ok(Some((parent, name))) => Stamp::at(parent.as_fd(), &name).map(Some),
            Ok(None) => Stamp::of(self.handle.as_fd()).map(Some),
            Err(error) => Err(error),
        };
        match found {
            Err(error) if is_absent(&error) => Ok(None),
            other => other,
        }
    }
}

/// Returns whether an error means that a path, or a directory on the way to it, does not exist.
pub fn is_absent(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::NOENT, Errno::NOTDIR, Errno::LOOP].iter().any(|errno| code == Some(errno.raw_os_error()))
}

/// Returns a name as a C string.
pub(crate) fn c_name(name: &Name) -> CString {
    CString::new(name.as_bytes()).expect("names hold no NUL")
}

/// Returns the identity of an open directory.
pub(crate) fn identity(directory: BorrowedFd<'_>) -> rustix::io::Result<Identity> {
    let found = rustix::fs::statx(directory, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
    let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    let birth = found.stx_btime.tv_sec * 1_000_000_000 + i64::from(found.stx_btime.tv_nsec);
    let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
    Ok(Identity { device, inode: found.stx_ino, birth: if has_birth { birth } else { 0 } })
}

/// Opens a path beneath a handle, through no symlink and across no mount.
pub(crate) fn open_beneath(at: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    if path.is_empty() {
        return Ok(rustix::fs::openat(at, c".", flags, Mode::empty())?);
    }
    let (mut here, mut rest): (Option<OwnedFd>, &[u8]) = (None, path);
    loop {
        let from = here.as_ref().map_or(at, |fd| fd.as_fd());
        if rest.len() <= STRIDE_BYTES_MAX {
            return open_stride(from, rest, flags);
        }
        let end = rest[..STRIDE_BYTES_MAX].iter().rposition(|byte| *byte == b'/').expect("names are short");
        let next =
            open_stride(from, &rest[..end], OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC)?;
        here = Some(next);
        rest = &rest[end + 1..];
    }
}

pub(crate) fn open_stride(at: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(at, path, flags, Mode::empty(), resolve) {
        // Old kernels, and containers that filter the call.
        Err(Errno::NOSYS | Errno::PERM) => open_step_by_step(at, path, flags),
        other => Ok(other?),
    }
}

/// Opens a path name by name, on kernels without `openat2`; fails at any symlink.
fn open_step_by_step(at: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let device = rustix::fs::fstat(at)?.st_dev;
    let mut here: Option<OwnedFd> = None;
    let mut names = path.split(|byte| *byte == b'/').peekable();
    while let Some(name) = names.next() {
        let on_the_way = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = if names.peek().is_some() { on_the_way } else { flags };
        let from = here.as_ref().map_or(at, |fd| fd.as_fd());
        let next = rustix::fs::openat(from, name, how | OFlags::NOFOLLOW, Mode::empty())?;
        if rustix::fs::fstat(&next)?.st_dev != device {
            return Err(Errno::XDEV.into());
        }
        here = Some(next);
    }
    Ok(here.expect("a path has a name"))
}
