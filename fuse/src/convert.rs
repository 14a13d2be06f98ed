//! Conversion between the types of the view and of the FUSE protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use amalgam_engine::Time;
use amalgam_engine::work::Special;
use amalgam_view::{Attributes, Caller, Device, Error, Kind, TimeSet, WatchId};
use fuser::{Errno, FileAttr, FileType, INodeNo, Request, TimeOrNow};
use tracing::warn;

/// The number of an input/output error on Linux.
const EIO: i32 = 5;

pub(crate) fn attr(from: &Attributes) -> FileAttr {
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
        uid: from.uid,
        gid: from.gid,
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

/// The error number for the kernel. The process that gets `EIO` learns nothing of the cause, so it is logged.
pub(crate) fn errno(error: &Error) -> Errno {
    let number = error.errno();
    if number == EIO {
        warn!("a file system request failed: {error}");
    }
    Errno::from_i32(number)
}

pub(crate) fn caller(request: &Request, origin: WatchId) -> Caller {
    // The kernel checks permissions.
    Caller {
        uid: request.uid(),
        gid: request.gid(),
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
