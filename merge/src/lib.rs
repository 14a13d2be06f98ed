//! Merging of file contents: takes three versions of one file and returns one version, or a conflict as data.
//!
//! The crate works on bytes and, except for the module `trees`, knows neither trees nor stores. Other crates decide which files
//! to merge, handle renames, modes and conflict entries, and run commands. All functions are pure: the same versions always give
//! the same bytes. No input makes them panic, recurse without bound or run for minutes.
//!
//! A file is merged by a [`MergeStrategy`]. [`merge`] applies one; [`merge_with_fallback`] tries the next one if a strategy is
//! unable, and reports that. [`Rules`] choose the strategy by path. [`render_conflict`] writes a conflict as a text with
//! [`markers`].

pub mod markers;
pub mod rules;
#[cfg(feature = "engine")]
pub mod trees;

mod conflict_text;
mod crdt;
mod job;
mod json;
mod many_sides;
mod name_order;
mod outcome;
mod region;
mod sides;
mod strategy;
mod structure;
mod take_side;
mod text;
mod three_texts;
mod toml;
mod union;
mod yaml;

pub use conflict_text::{ConflictSide, ConflictVersions, carry_edit, render_conflict, side_label};
pub use job::{Lists, Options};
pub use markers::{Labels, MarkerStyle, Rendered};
pub use outcome::{
    Clash, Conflicted, FailedAttempt, Limits, MergeReport, MergeSettings, Origin, Origins, Outcome, UnableReason,
    Version,
};
pub use rules::Rules;
pub use sides::Sides;
pub use strategy::{MergeStrategy, merge, merge_with_fallback};
