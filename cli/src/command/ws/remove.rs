//! Removing a workspace, and a directory that was made for it.

use amalgam_proto::v1;
use clap::Args;
use serde_json::json;

use crate::command::delete_directory::{Keep, delete_directory};
use crate::command::work_folders::{FolderLogs, UncommittedChanges, abandoned, clean_up};
use crate::command::workspaces::workspace;
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::session::{Session, workspace_name};
use crate::text;

/// Remove workspaces; `ws undelete` brings them back
#[derive(Debug, Args)]
#[command(after_help = "\
With --dir the command also removes their directories, but only those that a fork or a checkout made, and only after it
has captured everything in them. It does not ask: `amalgam ws undelete` brings back a workspace with all its snapshots.

Examples:
  amalgam ws rm try-2
  amalgam ws rm try-1 try-2 try-3 --dir
  amalgam ws rm --ended")]
pub struct Remove {
    /// The workspaces
    #[arg(value_name = "NAME", required_unless_present = "ended")]
    names: Vec<String>,
    /// Remove their directories, too
    #[arg(long)]
    dir: bool,
    /// Remove the processes, workspaces, directories and mounts that a killed `explore` or `bisect` left behind
    #[arg(long, conflicts_with_all = ["names", "dir"])]
    ended: bool,
    /// For scripts that say it: nothing is asked anyway
    #[arg(short, long, hide = true)]
    yes: bool,
}

impl Remove {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        if self.ended || self.dir {
            session.refuse_server("--dir and --ended", "leave them out")?;
        }
        let mut client = session.client().await?;
        if self.ended {
            return remove_ended(session).await;
        }
        // All names are resolved before anything is removed, so that a typing error removes nothing.
        let mut found = Vec::new();
        for name in &self.names {
            let one = workspace(&mut client, &workspace_name(name)).await?;
            if !found.contains(&one) {
                found.push(one);
            }
        }
        let mut exit = Exit::OK;
        let is_alone = found.len() == 1;
        for workspace in &found {
            match self.remove(session, &mut client, workspace).await {
                Err(error) if !is_alone => {
                    session.output.failure(&error);
                    exit = exit.or(error.exit);
                }
                done => done?,
            }
        }
        Ok(exit)
    }

    async fn remove(
        &self,
        session: &mut Session,
        client: &mut Client,
        workspace: &v1::Workspace,
    ) -> Result<(), CliError> {
        for directory in &workspace.directories {
            if self.dir {
                delete_directory(&mut session.output, client, &directory.name, Keep::Unsaved).await?;
                session.output.done(format!("{} is gone", text::path(&directory.path)))?;
            } else {
                let request = v1::DetachDirectoryRequest { name: directory.name.clone(), ..Default::default() };
                client.directories.detach_directory(request).await?;
                session.output.remark(format!("{} stays where it is", text::path(&directory.path)))?;
            }
        }
        let request = v1::DeleteWorkspaceRequest { name: workspace.name.clone(), ..Default::default() };
        let deleted = client.workspaces.delete_workspace(request).await?.into_inner();
        if let Some(operation) = &deleted.operation {
            session.output.emit(&lines::operation(operation))?;
        }
        let name = text::id(&workspace.name);
        session.output.done(format!("{name} is removed"))?;
        session.output.remark(format!("`amalgam ws undelete {name}` brings it back"))
    }
}

/// Removes the leftovers of killed commands.
async fn remove_ended(session: &mut Session) -> Outcome {
    let mut exit = Exit::OK;
    let (mut folders, mut workspaces) = (0, Vec::new());
    for left in abandoned(session.home()) {
        match clean_up(session, &left.path, UncommittedChanges::Capture, FolderLogs::Remove).await {
            Ok(removed) => {
                folders += 1;
                workspaces.extend(removed);
            }
            Err(error) => {
                session.output.failure(&error);
                exit = exit.or(error.exit);
            }
        }
    }
    session.output.emit(&lines::line("ended_removed", json!({"workspaces": workspaces, "folders": folders})))?;
    for name in &workspaces {
        session.output.done(format!("{name} is removed"))?;
    }
    match workspaces.first() {
        Some(first) => session.output.remark(format!("`amalgam ws undelete {first}` brings one back"))?,
        None if exit == Exit::OK => session.output.remark("no killed command left anything behind")?,
        None => {}
    }
    Ok(exit)
}
