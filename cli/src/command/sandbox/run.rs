//! `amalgam sandbox run`: a command on a fork of a workspace, in a sandbox, merged and cleaned up.

use std::ffi::OsString;

use amalgam_proto::v1;
use clap::Args;
use serde_json::json;

use super::create::CreateOptions;
use crate::command::command_output::{CommandStream, follow};
use crate::command::merge::say_merge;
use crate::command::sandbox_calls::{SandboxCalls, command_line, duration, failure, secrets};
use crate::connect::{Client, now};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::session::{Session, missing_field, workspace_name};
use crate::text;

/// Run a command on a fork of a workspace, and merge its changes
///
/// Forks the workspace as it is now, starts a sandbox on the fork, runs the command, ends the sandbox, and, if the command ended with 0,
/// merges the fork into the workspace through its queue. The exit code is that of the command, or 5 if the merge needs a decision.
#[derive(Debug, Args)]
#[command(after_help = "\
The fork of a command that failed is deleted; `amalgam ws undelete` brings it back, and --keep keeps it.

Examples:
  amalgam sandbox run --from main -- make generate
  amalgam sandbox run --from main --no-merge --keep -- ./try.sh
  amalgam sandbox run --from main --timeout 10m -m 'Update the lock file' -- npm update")]
pub struct Run {
    /// The workspace to fork and to merge into
    #[arg(long, value_name = "WORKSPACE")]
    from: String,
    #[command(flatten)]
    options: CreateOptions,
    /// A secret: NAME for the value of the local environment variable, NAME=@FILE for the contents of a file; repeatable
    #[arg(long = "secret", value_name = "NAME[=@FILE]")]
    secrets: Vec<String>,
    /// Kill the command and everything that it started after this time, such as 30s or 10m
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    /// Do not merge
    #[arg(long)]
    no_merge: bool,
    /// Keep the fork where it is not merged
    #[arg(long)]
    keep: bool,
    /// The message of the merge [default: the command]
    #[arg(short, long, default_value = "", hide_default_value = true)]
    message: String,
    /// The command
    #[arg(value_name = "CMD", last = true, required = true)]
    command: Vec<OsString>,
}

impl Run {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let timeout = self.timeout.as_deref().map(|text| duration("--timeout", text)).transpose()?;
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        let message = if self.message.is_empty() { words.join(" ") } else { self.message.clone() };
        let request = v1::StreamCommandRequest {
            command: command_line(&self.command)?,
            secrets: secrets(&self.secrets, &session.cwd)?,
            timeout: timeout.map(|time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX)),
            stdin_open: true,
            binary: true,
            ..v1::StreamCommandRequest::default()
        };
        let create = self.options.request()?;
        let mut client = session.client().await?;
        let mut calls = SandboxCalls::connect(session).await?;
        let target = workspace_name(&self.from);
        let fork = fork(&mut client, &target, &self.from).await?;
        let ran =
            run_in(session, &mut calls, v1::CreateSandboxRequest { workspace: fork.clone(), ..create }, request).await;
        let is_good = matches!(ran, Ok(Exit::OK));
        let merged = match is_good && !self.no_merge {
            true => merge(session, &mut client, &fork, &target, message).await.map(Some),
            false => Ok(None),
        };
        let (exit, is_merged) = match (&ran, &merged) {
            (Ok(exit), Ok(Some((merged, is_ended)))) => (exit.or(*merged), *is_ended),
            (Ok(exit), _) => (*exit, false),
            (Err(error), _) => (error.exit, false),
        };
        // A merge that waits for a decision needs its workspace.
        let is_kept = !is_merged && (self.keep || matches!(merged, Ok(Some(_)) | Err(_)));
        if !is_merged && !is_kept {
            let request = v1::DeleteWorkspaceRequest { name: fork.clone(), ..v1::DeleteWorkspaceRequest::default() };
            client.workspaces.delete_workspace(request).await?;
        }
        let name = text::id(&fork);
        let told = json!({"exit_code": exit.0, "workspace": name, "merged": is_merged, "kept": is_kept});
        session.output.emit(&lines::line("sandbox_run", told))?;
        if is_kept {
            session.output.remark(format!("its work is in workspace {name}"))?;
        } else if !is_merged && !is_good {
            session.output.remark(format!("its work was not merged; `amalgam ws undelete {name}` brings it back"))?;
        }
        merged?;
        ran.map(|_| exit)
    }
}

/// Forks a workspace with its uncommitted work. Returns the name of the fork.
async fn fork(client: &mut Client, target: &str, name: &str) -> Result<String, CliError> {
    let request = v1::ForkWorkspaceRequest {
        name: target.to_owned(),
        workspace_ids: vec![format!("{name}-run-{:x}", now().0)],
        target: target.to_owned(),
        ..v1::ForkWorkspaceRequest::default()
    };
    let forked = client.workspaces.fork_workspace(request).await?.into_inner();
    let fork = forked.workspaces.into_iter().next().ok_or_else(|| missing_field("workspace"))?;
    Ok(fork.name)
}

/// Runs a command in a new sandbox, and deletes the sandbox, which commits the changes of the command.
async fn run_in(
    session: &mut Session,
    calls: &mut SandboxCalls,
    create: v1::CreateSandboxRequest,
    request: v1::StreamCommandRequest,
) -> Outcome {
    let made = calls.client.create_sandbox(create).await.map_err(failure)?.into_inner();
    let id = made.sandbox.unwrap_or_default().id;
    let ran = run_command(session, calls, v1::StreamCommandRequest { sandbox_id: id.clone(), ..request }).await;
    // The fork was not made by the sandbox, so it stays; the home of the sandbox is deleted.
    let request = v1::DeleteSandboxRequest { id, keep_workspace: false };
    let ended = calls.client.delete_sandbox(request).await.map_err(failure);
    let exit = ran?;
    ended.map(|_| exit)
}

async fn run_command(session: &mut Session, calls: &mut SandboxCalls, request: v1::StreamCommandRequest) -> Outcome {
    let sandbox_id = request.sandbox_id.clone();
    let mut events = calls.client.stream_command(request).await.map_err(failure)?.into_inner();
    let started = events.message().await.map_err(failure)?;
    let command_id = started.ok_or_else(|| missing_field("command"))?.command_id;
    let client = calls.client.clone();
    let stream = CommandStream { client, sandbox_id, command_id, offset: 0, reads_stdin: true };
    follow(session, stream, Some(events)).await
}

/// Merges a fork into its target and removes the fork. Returns the exit code of the merge, and whether the fork was removed.
async fn merge(
    session: &mut Session,
    client: &mut Client,
    fork: &str,
    target: &str,
    message: String,
) -> Result<(Exit, bool), CliError> {
    let submission = v1::Submission {
        workspace: fork.to_owned(),
        target: target.to_owned(),
        message,
        capture: session.server().is_none(),
        ..v1::Submission::default()
    };
    let request = v1::CompleteWorkspaceRequest { submission: Some(submission), request_id: String::new() };
    let done = client.merges.complete_workspace(request).await?.into_inner();
    let exit = say_merge(&mut session.output, &done.merge.ok_or_else(|| missing_field("merge"))?, false)?;
    Ok((exit, done.ended))
}
