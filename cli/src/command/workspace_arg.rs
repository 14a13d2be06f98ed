//! The workspace that a command works on: as an argument, as `-w`, or that of the current directory.

use clap::Args;

use crate::error::CliError;
use crate::session::{Session, workspace_name};

/// A workspace that is named as an argument or by `-w`, as users know it from other commands.
#[derive(Debug, Args)]
pub struct WorkspaceArg {
    /// The workspace [default: the one of this directory]
    workspace: Option<String>,
    /// The workspace, like WORKSPACE
    #[arg(short, long = "workspace", value_name = "WORKSPACE", conflicts_with = "workspace")]
    workspace_option: Option<String>,
}

impl WorkspaceArg {
    /// Returns the resource name of the workspace.
    pub async fn resolve(&self, session: &mut Session) -> Result<String, CliError> {
        workspace_or_here(session, self.workspace.as_deref().or(self.workspace_option.as_deref())).await
    }
}

/// Returns the resource name of a workspace, or of the one that the current directory belongs to.
pub async fn workspace_or_here(session: &mut Session, name: Option<&str>) -> Result<String, CliError> {
    match name {
        Some(name) => Ok(workspace_name(name)),
        None => Ok(session.attached_directory().await?.workspace.name),
    }
}
