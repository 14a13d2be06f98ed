//! `amalgam ps`: the commands of sandboxes.

use amalgam_proto::v1;
use clap::Args;
use serde_json::json;

use super::sandbox_calls::{SandboxCalls, failure};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::session::Session;
use crate::text;

/// List the commands of a sandbox, or those that run in all
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam ps
  amalgam ps try --all")]
pub struct Ps {
    /// The sandbox: its id or its name [default: all running ones]
    sandbox: Option<String>,
    /// List commands that have ended, too
    #[arg(long)]
    all: bool,
}

impl Ps {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut calls = SandboxCalls::connect(session).await?;
        let ids = match &self.sandbox {
            Some(word) => vec![calls.id(word).await?],
            None => calls.list("", "running").await?.into_iter().map(|sandbox| sandbox.id).collect(),
        };
        let mut is_empty = true;
        for id in ids {
            let request = v1::ListCommandsRequest { sandbox_id: id.clone() };
            let listed = match calls.client.list_commands(request).await {
                Ok(listed) => listed.into_inner(),
                // The sandbox ended after it was listed.
                Err(_) if self.sandbox.is_none() => continue,
                Err(status) => return Err(failure(status)),
            };
            for command in listed.commands.iter().filter(|command| command.running || self.all) {
                is_empty = false;
                tell(session, &id, command)?;
            }
        }
        if is_empty {
            session.output.remark("no command runs")?;
        }
        Ok(Exit::OK)
    }
}

fn tell(session: &mut Session, sandbox: &str, command: &v1::SandboxCommand) -> Result<(), CliError> {
    let exit_code = (!command.running).then_some(command.exit_code);
    let told = json!({
        "sandbox": sandbox,
        "command_id": command.command_id,
        "command": command.command,
        "running": command.running,
        "exit_code": exit_code,
        "started": lines::time(command.started_at.as_ref()),
        "output_bytes": command.output_bytes,
    });
    session.output.emit(&lines::line("sandbox_command", told))?;
    let state = exit_code.map_or("running".to_owned(), |code| format!("exit {code}"));
    let began = text::ago(text::timestamp(command.started_at.as_ref()), session.now);
    session.output.say(format!("{sandbox}  {}  {state}  {began}  {}", command.command_id, command.command))
}
