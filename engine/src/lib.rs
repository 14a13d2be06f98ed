//! A content-addressed state engine: trees of files as immutable snapshots that are forked, edited, committed, compared and
//! restored in time proportional to the change, not to the tree.
//!
//! ```
//! use amalgam_engine::{Commit, DiffOptions, RefName, Store, Time, WorkingTree, diff};
//!
//! let store = Store::in_memory(); // or Store::open("some/directory")?
//! let main = RefName::new("head/main")?;
//! let mut tree = WorkingTree::new(&store);
//! tree.write("hello.txt", b"hello")?;
//! let first = tree.commit(Commit::new(&main, "first").by("ada", Time::EPOCH))?;
//!
//! let mut fork = tree.fork(); // copies a pointer, regardless of the size of the tree
//! fork.write_at("hello.txt", 5, b", world")?;
//! let second = fork.commit(Commit::new(&main, "more to say").buffered())?;
//!
//! for change in diff(&store, first.snapshot, second.snapshot, DiffOptions::default())? {
//!     assert_eq!(change?.path.to_string(), "hello.txt");
//! }
//! fork.restore(first.snapshot)?; // copies a pointer as well
//! assert_eq!(fork.read("hello.txt")?, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Design
//!
//! Bytes become chunks, chunks and entries become trees, a tree becomes a snapshot, and a reference to the snapshot is written
//! last. Every object is immutable and stored under its hash ([`object`]). References move by compare-and-swap, in one
//! transaction with an operation record ([`mod@reference`], [`backend`]). [`Store`] is the handle that a program holds: it
//! returns typed, verified and cached objects. [`WorkingTree`] takes the edits. Directories, ropes and maps are all Merkle
//! sequences, whose nodes are cut by their contents, so that equal contents have equal ids regardless of their history.
//!
//! # Out of scope
//!
//! The engine is synchronous and uses no network, no clock, no random source and no environment variables: time and ids are
//! arguments. It does not follow symlinks and does not check permissions; a file system on top of it does. It deletes nothing on
//! its own except in a [`purge`]: [`SweepRound`] provides the guarantees that a collector needs to delete unreachable objects.
//!
//! The cost: the engine hashes every file and keeps its metadata in full, so a store takes about the size of the compressed files
//! plus a few hundred bytes per file, and even a directory with a single entry is an object of its own.

mod admit;
mod assemble;
pub mod backend;
mod changed_paths;
mod commit;
mod compress;
pub mod conflict;
pub mod content;
mod diff;
mod directory;
pub mod episode;
mod error;
pub mod history;
mod id;
pub mod insight;
pub mod lean;
mod limit;
mod malformed;
pub mod merge;
mod merkle;
mod name;
pub mod object;
pub mod operation;
mod progress;
pub mod purge;
pub mod queue;
pub mod reference;
mod revision;
pub mod search;
mod split_mix;
mod store;
mod time;
mod tombstone;
pub mod verify;
pub mod work;
pub mod workspace;

pub use admit::{HashedObject, NotAdmitted};
pub use assemble::Assembly;
pub use backend::Durability;
pub use commit::{Commit, CommitDone, CommittedTree, Expect};
pub use compress::unpack_chunk;
pub use diff::{
    Change, Diff, DiffOptions, MetadataChange, NameChange, StateChange, What, count_differing_paths, diff,
    diff_directories, diff_entries, diff_roots, diff_state, diff_with_renames,
};
pub use directory::{entry_at, linked_paths, list_directory};
pub use episode::{EpisodeName, Episodes, StepId};
pub use error::{Error, ErrorKind, Result};
pub use history::History;
pub use id::{
    Bare, ChunkId, DirectoryId, LinkGroup, LinksId, ObjectId, ObjectKind, RootId, RopeId, SnapshotId, StateId, XattrsId,
};
pub use insight::{
    FileInsight, Insight, InsightOptions, PatchOptions, PatchReport, RenameOptions, Risk, RiskHint, Summary, insight,
    patch,
};
pub use limit::{Cancellation, PathCount};
pub use malformed::Malformed;
pub use merge::{MergeContents, MergeOptions, NoContents, Outcome, merge_snapshots, merge_trees};
pub use name::{AsTreePath, DEPTH_MAX, InvalidName, NAME_BYTES_MAX, Name, TreePath};
pub use object::{Entry, EntryKind};
pub use operation::{OperationContext, OperationCursor, PastRefs};
pub use progress::{CancelFlag, Cancelled, Progress};
pub use reference::{RefName, RequestId};
pub use revision::{Now, Revision};
pub use split_mix::SplitMix64;
pub use store::{
    OperationWaker, Pin, RefMove, Rows, Store, StoreOptions, SweepRound, SweepScope, Swept, Tallies, Tally,
    WriteSession,
};
pub use time::{GAP_MAX, Jump, LivedTime, Time};
pub use tombstone::Tombstone;
pub use verify::{VerifyOptions, VerifyReport, repair, verify};
pub use work::WorkingTree;
pub use workspace::{Workspace, WorkspaceName, Workspaces};
