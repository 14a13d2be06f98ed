//! Conversion between the types of the view and of the FUSE protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use amalgam_engine::Time;
use amalgam_engine::object::Owner;
use amalgam_engine::work::Special;
use amalgam_view::{Attributes, Caller, Device, Error, Kind, TimeSet, WatchId};
use fuser::{Errno, FileAttr, FileType, INodeNo, Request, TimeOrNow};
use tracing::warn;

/// The number of an input/output error on Linux.
const EIO: i32 = 5;

/// The user and the group of the server, and those that a mount shows in their place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnerMap {
    server: Owner,
    shown: Owner,
}

impl OwnerMap {
    /// Creates the map of a mount that shows `shown` in place of the server's user and group. With `None` it changes nothing.
    pub(crate) fn new(shown: Option<Owner>) -> Self {
        let server = Owner { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() };
        Self { server, shown: shown.unwrap_or(server) }
    }

    /// Converts a user id and a group id of the view to those that the mount shows.
    fn show(self, uid: u32, gid: u32) -> (u32, u32) {
        (swap(uid, self.server.uid, self.shown.uid), swap(gid, self.server.gid, self.shown.gid))
    }

    /// Converts the user id of a process that uses the mount to that of the view.
    pub(crate) fn uid(self, uid: u32) -> u32 {
        swap(uid, self.server.uid, self.shown.uid)
    }

    /// Converts the group id of a process that uses the mount to that of the view.
    pub(crate) fn gid(self, gid: u32) -> u32 {
        swap(gid, self.server.gid, self.shown.gid)
    }
}

/// Exchanges two ids, so that no two users become one.
fn swap(id: u32, one: u32, other: u32) -> u32 {
    match id {
        _ if id == one => other,
        _ if id == other => one,
        _ => id,
    }
}

pub(crate) fn attr(owners: OwnerMap, from: &Attributes) -> FileAttr {
    let (uid, gid) = owners.show(from.uid, from.gid);
    FileAttr {
        ino: INodeNo(from.ino),
        size: from.size,
        blocks: from.blocks,
        atime: system_time(from.atime),
        mtime: system_time(from.mtime),
        ctime: system_time(from.ctime),
        crtime: UNIX_EPOCH,
        kind: kind(from.kind),
        perm: from.mode as u16,
        nlink: from.links,
        uid,
        gid,
        rdev: from.device.map_or(0, device_number),
        blksize: 4096,
        flags: 0,
    }
}

pub(crate) fn kind(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::File | Kind::Conflict => FileType::RegularFile,
    }
}

/// Encodes a device number for the protocol: 12 bits of major number, 20 of minor.
fn device_number(device: Device) -> u32 {
    (device.minor & 0xff) | (device.major << 8) | ((device.minor & !0xff) << 12)
}

pub(crate) fn device(number: u32) -> Device {
    Device { major: (number & 0xf_ff00) >> 8, minor: (number & 0xff) | ((number >> 12) & 0xf_ff00) }
}

/// Returns the special file that `mknod` creates; `None` for a regular file.
pub(crate) fn special(mode: u32, number: u32) -> Result<Option<Special>, Errno> {
    Ok(match mode & 0o170_000 {
        0o100_000 | 0 => None,
        0o010_000 => Some(Special::Fifo),
        0o140_000 => Some(Special::Socket),
        0o020_000 => Some(Special::CharDevice(device(number))),
        0o060_000 => Some(Special::BlockDevice(device(number))),
        _ => return Err(Errno::EINVAL),
    })
}

fn system_time(time: Time) -> SystemTime {
    let nanoseconds = Duration::from_nanos(time.0.unsigned_abs());
    if time.0 >= 0 { UNIX_EPOCH + nanoseconds } else { UNIX_EPOCH - nanoseconds }
}

pub(crate) fn time_set(time: TimeOrNow) -> TimeSet {
    match time {
        TimeOrNow::Now => TimeSet::Now,
        TimeOrNow::SpecificTime(time) => TimeSet::At(kernel_time(time)),
    }
}

/// Corrects a time before the epoch: the kernel counts nanoseconds up from the second before, the library counts them down.
fn kernel_time(time: SystemTime) -> Time {
    match UNIX_EPOCH.duration_since(time) {
        Ok(before) => Time::from(time + Duration::from_nanos(2 * u64::from(before.subsec_nanos()))),
        Err(_) => Time::from(time),
    }
}

/// Returns the error number for the kernel. Logs the cause of `EIO`, since the process that gets the number does not learn it.
pub(crate) fn errno(error: &Error) -> Errno {
    let number = error.errno();
    if number == EIO {
        warn!("a file system request failed: {error}");
    }
    Errno::from_i32(number)
}

pub(crate) fn caller(request: &Request, origin: WatchId, owners: OwnerMap) -> Caller {
    // The kernel checks permissions.
    Caller {
        uid: owners.uid(request.uid()),
        gid: owners.gid(request.gid()),
        groups: Vec::new(),
        enforce: false,
        origin: Some(origin),
        umask: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_owner_and_the_server_user_change_places() {
        let (server, shown) = (Owner { uid: 0, gid: 5 }, Owner { uid: 1_000, gid: 1_001 });
        let map = OwnerMap { server, shown };
        assert_eq!(map.show(0, 5), (1_000, 1_001));
        assert_eq!(map.show(1_000, 1_001), (0, 5), "no two users become one");
        assert_eq!(map.show(7, 7), (7, 7));
        assert_eq!((map.uid(1_000), map.gid(1_001)), (0, 5));
        let same = OwnerMap::new(None);
        assert_eq!(same.show(0, 1_000), (0, 1_000));
    }

    #[test]
    fn device_numbers_and_times_come_back() {
        for (major, minor) in [(0, 0), (1, 3), (259, 65_537), (4_095, 1_048_575)] {
            let device_ = Device { major, minor };
            assert_eq!(device(device_number(device_)), device_);
        }
        // One and a half seconds before the epoch: two down, half a one up. The library hands over two and a half.
        let told = UNIX_EPOCH - Duration::new(2, 500_000_000);
        assert!(matches!(time_set(TimeOrNow::SpecificTime(told)), TimeSet::At(Time(-1_500_000_000))));
        let told = UNIX_EPOCH - Duration::new(2, 0);
        assert!(matches!(time_set(TimeOrNow::SpecificTime(told)), TimeSet::At(Time(-2_000_000_000))));
        for time in [0, 1, -1, 1_700_000_000_123_456_789, -2_000_000_000_000_000_001] {
            assert_eq!(Time::from(system_time(Time(time))), Time(time));
        }
    }
}
