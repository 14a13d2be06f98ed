//! Snapshots on their way from one store to another, and backups, which are the same into files.
//!
//! ```
//! use amalgam_engine::{OperationContext, Commit, RefName, Store, Time, WorkingTree};
//! use amalgam_transfer::{Progress, ReceiveOptions, Selection, SendOptions, have, receive, send};
//!
//! let (here, there) = (Store::in_memory(), Store::in_memory());
//! let main = RefName::new("workspace/main")?;
//! let mut tree = WorkingTree::new(&here);
//! tree.write("plan.md", b"think")?;
//! tree.commit(Commit::new(&main, "a plan"))?;
//!
//! let since = SendOptions::since(&have(&there)?);
//! let mut stream = Vec::new();
//! send(&here, &Selection::everything(&here)?, &since, &mut stream, &Progress::default())?;
//! let by = OperationContext::new("ada", Time(1));
//! receive(&there, &stream[..], &ReceiveOptions::default(), &by, &Progress::default())?;
//! assert_eq!(there.read_ref(&main)?, here.read_ref(&main)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it stands
//!
//! A stream has objects as they are stored, children before parents, then names. The sender walks each snapshot's tree beside
//! those that the receiver has, and skips what is equal. The receiver believes nothing: every object is hashed and admitted as
//! any from outside, and no name is set before the end mark has been read and its checksum holds. What has arrived by then
//! stays, out of sight, so a stream that broke off is sent again and goes on where it ended.
//!
//! # Memory
//!
//! The sender holds a table of 16 MiB of ids that it sent, which forgets: then something is sent twice, never too little. Beside it
//! the ids of the nodes of one tree that are new in it, about 200 bytes for each snapshot on the way, and at most some 40 MiB of objects. The receiver holds some batches of 4 MiB, what a write
//! session holds (16 MiB of objects, and 60 bytes for each of a million objects, or of the largest tree if that has more), and the
//! names.
//!
//! # What is absent
//!
//! No clock, no network: streams are `Read` and `Write`. Nothing is deleted, and nothing but a transaction with an operation
//! record sets a name.

mod backup;
mod error;
mod growth;
mod have;
mod kinds;
mod order;
mod progress;
mod receive;
mod selection;
mod send;
pub mod stream;
mod walk;

#[cfg(feature = "rocksdb")]
pub use backup::verify_backup;
pub use backup::{BackupDone, backup, restore_backup};
pub use error::{Error, Result, Where};
pub use growth::{added, added_by, growth};
pub use have::{Have, have};
pub use progress::Progress;
pub use receive::{LeftOut, Names, ReceiveOptions, Received, receive};
pub use selection::Selection;
pub use send::{SendOptions, Sent, send};
