//! The state of a remote: the last success, failures, and the result for each workspace. A lost file costs a
//! round that finds nothing to do, and forgets which snapshots were undone on purpose.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use serde::{Deserialize, Serialize};

use super::definition::Remotes;
use crate::error::CliError;

/// The state of a remote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RemoteState {
    /// When a round last went through, in nanoseconds since 1970; 0 before the first time. Workspaces may have failed in it.
    pub succeeded: i64,
    /// When a round last began.
    pub tried: i64,
    /// Rounds that failed since then, one after another.
    pub failures: u32,
    /// When the background process tries again after a failure.
    pub next_try: i64,
    /// Why the last round failed; empty if it did not.
    pub problem: String,
    /// The advice that is printed with the problem.
    pub hint: String,
    /// The results for workspaces, by name.
    pub workspaces: BTreeMap<String, WorkspaceState>,
    /// The results for labels, by name.
    pub labels: BTreeMap<String, WorkspaceState>,
}

/// The name of a synced workspace or label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncedName<'a> {
    /// A workspace.
    Workspace(&'a str),
    /// A label.
    Label(&'a str),
}

/// The result for one workspace or label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkspaceState {
    /// The head that both sides last had at once, `snapshots/{hex}`; empty before the first time.
    pub synced: String,
    /// When something was last sent, received or merged, in nanoseconds since 1970.
    pub changed: i64,
    /// The result of the last round.
    pub outcome: SyncOutcome,
    /// Files in conflict after the last merge.
    pub conflicts: u64,
    /// Why it failed.
    pub problem: String,
    /// The advice that is printed with the problem.
    pub hint: String,
}

/// The result of syncing a workspace or a label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncOutcome {
    /// Both sides had the same head.
    #[default]
    Same,
    /// Neither side has a snapshot.
    Empty,
    /// Snapshots were sent.
    Pushed,
    /// Snapshots were received.
    Pulled,
    /// Snapshots were received, merged, and the result was sent.
    Merged,
    /// It was deleted here; the other side keeps it.
    DeletedHere,
    /// It was deleted on the server; this side keeps it.
    DeletedThere,
    /// Snapshots that both sides had were undone here.
    UndoneHere,
    /// Snapshots that both sides had were undone on the server.
    UndoneThere,
    /// A label was moved on both sides, and stays as it is on both.
    Diverged,
    /// It failed.
    Failed,
}

impl SyncOutcome {
    /// Returns the word for the outcome in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Empty => "empty",
            Self::Pushed => "pushed",
            Self::Pulled => "pulled",
            Self::Merged => "merged",
            Self::DeletedHere => "deleted-here",
            Self::DeletedThere => "deleted-there",
            Self::UndoneHere => "undone-here",
            Self::UndoneThere => "undone-there",
            Self::Diverged => "diverged",
            Self::Failed => "failed",
        }
    }

    /// Returns whether the sync moved a workspace or a label.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Pushed | Self::Pulled | Self::Merged)
    }

    /// Returns the problem and a hint for a workspace that waits for a decision of the user; `None` for other outcomes.
    pub fn advice(self, workspace: &str, context: &str) -> Option<(&'static str, String)> {
        Some(match self {
            Self::DeletedHere => (
                "deleted here, and kept on the server",
                format!(
                    "`amalgam pull {workspace} --server {context}` gets it back, `amalgam ws rm {workspace} --server {context}` \
                     deletes it there"
                ),
            ),
            Self::DeletedThere => (
                "deleted on the server, and kept here",
                format!(
                    "`amalgam push {workspace} --server {context}` sends it again, `amalgam ws rm {workspace}` deletes it here"
                ),
            ),
            Self::UndoneHere => (
                "undone here, and not on the server",
                format!(
                    "it stays so until the server has something new; `amalgam redo -w {workspace}` takes the undo back, a \
                     commit of the earlier files sends them"
                ),
            ),
            Self::UndoneThere => (
                "undone on the server, and not here",
                format!(
                    "it stays so until {workspace} has something new here; `amalgam undo -w {workspace}` undoes it here, too"
                ),
            ),
            _ => return None,
        })
    }
}

impl RemoteState {
    /// Reads the state of a remote. One that is missing or unreadable is empty.
    pub fn load(remotes: &Remotes, name: &str) -> Result<Self, CliError> {
        let path = remotes.state_path(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(CliError::machine(path.display(), &error)),
        }
    }

    /// Writes the state of a remote.
    pub fn save(&self, remotes: &Remotes, name: &str) -> Result<(), CliError> {
        let bytes = serde_json::to_vec(self).expect("a state is plain values");
        remotes.write(&remotes.state_path(name), &bytes)
    }
}
