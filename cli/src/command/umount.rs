//! `amalgam umount`: takes mounts away.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use amalgam_proto::v1;
use clap::Args;
use tonic::codegen::Bytes;

use super::mount::{is_path, json_line};
use super::mounts::mounts;
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::session::{Session, workspace_name};
use crate::text;

/// Unmount a directory, or all mounts of a workspace
#[derive(Debug, Args)]
#[command(after_help = "\
What is not committed stays in the workspace and is there again with the next mount. A mount that somebody uses is refused; with
--lazy it disappears at once, and whoever has files open in it goes on with them.

Examples:
  amalgam umount ../try-2
  amalgam umount try-2
  amalgam umount --lazy ../try-2")]
pub struct Umount {
    /// The directory, or the workspace
    #[arg(value_name = "DIR|WORKSPACE")]
    what: OsString,
    /// Unmount even if it is in use
    #[arg(short, long, visible_alias = "force")]
    lazy: bool,
}

/// Unmounts a path, in use or not.
pub async fn unmount(client: &mut Client, path: &Path) -> Result<(), CliError> {
    let path = Bytes::copy_from_slice(path.as_os_str().as_bytes());
    let target = Some(v1::unmount_request::Target::Path(path));
    client.mounts.unmount(v1::UnmountRequest { target, lazy: true }).await?;
    Ok(())
}

impl Umount {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let target = self.target(session, &mut client).await?;
        let request = v1::UnmountRequest { target: Some(target), lazy: self.lazy };
        let done = client.mounts.unmount(request).await?.into_inner();
        for mount in &done.mounts {
            session.output.emit(&json_line("umount", mount))?;
            session.output.done(format!("{} is unmounted", text::path(&mount.path)))?;
        }
        for workspace in &done.uncommitted {
            let name = text::id(&workspace.name);
            session.output.remark(format!(
                "{name} has uncommitted changes; they are kept, and `amalgam mount {name} DIR` shows them again"
            ))?;
        }
        Ok(Exit::OK)
    }

    /// A word that is a mount's path is that, whatever workspace has the same name.
    async fn target(&self, session: &Session, client: &mut Client) -> Result<v1::unmount_request::Target, CliError> {
        use v1::unmount_request::Target;
        let path = session.host_path(&self.what);
        let path = Bytes::copy_from_slice(path.as_os_str().as_bytes());
        let is_mount = mounts(client).await?.0.iter().any(|mount| mount.path == path);
        match self.what.to_str() {
            Some(name) if !is_mount && !is_path(&self.what) => Ok(Target::Workspace(workspace_name(name))),
            _ => Ok(Target::Path(path)),
        }
    }
}
