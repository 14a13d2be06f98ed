//! Inode numbers and attributes, and the changes of attributes that a caller can request.

use amalgam_engine::Time;
pub use amalgam_engine::object::{Device, EntryKind as Kind};

/// The number of an inode.
pub type Ino = u64;

/// The inode number of the root directory.
pub const ROOT: Ino = 1;

/// The attributes of an inode, as `stat` returns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The inode number.
    pub ino: Ino,
    /// The file type. A conflict is shown as a file or as one of its sides.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// The number of hard links. For a directory 2 plus the number of its subdirectories, or 1 where these have not been counted.
    pub links: u32,
    /// The owning user.
    pub uid: u32,
    /// The owning group.
    pub gid: u32,
    /// The size in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes, estimated from the size.
    pub blocks: u64,
    /// The number of a device file.
    pub device: Option<Device>,
    /// Time of the last read, if a caller has set one; else the time of the last write.
    pub atime: Time,
    /// Time of the last change of contents.
    pub mtime: Time,
    /// Time of the last change of contents or attributes.
    pub ctime: Time,
}

/// Attributes to set on an inode. `None` leaves an attribute as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// The owning user.
    pub uid: Option<u32>,
    /// The owning group.
    pub gid: Option<u32>,
    /// The size of a file.
    pub size: Option<u64>,
    /// Time of the last read.
    pub atime: Option<TimeSet>,
    /// Time of the last change of contents.
    pub mtime: Option<TimeSet>,
}

impl SetAttributes {
    /// Returns whether nothing but the time of the last read is set.
    pub(crate) fn is_atime_only(&self) -> bool {
        let Self { mode, uid, gid, size, atime: _, mtime } = self;
        mode.is_none() && uid.is_none() && gid.is_none() && size.is_none() && mtime.is_none()
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug)]
pub enum TimeSet {
    /// The current time of the view's clock.
    Now,
    /// An explicit time.
    At(Time),
}

impl TimeSet {
    pub(crate) fn resolve(self, now: Time) -> Time {
        match self {
            Self::Now => now,
            Self::At(time) => time,
        }
    }
}
