//! The two sides of a sync: their clients, the names of tracking workspaces, and the callback for results.

use amalgam_proto::Reason;

use super::definition::Remote;
use super::state::{RemoteState, SyncedName, WorkspaceState};
use crate::connect::{Client, connect_server};
use crate::error::CliError;

/// The clients of both sides.
#[derive(Clone)]
pub struct Sides {
    /// The store of this machine.
    pub local: Client,
    /// The server.
    pub remote: Client,
}

/// Returns the name of the local workspace that tracks the last known head of a workspace on the server.
pub fn tracking_name(remote: &str, workspace: &str) -> String {
    format!("remote/{remote}/{workspace}")
}

/// Connects to the server of a remote.
pub async fn connect_remote(remote: &Remote, actor: &str) -> Result<Client, CliError> {
    connect_server(&remote.server()?, actor).await
}

/// A function that is called with each result of a sync.
pub trait Report: FnMut(SyncedName<'_>, &WorkspaceState, &RemoteState) -> Result<(), CliError> {}

impl<F: FnMut(SyncedName<'_>, &WorkspaceState, &RemoteState) -> Result<(), CliError>> Report for F {}

/// Returns whether an error concerns the whole remote, so that the sync of all its workspaces ends.
pub(super) fn is_fatal(error: &CliError) -> bool {
    const REASONS: [Reason; 5] =
        [Reason::Unauthenticated, Reason::KeyExpired, Reason::KeyRevoked, Reason::TooMany, Reason::Full];
    error.reason == "UNAVAILABLE" || REASONS.iter().any(|reason| error.is(*reason))
}
