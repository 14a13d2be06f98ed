//! `amalgam run`: a command between two snapshots.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use amalgam_proto::{Reason, v1};
use amalgam_server::remove_tree;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use super::backend::{Backend, BackendArgs, Purpose};
use super::capture::{SnapshotInfo, capture, changed, report_notices};
use super::checkout::{Target, checkout};
use super::delete_directory::{Keep, delete_directory};
use super::enter::hex_of;
use super::follow::update_now;
use super::isolated_command::new_folder;
use super::mount::MountArgs;
use super::workspaces;
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::namespace::TOKEN_VARIABLE;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::{Session, workspace_name};
use crate::text;

/// Run a command, with a snapshot before and after it
#[derive(Debug, Args)]
#[command(after_help = "\
The command gets the terminal and Ctrl-C. `amalgam run` exits with the command's exit code, or with 128 plus the number
of the signal that ended it.

With --in the command runs in that workspace instead, whatever the current directory is. If the workspace has a
directory, the command runs there. Otherwise the workspace is mounted in a private mount namespace, always at the same
path; other processes do not see this mount, and it needs no privilege. Where mounting is not possible, the files are
written into a temporary directory. A workspace that follows a source is updated first. All options except --message
apply only with --in.

Examples:
  amalgam run -- make test
  amalgam run -m 'let the agent fix it' -- my-agent --task 17
  amalgam run --in try-2 -- make test
  amalgam run --in try-2 --local target -- cargo test")]
pub struct Run {
    /// The message of the snapshot after the command [default: the command]
    #[arg(short, long, value_name = "MESSAGE")]
    message: Option<String>,
    /// Run in this workspace
    #[arg(long = "in", value_name = "WORKSPACE")]
    inside: Option<String>,
    #[command(flatten)]
    options: MountArgs,
    #[command(flatten)]
    backend: BackendArgs,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Run {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let Some(workspace) = &self.inside else {
            self.options.refuse_local("without --in nothing is mounted")?;
            let directory = session.attached_directory().await?.directory.name;
            return self.between(session, &mut client, &directory, plain(&self.command)).await;
        };
        let found = workspaces::workspace(&mut client, &workspace_name(workspace)).await?;
        if found.following.is_some() {
            // A conflict is only reported; the command finds it in the files.
            update_now(session, &mut client, &found.name, true).await?;
        }
        if let Some(directory) = found.directories.first() {
            self.options.refuse_local("this workspace has a directory")?;
            let at = PathBuf::from(OsStr::from_bytes(&directory.path));
            let mut child = plain(&self.command);
            child.current_dir(&at).env("PWD", &at);
            self.backend.say(session, "checkout", "the workspace has a directory")?;
            return self.between(session, &mut client, &directory.name, child).await;
        }
        let chosen = self.backend.choose(session.home(), Purpose::Private)?;
        self.backend.say(session, chosen.word(), &chosen.why)?;
        match chosen.backend {
            Backend::Checkout => {
                self.options.refuse_local(&format!("files are written to the disk: {}", chosen.why))?;
                self.in_checkout(session, &mut client, workspace).await
            }
            _ => self.in_mount(session, &mut client, workspace).await,
        }
    }

    /// Runs the command in a private mount of the workspace, in its own mount namespace.
    async fn in_mount(&self, session: &mut Session, client: &mut Client, workspace: &str) -> Outcome {
        let request = v1::PrepareMountRequest {
            workspace: workspace_name(workspace),
            options: Some(self.options.message()),
            ..Default::default()
        };
        let prepared = client.mounts.prepare_mount(request).await?.into_inner();
        super::capture::warn(&mut session.output, &prepared.warnings)?;
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        let program = std::env::current_exe().map_err(|error| CliError::machine("find this program", &error))?;
        let mut child = Command::new(program);
        child.arg("enter").arg("--at").arg(path(&prepared.path)).arg("--socket").arg(path(&prepared.socket));
        for binding in &prepared.bindings {
            child.arg("--bind").arg(path(&binding.source)).arg(path(&binding.path));
        }
        child.args(self.options.allow_other.then_some("--allow-other")).arg("--").args(&self.command);
        child.env(TOKEN_VARIABLE, hex_of(&prepared.token));
        let outcome = self.between(session, client, &prepared.directory, child).await;
        // Unmounted before `run` ends, so that the next command can complete or remove the workspace.
        let target = Some(v1::unmount_request::Target::Token(prepared.token));
        let ended = client
            .mounts
            .unmount(v1::UnmountRequest { target, lazy: false, ..Default::default() })
            .await
            .map_err(CliError::from);
        match ended {
            Err(error) if error.is(Reason::MountBusy) => {
                session.output.remark(format!("{} {}", paint(style::FAINT, "amalgam:"), error.message))?;
                outcome
            }
            Err(error) => outcome.and(Err(error)),
            Ok(_) => outcome,
        }
    }

    /// Runs the command in a temporary checkout of the workspace.
    async fn in_checkout(&self, session: &mut Session, client: &mut Client, workspace: &str) -> Outcome {
        let folder = new_folder(session.home(), "run")?;
        let path = folder.join("tree");
        let revision = format!("{workspace}@");
        let target = Target {
            path: &path,
            revision: &revision,
            workspace: "",
            attach: workspace,
            source: "",
            conflicts: "",
            read_only: false,
            set_id: false,
        };
        let made = checkout(&session.output, client, &target).await?.directory.unwrap_or_default();
        let mut child = plain(&self.command);
        child.current_dir(&path).env("PWD", &path);
        let outcome = self.between(session, client, &made.name, child).await;
        delete_directory(&mut session.output, client, &made.name, Keep::Unsaved).await?;
        remove_tree(&folder).map_err(|error| CliError::machine(folder.display(), &error))?;
        outcome
    }

    /// Runs the command between two snapshots of a directory.
    async fn between(&self, session: &mut Session, client: &mut Client, directory: &str, child: Command) -> Outcome {
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        let line = words.join(" ");
        let before =
            capture(&session.output, client, directory, SnapshotInfo::message(format!("before: {line}"))).await?;
        report_notices(&mut session.output, &before.notices)?;
        session.output.flush()?;
        session.interrupts.leave_to_child(true);
        let status = run_child(child, &self.command[0]).await;
        session.interrupts.leave_to_child(false);
        let code = Exit::of_status(status?).0;
        let about = SnapshotInfo {
            message: self.message.clone().unwrap_or_else(|| line.clone()),
            metadata: HashMap::from([("command".to_owned(), line.clone()), ("exit_code".to_owned(), code.to_string())]),
            ..SnapshotInfo::default()
        };
        let after = capture(&session.output, client, directory, about).await?;
        let output = &mut session.output;
        output.emit(&lines::line(
            "run",
            json!({
                "exit_code": code,
                "before": lines::snapshot_id(before.snapshot.as_ref()),
                "after": lines::snapshot_id(after.snapshot.as_ref()),
                "changed": after.changed,
                "added": after.added,
                "modified": after.modified,
                "removed": after.removed,
                "in_git": after.in_git,
            }),
        ))?;
        let id = |snapshot: &Option<_>| snapshot.as_ref().map_or(String::new(), id_of);
        let words = if after.changed {
            let steps = format!("{} -> {}", id(&before.snapshot), id(&after.snapshot));
            let next = match &self.inside {
                None if after.in_git > 0 => {
                    let undo =
                        "`amalgam undo --with-git` takes it back, .git included; `amalgam undo` leaves .git alone";
                    format!("`amalgam diff @~ @` shows it, {undo}")
                }
                None => "`amalgam diff @~ @` shows it, `amalgam undo` takes it back".to_owned(),
                Some(workspace) => format!("`amalgam diff {workspace}@~ {workspace}@` shows it"),
            };
            format!("{steps}  {}; {next}", changed(&after))
        } else {
            "nothing changed".to_owned()
        };
        output.remark(format!("{} {words}", paint(style::FAINT, "amalgam:")))?;
        report_notices(output, &after.notices)?;
        Ok(Exit(code))
    }
}

fn plain(words: &[OsString]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env_remove(TOKEN_VARIABLE);
    command
}

fn id_of(snapshot: &v1::Snapshot) -> String {
    paint(style::ID, text::short(&snapshot.name))
}

async fn run_child(mut command: Command, word: &OsStr) -> Result<ExitStatus, CliError> {
    let failed = |error: io::Error| CliError::not_started(word, &error);
    let mut child = command.spawn().map_err(failed)?;
    let listen = |kind| signal(kind).map_err(|error| CliError::machine("could not listen for signals", &error));
    let mut asked_to_end = listen(SignalKind::terminate())?;
    let mut hung_up = listen(SignalKind::hangup())?;
    loop {
        // Ctrl-C reaches the child from the terminal; signals to this program alone are forwarded.
        let signal = tokio::select! {
            status = child.wait() => return status.map_err(failed),
            _ = asked_to_end.recv() => Signal::TERM,
            _ = hung_up.recv() => Signal::HUP,
        };
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(id) = id {
            // The child may have just ended.
            let _ = kill_process(id, signal);
        }
    }
}
