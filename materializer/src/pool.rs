//! Files that read-only directories share: each is kept once, under the hash of what it is, and linked into all of them.
//!
//! A file here has the bytes, the mode and the time that its name stands for, and no user may write to it. Its owner can change that;
//! so a file is linked only while its length, mode, owner and time are as they should be, and is made anew otherwise. One that lost its
//! bytes with the power has another length.
//!
//! What is absent: no file here is ever the only one of its content. It can all be removed at any time; directories that have the
//! files keep them.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use amalgam_engine::object::Content;
use amalgam_engine::{Name, Time};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::checkout::LENT_RULES;
use crate::host::c_name;

/// What names of files begin with that are not finished.
const UNFINISHED: &str = "new-";

/// A directory of files to be shared.
#[derive(Debug)]
pub struct Pool {
    handle: OwnedFd,
}

/// The name of a file: two digits that say in which directory it is, and the rest.
pub(crate) struct Kept {
    directory: CString,
    name: CString,
}

fn c_string(text: String) -> CString {
    CString::new(text).expect("hexadecimal digits have no zero byte")
}

impl Kept {
    /// The file that has these bytes, this mode and this time.
    pub(crate) fn new(content: &Content, size: u64, mode: u32, mtime: Time) -> Self {
        let bytes = match content {
            Content::Empty => "empty".to_owned(),
            Content::Chunk(id) => format!("chunk {id}"),
            Content::Rope(id) => format!("rope {id}"),
            Content::Hole => "hole".to_owned(),
        };
        let what = format!("{bytes} {size} {mode:o} {}", mtime.0);
        let hash = blake3::hash(what.as_bytes()).to_hex();
        let (directory, _) = hash.split_at(2);
        Self { directory: c_string(directory.to_owned()), name: c_string(format!("{directory}/{hash}")) }
    }

    /// Where it lies until it is finished.
    pub(crate) fn unfinished(&self, number: u64) -> CString {
        let directory = self.directory.to_string_lossy();
        c_string(format!("{directory}/{UNFINISHED}{number:016x}"))
    }
}

impl Pool {
    /// The pool at a path, made if it is not there. No other user can look into it.
    pub fn open(path: &Path) -> io::Result<Self> {
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, flags, Mode::empty())?;
        // What a directory around it lends would be on every file, in every directory that has it.
        match rustix::fs::fremovexattr(&handle, LENT_RULES) {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => Ok(Self { handle }),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Gives a file a name in a directory as well.
    pub(crate) fn link(&self, kept: &Kept, to: BorrowedFd<'_>, name: &Name) -> rustix::io::Result<()> {
        rustix::fs::linkat(&self.handle, &kept.name, to, c_name(name), AtFlags::empty())
    }

    /// Makes a file that is not finished, for its owner alone.
    pub(crate) fn begin(&self, kept: &Kept, unfinished: &CString) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let make = || rustix::fs::openat(&self.handle, unfinished, flags, Mode::RUSR | Mode::WUSR);
        match make() {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&self.handle, &kept.directory, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
                make()
            }
            other => other,
        }
    }

    /// Gives a file that is finished its name. If another was quicker, that one stays; if the pool was emptied meanwhile, there is none.
    pub(crate) fn finish(&self, kept: &Kept, unfinished: &CString) -> rustix::io::Result<()> {
        let done = rustix::fs::linkat(&self.handle, unfinished, &self.handle, &kept.name, AtFlags::empty());
        self.give_up(unfinished);
        match done {
            Ok(()) | Err(Errno::EXIST | Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Removes a file that will not be finished.
    pub(crate) fn give_up(&self, unfinished: &CString) {
        rustix::fs::unlinkat(&self.handle, unfinished, AtFlags::empty()).ok();
    }

    /// Removes a file; directories that have it keep it.
    pub(crate) fn remove(&self, kept: &Kept) {
        rustix::fs::unlinkat(&self.handle, &kept.name, AtFlags::empty()).ok();
    }

    /// Removes the files that no directory has any more, and says how many bytes that gave back. A checkout that runs meanwhile makes
    /// what it misses anew.
    pub fn remove_unused(&self) -> io::Result<u64> {
        self.remove_where(|links| links <= 1)
    }

    /// Removes all names, so that nothing can be taken from here any more. Directories keep their files.
    pub fn clear(&self) -> io::Result<u64> {
        self.remove_where(|_| true)
    }

    fn remove_where(&self, goes: impl Fn(u64) -> bool) -> io::Result<u64> {
        let mut bytes = 0;
        for directory in names(self.handle.as_fd())? {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = match rustix::fs::openat(&self.handle, &directory, flags, Mode::empty()) {
                Ok(opened) => opened,
                // Not one of ours.
                Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => continue,
                Err(errno) => return Err(errno.into()),
            };
            for name in names(opened.as_fd())? {
                let Ok(stat) = rustix::fs::statat(&opened, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
                if !goes(u64::from(stat.st_nlink as u32)) {
                    continue;
                }
                match rustix::fs::unlinkat(&opened, &name, AtFlags::empty()) {
                    Ok(()) if stat.st_nlink <= 1 => bytes += stat.st_size as u64,
                    // A checkout that runs meanwhile finishes its files, or gives them up.
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(bytes)
    }
}

fn names(directory: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}
