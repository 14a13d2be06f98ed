//! `amalgam checkout`: writes a snapshot into a new directory, or a lost directory again.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use amalgam_proto::{Reason, v1};
use clap::Args;
use serde_json::json;
use tonic::codegen::Bytes;

use super::capture::{report_notices, warn};
use super::conflicts;
use super::workspaces::workspace;
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::output::progress::drive;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::prompt::confirm;
use crate::session::{Session, current_workspace, workspace_name};
use crate::text;

/// Write a snapshot into a new directory, or recreate a lost directory
#[derive(Debug, Args)]
#[command(after_help = "\
With DIR, the command writes a snapshot into a new directory.

Without DIR, it recreates the directory of a workspace, after the directory was removed or replaced by another one, at
its old path or, with --here, in the current directory. Files that are already there are captured first; then the
command removes those that the workspace does not have. It asks before it does so, except at the old path.
An existing .git is left alone unless --with-git is given; a missing one is written.

Examples:
  amalgam checkout @~3 ../three-back --detached
  amalgam checkout v1 ../fix --workspace fix-v1
  amalgam checkout try-2@ ../try-2 --workspace try-2
  amalgam checkout v1 ../v1 --read-only
  amalgam checkout main                   the directory of main was removed: recreate it
  amalgam checkout main --here            the same, into the directory you are in")]
pub struct Checkout {
    /// The revision (see `amalgam help revisions`); without DIR, the workspace
    #[arg(value_name = "REV", required_unless_present = "here")]
    revision: Option<String>,
    /// The new directory; it must be empty, or not exist yet
    dir: Option<OsString>,
    /// Recreate the lost directory of the workspace in the current directory
    #[arg(long, conflicts_with_all = ["dir", "workspace", "detached", "read_only"])]
    here: bool,
    /// Overwrite an existing .git, too
    #[arg(long, conflicts_with_all = ["dir", "workspace", "detached", "read_only"])]
    with_git: bool,
    /// Do not ask before files in the current directory are replaced
    #[arg(short, long, requires = "here")]
    yes: bool,
    /// Attach the directory to this workspace, created from REV if it does not exist
    #[arg(short, long, value_name = "NAME", conflicts_with = "detached", requires = "dir")]
    workspace: Option<String>,
    /// Attach the directory to no workspace; the default
    #[arg(long, requires = "dir")]
    detached: bool,
    /// Make the files read-only; such directories share their files on the disk
    #[arg(long, conflicts_with = "workspace", requires = "dir")]
    read_only: bool,
    /// Write set-user-ID and set-group-ID bits, capabilities and devices of a tree that was received or imported, too
    #[arg(long, requires = "dir")]
    set_id: bool,
    /// How files with conflicts are written: with conflict markers, or as one of the versions
    #[arg(long, value_name = "HOW", default_value = "markers", requires = "dir", value_parser = ["markers", "ours", "theirs", "base"])]
    conflicts: String,
}

impl Checkout {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let (Some(revision), Some(dir)) = (&self.revision, &self.dir) else {
            return self.bring_back(session).await;
        };
        let place = session.attached_directory_if_any().await?;
        let mut client = session.client().await?;
        let workspace_here = current_workspace(place.as_ref());
        let mut revision = revision.clone();
        if let Some(name) = &self.workspace {
            // Resolved to an id now, because a short form such as `@~3` means another snapshot in another workspace.
            let found = super::revisions::snapshot(&mut client, place.as_ref(), &revision).await?;
            revision = text::id(&found.name).to_owned();
            ensure_workspace(&mut client, name, &revision).await?;
        }
        let path = session.host_path(dir);
        let target = Target {
            path: &path,
            revision: &revision,
            workspace: &workspace_here,
            attach: self.workspace.as_deref().unwrap_or_default(),
            source: place.as_ref().map_or("", |place| place.directory.name.as_str()),
            conflicts: &self.conflicts,
            read_only: self.read_only,
            set_id: self.set_id,
        };
        let result = checkout(&session.output, &mut client, &target).await?;
        report(&mut session.output, &path, self.workspace.as_deref(), &result)
    }

    /// Recreates the lost directory of a workspace.
    async fn bring_back(&self, session: &mut Session) -> Outcome {
        let place = match session.attached_directory().await {
            Ok(place) => Some(place),
            Err(error) if error.is(Reason::NoDirectory) => None,
            Err(error) => return Err(error),
        };
        let mut client = session.client().await?;
        let name = match (&self.revision, &place) {
            (Some(revision), _) => revision.strip_suffix('@').unwrap_or(revision).to_owned(),
            (None, Some(place)) => place.workspace_id().to_owned(),
            (None, None) => {
                let message = format!("{} is not where a workspace has its directory", session.cwd.display());
                return Err(CliError::usage(message).hint("name the workspace: `amalgam checkout WORKSPACE --here`"));
            }
        };
        let found = workspace(&mut client, &workspace_name(&name)).await.map_err(|error| {
            match error.is(Reason::NotFound) || error.is(Reason::Invalid) {
                true => error.hint("without DIR, name a workspace whose directory is to be recreated"),
                false => error,
            }
        })?;
        // At or below the path of the lost directory, `--here` means that path.
        let is_its_place = place.as_ref().is_some_and(|place| place.workspace.name == found.name);
        let path = match self.here && !is_its_place {
            true => {
                self.confirm_replacing(session, &name).await?;
                Bytes::copy_from_slice(session.cwd.as_os_str().as_bytes())
            }
            false => Bytes::new(),
        };
        let request = v1::CheckoutDirectoryRequest {
            path,
            attach_workspace: found.name.clone(),
            again: true,
            with_git: self.with_git,
            ..Default::default()
        };
        let result = drive(&session.output, client.directories.checkout_directory(request)).await?;
        self.say_back(session, &name, &found.head, &result)
    }

    /// Asks before files are replaced in a directory at another path than the lost one. An empty directory needs no confirmation.
    async fn confirm_replacing(&self, session: &mut Session, name: &str) -> Result<(), CliError> {
        let is_empty = session.cwd.read_dir().is_ok_and(|mut names| names.next().is_none());
        if self.yes || is_empty {
            return Ok(());
        }
        let here = session.cwd.display();
        let question = format!("{here} is not empty. Capture what is in it, and replace it by the files of {name}?");
        confirm(session, &question).await
    }

    fn say_back(&self, session: &mut Session, name: &str, head: &str, result: &v1::CheckoutResult) -> Outcome {
        let output = &mut session.output;
        let directory = result.directory.clone().unwrap_or_default();
        let counts = json!({
            "workspace": name,
            "written": result.written,
            "removed": result.removed,
            "bytes": result.bytes,
            "safety": lines::snapshot_id(result.safety.as_ref()),
            "git_kept": result.git_kept,
            "conflicts": result.conflicts.as_ref().map_or(0, |conflicts| conflicts.count),
        });
        output.emit(&lines::with_path(lines::line("checkout_again", counts), &directory.path))?;
        let removed = match result.removed {
            0 => String::new(),
            number => format!(", {} removed", text::count(number)),
        };
        let written = format!("{} ({}{removed})", text::plural(result.written, "path"), text::bytes(result.bytes));
        let path = text::path(&directory.path).into_owned();
        output.done(format!("{path}: {written}, workspace {} is back", paint(style::WORKSPACE, name)))?;
        if let Some(safety) = &result.safety {
            let id = paint(style::ID, text::short(&safety.name));
            output.remark(format!("what was in it is kept in {id}; `amalgam undo` brings that back"))?;
        }
        if result.git_kept {
            let head = text::short(head);
            output.remark(format!(
                "the .git that was in it was left alone; `amalgam restore {head} --with-git` brings back the one of {name}"
            ))?;
        }
        if std::env::current_dir().is_err() {
            output.remark("your shell is still in the removed directory: `cd .` moves it to the new one")?;
        }
        conflicts::say(output, result.conflicts.as_ref())?;
        report_notices(output, &result.notices)
    }
}

/// Prints the result of a checkout.
pub fn report(output: &mut Output, path: &Path, workspace: Option<&str>, result: &v1::CheckoutResult) -> Outcome {
    let directory = result.directory.clone().unwrap_or_default();
    let counts = json!({
        "workspace": workspace,
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
    let written = format!("{} ({}{cloned}{shared})", text::plural(result.written, "path"), text::bytes(result.bytes));
    let belongs = match workspace {
        Some(name) => format!(", workspace {}", paint(style::WORKSPACE, name)),
        None => String::new(),
    };
    output.done(format!("{}: {written}{belongs}", text::path(shown)))?;
    conflicts::say(output, result.conflicts.as_ref())?;
    warn(output, &result.warnings)?;
    report_notices(output, &result.notices)
}

/// Creates a workspace at a snapshot, unless it exists with that head. Refuses an existing workspace with another head.
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

/// The options of a checkout.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The path of the directory on the host.
    pub path: &'a Path,
    /// The revision.
    pub revision: &'a str,
    /// The resource name of the workspace that `@` stands for; empty for none.
    pub workspace: &'a str,
    /// The name of the workspace to attach the directory to, without `workspaces/`; empty for none.
    pub attach: &'a str,
    /// The resource name of a directory to clone files from; empty for none.
    pub source: &'a str,
    /// How conflicts are written; empty for the default.
    pub conflicts: &'a str,
    /// Whether the files are made read-only.
    pub read_only: bool,
    /// Whether set-ID bits, capabilities and devices of a received or imported tree are written.
    pub set_id: bool,
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
        set_id: target.set_id,
        ..Default::default()
    };
    drive(output, client.directories.checkout_directory(request)).await
}
