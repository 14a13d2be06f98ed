//! The MCP server: tools for models, each of them a command of this program or a call about files.
//!
//! A tool about snapshots runs this program again with the words that a person would type, so a model sees the texts and errors of
//! the command. `read`, `edit` and `search` call the API, because they also reach files that are in no directory. Holds no state.

mod arguments;
pub mod clients;
mod files;
mod handler;
mod program;
mod remote;
mod tools;
mod words;

pub use handler::serve;
pub use program::Program;
pub use remote::RemotePlace;
pub use tools::{Selection, TOOL_NAMES};
