//! Diffs of texts and of token lists, in bounded time.
//!
//! `imara-diff` computes the diffs: histogram as in Git, and Myers for large inputs. This crate adds the bounds that it lacks: large
//! inputs are split at anchors, and a budget limits the work of all parts together ([`WorkLimits`]). [`line_hunks`] and
//! [`rough_line_hunks`] compare texts for display, [`token_hunks`] compares lists of tokens for merges.
//!
//! # Example
//!
//! ```
//! let hunks = amalgam_textdiff::line_hunks(b"a\nb\nc\n", b"a\nx\nc\n");
//! assert_eq!((hunks[0].before.clone(), hunks[0].after.clone()), (1..2, 1..2));
//! ```

mod anchors;
mod hunk;
mod lines;
mod tokens;

pub use anchors::WorkLimits;
pub use hunk::Hunk;
pub use imara_diff::{Interner, Token};
pub use lines::{byte_ranges, count_lines, line_hunks, rough_line_hunks, split_lines};
pub use tokens::token_hunks;
