//! Privileges and defaults of this process.

use std::os::fd::AsFd;

use amalgam_engine::TreePath;
use amalgam_engine::object::Owner;

use crate::error::{Error, Result};
use crate::host::HostDir;
use crate::stamp::Stamp;

/// The rights of this process, and the attributes that its new files get.
pub(super) struct Process {
    /// Whether permission bits do not apply to it.
    pub(super) is_root: bool,
    /// The umask: bits that new files lose.
    pub(super) umask: u32,
    /// The owner of entries that name none: that of the directory.
    pub(super) owner: Owner,
}

impl Process {
    pub(super) fn of(directory: &HostDir) -> Result<Self> {
        let top = Stamp::of(directory.handle().as_fd());
        let top = top.map_err(|source| Error::host("look at", &TreePath::root(), source))?;
        Ok(Self {
            is_root: rustix::process::geteuid().is_root(),
            umask: umask(),
            owner: Owner { uid: top.uid, gid: top.gid },
        })
    }
}

/// Returns the umask of this process. Reads `/proc`, because `umask(2)` would set it for all threads.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    // If unknown, every mode is set explicitly.
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o777)
}
