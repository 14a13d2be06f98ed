//! What is asked of the kernel itself: to mount a device at a directory, and to take a mount away. Linux only.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::mount::MountOptions;

const DEVICE: &str = "/dev/fuse";
const KIND: &str = "fuse.amalgam";
const HELPER: &str = "fusermount3";

/// Mounts a new device at a directory. Nothing where only the helper may.
pub(crate) fn mount(path: &Path, options: &MountOptions, read_only: bool) -> io::Result<Option<OwnedFd>> {
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
        Ok(()) => Ok(Some(device)),
        Err(Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
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
    let done = command.stdin(Stdio::null()).output().map_err(|error| {
        io::Error::new(error.kind(), format!("{HELPER} could not be run ({error}); it comes with the package fuse3"))
    })?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    let kind = if said.contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, said))
}
