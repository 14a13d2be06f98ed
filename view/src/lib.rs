//! A workspace as a mutable POSIX file system: inodes, names, contents, attributes. Knows no protocol and no kernel.
//!
//! A [`View`] stands over one working tree. FUSE and NFS are doors on it: they translate requests into its calls and its
//! errors into numbers ([`Error::errno`], the only table of them). All doors of a workspace share one view, and so one
//! live tree; what one changes the others are told ([`Notice`]).
//!
//! Two worlds meet here. The tree below is addressed by paths and knows no inode; the table of inodes above it knows which
//! numbers have been handed out and where they are now. An inode that lost its last name while somebody holds it becomes a
//! *loose file*, apart from the tree.
//!
//! Every edit is written to a journal before it is done, contents included: the journal is the segment log that the tree
//! reads from. So a sync is one `fdatasync`, and the end of the process loses nothing ([`View::open`] does it again).
//!
//! What is absent: no clock, no user, no host path but the journal's directory. Time and identity are arguments.

mod access;
mod acl;
mod ahead;
mod attributes;
mod compare;
mod contents;
mod directory;
mod early;
mod error;
mod exchange;
mod handles;
mod inodes;
mod journal;
mod live;
mod locks;
mod meta;
mod names;
mod neighbours;
mod notice;
mod paths;
mod placed;
mod view;

pub use access::{Access, may};
pub use amalgam_engine::work::RenameMode;
pub use attributes::{Attributes, Caller, Device, Kind, Set, TimeSet};
pub use compare::{Difference, differences, holds_same};
pub use contents::{LaterRead, Reading, Seek};
pub use directory::Listed;
pub use error::{Error, Result};
pub use handles::Handle;
pub use inodes::{Ino, ROOT};
pub use journal::Recovered;
pub use live::{Committing, Folding, Moment, Restored};
pub use locks::{Lock, LockKind};
pub use meta::{Room, XattrSet};
pub use notice::{Notice, WatchId, Watcher};
pub use placed::Placed;
pub use view::{Clock, ShowConflict, View, ViewOptions};
