//! Removes a directory tree of the host, by directory handles, through no symlink and across no mount.
//!
//! One handle is open at a time, however deep the tree is: the walk goes up by `..`, and the directory found there must be the
//! one that it came from.

use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::host::{DIRECTORY, open_stride};

/// Times that a directory is listed again because entries appear while it is removed.
const LISTINGS_MAX: u32 = 4;
/// Mode for a directory whose own mode forbids removals.
const OPENED: Mode = Mode::RWXU;

/// The error: the first path that was not removed, why, and the number of the others.
#[derive(Debug)]
struct Left {
    path: PathBuf,
    why: String,
    others: u64,
}

impl fmt::Display for Left {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} stays: {}", self.path.display(), self.why)?;
        match self.others {
            0 => Ok(()),
            others => write!(to, "; {others} more paths stay"),
        }
    }
}

impl std::error::Error for Left {}

/// Removes a path and everything below it. A missing path is no error.
///
/// A symlink is removed, never followed. A mount stays, with its contents and the directories above it, and so does an entry
/// that the kernel refuses to remove. The rest is removed, and the error names the first path that stays. A directory of the
/// caller that forbids removals gets mode 0700 first.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} has no name", path.display())));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let above = match rustix::fs::openat(CWD, parent, DIRECTORY.difference(OFlags::NOFOLLOW), Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        above => above?,
    };
    let mut removal = Removal { mount: mount_of(above.as_fd())?, path: parent.to_owned(), left: None };
    let name = CString::new(name.as_bytes())?;
    removal.remove(above, name)?;
    match removal.left {
        None => Ok(()),
        Some((kind, left)) => Err(io::Error::new(kind, left)),
    }
}

/// Identity of a mount: the mount id, if the kernel reports it, and the device.
type Mount = (Option<u64>, u64);

struct Removal {
    mount: Mount,
    /// Current path, for messages.
    path: PathBuf,
    left: Option<(io::ErrorKind, Left)>,
}

/// A directory on the way down.
struct Level {
    inode: u64,
    names: Vec<CString>,
    listings: u32,
}

impl Removal {
    /// Removes one entry of a directory, with everything below it.
    fn remove(&mut self, above: OwnedFd, name: CString) -> io::Result<()> {
        let mut here = above;
        let mut levels = vec![Level { inode: inode_of(here.as_fd())?, names: vec![name], listings: LISTINGS_MAX }];
        // The names of entered directories, to be removed on the way up.
        let mut entered: Vec<CString> = Vec::new();
        loop {
            let level = levels.last_mut().expect("it ends with the first one");
            if let Some(name) = level.names.pop() {
                let Some(below) = self.unlink_or_enter(here.as_fd(), &name) else { continue };
                self.path.push(std::ffi::OsStr::from_bytes(name.as_bytes()));
                levels.push(Level { inode: inode_of(below.as_fd())?, names: names_in(below.as_fd())?, listings: 1 });
                entered.push(name);
                here = below;
                continue;
            }
            let Some(name) = entered.last() else { return Ok(()) };
            let expected = levels[levels.len() - 2].inode;
            let above = up(here.as_fd(), expected, self.mount).map_err(|why| self.moved(&why))?;
            match rustix::fs::unlinkat(&above, name.as_c_str(), AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    let level = levels.last_mut().expect("it was entered");
                    // If no entry was left, new ones have appeared.
                    if self.left.is_none() && level.listings < LISTINGS_MAX {
                        level.listings += 1;
                        level.names = names_in(here.as_fd())?;
                        continue;
                    }
                    if self.left.is_none() {
                        self.leave(None, &io::Error::other("entries appear in it while it is removed"));
                    }
                }
                Err(errno) => self.leave(None, &errno.into()),
            }
            levels.pop();
            entered.pop();
            self.path.pop();
            here = above;
        }
    }

    /// Removes an entry that is no directory, or returns the handle of a directory. Records a failure.
    fn unlink_or_enter(&mut self, here: BorrowedFd<'_>, name: &CStr) -> Option<OwnedFd> {
        let mut unlinked = rustix::fs::unlinkat(here, name, AtFlags::empty());
        if unlinked == Err(Errno::ACCESS) && rustix::fs::fchmod(here, OPENED).is_ok() {
            unlinked = rustix::fs::unlinkat(here, name, AtFlags::empty());
        }
        match unlinked {
            Ok(()) | Err(Errno::NOENT) => return None,
            // Some file systems return EPERM for a directory.
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => {
                self.leave(Some(name), &errno.into());
                return None;
            }
        }
        match self.enter(here, name) {
            Ok(below) => Some(below),
            Err(error) => {
                self.leave(Some(name), &error);
                None
            }
        }
    }

    fn enter(&self, here: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
        let below = match open_stride(here, name.to_bytes(), DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let place = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let place = open_stride(here, name.to_bytes(), place)?;
                // Only /proc leads from an O_PATH handle to its inode without resolving the name again.
                let through = format!("/proc/self/fd/{}", place.as_raw_fd());
                rustix::fs::chmodat(CWD, through, OPENED, AtFlags::empty())?;
                open_stride(here, name.to_bytes(), DIRECTORY)?
            }
            below => below?,
        };
        // For kernels that cannot refuse to cross a mount.
        match mount_of(below.as_fd())? == self.mount {
            true => Ok(below),
            false => Err(Errno::XDEV.into()),
        }
    }

    fn leave(&mut self, name: Option<&CStr>, error: &io::Error) {
        if let Some((_, left)) = &mut self.left {
            left.others += 1;
            return;
        }
        let code = error.raw_os_error();
        let is_mount = [Errno::XDEV, Errno::BUSY].iter().any(|errno| code == Some(errno.raw_os_error()));
        let why = if is_mount { "something is mounted there".to_owned() } else { error.to_string() };
        let path = name.map_or(self.path.clone(), |name| self.path.join(std::ffi::OsStr::from_bytes(name.to_bytes())));
        self.left = Some((error.kind(), Left { path, why, others: 0 }));
    }

    fn moved(&self, why: &io::Error) -> io::Error {
        io::Error::new(why.kind(), format!("{} was moved while it was removed: {why}", self.path.display()))
    }
}

/// Opens the parent of a directory, if it is the one that the walk came from.
fn up(here: BorrowedFd<'_>, inode: u64, mount: Mount) -> io::Result<OwnedFd> {
    let above = rustix::fs::openat(here, c"..", DIRECTORY, Mode::empty())?;
    match inode_of(above.as_fd())? == inode && mount_of(above.as_fd())? == mount {
        true => Ok(above),
        false => Err(io::Error::other("another directory is above it now")),
    }
}

fn inode_of(directory: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(rustix::fs::fstat(directory)?.st_ino)
}

fn mount_of(directory: BorrowedFd<'_>) -> io::Result<Mount> {
    let device = rustix::fs::fstat(directory)?.st_dev;
    let found = rustix::fs::statx(directory, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
    let id = found.ok().filter(|found| found.stx_mask & StatxFlags::MNT_ID.bits() != 0).map(|found| found.stx_mnt_id);
    Ok((id, device))
}

fn names_in(directory: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if ![&b"."[..], b".."].contains(&entry.file_name().to_bytes()) {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_tree_is_removed_and_what_symlinks_in_it_name_stays() {
        let around = tempfile::tempdir().expect("a directory");
        let (tree, outside) = (around.path().join("tree"), around.path().join("outside"));
        fs::create_dir_all(tree.join("a/b")).expect("made");
        fs::create_dir(&outside).expect("made");
        fs::write(outside.join("kept"), "kept").expect("written");
        fs::write(tree.join("a/b/file"), "gone").expect("written");
        symlink(&outside, tree.join("a/link")).expect("linked");
        fs::set_permissions(tree.join("a/b"), fs::Permissions::from_mode(0o000)).expect("closed");
        fs::set_permissions(tree.join("a"), fs::Permissions::from_mode(0o555)).expect("closed");
        remove_tree(&tree).expect("removed");
        assert!(!tree.exists() && outside.join("kept").exists());
        remove_tree(&tree).expect("nothing is there");
        symlink(&outside, &tree).expect("linked");
        remove_tree(&tree).expect("the link is removed");
        assert!(fs::symlink_metadata(&tree).is_err() && outside.join("kept").exists());
    }

    #[test]
    fn a_tree_deeper_than_there_are_handles_is_removed() {
        let around = tempfile::tempdir().expect("a directory");
        let tree = around.path().join("tree");
        fs::create_dir(&tree).expect("made");
        let mut here = rustix::fs::open(&tree, DIRECTORY, Mode::empty()).expect("open");
        for _ in 0..4_000 {
            rustix::fs::mkdirat(&here, c"d", Mode::RWXU).expect("made");
            here = rustix::fs::openat(&here, c"d", DIRECTORY, Mode::empty()).expect("open");
        }
        drop(here);
        remove_tree(&tree).expect("removed");
        assert!(!tree.exists());
    }
}
