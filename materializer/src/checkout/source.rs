//! Files that lie in another directory already, as its index proves: cloned from there, or copied while they are in memory.
//!
//! What would have to come from the disk is better read from the store, where it is a quarter of the size and in order. So a copy
//! never waits for the disk, and when most of the first ones would have to, no further copy is tried.

use std::cell::RefCell;
use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use amalgam_engine::object::{Content, Node, Root};
use amalgam_engine::{Entry, Store, TreePath, entry_at};
use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::Run;
use crate::error::{Error, Result};
use crate::host::{HostDir, open_beneath};
use crate::index::{Index, Trust};
use crate::stamp::Stamp;

/// How much of a file is copied at once.
const BLOCK_BYTES: usize = 256 << 10;
/// So many files are tried before it is judged whether trying is worth it.
const TRIES: u64 = 64;

/// Where the bytes of a file came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    FromStore,
    Cloned,
    Copied,
    /// It is a file that other directories have as well.
    Linked,
}

/// A directory that holds some of the files already.
pub(super) struct Source<'a> {
    directory: &'a HostDir,
    index: &'a Index,
    root: Arc<Root>,
    way: AtomicU8,
    copied: AtomicU64,
    missed: AtomicU64,
}

/// The ways of taking a file, each tried until it turns out not to work.
const CLONE: u8 = 0;
const COPY: u8 = 1;
const NOT_AT_ALL: u8 = 2;

/// A file of the source.
struct Other {
    file: OwnedFd,
    /// What proves what it holds.
    stamp: Stamp,
    is_sparse: bool,
}

impl Other {
    /// Whether nothing happened to it since it was opened.
    fn is_proved(&self) -> bool {
        Stamp::of(self.file.as_fd()).is_ok_and(|present| present == self.stamp)
    }
}

/// What came of a copy.
enum Copied {
    Whole,
    /// Part of it is not in memory, or it is not what it was.
    Not,
    /// This file system cannot say what is in memory.
    Never,
}

impl<'a> Source<'a> {
    pub(super) fn new(directory: &'a HostDir, index: &'a Index, root: Arc<Root>) -> Self {
        Self { directory, index, root, way: AtomicU8::new(CLONE), copied: AtomicU64::new(0), missed: AtomicU64::new(0) }
    }

    /// Whether files are still taken from it.
    pub(super) fn is_used(&self) -> bool {
        self.way.load(Ordering::Relaxed) != NOT_AT_ALL
    }

    /// The file of a path, when it is proved to hold these bytes.
    fn open(&self, store: &Store, path: &TreePath, size: u64, content: &Content) -> Result<Option<Other>> {
        match entry_at(store, &self.root, path)? {
            Some(Entry { node: Node::File { size: there, content: held }, .. })
                if there == size && held == *content => {}
            _ => return Ok(None),
        }
        let Some((stamp, Trust::Sure | Trust::Bytes)) = self.index.look(path) else { return Ok(None) };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = open_beneath(self.directory.handle(), path.as_bytes(), flags) else { return Ok(None) };
        let Ok(stat) = rustix::fs::fstat(&file) else { return Ok(None) };
        let is_sparse = (stat.st_blocks as u64).saturating_mul(512) < size;
        Ok((Stamp::from_stat(&stat) == stamp).then_some(Other { file, stamp, is_sparse }))
    }

    /// Counts a copy; gives up when too few of them succeed.
    fn count(&self, is_copied: bool) {
        let counter = if is_copied { &self.copied } else { &self.missed };
        counter.fetch_add(1, Ordering::Relaxed);
        let (copied, missed) = (self.copied.load(Ordering::Relaxed), self.missed.load(Ordering::Relaxed));
        if copied + missed >= TRIES && missed > copied {
            self.way.store(NOT_AT_ALL, Ordering::Relaxed);
        }
    }
}

impl Run<'_> {
    /// Takes a file's bytes from the source, if that has them and they are proved to be the right ones, before and after.
    pub(super) fn take_from_source(&self, file: &File, path: &TreePath, size: u64, content: &Content) -> Result<Came> {
        let Some(source) = self.source.as_ref().filter(|source| size > 0 && source.is_used()) else {
            return Ok(Came::FromStore);
        };
        let failed = |source: std::io::Error| Error::host("write", path, source);
        let Some(other) = source.open(self.store, path, size, content)? else { return Ok(Came::FromStore) };
        if source.way.load(Ordering::Relaxed) == CLONE {
            match rustix::fs::ioctl_ficlone(file, &other.file) {
                Ok(()) if other.is_proved() => return Ok(Came::Cloned),
                Ok(()) => {
                    file.set_len(0).map_err(failed)?;
                    return Ok(Came::FromStore);
                }
                Err(Errno::NOSPC | Errno::DQUOT) => return Err(failed(Errno::NOSPC.into())),
                Err(_) => source.way.fetch_max(COPY, Ordering::Relaxed),
            };
        }
        let copied = self.copy(&other, file, path, size)?;
        match copied {
            Copied::Whole if other.is_proved() => {
                source.count(true);
                return Ok(Came::Copied);
            }
            Copied::Whole => {}
            Copied::Not => source.count(false),
            Copied::Never => source.way.store(NOT_AT_ALL, Ordering::Relaxed),
        }
        file.set_len(0).map_err(failed)?;
        Ok(Came::FromStore)
    }

    fn copy(&self, other: &Other, file: &File, path: &TreePath, size: u64) -> Result<Copied> {
        thread_local! {
            static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        // A sparse file comes from the store, which knows its holes.
        if other.is_sparse {
            return Ok(Copied::Not);
        }
        BUFFER.with_borrow_mut(|buffer| {
            buffer.resize(BLOCK_BYTES, 0);
            let mut offset = 0;
            while offset < size {
                self.check()?;
                let wanted = (size - offset).min(BLOCK_BYTES as u64) as usize;
                let mut slices = [IoSliceMut::new(&mut buffer[..wanted])];
                let count = match rustix::io::preadv2(&other.file, &mut slices, offset, ReadWriteFlags::NOWAIT) {
                    Ok(0) | Err(Errno::AGAIN) => return Ok(Copied::Not),
                    Ok(count) => count,
                    Err(Errno::INTR) => continue,
                    Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Ok(Copied::Never),
                    Err(_) => return Ok(Copied::Not),
                };
                let written = file.write_all_at(&buffer[..count], offset);
                written.map_err(|source| Error::host("write", path, source))?;
                offset += count as u64;
            }
            Ok(Copied::Whole)
        })
    }
}
