//! Mounts that reach sandboxes which run already. The kernel passes a mount on to other namespaces where the directory is in a
//! shared mount.

use std::io;
use std::path::Path;

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change};

/// Returns whether a mount below a directory reaches sandboxes that were started before. If it does not and the server is root,
/// makes the directory a shared mount first.
pub(crate) fn carries_mounts(directory: &Path, is_root: bool) -> bool {
    is_shared(directory) || (is_root && share(directory).is_ok() && is_shared(directory))
}

fn is_shared(directory: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    directory.canonicalize().is_ok_and(|directory| is_shared_in(&table, &directory))
}

/// Returns whether the mount that holds a directory is shared, by the kernel's mount table.
fn is_shared_in(table: &str, directory: &Path) -> bool {
    let mut found: Option<(usize, bool)> = None;
    for line in table.lines() {
        let fields: Vec<_> = line.split(' ').collect();
        let Some(point) = fields.get(4).map(|point| unescaped(point)) else { continue };
        if !directory.starts_with(&point) {
            continue;
        }
        let is_shared =
            fields.iter().skip(6).take_while(|field| **field != "-").any(|field| field.starts_with("shared:"));
        let depth = Path::new(&point).components().count();
        // Of several mounts at one point the last one is seen.
        if found.is_none_or(|(deepest, _)| depth >= deepest) {
            found = Some((depth, is_shared));
        }
    }
    found.is_some_and(|(_, is_shared)| is_shared)
}

/// Decodes a path of the kernel's mount table, in which spaces, tabs, newlines and backslashes are escaped.
fn unescaped(path: &str) -> String {
    // Backslashes last, so that a decoded one does not begin an escape.
    path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// Makes a directory a shared mount of its own.
fn share(directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    mount_bind(directory, directory)?;
    Ok(mount_change(directory, MountPropagationFlags::SHARED)?)
}

/// Reverts [`carries_mounts`] for a directory in which nothing is mounted any more.
pub(crate) fn release(directory: &Path) {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Ok(directory) = directory.canonicalize() else { return };
    let points = || table.lines().filter_map(|line| Some(unescaped(line.split(' ').nth(4)?)));
    let has_mounts = points().any(|point| Path::new(&point) != directory && Path::new(&point).starts_with(&directory));
    if !has_mounts && points().any(|point| Path::new(&point) == directory) {
        // A mount that stays costs nothing, and is found again.
        let _ = rustix::mount::unmount(&directory, UnmountFlags::DETACH);
    }
}

/// Returns whether a process sees a writable FUSE mount at a path, without devices and set-user-ID programs.
pub(crate) fn sees_mount(pid: i32, path: &str) -> bool {
    let table = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    sees_mount_in(&table, path)
}

fn sees_mount_in(table: &str, path: &str) -> bool {
    let last = table.lines().rfind(|line| line.split(' ').nth(4) == Some(path));
    last.is_some_and(|line| {
        let options = line.split(' ').nth(5).unwrap_or_default();
        let has = |word: &str| options.split(',').any(|option| option == word);
        let is_fuse = line.split(" - ").nth(1).is_some_and(|kind| kind.starts_with("fuse"));
        is_fuse && has("rw") && has("nosuid") && has("nodev")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_that_a_directory_is_in_decides() {
        let table = "22 1 8:1 / / rw shared:1 - ext4 /dev/a rw\n\
                     30 22 0:5 / /srv rw,nosuid - tmpfs none rw\n\
                     31 30 0:5 /x /srv/my\\040data rw shared:7 master:1 - tmpfs none rw\n";
        for (directory, is_shared) in [("/home", true), ("/srv/a", false), ("/srv/my data/s", true), ("/srvx", true)] {
            assert_eq!(is_shared_in(table, Path::new(directory)), is_shared, "{directory}");
        }
        assert!(!is_shared_in("", Path::new("/")));
    }

    #[test]
    fn escapes_of_the_mount_table_are_decoded() {
        for (escaped, path) in [
            ("/plain", "/plain"),
            ("/my\\040data", "/my data"),
            ("/a\\011b\\012c", "/a\tb\nc"),
            ("/back\\134slash", "/back\\slash"),
            ("/no\\134040space", "/no\\040space"),
        ] {
            assert_eq!(unescaped(escaped), path);
        }
        let table = "22 1 8:1 / / rw - ext4 /dev/a rw\n31 22 0:5 / /a\\011b rw shared:7 - tmpfs none rw\n";
        assert!(is_shared_in(table, Path::new("/a\tb/c")));
    }

    #[test]
    fn a_mount_is_seen_when_the_last_one_there_is_fuse() {
        let below = "99 86 8:1 /p /workspace ro,nosuid,nodev - ext4 /dev/a rw\n";
        let above = |options: &str| format!("65 99 0:44 / /workspace {options} master:2 - fuse.amalgam amalgam rw\n");
        let sees = |table: &str| sees_mount_in(table, "/workspace");
        assert!(!sees(below));
        assert!(sees(&(below.to_owned() + &above("rw,nosuid,nodev"))));
        assert!(!sees_mount_in(&(below.to_owned() + &above("rw,nosuid,nodev")), "/sandbox"), "another path");
        assert!(!sees(&(below.to_owned() + &above("rw,nosuid"))), "devices");
        assert!(!sees(&above("ro,nosuid,nodev")), "the mount itself, instead of the directory below it");
    }
}
