//! What this process may do, and what the kernel does to the files it makes.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::AsFd;

use amalgam_engine::TreePath;
use amalgam_engine::object::Owner;

use crate::error::{Error, Result};
use crate::host::HostDir;
use crate::stamp::Stamp;

/// Who writes, and into whose directory.
pub(super) struct Process {
    /// Whether permission bits do not stop it.
    pub(super) is_root: bool,
    /// The bits that new files lose.
    pub(super) umask: u32,
    /// Whose files those without an owner of their own are: the directory's.
    pub(super) owner: Owner,
}

impl Process {
    pub(super) fn look(directory: &HostDir) -> Result<Self> {
        let top = Stamp::of(directory.handle().as_fd());
        let top = top.map_err(|source| Error::host("look at", &TreePath::root(), source))?;
        Ok(Self {
            is_root: rustix::process::geteuid().is_root(),
            umask: umask(),
            owner: Owner { uid: top.uid, gid: top.gid },
        })
    }
}

/// The mask of this process; asking the kernel for it would set it, for all threads.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    // Where it is not known, every mode is set explicitly.
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o777)
}

/// A number that other processes hardly choose.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
