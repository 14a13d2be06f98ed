//! A workspace as a mutable POSIX file system, without a kernel and without a protocol.
//!
//! A [`View`] serves one working tree. FUSE and NFS servers translate requests into its calls, and its errors into error numbers
//! ([`Error::errno`] is the only table of them). All mounts of a workspace share one view, and so one live tree; a change through one
//! mount is reported to the others ([`Invalidation`]).
//!
//! The working tree is addressed by paths and has no inodes. The inode table above it maps the numbers that callers hold to paths. An inode
//! that lost its last name while a caller holds it is *unlinked*: its file lives on apart from the tree.
//!
//! Every edit is appended to a journal before it is applied, file data included: the journal is the segment log that the tree reads from.
//! So a sync is one `fdatasync`, and a killed process loses nothing: [`View::open`] replays the journal.
//!
//! | module | state or operations |
//! |---|---|
//! | `view` | the public interface; the locks |
//! | `namespace`, `listing`, `file_data`, `metadata` | the operations of POSIX, as functions on the locked state |
//! | `edit_group` | groups of edits by path, all or none |
//! | `permission` | permissions of agents by policy |
//! | `commit`, `quota` | commits and checkpoints; limits |
//! | `tree_switch`, `restore` | changes to the tree of another snapshot |
//! | `writeback`, `prefetch` | syncs of the journal in the background; reads ahead |
//! | `file_system` | the locked state: tree, inodes, journal, local entries |
//! | `inodes`, `handles`, `path_cache`, `saved_inodes` | the inode table with attribute cache, and the file handles |
//! | `journal` | edits, replay, preallocated disk space |
//!
//! The crate reads no clock, no user and no host path except the journal's directory. Time and identity are arguments.

mod access;
mod acl;
mod attributes;
mod commit;
mod compare;
mod dentry;
mod edit_group;
mod encoding;
mod error;
mod file_data;
mod file_system;
mod handles;
mod inodes;
mod invalidation;
mod journal;
mod listing;
mod local_entries;
mod locks;
mod metadata;
mod namespace;
mod options;
mod path_cache;
mod permission;
mod prefetch;
mod quota;
mod restore;
mod saved_inodes;
mod tree_switch;
mod view;
mod writeback;

pub use access::{Access, Caller, is_permitted};
pub use amalgam_engine::work::RenameMode;
pub use amalgam_policy::{Guard, Refusal};
pub use attributes::{Attributes, Device, Ino, Kind, ROOT, SetAttributes, TimeSet};
pub use commit::{CommitRequest, ConflictFiles};
pub use compare::{Difference, differences, holds_same};
pub use edit_group::{TreeEdit, Upload};
pub use error::{Error, Result};
pub use file_data::{Seek, SizeChange};
pub use file_system::StateVersion;
pub use handles::Handle;
pub use invalidation::{Invalidation, WatchId, Watcher};
pub use journal::{JOURNAL_BASE_FILE, RecoveryReport};
pub use listing::ListedEntry;
pub use local_entries::LocalEntry;
pub use locks::{Lock, LockKind};
pub use metadata::XattrSet;
pub use options::{Clock, DiskSpace, MeasureDisk, Quota, ShowConflict, ViewOptions};
pub use permission::TreePermissions;
pub use prefetch::{PendingRead, ReadOutcome};
pub use tree_switch::{Captured, Restored};
pub use view::View;
