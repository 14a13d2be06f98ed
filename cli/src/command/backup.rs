//! `amalgam backup` and `amalgam restore-backup`: back a store or a server up into a directory, and restore it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use amalgam_proto::{Reason, v1};
use clap::Args;
use serde_json::json;
use tonic::codegen::Bytes;

use super::{receive, send, server_backup};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::progress::drive;
use crate::session::Session;

/// Back the whole store up into a directory, or a whole server
#[derive(Debug, Args)]
#[command(after_help = "\
The first backup writes everything, later ones only what is new. The store can be in use meanwhile, and everything is
verified as it is written. A backup does not contain settings, the operation log, and which directory belongs to which
workspace. With --data it is a backup of a server: its keys, settings and all projects, while it runs or not.

Examples:
  amalgam backup /mnt/disk/amalgam
  amalgam backup /mnt/disk/amalgam --verify
  amalgam backup /mnt/disk/server --data /srv/amalgam
  amalgam restore-backup /mnt/disk/amalgam --store ~/amalgam-again")]
pub struct Backup {
    /// The directory of the backup; created if it does not exist
    dir: OsString,
    /// Check the backup: restore it into a temporary store in DIR, and fail if anything is missing
    #[arg(long)]
    verify: bool,
    /// Back up the server with this data directory
    #[arg(long, value_name = "DATA")]
    data: Option<OsString>,
}

impl Backup {
    /// Returns whether the command backs up a server, not a store.
    pub fn is_of_server(&self) -> bool {
        self.data.is_some()
    }

    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let path = session.host_path(&self.dir);
        if let Some(data) = &self.data {
            session.interrupts.say("earlier parts of the backup are intact");
            let data = session.host_path(data);
            return server_backup::back_up(session, &data, &path, self.verify).await;
        }
        let mut client = session.client().await?;
        session.interrupts.say("earlier parts of the backup are intact");
        let directory = Bytes::copy_from_slice(path.as_os_str().as_bytes());
        let request = v1::BackUpStoreRequest { directory, verify: self.verify, ..Default::default() };
        let done = drive(&session.output, client.transfer.back_up_store(request)).await?;
        let sent = done.sent.unwrap_or_default();
        let mut line = send::json_line(&sent);
        line["type"] = json!("backup");
        line["part"] = json!(done.part);
        line["difference"] = json!(done.difference);
        line["operation"] = json!(done.operation);
        line["verified"] = json!(self.verify);
        session.output.emit(&line)?;
        let what = if done.difference { "what is new since the last one" } else { "everything" };
        session.output.done(format!("part {}, {what}: {}", done.part, send::words(&sent)))?;
        Ok(Exit::OK)
    }
}

/// Restore a backup into a new store, or a new server
#[derive(Debug, Args)]
#[command(after_help = "\
Queued merges are restored on hold: nothing is merged and no test runs before `amalgam queue release`. Objects and names
that violate the format are skipped and reported, and the command exits with 3.

Examples:
  amalgam restore-backup /mnt/disk/amalgam
  amalgam restore-backup /mnt/disk/amalgam --store ~/amalgam-again
  amalgam --store ~/amalgam-again verify --read-data
  amalgam restore-backup /mnt/disk/server --data /srv/amalgam-again")]
pub struct RestoreBackup {
    /// The directory that `amalgam backup` wrote
    dir: OsString,
    /// Restore the backup of a server into this new data directory
    #[arg(long, value_name = "DATA")]
    data: Option<OsString>,
}

impl RestoreBackup {
    /// Returns whether the command restores a server, not a store.
    pub fn is_of_server(&self) -> bool {
        self.data.is_some()
    }

    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let path = session.host_path(&self.dir);
        if let Some(data) = &self.data {
            session.interrupts.say("remove the new data directory, and run the command again");
            let data = session.host_path(data);
            return server_backup::restore(session, &path, &data).await;
        }
        if !path.join("BACKUP").is_file() {
            let message = format!("{} is not a backup", path.display());
            return Err(CliError::refused(message).hint("name the directory that `amalgam backup` wrote"));
        }
        let mut client = session.client_of_new_store().await?;
        session.interrupts.say("the new store is still empty; run the command again");
        let request = v1::RestoreBackupRequest {
            directory: Bytes::copy_from_slice(path.as_os_str().as_bytes()),
            ..Default::default()
        };
        let received = drive(&session.output, client.transfer.restore_backup(request)).await;
        let received = received.map_err(|error| match error.is(Reason::AlreadyExists) {
            true => error.hint("pass --store NEW"),
            false => error,
        })?;
        receive::report(&mut session.output, &received)?;
        Ok(if received.left_out.is_empty() { Exit::OK } else { Exit::PARTLY })
    }
}
