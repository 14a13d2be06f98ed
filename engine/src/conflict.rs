//! The conflicts of a tree: finds them, inserts and removes them, and remembers their resolutions.
//!
//! Not in this module: the presentation of conflicts to users and the interpretation of their edits. Those need knowledge of file
//! formats, which the engine does not have.

mod exchange;
mod find;
mod remembered;

pub use exchange::Exchange;
pub use find::{PlacedConflict, conflicts, conflicts_after};
pub use remembered::{
    NewResolution, RememberedResolution, Replayed, forget, remember, remembered, replay, replay_all, resolution,
};

/// Key of a snapshot's metadata with the number of conflicts in its tree. Absent if there are none or if they were not counted.
pub const CONFLICTS_KEY: &str = "amalgam.conflicts";
