//! Which directory belongs to which workspace.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use amalgam_proto::{Reason, v1};
use clap::Args;
use tonic::codegen::Bytes;

use crate::command::init::confirm_wide;
use crate::command::workspaces::workspace;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json;
use crate::output::progress::drive;
use crate::output::style::{self, paint};
use crate::session::{Session, missing_field, workspace_name};
use crate::text;

/// Attach a directory to a workspace, without taking a snapshot
#[derive(Debug, Args)]
#[command(after_help = "\
The command also makes Amalgam accept a directory of a workspace that was moved, or replaced by a copy.

Examples:
  amalgam ws attach                    in a directory that was moved
  amalgam ws attach --workspace main
  amalgam ws attach ~/copy --workspace main --again")]
pub struct Attach {
    /// The directory [default: the current one]
    dir: Option<OsString>,
    /// The workspace [default: the previous workspace of the directory, or a new one named after the directory]
    #[arg(short, long, value_name = "NAME")]
    workspace: Option<String>,
    /// Leave out paths that match this pattern, as a line of .amalgamignore does; repeatable
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Attach the directory even if the workspace has another one, which it replaces
    #[arg(long, requires = "workspace")]
    again: bool,
    /// Do not ask, even if the directory is or contains the home directory
    #[arg(short, long)]
    yes: bool,
}

impl Attach {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let path = session.host_path(self.dir.as_deref().unwrap_or(".".as_ref()));
        confirm_wide(session, &path, self.yes).await?;
        let mut client = session.client_of_new_store().await?;
        let request = v1::AttachDirectoryRequest {
            path: Bytes::copy_from_slice(path.as_os_str().as_bytes()),
            again: self.again || self.workspace.is_none(),
            workspace_id: self.workspace.unwrap_or_default(),
            exclude: self.exclude,
            ..Default::default()
        };
        let attached = match client.directories.attach_directory(request.clone()).await.map_err(CliError::from) {
            // The directory belongs to no workspace yet.
            Err(error) if error.is(Reason::NoDirectory) && !self.again => {
                let mut exclude = session.config.list("exclude");
                exclude.extend(request.exclude);
                let request = v1::AttachDirectoryRequest { again: false, exclude, ..request };
                client.directories.attach_directory(request).await?
            }
            other => other?,
        };
        let attached = attached.into_inner();
        let directory = attached.directory.ok_or_else(|| missing_field("directory"))?;
        let head = attached.workspace.unwrap_or_default().head;
        session.output.emit(&json::directory(&directory))?;
        let name = text::id(&directory.workspace).to_owned();
        let workspace = paint(style::WORKSPACE, &name);
        session.output.done(format!("{} belongs to {workspace}", text::path(&directory.path)))?;
        if head.is_empty() || !directory.snapshot.is_empty() {
            session.output.remark("`amalgam commit` takes a snapshot of it")?;
            return Ok(Exit::OK);
        }
        // The comparison also makes the head the last snapshot of a directory that has the same files.
        let request = v1::DetectChangesRequest { name: directory.name, parts: true };
        let status = drive(&session.output, client.directories.detect_changes(request)).await?;
        let differing = status.modified.len() + status.added.len() + status.deleted.len();
        session.output.remark(match differing {
            0 => format!("its files are those of {}", text::short(&head)),
            _ => format!(
                "{} from {}: `amalgam status` lists them, `amalgam restore @` writes the files of {name}",
                text::plural(differing as u64, "difference"),
                text::short(&head)
            ),
        })?;
        Ok(Exit::OK)
    }
}

/// Separate a directory from its workspace; both stay
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam ws detach\n  amalgam ws detach try-2")]
pub struct Detach {
    /// The workspace [default: the one of this directory]
    name: Option<String>,
}

impl Detach {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let directories = match self.name {
            Some(name) => workspace(&mut client, &workspace_name(&name)).await?.directories,
            None => {
                let directory = session.attached_directory().await?.directory;
                vec![v1::WorkspaceDirectory { name: directory.name, path: directory.path }]
            }
        };
        for directory in &directories {
            let request = v1::DetachDirectoryRequest { name: directory.name.clone(), ..Default::default() };
            client.directories.detach_directory(request).await?;
            let line = json::line("detached", serde_json::json!({"id": text::id(&directory.name)}));
            session.output.emit(&json::with_path(line, &directory.path))?;
            session.output.done(format!("{} no longer belongs to a workspace", text::path(&directory.path)))?;
        }
        if directories.is_empty() {
            session.output.remark("the workspace has no directory")?;
        }
        Ok(Exit::OK)
    }
}
