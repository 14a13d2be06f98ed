//! Files that another directory has already, as its index proves: cloned from there, or copied while they are cached.
//!
//! Bytes that would come from the disk are better read from the store, where they are compressed and contiguous. So a copy
//! never waits for the disk, and copying stops when most of the first files are not in the page cache.

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

use super::context::Context;
use super::recorder::Origin;
use crate::error::{Error, Result};
use crate::host::{HostDir, open_beneath};
use crate::index::{Index, Trust};
use crate::stamp::Stamp;

/// Bytes that are copied at once.
const BLOCK_BYTES: usize = 256 << 10;
/// Files that are tried before copying may be given up.
const COPY_ATTEMPTS_MIN: u64 = 64;

/// A directory that has some of the files already.
pub(super) struct Source<'a> {
    directory: &'a HostDir,
    index: &'a Index,
    root: Arc<Root>,
    method: AtomicMethod,
    copied: AtomicU64,
    missed: AtomicU64,
}

/// How files are taken from the source. Each method is used until it fails; methods only advance.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Method {
    Clone,
    Copy,
    Disabled,
}

struct AtomicMethod(AtomicU8);

impl AtomicMethod {
    fn get(&self) -> Method {
        match self.0.load(Ordering::Relaxed) {
            0 => Method::Clone,
            1 => Method::Copy,
            _ => Method::Disabled,
        }
    }

    fn advance_to(&self, method: Method) {
        self.0.fetch_max(method as u8, Ordering::Relaxed);
    }
}

/// A file of the source.
struct SourceFile {
    file: OwnedFd,
    /// The stamp that proves its content.
    stamp: Stamp,
    is_sparse: bool,
}

impl SourceFile {
    /// Returns whether it is unchanged since it was opened.
    fn is_unchanged(&self) -> bool {
        Stamp::of(self.file.as_fd()).is_ok_and(|present| present == self.stamp)
    }
}

/// Result of a copy.
enum CopyOutcome {
    Complete,
    /// A part is not in the page cache, or the file is sparse or unreadable.
    Incomplete,
    /// The file system does not support reads that never wait.
    Unsupported,
}

impl<'a> Source<'a> {
    pub(super) fn new(directory: &'a HostDir, index: &'a Index, root: Arc<Root>) -> Self {
        let method = AtomicMethod(AtomicU8::new(Method::Clone as u8));
        Self { directory, index, root, method, copied: AtomicU64::new(0), missed: AtomicU64::new(0) }
    }

    /// Returns whether files are still taken from it.
    pub(super) fn is_used(&self) -> bool {
        self.method.get() != Method::Disabled
    }

    /// Fills a new file from the source, if the source has these bytes before and after. Returns [`Origin::Store`] and an
    /// empty file otherwise.
    pub(super) fn copy_into(
        &self,
        cx: &Context<'_>,
        file: &File,
        path: &TreePath,
        size: u64,
        content: &Content,
    ) -> Result<Origin> {
        if size == 0 || !self.is_used() {
            return Ok(Origin::Store);
        }
        let failed = |source: std::io::Error| Error::host("write", path, source);
        let Some(other) = self.open(cx.store, path, size, content)? else { return Ok(Origin::Store) };
        if self.method.get() == Method::Clone {
            match rustix::fs::ioctl_ficlone(file, &other.file) {
                Ok(()) if other.is_unchanged() => return Ok(Origin::Cloned),
                Ok(()) => {
                    file.set_len(0).map_err(failed)?;
                    return Ok(Origin::Store);
                }
                Err(Errno::NOSPC | Errno::DQUOT) => return Err(failed(Errno::NOSPC.into())),
                Err(_) => self.method.advance_to(Method::Copy),
            };
        }
        match copy(cx, &other, file, path, size)? {
            CopyOutcome::Complete if other.is_unchanged() => {
                self.count(&self.copied);
                return Ok(Origin::Copied);
            }
            CopyOutcome::Complete => {}
            CopyOutcome::Incomplete => self.count(&self.missed),
            CopyOutcome::Unsupported => self.method.advance_to(Method::Disabled),
        }
        file.set_len(0).map_err(failed)?;
        Ok(Origin::Store)
    }

    /// Opens the file of a path if it is proved to have these bytes.
    fn open(&self, store: &Store, path: &TreePath, size: u64, content: &Content) -> Result<Option<SourceFile>> {
        match entry_at(store, &self.root, path)? {
            Some(Entry { node: Node::File { size: there, content: held }, .. })
                if there == size && held == *content => {}
            _ => return Ok(None),
        }
        let Some((stamp, Trust::Clean | Trust::BytesOnly)) = self.index.stamp_and_trust(path) else { return Ok(None) };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = open_beneath(self.directory.handle(), path.as_bytes(), flags) else { return Ok(None) };
        let Ok(stat) = rustix::fs::fstat(&file) else { return Ok(None) };
        let is_sparse = (stat.st_blocks as u64).saturating_mul(512) < size;
        Ok((Stamp::from_stat(&stat) == stamp).then_some(SourceFile { file, stamp, is_sparse }))
    }

    /// Counts an attempt to copy; gives up when too few succeed.
    fn count(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
        let (copied, missed) = (self.copied.load(Ordering::Relaxed), self.missed.load(Ordering::Relaxed));
        if copied + missed >= COPY_ATTEMPTS_MIN && missed > copied {
            self.method.advance_to(Method::Disabled);
        }
    }
}

/// Copies a file block by block, with reads that never wait for the disk.
fn copy(cx: &Context<'_>, other: &SourceFile, file: &File, path: &TreePath, size: u64) -> Result<CopyOutcome> {
    thread_local! {
        static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    // A sparse file comes from the store, which knows its holes.
    if other.is_sparse {
        return Ok(CopyOutcome::Incomplete);
    }
    BUFFER.with_borrow_mut(|buffer| {
        buffer.resize(BLOCK_BYTES, 0);
        let mut offset = 0;
        while offset < size {
            cx.check()?;
            let wanted = (size - offset).min(BLOCK_BYTES as u64) as usize;
            let mut slices = [IoSliceMut::new(&mut buffer[..wanted])];
            let count = match rustix::io::preadv2(&other.file, &mut slices, offset, ReadWriteFlags::NOWAIT) {
                Ok(0) | Err(Errno::AGAIN) => return Ok(CopyOutcome::Incomplete),
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Ok(CopyOutcome::Unsupported),
                Err(_) => return Ok(CopyOutcome::Incomplete),
            };
            let written = file.write_all_at(&buffer[..count], offset);
            written.map_err(|source| Error::host("write", path, source))?;
            offset += count as u64;
        }
        Ok(CopyOutcome::Complete)
    })
}
