//! Checks of the machine: free space, file systems, limits.

use std::fs;
use std::path::Path;

use rustix::fs::{statfs, statvfs};
use rustix::process::{Resource, getrlimit};

use super::finding::Finding;
use crate::cloning::{nearest_directory, try_clone_in};
use crate::text;

const FREE_BYTES_LOW: u64 = 2_000_000_000;
const WATCHES_LOW: u64 = 65_536;
const OPEN_FILES_LOW: u64 = 4_096;

/// File systems by their magic number, and whether they can clone files.
const FILE_SYSTEMS: [(u64, &str, Clones); 11] = [
    (0x9123_683e, "btrfs", Clones::Yes),
    (0x5846_5342, "xfs", Clones::Perhaps),
    (0xca45_1a4e, "bcachefs", Clones::Yes),
    (0x2fc1_2fc1, "zfs", Clones::Perhaps),
    (0x794c_7630, "overlayfs", Clones::Perhaps),
    (0xef53, "ext4", Clones::No),
    (0x0102_1994, "tmpfs", Clones::No),
    (0x6969, "nfs", Clones::Far),
    (0xff53_4d42, "cifs", Clones::Far),
    (0xfe53_4d42, "smb", Clones::Far),
    (0x6573_5546, "fuse", Clones::No),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clones {
    Yes,
    Perhaps,
    No,
    /// A network file system.
    Far,
}

/// Checks the disk of the store: free space, file system, cloning.
pub fn of_store(home: &Path) -> Vec<Finding> {
    let Some(place) = nearest_directory(home) else { return Vec::new() };
    vec![room(&place), file_system("store_file_system", &place), cloning(&place)]
}

fn room(place: &Path) -> Finding {
    match statvfs(place) {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            let message = format!("{} free", text::bytes(free));
            if free < FREE_BYTES_LOW {
                Finding::warning("disk", message, "free some space; no snapshots can be taken on a full disk")
            } else {
                Finding::fine("disk", message)
            }
        }
        Err(error) => Finding::failure("disk", error.to_string(), "check the disk"),
    }
}

/// Describes the file system of a path. Warns about a network file system.
pub fn file_system(subject: &'static str, place: &Path) -> Finding {
    let found = match statfs(place) {
        Ok(found) => found,
        Err(error) => return Finding::failure(subject, error.to_string(), "check the disk"),
    };
    let number = u64::try_from(found.f_type).unwrap_or(0) & 0xffff_ffff;
    let Some((_, name, clones)) = FILE_SYSTEMS.iter().find(|(known, ..)| *known == number) else {
        return Finding::fine(subject, format!("unknown type {number:#x}"));
    };
    match clones {
        Clones::Far => {
            Finding::warning(subject, format!("{name}, a network file system"), "a local disk is faster and safer")
        }
        Clones::Yes => Finding::fine(subject, format!("{name}, clones files")),
        Clones::Perhaps => Finding::fine(subject, format!("{name}, may clone files")),
        Clones::No => Finding::fine(subject, format!("{name}, copies files")),
    }
}

/// Checks whether files can be cloned in a directory, by cloning one.
fn cloning(place: &Path) -> Finding {
    match try_clone_in(place) {
        Ok(true) => Finding::fine("cloning", "files are cloned, not copied"),
        Ok(false) => Finding::note("cloning", "not possible: files are copied; btrfs or xfs would clone them"),
        Err(error) => Finding::failure("cloning", error.to_string(), "the directory of the store must be writable"),
    }
}

/// Checks the limits of the system.
pub fn limits() -> Vec<Finding> {
    vec![watches(), open_files()]
}

fn number_in(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn watches() -> Finding {
    let key = "fs.inotify.max_user_watches";
    match number_in("/proc/sys/fs/inotify/max_user_watches") {
        None => Finding::warning("inotify", "not available", "`amalgam watch` scans the whole directory instead"),
        Some(number) if number < WATCHES_LOW => Finding::warning(
            "inotify",
            format!("{} directories can be watched", text::count(number)),
            format!("sudo sysctl {key}=524288"),
        ),
        Some(number) => Finding::fine("inotify", format!("{} directories can be watched", text::count(number))),
    }
}

fn open_files() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    let words = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), text::count);
    let message = format!("{}, at most {}", words(limit.current), words(limit.maximum));
    if limit.maximum.is_some_and(|number| number < OPEN_FILES_LOW) {
        Finding::warning("open_files", message, "raise the hard limit: ulimit -Hn 65536")
    } else {
        Finding::fine("open_files", message)
    }
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;
    use crate::command::doctor::finding::Grade;

    #[test]
    fn a_place_where_nothing_can_be_written_is_a_failure() {
        let finding = cloning(Path::new("/proc/self"));
        assert_eq!(finding.grade, Grade::Failure);
    }

    #[test]
    fn a_try_leaves_nothing_behind() {
        let place = env::temp_dir().join(format!("amalgam-doctor-test-{}", std::process::id()));
        fs::create_dir(&place).expect("made");
        let finding = cloning(&place);
        assert_eq!(fs::read_dir(&place).expect("listed").count(), 0);
        fs::remove_dir(&place).expect("removed");
        assert!(matches!(finding.grade, Grade::Fine | Grade::Note), "{finding:?}");
    }
}
