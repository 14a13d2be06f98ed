//! What is asked of the kernel itself: to mount a device at a directory, and to take a mount away. Linux only.

use std::ffi::{CString, OsStr};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::mount::MountOptions;

const DEVICE: &str = "/dev/fuse";
const KIND: &str = "fuse.amalgam";
const HELPER: &str = "fusermount3";
/// The variable that names the helper's end of the socket.
const HELPER_SOCKET: &str = "_FUSE_COMMFD";

/// Mounts a new device at a directory, with the helper where only that may.
pub(crate) fn mount(path: &Path, options: &MountOptions, read_only: bool) -> io::Result<OwnedFd> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let (number, others) = (device.as_raw_fd(), if options.allow_other { ",allow_other" } else { "" });
    let words = format!("fd={number},rootmode=40000,user_id={user},group_id={group},default_permissions{others}");
    let words = CString::new(words).expect("numbers and words");
    let mut flags = MountFlags::empty();
    if !options.privileged {
        flags |= MountFlags::NOSUID | MountFlags::NODEV;
    }
    if read_only {
        flags |= MountFlags::RDONLY;
    }
    match rustix::mount::mount(options.name.as_str(), path, KIND, flags, Some(words.as_c_str())) {
        Ok(()) => Ok(device),
        Err(Errno::PERM) => mount_with_helper(path, options, read_only),
        Err(error) => Err(error.into()),
    }
}

/// The helper mounts, and sends the device over a socket.
fn mount_with_helper(path: &Path, options: &MountOptions, read_only: bool) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // The helper inherits its end; so may whatever else is started in this moment, which makes no difference to it.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    // A comma would end the name, and a backslash the comma's meaning.
    let name = options.name.replace('\\', "\\\\").replace(',', "\\,");
    let access = if read_only { "ro" } else { "rw" };
    let mut words = format!("{access},fsname={name},subtype=amalgam,default_permissions");
    if options.allow_other {
        words.push_str(",allow_other");
    }
    if options.privileged {
        words.push_str(",dev,suid");
    }
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(words).arg("--").arg(path).env(HELPER_SOCKET, theirs.as_raw_fd().to_string());
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

/// Takes a mount away. `lazy`: even if somebody uses it; it goes for good when they are done.
pub fn unmount(path: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        // Only root may; whoever may mount with the helper may unmount with it, too.
        Err(Errno::PERM) => unmount_with_helper(path, lazy),
        Err(error) => Err(error.into()),
    }
}

/// Whether an unmount failed because nothing was mounted there any more.
pub(crate) fn was_gone(error: &io::Error) -> bool {
    [Errno::INVAL, Errno::NOENT].iter().any(|gone| error.raw_os_error() == Some(gone.raw_os_error()))
}

fn unmount_with_helper(path: &Path, lazy: bool) -> io::Result<()> {
    let mut command = Command::new(HELPER);
    command.arg("-u").args(lazy.then_some(OsStr::new("-z"))).arg("--").arg(path);
    let done = command.stdin(Stdio::null()).output().map_err(|error| no_helper(&error))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    let kind = if said.contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, said))
}
