//! Mounting a FUSE device at a directory, and unmounting it, by system calls or `fusermount3`. Linux only.

use std::ffi::{CString, OsStr};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use amalgam_engine::object::Owner;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

const DEVICE: &str = "/dev/fuse";
const FILE_SYSTEM_TYPE: &str = "fuse.amalgam";
const HELPER: &str = "fusermount3";
/// The environment variable that passes the helper its end of the socket.
const HELPER_SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// How a view is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The source that `mount` shows.
    pub name: String,
    /// Whether other users may enter; needs root, or `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Number of worker threads for slow requests, beside the thread that answers.
    pub threads: usize,
    /// Whether the kernel may delay writes. Delayed writes are in no snapshot, and are lost if the kernel stops.
    pub writeback: bool,
    /// Whether device files and set-user-ID bits are effective, as on a local disk; needs root.
    pub privileged: bool,
    /// The owner to show in place of the server's user, whose files in turn are stored as the server's.
    pub shown_owner: Option<Owner>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            name: "amalgam".to_owned(),
            allow_other: false,
            threads: 2,
            writeback: false,
            privileged: false,
            shown_owner: None,
        }
    }
}

/// Whether a mount can be written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountAccess {
    ReadOnly,
    ReadWrite,
}

/// Mounts a new device at a directory. Uses the helper if the process has no privilege to mount.
pub(crate) fn mount(path: &Path, options: &MountOptions, access: MountAccess) -> io::Result<OwnedFd> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let (number, others) = (device.as_raw_fd(), if options.allow_other { ",allow_other" } else { "" });
    let data = format!("fd={number},rootmode=40000,user_id={user},group_id={group},default_permissions{others}");
    let data = CString::new(data).expect("options have no NUL");
    let mut flags = MountFlags::empty();
    if !options.privileged {
        flags |= MountFlags::NOSUID | MountFlags::NODEV;
    }
    if access == MountAccess::ReadOnly {
        flags |= MountFlags::RDONLY;
    }
    match rustix::mount::mount(options.name.as_str(), path, FILE_SYSTEM_TYPE, flags, Some(data.as_c_str())) {
        Ok(()) => Ok(device),
        Err(Errno::PERM) => mount_with_helper(path, options, access),
        Err(error) => Err(error.into()),
    }
}

/// Mounts with the helper, which sends the device over a socket.
fn mount_with_helper(path: &Path, options: &MountOptions, access: MountAccess) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // The helper inherits its end. So may other processes that start at this moment, which does no harm.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    // Commas separate options, and a backslash escapes them.
    let name = options.name.replace('\\', "\\\\").replace(',', "\\,");
    let access = if access == MountAccess::ReadOnly { "ro" } else { "rw" };
    let mut words = format!("{access},fsname={name},subtype=amalgam,default_permissions");
    if options.allow_other {
        words.push_str(",allow_other");
    }
    if options.privileged {
        words.push_str(",dev,suid");
    }
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(words).arg("--").arg(path).env(HELPER_SOCKET_VARIABLE, theirs.as_raw_fd().to_string());
    let done = command.stdin(Stdio::null()).output().map_err(|error| no_helper(&error))?;
    drop(theirs);
    if !done.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&done.stderr).trim().to_owned()));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&ours, &mut [IoSliceMut::new(&mut [0; 8])], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let devices = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(devices) => Some(devices),
        _ => None,
    });
    devices.flatten().next().ok_or_else(|| io::Error::other(format!("{HELPER} sent no device")))
}

fn no_helper(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{HELPER} could not be run ({error}); it comes with the package fuse3"))
}

/// Unmounts a directory. Fails if the mount is in use.
pub fn unmount(path: &Path) -> io::Result<()> {
    unmount_with_flags(path, UnmountFlags::empty())
}

/// Unmounts a directory even if the mount is in use: it disappears from the path at once, and ends with its last use.
pub fn unmount_lazily(path: &Path) -> io::Result<()> {
    unmount_with_flags(path, UnmountFlags::DETACH)
}

fn unmount_with_flags(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        // Only root may unmount; other users can with the helper.
        Err(Errno::PERM) => unmount_with_helper(path, flags),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether an unmount failed because nothing is mounted there.
pub(crate) fn is_not_mounted(error: &io::Error) -> bool {
    [Errno::INVAL, Errno::NOENT].iter().any(|gone| error.raw_os_error() == Some(gone.raw_os_error()))
}

fn unmount_with_helper(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    let mut command = Command::new(HELPER);
    command.arg("-u").args(flags.contains(UnmountFlags::DETACH).then_some(OsStr::new("-z"))).arg("--").arg(path);
    let done = command.stdin(Stdio::null()).output().map_err(|error| no_helper(&error))?;
    if done.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    let kind = if message.contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, message))
}
