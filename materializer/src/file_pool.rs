//! Pool of files that read-only directories share: each file exists once, under a hash of content and attributes, and is
//! hard-linked into all directories.
//!
//! A file in the pool has the bytes, mode and time that its name stands for, and no write permission. Its owner could change
//! that, so a file is linked only while length, mode, owner and time are right, and is made again otherwise. A file that lost
//! its bytes in a power cut has another length.
//!
//! No file here is the only copy of its content. All of them can be removed at any time; directories keep their links.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use amalgam_engine::object::Content;
use amalgam_engine::{Name, Time};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::host::c_name;
use crate::rights::DEFAULT_ACL;

/// Name prefix of unfinished files.
const UNFINISHED_PREFIX: &str = "new-";

/// A directory of shared files.
#[derive(Debug)]
pub struct FilePool {
    handle: OwnedFd,
}

/// The name of a file in the pool: a sub-directory of two hex digits, and the hash.
pub(crate) struct PoolKey {
    directory: CString,
    name: CString,
}

fn c_string(text: String) -> CString {
    CString::new(text).expect("hexadecimal digits have no zero byte")
}

impl PoolKey {
    /// Returns the key of a file with these bytes, this mode and this time.
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

    /// Returns the name of the file until it is finished.
    pub(crate) fn unfinished(&self, number: u64) -> CString {
        let directory = self.directory.to_string_lossy();
        c_string(format!("{directory}/{UNFINISHED_PREFIX}{number:016x}"))
    }
}

impl FilePool {
    /// Opens the pool at a path, and creates it if necessary, with access for its owner only.
    pub fn open(path: &Path) -> io::Result<Self> {
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, flags, Mode::empty())?;
        // An inherited access control list would be on every file, in every directory that links it.
        match rustix::fs::fremovexattr(&handle, DEFAULT_ACL) {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => Ok(Self { handle }),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Links a file into a directory.
    pub(crate) fn link(&self, key: &PoolKey, to: BorrowedFd<'_>, name: &Name) -> rustix::io::Result<()> {
        rustix::fs::linkat(&self.handle, &key.name, to, c_name(name), AtFlags::empty())
    }

    /// Creates an unfinished file, with access for its owner only.
    pub(crate) fn begin(&self, key: &PoolKey, unfinished: &CString) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let make = || rustix::fs::openat(&self.handle, unfinished, flags, Mode::RUSR | Mode::WUSR);
        match make() {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&self.handle, &key.directory, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
                make()
            }
            other => other,
        }
    }

    /// Gives a finished file its name. If another thread was faster, its file stays; if the pool was emptied meanwhile, there is
    /// no file.
    pub(crate) fn finish(&self, key: &PoolKey, unfinished: &CString) -> rustix::io::Result<()> {
        let done = rustix::fs::linkat(&self.handle, unfinished, &self.handle, &key.name, AtFlags::empty());
        self.abandon(unfinished);
        match done {
            Ok(()) | Err(Errno::EXIST | Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Removes an unfinished file.
    pub(crate) fn abandon(&self, unfinished: &CString) {
        rustix::fs::unlinkat(&self.handle, unfinished, AtFlags::empty()).ok();
    }

    /// Removes a file; directories keep their links.
    pub(crate) fn remove(&self, key: &PoolKey) {
        rustix::fs::unlinkat(&self.handle, &key.name, AtFlags::empty()).ok();
    }

    /// Removes the files that no directory links any more, and returns how many bytes that freed. A concurrent checkout makes
    /// missing files again.
    pub fn remove_unused(&self) -> io::Result<u64> {
        self.remove_where(|links| links <= 1)
    }

    /// Removes all files, so that no checkout can link them any more. Directories keep their links.
    pub fn clear(&self) -> io::Result<u64> {
        self.remove_where(|_| true)
    }

    fn remove_where(&self, goes: impl Fn(u64) -> bool) -> io::Result<u64> {
        let mut bytes = 0;
        for directory in names(self.handle.as_fd())? {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = match rustix::fs::openat(&self.handle, &directory, flags, Mode::empty()) {
                Ok(opened) => opened,
                // Not created by the pool.
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
                    // A concurrent checkout finishes or abandons its files.
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
