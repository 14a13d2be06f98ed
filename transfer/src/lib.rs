//! Transfers snapshots from one store to another as a stream. A backup is a set of such streams in files.
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
//! # Design
//!
//! A stream contains objects in stored form, children before parents, then names. The sender walks each snapshot's tree beside
//! those that the receiver has, and skips equal parts. The receiver trusts nothing: it hashes and admits every object, and
//! sets no name before the end mark with a valid checksum. Objects received until then stay, invisible, so an interrupted
//! transfer continues where it ended.
//!
//! # Memory
//!
//! The sender holds a lossy table of 16 MiB of sent ids (a forgotten id costs a second transmission), the ids of the new nodes
//! of one tree, about 200 bytes for each snapshot in the history to send, and at most about 40 MiB of objects. The receiver
//! holds some batches of 4 MiB, a write session (16 MiB of objects, and 60 bytes for each of a million objects, or of the
//! largest tree if that has more), and the names.
//!
//! # Limits of this crate
//!
//! It uses no clock and no network: streams are `Read` and `Write`. It deletes nothing, and sets names only in a transaction
//! with an operation record.

mod backup;
mod diff_walk;
mod error;
mod growth;
mod have;
mod progress;
mod receive;
mod ref_kinds;
mod selection;
mod send;
mod send_order;
pub mod stream;

#[cfg(feature = "rocksdb")]
pub use backup::verify_backup;
pub use backup::{BackupReport, backup, restore_backup};
pub use error::{Error, FramePosition, Result};
pub use growth::{added, added_by, growth};
pub use have::{Have, have, have_of};
pub use progress::Progress;
pub use receive::{Names, Omissions, ReceiveOptions, ReceiveReport, receive};
pub use selection::Selection;
pub use send::{SendOptions, SendReport, send};
