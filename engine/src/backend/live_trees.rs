//! Live trees that several processes share: which process has one, and the files of its journal.

use super::FoldLeases;
use crate::error::Result;

/// A live tree that this process has taken, with the files of its journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenTree {
    /// The number of the tree: see [`LiveTrees::number`].
    pub number: u64,
    /// The fencing token: a process that takes the tree later has a greater one.
    pub token: u64,
    /// The files of the journal, by name.
    pub files: Vec<(String, Vec<u8>)>,
}

/// Bytes of a journal file from an offset to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// The name of the file.
    pub name: String,
    /// The offset of the first byte. Stored bytes behind it are replaced.
    pub start: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The live trees of a store that several processes have open. One process has a tree at a time; another one takes it when it needs
/// it, and the first one finds that out by its token.
///
/// An edit is acknowledged after [`LiveTrees::write`] has stored its journal record, so that a process that dies loses none. A store
/// that shares live trees shares its merge queue, too.
pub trait LiveTrees: FoldLeases {
    /// Returns the number of a workspace's live tree, the same in all processes. It stays when the workspace is renamed.
    fn number(&self, workspace: &str) -> Result<u64>;

    /// Returns the number of a workspace's live tree, if it is open in a process or has uncommitted work.
    fn find(&self, workspace: &str) -> Result<Option<u64>>;

    /// Takes the live tree of a workspace, an empty one if it has no work. Waits a moment for a process
    /// that has just taken it.
    fn take(&self, workspace: &str) -> Result<TakenTree>;

    /// Returns whether this process still has a tree.
    fn is_held(&self, number: u64, token: u64) -> Result<bool>;

    /// Stores journal files durably: removes those that are not among `names`, and writes `parts`. Returns whether this process still
    /// has the tree; if it does not, or has taken it anew meanwhile, nothing is stored.
    fn write(&self, number: u64, token: u64, names: &[String], parts: &[FilePart]) -> Result<bool>;

    /// Gives a tree without uncommitted work back, if this process still has it.
    fn release(&self, number: u64, token: u64) -> Result<()>;

    /// Forgets the tree of a workspace that goes.
    fn forget(&self, workspace: &str) -> Result<()>;

    /// Returns whether this process was expelled from the store: every write fails until the store is opened again.
    fn is_expelled(&self) -> bool;

    /// Gives the tree of a workspace to another name.
    fn rename(&self, from: &str, to: &str) -> Result<()>;
}
