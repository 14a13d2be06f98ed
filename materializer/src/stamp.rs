//! What the host says of a file without reading it.

use std::io;
use std::os::fd::BorrowedFd;

use amalgam_engine::{Name, Time};
use rustix::fs::{AtFlags, FileType, Stat};

use crate::host::c_name;

/// When two of them are equal, and the file was not touched in the very moment it was looked at, its bytes and attributes are
/// the same: the kernel sets `ctime` at every change, and no program can set it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Kind and permission bits, as in `st_mode`.
    pub mode: u32,
    /// How many names it has on this file system.
    pub links: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its inode.
    pub inode: u64,
    /// Its length in bytes; for a device, which one it is.
    pub size: u64,
    /// When its bytes changed last.
    pub mtime: Time,
    /// When anything of it changed last.
    pub ctime: Time,
}

impl Stamp {
    /// Of a name in an open directory; a symlink is not followed.
    pub fn at(directory: BorrowedFd<'_>, name: &Name) -> io::Result<Self> {
        Ok(Self::from_stat(&rustix::fs::statat(directory, c_name(name), AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// Of something open.
    pub fn of(open: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self::from_stat(&rustix::fs::fstat(open)?))
    }

    /// From the kernel's answer.
    pub fn from_stat(stat: &Stat) -> Self {
        let time =
            |seconds: i64, nanoseconds: i64| Time(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds));
        Self {
            mode: stat.st_mode,
            links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            uid: stat.st_uid,
            gid: stat.st_gid,
            inode: stat.st_ino,
            size: match FileType::from_raw_mode(stat.st_mode) {
                FileType::CharacterDevice | FileType::BlockDevice => stat.st_rdev,
                _ => u64::try_from(stat.st_size).unwrap_or(0),
            },
            mtime: time(stat.st_mtime, stat.st_mtime_nsec as i64),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec as i64),
        }
    }

    /// What kind of thing it is.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// The permission bits.
    pub fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }
}
