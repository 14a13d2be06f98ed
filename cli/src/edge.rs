//! Edge mode: the local store pushes workspaces to remotes and pulls them by itself, works offline, and reconciles by merge.
//!
//! A remote is a project of a server. `definition` holds what the user asked for, `state` what came of it, both as files in
//! `remotes/` beside the store. `decide` chooses the next step for a workspace from the heads on both sides, `sync` carries the
//! steps out with calls of the API, `labels` does so for labels, and `worker` repeats that in the background process. Keys are in
//! the contexts of the user and nowhere else.
//!
//! The heads that the remote had when it was last seen are workspaces here, `remote/NAME/WORKSPACE`: collections keep their
//! snapshots, and all commands can read them.

mod decide;
mod definition;
mod labels;
mod sides;
mod state;
mod sync;
mod worker;

pub use definition::{COMMAND_LOCK_TIMEOUT, Remote, Remotes, SyncMode, check_name};
pub use sides::{Sides, connect_remote, tracking_name};
pub use state::{RemoteState, SyncOutcome, SyncedName, WorkspaceState};
pub use sync::sync_remote;
pub use worker::SyncWorker;
