//! How files whose bytes both sides changed are merged: a seam. The engine knows trees, not what bytes mean.

use bytes::Bytes;

use crate::content::read_at;
use crate::error::{Error, Result};
use crate::name::TreePath;
use crate::object::{Entry, Node};
use crate::store::Store;

/// The most that a version is read into memory.
const VERSION_BYTES_MAX: u64 = 1 << 30;

/// Decides about files whose bytes differ on both sides and from the base.
///
/// It is asked once for each such file; an error ends the whole merge, and nothing of it stays.
pub trait MergeContents {
    /// What becomes of one file.
    fn merge(&self, contest: &Contest<'_>) -> Result<Verdict>;
}

/// Merges no contents: every contest stays a conflict.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoContents;

impl MergeContents for NoContents {
    fn merge(&self, _contest: &Contest<'_>) -> Result<Verdict> {
        Ok(Verdict::Conflict { way: String::new() })
    }
}

/// A file that both sides changed.
pub struct Contest<'a> {
    /// Where the result will be.
    pub path: &'a TreePath,
    /// What both began with; nothing when both added a file.
    pub base: Option<FileVersion<'a>>,
    /// Ours.
    pub ours: FileVersion<'a>,
    /// Theirs.
    pub theirs: FileVersion<'a>,
}

/// One version of a contested file. Nothing is read before it is asked for.
pub struct FileVersion<'a> {
    store: &'a Store,
    entry: &'a Entry,
}

/// What becomes of a contested file. `way` names how that was decided, for the record of the merge; it may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// These bytes.
    Merged {
        /// All of the file.
        bytes: Bytes,
        /// How.
        way: String,
    },
    /// Ours as it is.
    Ours {
        /// How.
        way: String,
    },
    /// Theirs as it is.
    Theirs {
        /// How.
        way: String,
    },
    /// The versions stay beside each other as a conflict.
    Conflict {
        /// What was tried.
        way: String,
    },
}

impl<'a> FileVersion<'a> {
    pub(super) fn new(store: &'a Store, entry: &'a Entry) -> Self {
        Self { store, entry }
    }

    /// What the tree says of it: mode, time, attributes, content.
    pub fn entry(&self) -> &'a Entry {
        self.entry
    }

    /// How many bytes it has.
    pub fn size(&self) -> u64 {
        match self.entry.node {
            Node::File { size, .. } => size,
            _ => 0,
        }
    }

    /// All its bytes, up to 1 GiB. A file that claims more memory than it has bytes is read in steps.
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
