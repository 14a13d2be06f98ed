//! engine (doc to come)
pub mod backend;
mod commit;
mod compress;
pub mod content;
mod diff;
mod directory;
mod error;
mod id;
mod merkle;
mod name;
pub mod object;
pub mod reference;
mod store;
mod time;
pub mod work;

pub use commit::{Commit, CommitDone, Expect, Landed};
pub use diff::*;
pub use error::{Error, ErrorKind, Malformed, Result};
pub use id::*;
pub use name::*;
pub use store::*;
pub use time::Time;
pub use work::WorkingTree;
