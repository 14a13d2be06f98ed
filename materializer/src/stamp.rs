//! Stamps: the `stat` fields by which a file is known to be unchanged without reading it.

use std::io;
use std::os::fd::BorrowedFd;

use amalgam_engine::{Name, Time};
use rustix::fs::{AtFlags, FileType, Stat};

/// The `stat` fields of a file. If two stamps are equal and the file was not changed within the clock's granularity, bytes and
/// attributes are equal: the kernel sets `ctime` at every change, and no program can set it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Kind and permission bits, as in `st_mode`.
    pub mode: u32,
    /// Number of hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Inode.
    pub inode: u64,
    /// Length in bytes; for a device, its number.
    pub size: u64,
    /// Last change of the bytes.
    pub mtime: Time,
    /// Last change of bytes or attributes.
    pub ctime: Time,
}

impl Stamp {
    /// Returns the stamp of a name in an open directory. Does not follow a symlink.
    pub fn at(directory: BorrowedFd<'_>, name: &Name) -> io::Result<Self> {
        Ok(Self::from_stat(&rustix::fs::statat(directory, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// Returns the stamp of an open file.
    pub fn of(open: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self::from_stat(&rustix::fs::fstat(open)?))
    }

    /// Converts the kernel's answer.
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

    /// Returns the file type.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// Returns the permission bits.
    pub fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }
}
