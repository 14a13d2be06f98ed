//! `amalgam umount`: takes mounts away.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use amalgam_proto::{Reason, v1};
use clap::Args;
use tonic::codegen::Bytes;

use super::mount::{is_path, json_line};
use super::mounts::mounts;
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::session::{Session, workspace_name};
use crate::text;

/// Unmount a directory, all mounts of a workspace, or everything
#[derive(Debug, Args)]
#[command(after_help = "\
Uncommitted changes stay in the workspace, and the next mount shows them. The command refuses to unmount a directory
that a process uses; with --lazy the directory disappears at once, and processes that have files open in it can go on
using them.

Examples:
  amalgam umount ../try-2
  amalgam umount try-2
  amalgam umount --lazy ../try-2
  amalgam umount --all")]
pub struct Umount {
    /// The mount point, or the workspace
    #[arg(value_name = "DIR|WORKSPACE", required_unless_present = "all")]
    what: Option<OsString>,
    /// Unmount everything, except mounts of `run --in`, which end with their commands
    #[arg(long, conflicts_with = "what")]
    all: bool,
    /// Unmount even if a process uses the directory
    #[arg(short, long, visible_alias = "force")]
    lazy: bool,
}

/// Unmounts a path, even if it is in use (lazily).
pub async fn unmount(client: &mut Client, path: &Path) -> Result<(), CliError> {
    let path = Bytes::copy_from_slice(path.as_os_str().as_bytes());
    let target = Some(v1::unmount_request::Target::Path(path));
    client.mounts.unmount(v1::UnmountRequest { target, lazy: true, ..Default::default() }).await?;
    Ok(())
}

impl Umount {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        match &self.what {
            Some(what) => {
                let target = target(session, &mut client, what).await?;
                self.unmount(session, &mut client, target).await?;
                Ok(Exit::OK)
            }
            None => self.unmount_all(session, &mut client).await,
        }
    }

    /// Unmounts all mounts, and prints an error for each one that cannot be unmounted.
    async fn unmount_all(&self, session: &mut Session, client: &mut Client) -> Outcome {
        let mut exit = Exit::OK;
        let all = mounts(client).await?.0;
        let (private, all): (Vec<_>, Vec<_>) = all.into_iter().partition(|mount| mount.is_private);
        for mount in &all {
            let target = v1::unmount_request::Target::Name(mount.name.clone());
            match self.unmount(session, client, target).await {
                // The mount has just been removed.
                Err(error) if error.is(Reason::NotFound) => {}
                Err(error) => {
                    session.output.failure(&error);
                    exit = exit.or(error.exit);
                }
                Ok(()) => {}
            }
        }
        if all.is_empty() {
            session.output.remark("nothing is mounted")?;
        }
        for mount in &private {
            let name = text::id(&mount.workspace);
            session.output.remark(format!("the mount of {name} by `amalgam run --in` ends with its command"))?;
        }
        Ok(exit)
    }

    async fn unmount(
        &self,
        session: &mut Session,
        client: &mut Client,
        target: v1::unmount_request::Target,
    ) -> Result<(), CliError> {
        let request = v1::UnmountRequest { target: Some(target), lazy: self.lazy, ..Default::default() };
        let done = client.mounts.unmount(request).await?.into_inner();
        for mount in &done.mounts {
            session.output.emit(&json_line("umount", mount))?;
            session.output.done(format!("{} is unmounted", text::path(&mount.path)))?;
        }
        if done.mounts.is_empty() {
            session.output.done("nothing was mounted there any more; the message about it has ended")?;
        }
        for workspace in &done.uncommitted {
            let name = text::id(&workspace.name);
            session.output.remark(format!(
                "{name} has uncommitted changes; they are kept, and `amalgam mount {name} DIR` shows them again"
            ))?;
        }
        Ok(())
    }
}

/// Returns the path or the workspace that an argument names. The path of a mount goes before a workspace of the same name.
async fn target(session: &Session, client: &mut Client, what: &OsStr) -> Result<v1::unmount_request::Target, CliError> {
    use v1::unmount_request::Target;
    let path = session.host_path(what);
    let path = Bytes::copy_from_slice(path.as_os_str().as_bytes());
    let is_mount = mounts(client).await?.0.iter().any(|mount| mount.path == path);
    match what.to_str() {
        Some(name) if !is_mount && !is_path(what) => Ok(Target::Workspace(workspace_name(name))),
        _ => Ok(Target::Path(path)),
    }
}
