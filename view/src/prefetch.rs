//! Reads of file data, with prefetching: within large files ([`file`]), and over the small files of a tree ([`tree`]).

mod file;
mod tree;

use std::sync::Arc;

use amalgam_engine::work::LooseFile;
use amalgam_engine::{TreePath, WorkingTree};
use bytes::Bytes;

use crate::attributes::Ino;
use crate::error::Result;
use crate::listing::ListedPart;
use file::FilePrefetch;
use tree::{Prefetched, TreePrefetch};

/// A read up to this size is short: see [`PendingRead::is_short`].
const SHORT_BYTES_MAX: usize = 256 << 10;

/// The result of starting a read.
pub enum ReadOutcome {
    /// The data.
    Ready(Bytes),
    /// The data has to be fetched from the store.
    Pending(PendingRead),
}

/// A read that has to fetch data from the store. May be finished on another thread.
pub struct PendingRead {
    prefetch: Arc<Prefetch>,
    ino: Ino,
    file: LooseFile,
    offset: u64,
    length: usize,
    source: Source,
}

/// Where the data of a read comes from.
enum Source {
    /// Windows of a large file.
    Windows,
    /// A walk that is fetching the file.
    Walk,
    /// The store.
    Store,
}

impl PendingRead {
    /// Returns whether the read takes about as long as waking another thread: a short read, one that a worker is already fetching, or one
    /// of a large file, which reads or waits for one or two windows.
    pub fn is_short(&self) -> bool {
        !matches!(self.source, Source::Store) || self.length.min(self.file.stat().size as usize) <= SHORT_BYTES_MAX
    }

    /// Fetches the data.
    pub fn finish(self) -> Result<Bytes> {
        let Self { prefetch, ino, file, offset, length, source } = self;
        let found = match source {
            Source::Windows => prefetch.files.read(ino, &file, offset, length)?,
            Source::Walk => prefetch.trees.wait(&file, offset, length),
            Source::Store => None,
        };
        match found {
            Some(bytes) => Ok(bytes),
            None => Ok(file.read_at(offset, length)?.into()),
        }
    }
}

/// The prefetched data of a view.
#[derive(Default)]
pub(crate) struct Prefetch {
    files: FilePrefetch,
    trees: TreePrefetch,
}

impl Prefetch {
    /// Starts to read a range. `position` returns the tree and the path of the file, for prefetching behind it.
    pub(crate) fn begin_read(
        self: &Arc<Self>,
        ino: Ino,
        file: LooseFile,
        offset: u64,
        length: usize,
        position: impl FnOnce() -> Option<(WorkingTree, TreePath)>,
    ) -> Result<ReadOutcome> {
        let pending = |file, source| PendingRead { prefetch: Arc::clone(self), ino, file, offset, length, source };
        if FilePrefetch::applies_to(&file) {
            let is_cached = self.files.is_cached(&file, offset, length);
            let read = pending(file, Source::Windows);
            return if is_cached { read.finish().map(ReadOutcome::Ready) } else { Ok(ReadOutcome::Pending(read)) };
        }
        Ok(match self.trees.read(ino, &file, offset, length, position) {
            Prefetched::Ready(bytes) => ReadOutcome::Ready(bytes),
            Prefetched::InFlight => ReadOutcome::Pending(pending(file, Source::Walk)),
            // Uncommitted data is in the journal, whose pages the kernel most likely has.
            Prefetched::No if file.stored().is_none() => ReadOutcome::Ready(file.read_at(offset, length)?.into()),
            Prefetched::No => ReadOutcome::Pending(pending(file, Source::Store)),
        })
    }

    /// Records the files of a directory listing, in whose order they may be read next.
    pub(crate) fn listed(&self, directory: Ino, part: ListedPart) {
        match part.is_first {
            true => self.trees.listing_started(directory, part.files),
            false => self.trees.listing_continued(directory, part.files),
        }
    }
}
