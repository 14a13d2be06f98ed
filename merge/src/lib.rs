//! The content half of merging: three versions of one file in, one version out, or a conflict as data.
//!
//! Works on bytes and, but for the seam in `trees`, knows neither trees nor stores: which files have to be merged, what
//! becomes of renames, modes and conflicts, and who runs commands is the business of others. Everything here is a function of
//! its arguments: the same versions give the same bytes, always, and no input makes it panic, recurse without bound or work
//! for minutes.
//!
//! A file is merged by a [`Way`]. [`merge`] follows one; [`merge_down`] goes on to the next where one is unable, and says
//! so. [`Rules`] choose the way by path. [`markers`] are the face that a conflict has in a real file.

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
