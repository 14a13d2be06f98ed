//! What a file system tells of an inode, and who asks.

use amalgam_engine::Time;
pub use amalgam_engine::object::{Device, EntryKind as Kind};

use crate::inodes::Ino;
use crate::notice::WatchId;

/// What there is to know of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its number.
    pub ino: Ino,
    /// What it is. Never a conflict: that is shown as one of its sides.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// How many names it has. For a directory 2 and the number of directories in it, or 1 where these have not been counted.
    pub links: u32,
    /// Whose it is.
    pub uid: u32,
    /// Whose group's it is.
    pub gid: u32,
    /// Its bytes.
    pub size: u64,
    /// Blocks of 512 bytes that it takes.
    pub blocks: u64,
    /// A device's number.
    pub device: Option<Device>,
    /// When it was last read, as far as somebody said so.
    pub atime: Time,
    /// When its contents last changed.
    pub mtime: Time,
    /// When anything of it last changed.
    pub ctime: Time,
}

/// Who calls.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// The user that new entries belong to.
    pub uid: u32,
    /// The group that new entries belong to.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// Whether the view checks permissions. A kernel that has done so already needs it no second time.
    pub checked: bool,
    /// The door that the call came through, which knows what it changed.
    pub door: Option<WatchId>,
    /// The permission bits that something new does not get, unless its directory has a default access control list.
    pub umask: u32,
}

impl Caller {
    /// The workspace's owner, in nobody's name in particular.
    pub fn owner(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Vec::new(), checked: false, door: None, umask: 0 }
    }

    /// Whether the caller is in a group.
    pub fn is_in(&self, gid: u32) -> bool {
        self.uid == 0 || self.gid == gid || self.groups.contains(&gid)
    }
}

/// What is to be set of an inode; the rest stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Set {
    /// Permission bits.
    pub mode: Option<u32>,
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The size of a file.
    pub size: Option<u64>,
    /// The time of the last reading.
    pub atime: Option<TimeSet>,
    /// The time of the last change of contents.
    pub mtime: Option<TimeSet>,
}

/// A time to set.
#[derive(Clone, Copy, Debug)]
pub enum TimeSet {
    /// The present.
    Now,
    /// Any other.
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
