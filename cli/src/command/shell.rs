//! `amalgam shell`: a terminal in a sandbox.

use std::collections::HashMap;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::time::{Duration, Instant};

use amalgam_proto::v1;
use amalgam_proto::v1::sandbox_service_client::SandboxServiceClient;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tonic::codegen::Bytes;

use super::command_output::is_broken;
use super::sandbox_calls::{SandboxCalls, failure, secrets, variables, working_directory};
use crate::connect::CallerChannel;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::raw_mode::{RawMode, window_size};
use crate::session::Session;

/// Bytes of input that one call sends.
const INPUT_BYTES: usize = 4 << 10;
/// Most blocks of input that wait to be sent.
const INPUT_QUEUE: usize = 64;
/// Delay before a broken connection is retried; it doubles up to the maximum.
const RETRY_DELAY_MIN: Duration = Duration::from_secs(1);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(30);
/// Time after which a connection that cannot be restored is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(120);

/// Open a terminal in a sandbox
///
/// The terminal follows the size of this one, and ends with the exit code of its shell. If the connection breaks, the shell goes on, and
/// the terminal comes back with the output that came meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "\
A terminal whose window was closed goes on; `amalgam attach SANDBOX pty-...` comes back to it.

Examples:
  amalgam shell try
  amalgam shell try --shell /bin/sh --cwd src")]
pub struct Shell {
    /// The sandbox: its id or its name
    sandbox: String,
    /// The shell [default: /bin/bash, or /bin/sh where there is none]
    #[arg(long, value_name = "PROGRAM", default_value = "", hide_default_value = true)]
    shell: String,
    /// The working directory, absolute or below /workspace
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true)]
    cwd: String,
    /// An environment variable: NAME=VALUE, or NAME alone to pass on its local value; repeatable
    #[arg(short = 'e', long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// A secret: NAME for the value of the local environment variable, NAME=@FILE for the contents of a file; repeatable
    #[arg(long = "secret", value_name = "NAME[=@FILE]")]
    secrets: Vec<String>,
}

impl Shell {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        require_terminal()?;
        let mut calls = SandboxCalls::connect(session).await?;
        let sandbox_id = calls.id(&self.sandbox).await?;
        let (cols, rows) = window_size(io::stdin());
        let mut envs: HashMap<_, _> =
            std::env::var("TERM").ok().map(|term| ("TERM".to_owned(), term)).into_iter().collect();
        envs.extend(variables(&self.env)?);
        let request = v1::CreateTerminalRequest {
            sandbox_id: sandbox_id.clone(),
            cols: cols.into(),
            rows: rows.into(),
            shell: self.shell,
            cwd: working_directory(&self.cwd),
            envs,
            secrets: secrets(&self.secrets, &session.cwd)?,
            ..v1::CreateTerminalRequest::default()
        };
        let made = calls.client.create_terminal(request).await.map_err(failure)?.into_inner();
        Terminal { client: calls.client, sandbox_id, id: made.id, offset: 0 }.follow(session).await
    }
}

fn require_terminal() -> Result<(), CliError> {
    match io::stdin().is_terminal() && io::stdout().is_terminal() {
        true => Ok(()),
        false => Err(CliError::usage("standard input and output are no terminal")
            .hint("`amalgam exec SANDBOX -- CMD` runs a command without one")),
    }
}

/// A terminal of a sandbox that is attached to the terminal of this process.
pub struct Terminal {
    /// The client of the sandbox service.
    pub client: SandboxServiceClient<CallerChannel>,
    /// The id of the sandbox.
    pub sandbox_id: String,
    /// The id of the terminal.
    pub id: String,
    /// Offset of the next byte of output to show.
    pub offset: i64,
}

impl Terminal {
    /// Shows the terminal until its shell ends. Returns the exit code of the shell.
    pub async fn follow(mut self, session: &mut Session) -> Outcome {
        require_terminal()?;
        session.output.flush()?;
        // A closed window or a kill ends this program, but not the terminal in the sandbox.
        session.interrupts.say_instead("the terminal goes on in its sandbox; `amalgam attach` comes back to it");
        let mode = RawMode::enter(io::stdin()).map_err(|error| CliError::machine("the terminal", &error))?;
        let resizing = tokio::spawn(follow_size(self.client.clone(), self.sandbox_id.clone(), self.id.clone()));
        let typing = tokio::spawn(feed(self.client.clone(), self.sandbox_id.clone(), self.id.clone()));
        let ended = self.show().await;
        resizing.abort();
        typing.abort();
        drop(mode);
        ended
    }

    /// Writes the output to the screen until the shell ends, and reconnects if the connection breaks.
    async fn show(&mut self) -> Outcome {
        let (mut delay, mut lost): (_, Option<Instant>) = (RETRY_DELAY_MIN, None);
        loop {
            let request = v1::AttachTerminalRequest {
                sandbox_id: self.sandbox_id.clone(),
                pty_id: self.id.clone(),
                offset: self.offset,
            };
            let status = match self.client.attach_terminal(request).await {
                Ok(attached) => {
                    let mut events = attached.into_inner();
                    loop {
                        match events.message().await {
                            Ok(Some(event)) => {
                                (delay, lost) = (RETRY_DELAY_MIN, None);
                                self.offset = event.next_offset.max(self.offset);
                                if let Some(exit) = write(&event)? {
                                    return exit;
                                }
                            }
                            Ok(None) => break tonic::Status::unavailable("the stream ended"),
                            Err(status) => break status,
                        }
                    }
                }
                Err(status) => status,
            };
            let since = *lost.get_or_insert_with(Instant::now);
            if !is_broken(&status) || since.elapsed() > GIVE_UP_AFTER {
                return Err(failure(status));
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(RETRY_DELAY_MAX);
        }
    }
}

/// Writes one event. Returns the outcome if it is the last one.
fn write(event: &v1::AttachTerminalResponse) -> Result<Option<Outcome>, CliError> {
    match event.r#type.as_str() {
        "exit" => Ok(Some(Ok(Exit(u8::try_from(event.exit_code).unwrap_or(1))))),
        "error" => Ok(Some(Err(CliError::new(Exit::ERROR, "COMMAND_FAILED", event.message.as_str())))),
        _ => {
            // The bytes control the screen of the user on purpose, so they are not escaped.
            let mut screen = io::stdout();
            screen.write_all(&event.data)?;
            screen.flush()?;
            Ok(None)
        }
    }
}

/// Forwards standard input to the terminal of the sandbox.
async fn feed(mut client: SandboxServiceClient<CallerChannel>, sandbox_id: String, id: String) {
    let (send, mut typed) = mpsc::channel(INPUT_QUEUE);
    // Its own thread, because a read from standard input can block for hours.
    std::thread::spawn(move || {
        let mut block = vec![0; INPUT_BYTES];
        loop {
            match io::stdin().lock().read(&mut block) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return,
                Ok(read) => {
                    if send.blocking_send(Bytes::copy_from_slice(&block[..read])).is_err() {
                        return;
                    }
                }
            }
        }
    });
    while let Some(data) = typed.recv().await {
        let request = v1::WriteTerminalRequest { sandbox_id: sandbox_id.clone(), pty_id: id.clone(), data };
        // A failure is reported by the stream of output; keys that are typed while the connection is broken are lost.
        let _ = client.write_terminal(request).await;
    }
}

/// Resizes the terminal of the sandbox to the size of this one, now and after each change.
async fn follow_size(mut client: SandboxServiceClient<CallerChannel>, sandbox_id: String, id: String) {
    let Ok(mut changes) = signal(SignalKind::window_change()) else { return };
    loop {
        let (cols, rows) = window_size(io::stdin());
        let (cols, rows) = (cols.into(), rows.into());
        let request = v1::ResizeTerminalRequest { sandbox_id: sandbox_id.clone(), pty_id: id.clone(), cols, rows };
        // A resize that fails is repeated by the next change.
        let _ = client.resize_terminal(request).await;
        changes.recv().await;
    }
}
