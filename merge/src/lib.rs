//! Merging of file contents: takes three versions of one file and returns one version, or a conflict as data.
//!
//! The crate works on bytes and, except for the module `trees`, knows neither trees nor stores. Other crates decide which files
//! to merge, handle renames, modes and conflict entries, and run commands. All functions are pure: the same versions always give
//! the same bytes. No input makes them panic, recurse without bound or run for minutes.
//!
//! A file is merged by a [`Way`], a merge strategy. [`merge`] applies one; [`merge_down`] falls back to the next one if a
//! strategy is unable, and reports that. [`Rules`] choose the strategy by path. [`markers`] renders a conflict in a file.

pub mod markers;
pub mod rules;
#[cfg(feature = "engine")]
pub mod trees;

mod crdt;
mod json;
mod lines;
mod many;
mod order;
mod outcome;
mod show;
mod structure;
mod take;
mod text;
mod toml;
mod union;
mod way;
mod yaml;

pub use markers::{Labels, Marks, Rendered};
pub use outcome::{Clash, Conflicted, Context, Done, Limits, Origin, Outcome, Setting, Sides, Step, Version, Why};
pub use rules::Rules;
pub use show::{Side, Versions, carry_edit, label, show};
pub use way::{Lists, Options, Way, merge, merge_down};
