//! Converts between stored trees and real directories: capture reads a directory, checkout writes one.
//!
//! An [`Index`] describes a directory as of its last capture: a stored tree, and the `stat` fields of each name ([`Stamp`]). A
//! capture compares the directory with the index, reads only files that differ, and updates the index. So a second capture
//! of a large directory costs one walk, and a capture of listed directories costs only these. A checkout turns a directory
//! that an index describes into another tree: it touches only paths that differ, and none that changed since.
//!
//! Everything on the host is opened beneath a directory handle ([`HostDir`]).
//!
//! This crate reads no clock and knows no workspace, no protocol and no terminal. It does not decide which directory belongs
//! to which workspace.

mod capture;
mod capture_options;
mod changes;
mod checkout;
mod checkout_options;
mod compare;
mod error;
mod file_pool;
mod git_lock;
mod host;
mod index;
mod known_contents;
mod plan;
mod progress;
mod remove;
mod renames;
mod report;
mod rights;
mod rules;
mod staging;
mod stamp;
mod watch;

pub use capture::{Captured, capture};
pub use capture_options::{CaptureOptions, Counts, Scope};
pub use changes::{Changes, detect_changes};
pub use checkout::{checkout, checkout_staged, grant_withheld};
pub use checkout_options::{CheckoutOptions, CheckoutReport, Times};
pub use error::{Error, Result};
pub use file_pool::FilePool;
pub use git_lock::{GitLocks, find_git_lock};
pub use host::{HostDir, Identity, is_absent};
pub use index::Index;
pub use known_contents::KnownContents;
pub use plan::{Plan, PlannedChange, PlannedKind, plan};
pub use progress::Progress;
pub use remove::remove_tree;
pub use renames::Rename;
pub use report::{Notice, Why};
pub use rules::{Rules, TreeRules};
pub use staging::{Staging, clean_leftovers};
pub use stamp::Stamp;
pub use watch::{Dirty, Watcher};
