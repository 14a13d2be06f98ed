//! The interface for merging the contents of files that both sides changed. The engine merges trees and does not know file
//! formats.

use bytes::Bytes;

use crate::content::read_at;
use crate::error::{Error, Result};
use crate::name::TreePath;
use crate::object::{Entry, Node};
use crate::store::Store;

/// Maximum size of a version that is read into memory, in bytes.
const VERSION_BYTES_MAX: u64 = 1 << 30;

/// Merges the contents of files that differ on both sides and from the base.
///
/// The merge calls it once for each such file. An error aborts the whole merge and leaves nothing behind.
pub trait MergeContents {
    /// Decides the result for one file.
    fn merge(&self, contested: &ContestedFile<'_>) -> Result<Verdict>;

    /// Returns the side whose version is the result at a path where contents cannot be merged, because one side removed what the
    /// other one changed, or because it is a file on one side and a symlink, for example, on the other. `None` makes a conflict.
    fn side_without_contents(&self, _path: &TreePath) -> Option<WholeSide> {
        None
    }
}

/// The side that a rule takes as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeSide {
    /// Our version, or our removal.
    Ours,
    /// Their version, or their removal.
    Theirs,
}

/// Merges no contents: every contested file becomes a conflict.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoContents;

impl MergeContents for NoContents {
    fn merge(&self, _contest: &ContestedFile<'_>) -> Result<Verdict> {
        Ok(Verdict::Conflict { strategy: String::new() })
    }
}

/// A file that both sides changed.
pub struct ContestedFile<'a> {
    /// The path of the result.
    pub path: &'a TreePath,
    /// The common ancestor; `None` if both sides added the file.
    pub base: Option<FileVersion<'a>>,
    /// Our version.
    pub ours: FileVersion<'a>,
    /// Their version.
    pub theirs: FileVersion<'a>,
}

/// One version of a contested file. Reads nothing until asked to.
pub struct FileVersion<'a> {
    store: &'a Store,
    entry: &'a Entry,
}

/// The result for a contested file. `strategy` names the strategy that decided it, for the record of the merge; it may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Merged contents.
    Merged {
        /// All bytes of the file.
        bytes: Bytes,
        /// The strategy.
        strategy: String,
    },
    /// Our version, unchanged.
    Ours {
        /// The strategy.
        strategy: String,
    },
    /// Their version, unchanged.
    Theirs {
        /// The strategy.
        strategy: String,
    },
    /// A conflict with both versions.
    Conflict {
        /// The strategy that was tried.
        strategy: String,
    },
}

impl<'a> FileVersion<'a> {
    pub(super) fn new(store: &'a Store, entry: &'a Entry) -> Self {
        Self { store, entry }
    }

    /// Returns the entry: mode, time, attributes and content.
    pub fn entry(&self) -> &'a Entry {
        self.entry
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        match self.entry.node {
            Node::File { size, .. } => size,
            _ => 0,
        }
    }

    /// Returns all bytes of a version of up to 1 GiB. Reads in steps, so that a hostile size does not allocate more memory than
    /// the file has bytes.
    pub fn read(&self) -> Result<Bytes> {
        let Node::File { size, content } = self.entry.node else { return Ok(Bytes::new()) };
        if size > VERSION_BYTES_MAX {
            return Err(Error::TooLarge { what: "a file to be merged", value: size, max: VERSION_BYTES_MAX });
        }
        const STEP: u64 = 16 << 20;
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < size {
            let done = bytes.len();
            let step = (size - done as u64).min(STEP);
            bytes.resize(done + step as usize, 0);
            read_at(self.store, &content, size, done as u64, &mut bytes[done..])?;
        }
        Ok(bytes.into())
    }
}
