//! `amalgam export nfs`: lets NFS clients mount a workspace or a snapshot.

use amalgam_proto::{Reason, v1};
use clap::Args;

use super::exports::{json_line, say_commands, words};
use super::workspaces::workspace;
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::session::{Session, current_workspace, missing_field, workspace_name};

/// Let NFS clients mount a workspace or a snapshot
#[derive(Debug, Args)]
#[command(after_help = "\
Clients see the live tree of the workspace, the same that `amalgam mount` shows: writes of both are seen by both, and by
the next commit. The export stays until `amalgam unexport`; the next background process serves it again. A snapshot is
exported read-only.

NFSv3 has no passwords: every client with an allowed address can read and write everything in the export, as the user of
the store. Without --allow only this machine can mount it, with all of its users; --secret makes the path a secret.
Nothing is encrypted: between machines use WireGuard or another tunnel.

Examples:
  amalgam export nfs try-2
  amalgam export nfs try-2 --secret --allow 10.8.0.0/24
  amalgam export nfs main --follow     always the last snapshot of main
  amalgam export nfs v1                the snapshot of a label")]
pub struct ExportNfs {
    /// The workspace, or the revision of a snapshot; WORKSPACE@LABEL names both in the path of the export
    #[arg(value_name = "WORKSPACE|REV")]
    what: String,
    /// Let clients read the live tree and not change it
    #[arg(long)]
    read_only: bool,
    /// Export the last snapshot of the workspace, read-only: each new snapshot appears by itself
    #[arg(long)]
    follow: bool,
    /// Let this address or network mount it, for example 10.8.0.0/24; repeatable [default: only this machine]
    #[arg(long, value_name = "CIDR")]
    allow: Vec<String>,
    /// Add a secret to the path that clients mount, for machines whose users or containers share an address
    #[arg(long)]
    secret: bool,
    /// Believe the user ids that clients send; root becomes nobody [default: all clients act as the user of the store]
    #[arg(long)]
    trust_users: bool,
    /// The TCP port of the NFS server, if it does not run yet [default: 2049, or a free one if that is taken]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Create an empty workspace if it does not exist
    #[arg(long, conflicts_with = "follow")]
    create: bool,
}

impl ExportNfs {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = if self.create { session.client_of_new_store().await? } else { session.client().await? };
        let tree = ExportedTree::find(session, &mut client, &self.what, self.follow, self.create).await?;
        let request = v1::CreateExportRequest {
            read_only: self.read_only,
            allow: self.allow,
            secret: self.secret,
            trusts_users: self.trust_users,
            port: u32::from(self.port.unwrap_or(0)),
            ..tree.request()
        };
        let export = create(&mut client, request).await?;
        session.output.emit(&json_line("nfs_export", &export))?;
        session.output.done(format!("exported {}", words(&export)))?;
        say_commands(&mut session.output, &export)?;
        Ok(Exit::OK)
    }
}

/// Exports a tree.
pub async fn create(client: &mut Client, request: v1::CreateExportRequest) -> Result<v1::Export, CliError> {
    let done = client.exports.create_export(request).await?.into_inner();
    done.export.ok_or_else(|| missing_field("export"))
}

/// The tree that a word on the command line means.
pub struct ExportedTree {
    pub mode: v1::MountMode,
    /// The resource name of the workspace; empty without one.
    pub workspace: String,
    /// The revision of a snapshot; empty for the tree of a workspace.
    pub revision: String,
}

impl ExportedTree {
    /// Finds the workspace or the snapshot that `what` names. Creates a missing workspace if `create` is set.
    pub async fn find(
        session: &mut Session,
        client: &mut Client,
        what: &str,
        follow: bool,
        create: bool,
    ) -> Result<Self, CliError> {
        let name = workspace_name(what);
        let is_workspace = match workspace(client, &name).await {
            Ok(_) => true,
            Err(error) if error.is(Reason::NotFound) && create => {
                let request = v1::CreateWorkspaceRequest { workspace_id: what.to_owned(), ..Default::default() };
                client.workspaces.create_workspace(request).await?;
                true
            }
            Err(error) if error.is(Reason::NotFound) && follow => return Err(error),
            Err(error) if error.is(Reason::NotFound) || error.is(Reason::Invalid) => false,
            Err(error) => return Err(error),
        };
        if is_workspace {
            let mode = if follow { v1::MountMode::Follow } else { v1::MountMode::ReadWrite };
            return Ok(Self { mode, workspace: name, revision: String::new() });
        }
        let mode = v1::MountMode::Snapshot;
        if let Some((name, label)) = what.split_once('@').filter(|(name, label)| is_name(name) && is_name(label)) {
            return Ok(Self { mode, workspace: workspace_name(name), revision: label.to_owned() });
        }
        let workspace = current_workspace(session.attached_directory_if_any().await?.as_ref());
        Ok(Self { mode, workspace, revision: what.to_owned() })
    }

    /// Returns the request that exports the tree to this machine only.
    pub fn request(&self) -> v1::CreateExportRequest {
        v1::CreateExportRequest {
            mode: self.mode.into(),
            workspace: self.workspace.clone(),
            revision: self.revision.clone(),
            ..Default::default()
        }
    }
}

/// Returns whether a part of WORKSPACE@LABEL is a plain name. For example, `main@{yesterday}` and `main@~` are revisions.
fn is_name(part: &str) -> bool {
    !part.is_empty() && !part.contains(['{', '}', '~', ':', '@'])
}
