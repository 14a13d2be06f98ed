//! `amalgam mount`: a workspace or a snapshot as a file system.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use amalgam_proto::{Reason, v1};
use clap::{Args, ValueEnum};
use serde_json::json;
use tonic::codegen::Bytes;

use super::backend::{Backend, BackendArgs};
use super::export_nfs::ExportedTree;
use super::mount_nfs::mount_nfs;
use super::workspaces::workspace;
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::{Session, current_workspace, missing_field, workspace_name};
use crate::text;

/// Mount a workspace or a snapshot at a directory
#[derive(Debug, Args)]
#[command(after_help = "\
A workspace is mounted read-write. No file is copied: files are read from the store on demand. All commands work in the
mount as in a directory. Uncommitted changes survive `umount` and a crash, and the next mount shows them. A snapshot is
mounted read-only.

A directory that --local names is stored on the disk of the store and is as fast as that disk. It is in no snapshot,
diff or status. It survives umount and mount, and is removed with the workspace. `amalgam config set mount.local PATH...`
makes paths local in every mount.

Examples:
  amalgam mount try-2 ../try-2
  amalgam mount @~3 /tmp/three-back    a snapshot, read-only
  amalgam mount main ../live --follow  read-only, always the last snapshot of main
  amalgam mount notes ../notes --create
  amalgam mount try-2 ../try-2 --local target --local web/node_modules")]
pub struct Mount {
    /// The workspace, or the revision of a snapshot
    #[arg(value_name = "WORKSPACE|REV")]
    what: String,
    /// The mount point; it must be empty, or not exist yet
    dir: OsString,
    #[command(flatten)]
    options: MountArgs,
    /// Mount the last snapshot of the workspace, read-only
    #[arg(long)]
    read_only: bool,
    /// Mount read-only and follow the workspace: each new snapshot appears at once
    #[arg(long)]
    follow: bool,
    /// Create an empty workspace if it does not exist
    #[arg(long, conflicts_with_all = ["read_only", "follow"])]
    create: bool,
    /// The file system of the kernel that shows the files
    #[arg(long, value_name = "HOW", default_value = "fuse")]
    backend: MountBackend,
}

/// File systems of the kernel that can show a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MountBackend {
    /// FUSE, without privilege
    Fuse,
    /// The NFS client, which only root can mount: exports the workspace to this machine first (see `amalgam export nfs`)
    Nfs,
}

/// Options of a mount.
#[derive(Clone, Debug, Default, Args)]
pub struct MountArgs {
    /// Give other users access; needs root, or `user_allow_other` in /etc/fuse.conf
    #[arg(long)]
    pub allow_other: bool,
    /// Enable the kernel's write-back cache: faster for many small writes, but cached writes are in no snapshot and are lost in a crash
    #[arg(long)]
    pub writeback: bool,
    /// Number of worker threads for slow requests, at most 64 [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: Option<u32>,
    /// Keep this directory (from the root of the workspace) on the local disk and out of snapshots; repeatable
    #[arg(long, value_name = "PATH")]
    pub local: Vec<OsString>,
}

impl MountArgs {
    /// Converts the options to the message of the API.
    pub fn message(&self) -> v1::MountOptions {
        v1::MountOptions {
            allow_other: self.allow_other,
            writeback: self.writeback,
            threads: self.threads.unwrap_or(0),
            local: self.local.iter().map(|path| Bytes::copy_from_slice(without_slash(path.as_bytes()))).collect(),
            ..v1::MountOptions::default()
        }
    }

    /// Returns the first given option that has an effect only in a mount, or `None` if there is none.
    pub fn given(&self) -> Option<&'static str> {
        let given = [
            (self.allow_other, "--allow-other"),
            (self.writeback, "--writeback"),
            (self.threads.is_some(), "--threads"),
            (!self.local.is_empty(), "--local"),
        ];
        given.into_iter().find_map(|(is_given, option)| is_given.then_some(option))
    }

    /// Refuses `--local` where nothing is mounted, because the paths would get into snapshots.
    pub fn refuse_local(&self, why: &str) -> Result<(), CliError> {
        if self.local.is_empty() {
            return Ok(());
        }
        Err(CliError::usage(format!("--local works only in a mount: {why}"))
            .hint("leave it out; in a directory .amalgamignore keeps paths out of snapshots"))
    }
}

impl Mount {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = if self.create { session.client_of_new_store().await? } else { session.client().await? };
        let request = self.request(session, &mut client).await?;
        if self.backend == MountBackend::Nfs {
            if let Some(option) = self.options.given() {
                return Err(CliError::usage(format!("{option} works only with --backend fuse")));
            }
            let tree =
                ExportedTree { mode: request.mode(), workspace: request.workspace.clone(), revision: request.revision };
            return mount_nfs(session, &mut client, &tree, &session.host_path(&self.dir)).await;
        }
        let done = client.mounts.mount(request).await?.into_inner();
        let mount = done.mount.ok_or_else(|| missing_field("mount"))?;
        let mut line = json_line("mount", &mount);
        line["recovered_edits"] = json!(done.recovered_edits);
        line["warnings"] = json!(done.warnings);
        session.output.emit(&line)?;
        session.output.done(format!("{}: {}", text::path(&mount.path), words(&mount)))?;
        if done.recovered_edits > 0 {
            let edits = text::plural(done.recovered_edits, "change");
            let (back, them) =
                (if done.recovered_edits == 1 { "is back" } else { "are back" }, text::them(done.recovered_edits));
            session.output.remark(format!("{edits} without a commit {back}; `amalgam diff` shows {them}"))?;
        }
        super::capture::warn(&mut session.output, &done.warnings)?;
        Ok(Exit::OK)
    }

    async fn request(&self, session: &mut Session, client: &mut Client) -> Result<v1::MountRequest, CliError> {
        let path = session.host_path(&self.dir);
        let options = Some(self.options.message());
        let path = Bytes::copy_from_slice(path.as_os_str().as_bytes());
        let name = workspace_name(&self.what);
        let is_workspace = match workspace(client, &name).await {
            Ok(_) => true,
            Err(error) if error.is(Reason::NotFound) && self.create => {
                let request = v1::CreateWorkspaceRequest { workspace_id: self.what.clone(), ..Default::default() };
                client.workspaces.create_workspace(request).await?;
                true
            }
            Err(error) if error.is(Reason::NotFound) && self.follow => return Err(error),
            Err(error) if error.is(Reason::Invalid) && self.follow => {
                return Err(CliError::usage(format!("--follow needs a workspace, and `{}` is a snapshot", self.what)));
            }
            Err(error) if error.is(Reason::NotFound) || error.is(Reason::Invalid) => false,
            Err(error) => return Err(error),
        };
        let mode = match is_workspace {
            true if self.follow => v1::MountMode::Follow,
            true if !self.read_only => v1::MountMode::ReadWrite,
            _ => v1::MountMode::Snapshot,
        };
        if mode != v1::MountMode::Snapshot {
            return Ok(v1::MountRequest { path, mode: mode.into(), workspace: name, options, ..Default::default() });
        }
        let (workspace, revision) = match is_workspace {
            true => (String::new(), format!("{}@", self.what)),
            false => (current_workspace(session.attached_directory_if_any().await?.as_ref()), self.what.clone()),
        };
        Ok(v1::MountRequest { path, mode: mode.into(), workspace, revision, options, ..Default::default() })
    }
}

/// Strips the trailing slash that shell completion appends to a directory; `/` stays.
fn without_slash(path: &[u8]) -> &[u8] {
    match path {
        [rest @ .., b'/'] if !rest.is_empty() => rest,
        path => path,
    }
}

/// Mounts a workspace, writable.
async fn mount(
    client: &mut Client,
    workspace: &str,
    path: &Path,
    options: &MountArgs,
) -> Result<v1::MountPoint, CliError> {
    let request = v1::MountRequest {
        path: Bytes::copy_from_slice(path.as_os_str().as_bytes()),
        mode: v1::MountMode::ReadWrite.into(),
        workspace: workspace_name(workspace),
        options: Some(options.message()),
        ..Default::default()
    };
    client.mounts.mount(request).await?.into_inner().mount.ok_or_else(|| missing_field("mount"))
}

/// Mounts a workspace. Returns `None` if that is refused and the backend allows writing the files instead.
pub async fn mount_or_else(
    output: &mut Output,
    client: &mut Client,
    workspace: &str,
    path: &Path,
    options: &MountArgs,
    backend: &BackendArgs,
) -> Result<Option<v1::MountPoint>, CliError> {
    match mount(client, workspace, path, options).await {
        Ok(mount) => Ok(Some(mount)),
        Err(error) if error.is(Reason::MountRefused) && backend.backend == Backend::Auto => {
            options.refuse_local(&format!("mounting is not possible: {}", error.message))?;
            output.remark(format!("{}; the files are written out instead", error.message))?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns the JSON word for the mode of a mount.
pub fn mode_word(mount: &v1::MountPoint) -> &'static str {
    match mount.mode() {
        v1::MountMode::Snapshot => "snapshot",
        v1::MountMode::Follow => "follow",
        v1::MountMode::ReadWrite | v1::MountMode::Unspecified => "read_write",
    }
}

/// Describes the contents of a mount.
pub fn words(mount: &v1::MountPoint) -> String {
    let at = match mount.snapshot.as_str() {
        "" => "no snapshot yet".to_owned(),
        name => format!("at {}", paint(style::ID, text::short(name))),
    };
    let workspace = paint(style::WORKSPACE, text::id(&mount.workspace));
    let mut words = match mount.mode() {
        v1::MountMode::Snapshot => format!("snapshot {}, read-only", paint(style::ID, text::short(&mount.snapshot))),
        v1::MountMode::Follow => format!("what {workspace} holds, {at}, read-only"),
        v1::MountMode::ReadWrite | v1::MountMode::Unspecified => format!("{workspace} {at}"),
    };
    for (holds, word) in [
        (mount.uncommitted, ", uncommitted changes"),
        (mount.is_private, ", in a namespace of its own"),
        (mount.leaving, ", goes when its last file is closed"),
    ] {
        if holds {
            words.push_str(word);
        }
    }
    if !mount.local.is_empty() {
        let paths: Vec<_> = mount.local.iter().map(|path| text::path(path)).collect();
        words.push_str(&format!(", local: {}", paths.join(" ")));
    }
    words
}

/// Returns the JSON line of a mount.
pub fn json_line(kind: &str, mount: &v1::MountPoint) -> serde_json::Value {
    let workspace = (!mount.workspace.is_empty()).then(|| text::id(&mount.workspace));
    let snapshot = (!mount.snapshot.is_empty()).then(|| text::id(&mount.snapshot));
    let line = lines::line(
        kind,
        json!({
            "mode": mode_word(mount),
            "workspace": workspace,
            "snapshot": snapshot,
            "uncommitted": mount.uncommitted,
            "private": mount.is_private,
            "leaving": mount.leaving,
            "local": mount.local.iter().map(|path| text::path(path)).collect::<Vec<_>>(),
            "mount_time": lines::time(mount.mount_time.as_ref()),
        }),
    );
    lines::with_path(line, &mount.path)
}

/// Returns whether an argument is a path rather than a workspace: it begins with `/` or `.`.
pub fn is_path(word: &OsStr) -> bool {
    let bytes = word.as_bytes();
    bytes.starts_with(b"/") || bytes.starts_with(b".")
}
