//! `amalgam attach`: follows a command or a terminal of a sandbox.

use clap::Args;

use super::command_output::{CommandStream, follow};
use super::sandbox_calls::SandboxCalls;
use super::shell::Terminal;
use crate::error::Outcome;
use crate::session::Session;

/// Follow a command or a terminal of a sandbox
///
/// Prints the output of the command so far, then new output as it comes, and exits with the command's exit code.
/// Several clients can follow one command.
#[derive(Debug, Args)]
#[command(after_help = "\
The server keeps the last 8 MiB of the output of a command, and the last 64 commands that ended.

Examples:
  amalgam ps try
  amalgam attach try cmd-abcdefghijklmnop
  amalgam attach try cmd-abcdefghijklmnop --stdin < answers
  amalgam attach try pty-abcdefghijklmnop")]
pub struct Attach {
    /// The sandbox: its id or its name
    sandbox: String,
    /// The id of the command or the terminal
    id: String,
    /// Skip this many bytes of output
    #[arg(long, value_name = "BYTES", default_value_t = 0, hide_default_value = true)]
    offset: u32,
    /// Pass standard input on, to a command that was started with it
    #[arg(long)]
    stdin: bool,
}

impl Attach {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut calls = SandboxCalls::connect(session).await?;
        let (sandbox_id, offset) = (calls.id(&self.sandbox).await?, i64::from(self.offset));
        if self.id.starts_with("pty-") {
            return Terminal { client: calls.client, sandbox_id, id: self.id, offset }.follow(session).await;
        }
        let stream =
            CommandStream { client: calls.client, sandbox_id, command_id: self.id, offset, reads_stdin: self.stdin };
        follow(session, stream, None).await
    }
}
