//! Removing a workspace, and a directory that was made for it.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use amalgam_proto::v1;
use amalgam_server::remove_all;
use clap::Args;
use serde_json::json;

use super::workspace;
use crate::command::capture::{About, capture};
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::{Output, json as lines};
use crate::session::{Session, workspace_name};
use crate::text;

/// Remove a workspace; `ws undelete` brings it back
#[derive(Debug, Args)]
#[command(after_help = "\
With --dir its directory goes, too: only one that a fork or a checkout made, and only if everything in it is in a
snapshot, which is taken first.

Examples:
  amalgam ws rm try-2
  amalgam ws rm try-2 --dir --yes")]
pub struct Remove {
    /// The workspace
    name: String,
    /// Remove its directory, too
    #[arg(long)]
    dir: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

impl Remove {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let workspace = workspace(&mut client, &workspace_name(&self.name)).await?;
        if !self.yes {
            let with = if self.dir { " and its directory" } else { "" };
            confirm(session, &format!("Remove the workspace {}{with}?", self.name)).await?;
        }
        for directory in &workspace.directories {
            if self.dir {
                delete_directory(&mut session.output, &mut client, &directory.name, Keep::WhatNoSnapshotHolds).await?;
                session.output.done(format!("{} is gone", text::path(&directory.path)))?;
            } else {
                let request = v1::DetachDirectoryRequest { name: directory.name.clone() };
                client.directories.detach_directory(request).await?;
                session.output.remark(format!("{} stays where it is", text::path(&directory.path)))?;
            }
        }
        let request = v1::DeleteWorkspaceRequest { name: workspace.name.clone(), ..Default::default() };
        let deleted = client.workspaces.delete_workspace(request).await?.into_inner();
        if let Some(operation) = &deleted.operation {
            session.output.emit(&lines::operation(operation))?;
        }
        session.output.done(format!("{} is removed", self.name))?;
        session.output.remark(format!("`amalgam ws undelete {}` brings it back", self.name))?;
        Ok(Exit::OK)
    }
}

/// Asks on the terminal. Whoever cannot answer has to say yes beforehand.
pub async fn confirm(session: &mut Session, question: &str) -> Result<(), CliError> {
    if session.no_input || !io::stdin().is_terminal() {
        return Err(
            CliError::usage("confirmation needed, but prompts are disabled or there is no terminal").hint("pass --yes")
        );
    }
    session.output.flush()?;
    write!(io::stderr(), "{question} [y/N] ")?;
    let read = || {
        let mut line = String::new();
        io::stdin().read_line(&mut line).map(|_| line)
    };
    let line = tokio::task::spawn_blocking(read).await.expect("reading a line does not panic");
    match line?.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(CliError::refused("nothing was removed")),
    }
}

/// What is spared when a directory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The directory stays if it holds anything that is in no snapshot.
    WhatNoSnapshotHolds,
    /// Nothing: this program made the directory for itself.
    Nothing,
}

/// Removes a directory that a checkout made. A snapshot of it is taken first.
pub async fn delete_directory(
    output: &mut Output,
    client: &mut Client,
    name: &str,
    keep: Keep,
) -> Result<(), CliError> {
    let directory = find(client, name).await?;
    let path = Path::new(OsStr::from_bytes(&directory.path));
    let refused = |why: String| {
        CliError::refused(format!("{} stays: {why}", path.display())).hint("remove it by hand if that is what you want")
    };
    if !directory.made_by_checkout {
        return Err(refused("it was not made by a checkout".to_owned()));
    }
    if !directory.problem.is_empty() && path.exists() {
        return Err(refused(directory.problem));
    }
    if path.exists() && keep == Keep::WhatNoSnapshotHolds {
        let captured = capture(output, client, name, About::message("before the directory was removed")).await?;
        if let Some(notice) = captured.notices.first() {
            return Err(refused(format!("{} is in no snapshot: {}", text::path(&notice.path), notice.message)));
        }
        let ignored = captured.counts.unwrap_or_default().ignored;
        if ignored > 0 {
            return Err(refused(format!("{} in no snapshot", text::plural(ignored, "ignored path"))));
        }
    }
    client.directories.detach_directory(v1::DetachDirectoryRequest { name: name.to_owned() }).await?;
    remove_all(path).map_err(|error| CliError::machine(path.display(), &error))?;
    let line = lines::line("directory_removed", json!({"id": text::id(name)}));
    output.emit(&lines::with_path(line, &directory.path))
}

async fn find(client: &mut Client, name: &str) -> Result<v1::Directory, CliError> {
    let mut request = v1::ListDirectoriesRequest { page_size: 500, page_token: String::new() };
    loop {
        let page = client.directories.list_directories(request.clone()).await?.into_inner();
        if let Some(found) = page.directories.into_iter().find(|directory| directory.name == name) {
            return Ok(found);
        }
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return Err(CliError::refused(format!("{name} is no longer known")));
        }
    }
}
