//! `amalgam unexport`: ends exports over NFS.

use amalgam_proto::v1::{self, delete_export_request::Target};
use clap::Args;

use super::exports::{exports, json_line, words};
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::session::{Session, workspace_name};

/// End the export of a workspace or a snapshot over NFS
#[derive(Debug, Args)]
#[command(after_help = "\
Clients that have it mounted get errors (stale file handles) until they unmount it. No file is lost: uncommitted changes
stay in the workspace.

Examples:
  amalgam unexport try-2           all exports of a workspace
  amalgam unexport /default/@3f9a2c1e00aa11bb
  amalgam unexport --all")]
pub struct Unexport {
    /// The workspace, or the path of an export
    #[arg(value_name = "WORKSPACE|PATH", required_unless_present = "all")]
    what: Option<String>,
    /// End all exports
    #[arg(long, conflicts_with = "what")]
    all: bool,
}

impl Unexport {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let targets = match self.what {
            Some(path) if path.starts_with('/') => vec![Target::Path(path)],
            Some(name) => vec![Target::Workspace(workspace_name(&name))],
            None => exports(&mut client).await?.exports.into_iter().map(|export| Target::Name(export.name)).collect(),
        };
        if targets.is_empty() {
            session.output.remark("nothing is exported")?;
        }
        for target in targets {
            end(session, &mut client, target).await?;
        }
        Ok(Exit::OK)
    }
}

async fn end(session: &mut Session, client: &mut Client, target: Target) -> Result<(), CliError> {
    let request = v1::DeleteExportRequest { target: Some(target), ..Default::default() };
    let done = client.exports.delete_export(request).await?.into_inner();
    for export in &done.exports {
        session.output.emit(&json_line("nfs_export_ended", export))?;
        session.output.done(format!("no longer exported: {}", words(export)))?;
    }
    Ok(())
}
