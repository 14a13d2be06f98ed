//! Conflicts of a tree: where they are, how one is put in or taken out, and how the same one was resolved before.
//!
//! What is absent: what a conflict looks like to people, and what their edits mean. That is for whoever knows what bytes are.

mod exchange;
mod find;
mod remembered;

pub use exchange::Exchange;
pub use find::{PlacedConflict, conflicts, conflicts_after};
pub use remembered::{
    NewResolution, Remembered, Replayed, forget, remember, remembered, replay, replay_all, resolution,
};

/// The key of a snapshot's metadata that says how many conflicts its tree has. Absent where there are none, and where nobody
/// counted.
pub const CONFLICTS_KEY: &str = "amalgam.conflicts";
