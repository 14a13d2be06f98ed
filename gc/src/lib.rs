//! Collection: room that comes back. Marks everything that references and pins lead to, deletes the rest, and gives its room back to the
//! disk. It is the only one that deletes objects; it may run beside writers, be paused, be ended and be killed.
//!
//! ```
//! use std::ops::ControlFlow;
//! use amalgam_engine::Store;
//! use amalgam_gc::{CollectOptions, collect};
//!
//! let store = Store::in_memory();
//! let done = collect(&store, &CollectOptions::default(), &mut |_| ControlFlow::Continue(()))?;
//! assert_eq!(done.freed.total().objects, 0);
//! # Ok::<(), amalgam_engine::Error>(())
//! ```
//!
//! # How it stands
//!
//! [`mark`](self) reads every node once, newest first, and remembers what it reaches in a filter that may be wrong in one direction only: by
//! keeping. A survey of the index counts what is dead and refuses to go on where something marked cannot be read. The sweep and its safety
//! beside writers are the store's ([`SweepRound`](amalgam_engine::SweepRound)), the room is the backend's. `docs/design/0005-collection.md`
//! argues all of it.
//!
//! # What is absent
//!
//! Which snapshots are to be thinned is an argument ([`Retention`]; a [`Plan`] is one). Nothing here reads a clock: a caller that wants a pace brings the sleep.

mod collect;
mod courtesy;
mod digest;
mod filter;
mod lived;
mod log;
mod mark;
mod plan;
pub mod retention;
mod usage;

pub use collect::{CollectOptions, Collected, Pace, Progress, Stage, Watch, collect, reclaim};
pub use courtesy::{Courtesy, yielding, yielding_readers};
pub use lived::LivedClock;
pub use log::{LogRule, log_begins};
pub use mark::{KeepAll, MarkFigures, Retention};
pub use plan::{Fate, Plan, Planned, operations_before, plan};
pub use usage::{SnapshotUsage, StoreUsage, WatchMeasuring, WorkspaceUsage, measure_snapshots, measure_workspaces};
