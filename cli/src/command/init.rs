//! `amalgam init`: makes a directory belong to a workspace and takes the first snapshot.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use amalgam_proto::{Reason, v1};
use clap::Args;
use tonic::Status;
use tonic::codegen::Bytes;

use super::capture::{self, SnapshotInfo};
use crate::error::{CliError, Outcome};
use crate::output::json;
use crate::output::style::{self, paint};
use crate::prompt::confirm;
use crate::session::{Session, missing_field};
use crate::text;

/// Protect a directory and take its first snapshot
#[derive(Debug, Args)]
#[command(after_help = "\
The directory becomes the directory of a new workspace: a line of snapshots with a name. Amalgam writes nothing into
the directory. Snapshots cover everything in it, build outputs and .git too, except what an
ignore pattern leaves out. The command asks before it protects your home directory or a directory that contains it.

Examples:
  amalgam init
  amalgam init ~/project --workspace main --exclude '*.iso'")]
pub struct Init {
    /// The directory [default: the current one]
    dir: Option<OsString>,
    /// The name of the new workspace [default: the name of the directory]
    #[arg(short, long, value_name = "NAME")]
    workspace: Option<String>,
    /// Leave out paths that match this pattern, as a line of .amalgamignore does; repeatable
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Do not ask, even if the directory is or contains the home directory
    #[arg(short, long)]
    yes: bool,
}

impl Init {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let path = session.host_path(self.dir.as_deref().unwrap_or(".".as_ref()));
        confirm_wide(session, &path, self.yes).await?;
        let mut client = session.client_of_new_store().await?;
        let mut exclude = session.config.list("exclude");
        exclude.extend(self.exclude);
        let request = v1::AttachDirectoryRequest {
            path: Bytes::copy_from_slice(path.as_os_str().as_bytes()),
            workspace_id: self.workspace.unwrap_or_default(),
            exclude,
            ..Default::default()
        };
        let attached = client.directories.attach_directory(request).await.map_err(known_already)?.into_inner();
        let directory = attached.directory.ok_or_else(|| missing_field("directory"))?;
        session.interrupts.say("the directory has no snapshot yet; `amalgam commit` takes the first one");
        let about = SnapshotInfo::message("first snapshot");
        let result = capture::capture(&session.output, &mut client, &directory.name, about).await?;
        let output = &mut session.output;
        output.emit(&json::directory(&directory))?;
        output.emit(&capture::json_line("commit", &result))?;
        let counts = result.counts.unwrap_or_default();
        output.done(format!(
            "{} is protected as {}: {}, {} in the store",
            text::path(&directory.path),
            paint(style::WORKSPACE, text::id(&directory.workspace)),
            capture::covered(&counts),
            text::bytes(result.stored_bytes),
        ))?;
        output.remark("`amalgam status` says what changed, `amalgam diff` shows it, `amalgam undo` takes it back")?;
        capture::report_notices(output, &result.notices)
    }
}

/// Asks before the home directory, or a directory that contains it, is protected: the user probably started the command in the
/// wrong place, and everything in it would be read and stored.
pub async fn confirm_wide(session: &mut Session, path: &Path, yes: bool) -> Result<(), CliError> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(|home| session.host_path(&home));
    let what = match home {
        _ if yes => return Ok(()),
        _ if path == Path::new("/") => "the whole file system",
        Some(home) if home == path => "your home directory",
        Some(home) if home.starts_with(path) => "a directory that contains your home directory",
        _ => return Ok(()),
    };
    let path = path.display();
    confirm(session, &format!("{path} is {what}: everything in it would be read and stored. Protect it?")).await
}

/// Adds a hint to the error about a directory that belongs to a workspace already. After an interrupted `init` it has no snapshot.
fn known_already(status: Status) -> CliError {
    let error = CliError::from(status);
    match error.is(Reason::AlreadyExists) && error.message.contains("belongs to workspace") {
        true => error.hint("`amalgam commit` takes a snapshot of it"),
        false => error,
    }
}
