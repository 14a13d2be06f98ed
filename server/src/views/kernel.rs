//! The kernel's table of mounts: which mounts exist, and which are dead. Linux only.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// The kinds of file systems that mounts of ours have, with their source: by the helper, and by root alone.
const KINDS: [[&[u8]; 2]; 2] = [[b"fuse.amalgam", b"amalgam"], [b"fuse", b"amalgam"]];
const MOUNT_TABLE: &str = "/proc/self/mountinfo";

/// A file system of ours in the kernel's table of mounts, answered by this or another process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TableEntry {
    path: PathBuf,
    /// The kernel's number of the file system: the same at all places where it is mounted.
    device: String,
}

/// Reads the file systems of ours in the kernel's table. A later one covers an earlier one at the same path.
pub(super) fn mount_table() -> io::Result<Vec<TableEntry>> {
    Ok(of_table(&std::fs::read(MOUNT_TABLE)?))
}

/// Parses the table: the third word is the device, the fifth the path, the kind and the source the first behind a lonely `-`.
fn of_table(table: &[u8]) -> Vec<TableEntry> {
    let lines = table.split(|byte| *byte == b'\n');
    let ours = lines.filter_map(|line| {
        let words: Vec<_> = line.split(|byte| *byte == b' ').collect();
        let behind = words.iter().position(|word| *word == b"-")?;
        let is_ours = words.get(behind + 1..behind + 3).is_some_and(|found| KINDS.iter().any(|kind| found == kind));
        let (device, path) = (words.get(2)?, words.get(4)?);
        is_ours.then(|| TableEntry { path: unescaped(path), device: String::from_utf8_lossy(device).into_owned() })
    });
    ours.collect()
}

/// Returns the device number of the file system of ours that is mounted at a path, or `None`.
pub(super) fn device_at(path: &Path) -> Option<String> {
    let table = mount_table().unwrap_or_default();
    table.into_iter().rev().find(|entry| entry.path == path).map(|entry| entry.device)
}

/// Returns whether a table has a file system of ours with this device number.
pub(super) fn has_device(table: &[TableEntry], device: &str) -> bool {
    table.iter().any(|entry| entry.device == device)
}

/// Decodes a path of the table, in which spaces, tabs, newlines and backslashes stand as `\040` and so on.
fn unescaped(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, behind)) = rest.split_first() {
        let code = behind.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

/// Returns whether no process answers for the mount at a path. The kernel never answers `statfs` from its cache.
pub(super) fn is_dead(path: &Path) -> bool {
    matches!(rustix::fs::statfs(path), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Returns the mount namespace of a process, or `None` if it has ended or belongs to another user.
pub(super) fn mount_namespace(process: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok()
}

/// Returns the processes in a mount namespace, as far as this user may see them.
pub(super) fn processes_in(namespace: &Path) -> Vec<u32> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter(|process| mount_namespace(*process).is_some_and(|found| found == namespace)).collect()
}

/// Returns random bytes that cannot be guessed.
pub(super) fn token() -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 32];
    let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    if got == bytes.len() { Ok(bytes) } else { Err(io::Error::other("the kernel gave too few random bytes")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_mounts_is_read_word_by_word() {
        let table = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n\
            41 22 0:50 / /mnt/a/my\\040work\\134x rw,nosuid shared:7 master:1 - fuse.amalgam amalgam rw,user_id=0\n\
            42 22 0:51 / /mnt/other rw - fuse.sshfs fuse.amalgam rw\n\
            43 27 0:39 / /mnt/root rw,nosuid - fuse amalgam rw,user_id=0\n\
            44 27 0:39 / /mnt/sshfs rw,nosuid - fuse sshfs rw,user_id=0\n";
        let entry = |path: &str, device: &str| TableEntry { path: path.into(), device: device.to_owned() };
        let found = of_table(table);
        assert_eq!(found, [entry("/mnt/a/my work\\x", "0:50"), entry("/mnt/root", "0:39")]);
        assert!(has_device(&found, "0:39") && !has_device(&found, "98:0"));
        assert!(of_table(b"").is_empty());
        assert!(of_table(b"- fuse.amalgam").is_empty());
    }

    #[test]
    fn what_is_alive_is_not_dead() {
        assert!(!is_dead(Path::new("/")));
        assert!(!is_dead(Path::new("/nowhere/at/all")));
    }

    #[test]
    fn this_process_is_in_its_own_namespace() {
        let ours = std::process::id();
        let namespace = mount_namespace(ours).expect("a namespace");
        assert!(processes_in(&namespace).contains(&ours));
        assert!(processes_in(Path::new("mnt:[0]")).is_empty());
    }

    #[test]
    fn tokens_differ() {
        assert_ne!(token().expect("random bytes"), token().expect("random bytes"));
    }
}
