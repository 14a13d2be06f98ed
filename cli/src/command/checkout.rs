//! `amalgam checkout`: writes a snapshot into a new directory.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use amalgam_proto::{Reason, v1};
use clap::Args;
use serde_json::json;
use tonic::codegen::Bytes;

use super::capture::report_notices;
use super::conflicts;
use super::ws::workspace;
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::output::style::{self, paint};
use crate::output::{Output, drive, json as lines};
use crate::session::{Session, here, workspace_name};
use crate::text;

/// Write a snapshot into a new directory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam checkout @~3 ../three-back --detached
  amalgam checkout v1 ../fix --workspace fix-v1
  amalgam checkout try-2@ ../try-2 --workspace try-2
  amalgam checkout v1 ../v1 --read-only")]
pub struct Checkout {
    /// The revision; `amalgam help revisions` explains how snapshots are named
    #[arg(value_name = "REV")]
    revision: String,
    /// The new directory; it must not exist, or be empty
    dir: OsString,
    /// The workspace that the directory will belong to; made from REV if it does not exist
    #[arg(long, value_name = "NAME", conflicts_with = "detached")]
    workspace: Option<String>,
    /// The directory belongs to no workspace; the default
    #[arg(long)]
    detached: bool,
    /// Make the files read-only; such directories share their files on the disk
    #[arg(long, conflicts_with = "workspace")]
    read_only: bool,
    /// How conflicts are shown: as files with markers, or by one side
    #[arg(long, value_name = "HOW", default_value = "markers", value_parser = ["markers", "ours", "theirs", "base"])]
    conflicts: String,
}

impl Checkout {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let place = session.place_if_any().await?;
        let mut client = session.client().await?;
        let workspace_here = here(place.as_ref());
        let mut revision = self.revision.clone();
        if let Some(name) = &self.workspace {
            // The short form of the revision means another thing in another workspace, so it is settled here and now.
            let found = super::words::snapshot(&mut client, place.as_ref(), &self.revision).await?;
            revision = text::id(&found.name).to_owned();
            ensure_workspace(&mut client, name, &revision).await?;
        }
        let path = session.host_path(&self.dir);
        let target = Target {
            path: &path,
            revision: &revision,
            workspace: &workspace_here,
            attach: self.workspace.as_deref().unwrap_or_default(),
            source: place.as_ref().map_or("", |place| place.directory.name.as_str()),
            conflicts: &self.conflicts,
            read_only: self.read_only,
        };
        let result = checkout(&session.output, &mut client, &target).await?;
        let output = &mut session.output;
        let directory = result.directory.clone().unwrap_or_default();
        let counts = json!({
            "workspace": self.workspace,
            "written": result.written,
            "bytes": result.bytes,
            "reflinked": result.reflinked,
            "linked": result.linked,
            "conflicts": result.conflicts.as_ref().map_or(0, |conflicts| conflicts.count),
        });
        let shown = if directory.path.is_empty() { path.as_os_str().as_bytes() } else { &directory.path };
        output.emit(&lines::with_path(lines::line("checkout", counts), shown))?;
        let cloned = match result.reflinked {
            0 => String::new(),
            number => format!(", {} cloned", text::count(number)),
        };
        let shared = match result.linked {
            0 => String::new(),
            number => format!(", {} shared", text::count(number)),
        };
        let written =
            format!("{} ({}{cloned}{shared})", text::plural(result.written, "path"), text::bytes(result.bytes));
        let belongs = match &self.workspace {
            Some(name) => format!(", workspace {}", paint(style::WORKSPACE, name)),
            None => String::new(),
        };
        output.done(format!("{}: {written}{belongs}", text::path(shown)))?;
        conflicts::say(output, result.conflicts.as_ref())?;
        report_notices(output, &result.notices)
    }
}

/// Makes a workspace that begins at a snapshot, unless there is one of this name whose head that is.
async fn ensure_workspace(client: &mut Client, name: &str, snapshot: &str) -> Result<(), CliError> {
    match workspace(client, &workspace_name(name)).await {
        Ok(found) if text::id(&found.head) == snapshot => Ok(()),
        Ok(found) => {
            let message = format!("workspace {name} exists and is at {}", text::short(&found.head));
            Err(CliError::refused(message).hint(format!("`amalgam checkout {name}@ DIR --workspace {name}` gets that")))
        }
        Err(error) if error.is(Reason::NotFound) => {
            let request = v1::CreateWorkspaceRequest {
                workspace_id: name.to_owned(),
                from: snapshot.to_owned(),
                ..Default::default()
            };
            client.workspaces.create_workspace(request).await?;
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// What to write where.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Where, on the host.
    pub path: &'a Path,
    /// The revision.
    pub revision: &'a str,
    /// The workspace that `@` stands for, on the wire; or nothing.
    pub workspace: &'a str,
    /// The workspace that it belongs to afterwards, as people write it; or nothing.
    pub attach: &'a str,
    /// A directory to clone from, on the wire; or nothing.
    pub source: &'a str,
    /// How conflicts are shown; or nothing.
    pub conflicts: &'a str,
    /// For reading only.
    pub read_only: bool,
}

/// Writes a snapshot into a new directory.
pub async fn checkout(
    output: &Output,
    client: &mut Client,
    target: &Target<'_>,
) -> Result<v1::CheckoutResult, CliError> {
    let request = v1::CheckoutDirectoryRequest {
        path: Bytes::copy_from_slice(target.path.as_os_str().as_bytes()),
        revision: target.revision.to_owned(),
        workspace: target.workspace.to_owned(),
        attach_workspace: workspace_name(target.attach),
        source: target.source.to_owned(),
        conflicts: target.conflicts.to_owned(),
        read_only: target.read_only,
    };
    drive(output, client.directories.checkout_directory(request)).await
}
