//! A tree as real files: capture in, checkout out.
//!
//! An [`Index`] says what a directory held when it was last looked at: a stored tree, and for each of its names what the host
//! said of it ([`Stamp`]). A capture looks again, reads only what differs, and leaves the index at what it found; so the
//! second one of a large directory costs a walk, and one that is told where to look costs nothing but that. A checkout makes
//! a directory that an index describes into another tree: it touches only paths that differ, and none that changed since.
//!
//! Everything on the host is opened beneath a directory handle ([`HostDir`]).
//!
//! What is absent: this crate reads no clock and knows no workspace, no protocol and no terminal. It decides nothing about which
//! directory belongs to which workspace.

mod capture;
mod changes;
mod checkout;
mod compare;
mod error;
mod host;
mod index;
mod known;
mod plan;
mod pool;
mod progress;
mod remove;
mod renames;
mod report;
mod rules;
mod stamp;
mod watch;

pub use capture::{Capture, Captured, Counts, Scope, capture};
pub use changes::{Changes, detect_changes};
pub use checkout::{CheckedOut, Checkout, Staging, Times, checkout, checkout_staged, clean_leftovers, grant_withheld};
pub use error::{Error, Result};
pub use host::{HostDir, Identity, is_absent};
pub use index::Index;
pub use known::Known;
pub use plan::{Plan, PlannedChange, PlannedKind, plan};
pub use pool::Pool;
pub use progress::Progress;
pub use remove::remove_tree;
pub use renames::Renamed;
pub use report::{Notice, Why};
pub use rules::Rules;
pub use stamp::Stamp;
pub use watch::{Dirty, Watcher};
