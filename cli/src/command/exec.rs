//! `amalgam exec`: runs a command in a sandbox, with its input, output and exit code as if it ran here.

use std::ffi::OsString;

use amalgam_proto::v1;
use clap::Args;
use serde_json::json;

use super::command_output::{CommandStream, follow};
use super::sandbox_calls::{SandboxCalls, command_line, duration, failure, secrets, variables, working_directory};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::session::Session;

/// Run a command in a sandbox
///
/// Standard input, output and error are those of this command, and so is the exit code. Ctrl-C is sent to the command. If the connection
/// breaks, the command goes on and its output is read from where it ended.
#[derive(Debug, Args)]
#[command(after_help = "\
The command runs without a shell, with exactly these arguments; `sh -c '...'` runs a line in a shell. A
secret is a file in memory. The variable NAME_FILE has its path; it is removed when the command ends.

Examples:
  amalgam exec try -- make test
  amalgam exec try --cwd src -e CI=1 --timeout 10m -- sh -c 'make | tail'
  amalgam exec try --secret TOKEN -- sh -c 'deploy --token-file $TOKEN_FILE'
  tar c . | amalgam exec try -- tar x
  amalgam exec try --detach -- ./serve      prints the id for `amalgam attach`")]
pub struct Exec {
    /// The sandbox: its id or its name
    sandbox: String,
    /// An environment variable: NAME=VALUE, or NAME alone to pass on its local value; repeatable
    #[arg(short = 'e', long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// A secret: NAME for the value of the local environment variable, NAME=@FILE for the contents of a file; repeatable
    #[arg(long = "secret", value_name = "NAME[=@FILE]")]
    secrets: Vec<String>,
    /// The working directory, absolute or below /workspace
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true)]
    cwd: String,
    /// Kill the command and everything that it started after this time, such as 30s or 10m
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    /// Do not pass standard input on
    #[arg(long)]
    no_stdin: bool,
    /// Print the id of the command, and leave it running
    #[arg(long)]
    detach: bool,
    /// The command
    #[arg(value_name = "CMD", last = true, required = true)]
    command: Vec<OsString>,
}

impl Exec {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let timeout = self.timeout.as_deref().map(|text| duration("--timeout", text)).transpose()?;
        let request = v1::StreamCommandRequest {
            command: command_line(&self.command)?,
            cwd: working_directory(&self.cwd),
            envs: variables(&self.env)?,
            secrets: secrets(&self.secrets, &session.cwd)?,
            timeout: timeout.map(|time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX)),
            stdin_open: !self.no_stdin && !self.detach,
            binary: true,
            ..v1::StreamCommandRequest::default()
        };
        let mut calls = SandboxCalls::connect(session).await?;
        let request = v1::StreamCommandRequest { sandbox_id: calls.id(&self.sandbox).await?, ..request };
        let (sandbox_id, reads_stdin) = (request.sandbox_id.clone(), request.stdin_open);
        let mut events = calls.client.stream_command(request).await.map_err(failure)?.into_inner();
        let started = events.message().await.map_err(failure)?;
        let missing = || CliError::refused("the server did not name the command that it started");
        let command_id = started.ok_or_else(missing)?.command_id;
        if self.detach {
            let told = json!({"sandbox": sandbox_id, "command_id": command_id});
            session.output.emit(&lines::line("command_started", told))?;
            session.output.say(&command_id)?;
            return Ok(Exit::OK);
        }
        let stream = CommandStream { client: calls.client, sandbox_id, command_id, offset: 0, reads_stdin };
        follow(session, stream, Some(events)).await
    }
}
