//! What the service asks of the kernel about mounts: which there are, and which are dead. Linux only.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use amalgam_fuse::unmount;
use rustix::io::Errno;

use super::book::Book;

/// The kinds of file systems that mounts of ours have, with their source: by the helper, and by root alone.
const KINDS: [[&[u8]; 2]; 2] = [[b"fuse.amalgam", b"amalgam"], [b"fuse", b"amalgam"]];
const MOUNT_TABLE: &str = "/proc/self/mountinfo";

/// The paths at which file systems of ours are mounted, whoever answers for them.
fn mounted_paths() -> io::Result<Vec<PathBuf>> {
    Ok(of_table(&std::fs::read(MOUNT_TABLE)?))
}

/// The same from the text of the table: the path is the fifth word, the kind and the source the first behind a lonely `-`.
fn of_table(table: &[u8]) -> Vec<PathBuf> {
    let lines = table.split(|byte| *byte == b'\n');
    let ours = lines.filter_map(|line| {
        let words: Vec<_> = line.split(|byte| *byte == b' ').collect();
        let behind = words.iter().position(|word| *word == b"-")?;
        let is_ours = words.get(behind + 1..behind + 3).is_some_and(|found| KINDS.iter().any(|kind| found == kind));
        is_ours.then(|| words.get(4)).flatten().map(|path| unescaped(path))
    });
    ours.collect()
}

/// Spaces, tabs, newlines and backslashes stand in the table as `\040` and so on.
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

/// Whether nobody answers for what is mounted at a path. The room on its disk is the one thing that a kernel never answers from memory.
pub(super) fn is_dead(path: &Path) -> bool {
    matches!(rustix::fs::statfs(path), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Takes away what a process that died left mounted. Whoever calls holds the store, so nobody answers for it. Says what was done.
pub(super) fn clean_up_after_the_dead(book: &Book) -> Vec<(PathBuf, String)> {
    let left: Vec<_> = book.read().mounts.into_values().filter(|mount| !mount.private).collect();
    if left.is_empty() {
        return Vec::new();
    }
    let mounted = mounted_paths().unwrap_or_default();
    let mut said = Vec::new();
    for mount in left {
        let path = mount.path.display().to_string();
        let again = match mount.workspace.as_str() {
            "" => String::new(),
            workspace => format!("; `amalgam mount {workspace} {path}` brings it back, with what was not committed"),
        };
        let words = if !mounted.contains(&mount.path) {
            format!("{path} was mounted by the previous background process, and is no longer{again}")
        } else if !is_dead(&mount.path) {
            format!(
                "{path} was mounted by the previous background process; another program serves it now, so it was left as it is"
            )
        } else {
            match unmount(&mount.path, true) {
                Ok(()) => format!("{path} was left by a process that died, and was unmounted{again}"),
                Err(error) => format!("{path} was left by a process that died and could not be unmounted: {error}"),
            }
        };
        said.push((mount.path, words));
    }
    said
}

/// Whether a path is where a file system of ours is mounted.
pub(super) fn is_mounted(path: &Path) -> bool {
    mounted_paths().is_ok_and(|paths| paths.iter().any(|mounted| mounted == path))
}

/// Bytes that nobody can guess.
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
        let expected = PathBuf::from("/mnt/a/my work\\x");
        assert_eq!(of_table(table), [expected, PathBuf::from("/mnt/root")]);
        assert!(of_table(b"").is_empty());
        assert!(of_table(b"- fuse.amalgam").is_empty());
    }

    #[test]
    fn what_is_alive_is_not_dead() {
        assert!(!is_dead(Path::new("/")));
        assert!(!is_dead(Path::new("/nowhere/at/all")));
    }

    #[test]
    fn tokens_differ() {
        assert_ne!(token().expect("random bytes"), token().expect("random bytes"));
    }
}
