//! Removing a workspace, and a directory that was made for it.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use amalgam_proto::v1;
use amalgam_server::remove_tree;
use clap::Args;
use serde_json::json;

use super::workspace;
use crate::command::capture::{About, capture};
use crate::command::forks::{Logs, Unsaved, abandoned, clean_up};
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::{Output, json as lines};
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
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        if self.ended {
            return remove_ended(session).await;
        }
        // A slip in one of the names is found before anything goes.
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
                delete_directory(&mut session.output, client, &directory.name, Keep::WhatNoSnapshotHolds).await?;
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
        let name = text::id(&workspace.name);
        session.output.done(format!("{name} is removed"))?;
        session.output.remark(format!("`amalgam ws undelete {name}` brings it back"))
    }
}

/// Removes what commands left that were killed.
async fn remove_ended(session: &mut Session) -> Outcome {
    let mut exit = Exit::OK;
    let (mut folders, mut workspaces) = (0, Vec::new());
    for left in abandoned(session.home()) {
        match clean_up(session, &left.path, Unsaved::Capture, Logs::Remove).await {
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

/// Asks on the terminal. Whoever cannot answer has to say yes beforehand.
pub async fn confirm(session: &mut Session, question: &str) -> Result<(), CliError> {
    if session.no_input || session.output.is_json() || !io::stdin().is_terminal() {
        let why = match (session.no_input, session.output.is_json()) {
            (true, _) => "prompts are disabled (--no-input)",
            (_, true) => "--json asks nothing",
            _ => "standard input is no terminal",
        };
        return Err(CliError::usage(format!("{question} Confirmation is needed, but {why}")).hint("pass --yes"));
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
        _ => Err(CliError::refused("nothing was changed")),
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
    remove_tree(path).map_err(|error| CliError::machine(path.display(), &error))?;
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
