//! A mount in a private namespace: seen by one command and its child processes, gone when they end, and made without any privilege
//! and without any helper program. Linux only. No other module creates namespaces.
//!
//! The process that becomes the command mounts for itself and hands the device to the store's process, which answers on it. It has
//! one thread only, because nothing else may enter a new user namespace; so it is a process of its own, started by `amalgam run`.

use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::thread::UnshareFlags;

/// The environment variable with the token of a mount. As an argument the token would be visible to other users.
pub const TOKEN_VARIABLE: &str = "AMALGAM_MOUNT_TOKEN";

/// The kernel's FUSE device.
pub const FUSE_DEVICE: &str = "/dev/fuse";

/// A private mount and the command that runs in it.
pub struct PrivateMount<'a> {
    /// The mount point.
    pub at: &'a Path,
    /// The socket of the background process that takes the device.
    pub socket: &'a Path,
    /// The token that identifies the mount.
    pub token: &'a [u8],
    /// Whether other users may enter.
    pub allow_other: bool,
    /// Directories of the host that are bound into the mount: source, and path in the mount.
    pub bindings: &'a [(&'a Path, &'a Path)],
    /// The command.
    pub words: &'a [OsString],
}

/// Why a command could not be run in a private mount.
pub enum PrivateMountError {
    /// The mount failed: the action, and its error.
    Mount(&'static str, io::Error),
    /// The mount succeeded, but the command could not be started.
    Start(io::Error),
}

/// Mounts in a private namespace and replaces this process by the command. Returns only if that fails.
pub fn become_command(enter: &PrivateMount<'_>) -> PrivateMountError {
    match mount(enter) {
        Ok(()) => {
            let at: PathBuf = enter.at.to_owned();
            let mut command = Command::new(&enter.words[0]);
            // A process that has the token could mount in place of the command, so the command does not get it.
            command.args(&enter.words[1..]).current_dir(&at).env("PWD", &at).env_remove(TOKEN_VARIABLE);
            PrivateMountError::Start(command.exec())
        }
        Err((what, error)) => PrivateMountError::Mount(what, error),
    }
}

fn mount(enter: &PrivateMount<'_>) -> Result<(), (&'static str, io::Error)> {
    unshare().map_err(|error| ("make a namespace", error))?;
    let device = open_device().map_err(|error| ("open /dev/fuse", error))?;
    mount_device(&device, enter).map_err(|error| ("mount", error))?;
    hand_over(&device, enter).map_err(|error| ("reach the store's process", error))?;
    for (source, path) in enter.bindings {
        let bound = rustix::mount::mount_bind_recursive(*source, enter.at.join(path));
        bound.map_err(|error| ("mount a local path", error.into()))?;
    }
    Ok(())
}

/// Enters a new mount namespace. A user without `CAP_SYS_ADMIN` needs a user namespace around it.
fn unshare() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let flags =
        if user.is_root() && is_capable() { UnshareFlags::NEWNS } else { UnshareFlags::NEWNS | UnshareFlags::NEWUSER };
    // Only unsharing the table of open files would be unsound while other threads use it; this flag is not used.
    #[allow(deprecated, reason = "the other form is unsafe for the sake of a flag that is not used here")]
    rustix::thread::unshare(flags)?;
    if flags.contains(UnshareFlags::NEWUSER) {
        let (user, group) = (user.as_raw(), group.as_raw());
        fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    }
    // Mounts made here do not propagate to other namespaces.
    let apart = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    Ok(rustix::mount::mount_change("/", apart)?)
}

/// Returns whether this process has the capability to mount (`CAP_SYS_ADMIN`).
pub fn is_capable() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("CapEff:")).is_some_and(holds_sys_admin)
}

/// Returns whether a capability set, in hex as in `/proc/self/status`, contains `CAP_SYS_ADMIN`.
pub fn holds_sys_admin(set: &str) -> bool {
    const SYS_ADMIN: u32 = 21;
    u64::from_str_radix(set.trim(), 16).is_ok_and(|set| set >> SYS_ADMIN & 1 == 1)
}

fn open_device() -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    Ok(rustix::fs::open(FUSE_DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

fn mount_device(device: &OwnedFd, enter: &PrivateMount<'_>) -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let number = device.as_raw_fd();
    let others = if enter.allow_other { ",allow_other" } else { "" };
    let options = format!("fd={number},rootmode=40000,user_id={user},group_id={group},default_permissions{others}");
    let options = CString::new(options).expect("numbers and words");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(rustix::mount::mount("amalgam", enter.at, "fuse.amalgam", flags, Some(options.as_c_str()))?)
}

fn hand_over(device: &OwnedFd, enter: &PrivateMount<'_>) -> io::Result<()> {
    let mut stream = UnixStream::connect(enter.socket)?;
    let devices = [device.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fits = ancillary.push(SendAncillaryMessage::ScmRights(&devices));
    assert!(fits, "there is room for one");
    sendmsg(&stream, &[IoSlice::new(enter.token)], &mut ancillary, SendFlags::NOSIGNAL)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer.is_empty() { Ok(()) } else { Err(io::Error::other(answer)) }
}
