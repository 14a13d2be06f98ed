//! The workspace whose rules are meant.

use crate::error::CliError;
use crate::session::{Session, workspace_name};

/// Returns the resource name of the workspace that would be merged into; empty without one.
pub async fn target(session: &mut Session, into: Option<&str>) -> Result<String, CliError> {
    match into {
        Some(name) => Ok(workspace_name(name)),
        None => Ok(session.attached_directory_if_any().await?.map(|place| place.workspace.name).unwrap_or_default()),
    }
}
