//! Garbage collection: marks everything that references and pins reach, deletes the rest, and returns the disk space.
//! Besides a purge, only this crate deletes objects. A collection runs beside writers; it can be paused, cancelled and
//! killed at any time.
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
//! # Design
//!
//! The mark phase reads every node once, newest first, and records reachable objects in a Bloom filter, whose false
//! positives only keep garbage. A survey of the index counts dead objects, and fails if a marked object cannot be read. The
//! store implements the sweep and its safety beside writers ([`SweepRound`](amalgam_engine::SweepRound)); the backend frees
//! disk space. `docs/design/0005-collection.md` explains why.
//!
//! Which snapshots are thinned is an argument ([`Retention`], for example a [`Plan`]). The library reads no clock: a caller
//! that wants a [`RateLimit`] or a [`Throttle`] passes a sleep function.

mod bloom;
mod collect;
mod lived_clock;
mod log_retention;
mod mark;
mod plan;
pub mod retention;
mod row_batch;
mod throttle;
mod usage;

pub use collect::{CollectOptions, CollectReport, Progress, ProgressFn, RateLimit, Stage, collect, reclaim};
pub use lived_clock::LivedClock;
pub use log_retention::{LogRetention, first_kept_operation};
pub use mark::{KeepAll, MarkStats, Retention};
pub use plan::{Plan, PlannedAction, PlannedSnapshot, last_operation_before, plan};
pub use throttle::{Throttle, low_priority_readers, run_at_low_priority};
pub use usage::{MeasureProgressFn, SnapshotUsage, StoreUsage, WorkspaceUsage, measure_snapshots, measure_workspaces};
