//! `amalgam hooks`: installs hooks into coding agents, and answers them.

use std::env;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;

use amalgam_engine::ChunkId;
use clap::{Args, Subcommand};
use serde_json::json;

use super::capture::{self, SnapshotInfo};
use crate::connect::runtime_directory;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::hooks::agents::Agent;
use crate::hooks::payload::{Event, Payload};
use crate::output::json as lines;
use crate::program_name::program_name;
use crate::session::Session;

/// Maximum bytes of a payload that are read: a tool call can contain whole files.
const PAYLOAD_BYTES_MAX: u64 = 64 << 20;
/// Maximum bytes of a prompt that are remembered.
const PROMPT_BYTES_MAX: usize = 1_000;

/// Let a coding agent take snapshots before and after each of its tool calls
#[derive(Debug, Args)]
#[command(after_help = "\
The agent runs the hooks itself. Snapshots are taken only in directories that `amalgam init`
protects; they are named after the prompt and the tool, and are automatic: retention thins them.
`amalgam log --agent` lists them, `amalgam restore REV` goes back to one.

Examples:
  amalgam hooks install claude         into .claude/settings.json of this project
  amalgam hooks install gemini --user  for all projects of this user
  amalgam hooks install claude --remove")]
pub struct Hooks {
    #[command(subcommand)]
    command: HooksCommand,
}

#[derive(Debug, Subcommand)]
enum HooksCommand {
    Install(Install),
    #[command(hide = true)]
    Record(Record),
}

/// Add the hooks to the configuration of an agent
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam hooks install codex
  amalgam hooks install claude --user
  amalgam hooks install claude --print")]
struct Install {
    /// The agent
    agent: Agent,
    /// Remove the hooks from the configuration
    #[arg(long)]
    remove: bool,
    /// For all projects of this user, instead of this directory
    #[arg(long)]
    user: bool,
    /// Print the text for the configuration, change nothing
    #[arg(long, conflicts_with = "remove")]
    print: bool,
}

/// Answer a hook: read what the agent tells, take a snapshot
#[derive(Debug, Args)]
struct Record {
    /// The agent
    agent: Agent,
}

impl Hooks {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self.command {
            HooksCommand::Install(install) => install.run(session),
            HooksCommand::Record(record) => record.run(session).await,
        }
    }
}

impl Install {
    fn run(self, session: &mut Session) -> Outcome {
        let program = program_name()?;
        if self.print {
            session.output.say(self.agent.snippet(&program))?;
            return Ok(Exit::OK);
        }
        let home = || env::var_os("HOME").map(PathBuf::from).ok_or_else(|| CliError::usage("HOME is not set"));
        let root = if self.user { home()? } else { session.cwd.clone() };
        let file = self.agent.file(&root);
        let shown = file.display().to_string();
        let (action, words) = if self.remove {
            match self.agent.remove(&file)? {
                true => ("removed", format!("took the hooks out of {shown}")),
                false => ("absent", format!("{shown} has no hooks of amalgam")),
            }
        } else {
            self.agent.install(&file, &program)?;
            ("added", format!("entered hooks into {shown}; they work in directories that `amalgam init` protects"))
        };
        session.output.emit(&lines::line("client_configuration", json!({"path": shown, "action": action})))?;
        session.output.done(words)?;
        if self.agent == Agent::Codex && !self.remove {
            session.output.remark("Codex asks once whether these hooks may run; confirm that in Codex")?;
        }
        Ok(Exit::OK)
    }
}

impl Record {
    /// Answers the hook. Returns [`Exit::OK`] also after a failure, because a hook must not stop the agent.
    async fn run(self, session: &mut Session) -> Outcome {
        if let Err(error) = self.record(session).await {
            // The agent may show the message or drop it.
            drop(writeln!(io::stderr(), "amalgam: no snapshot: {error}"));
        }
        if self.agent == Agent::Gemini {
            drop(writeln!(io::stdout(), "{{}}"));
        }
        Ok(Exit::OK)
    }

    async fn record(&self, session: &mut Session) -> Result<(), CliError> {
        let mut text = String::new();
        let read = io::stdin().take(PAYLOAD_BYTES_MAX).read_to_string(&mut text);
        read.map_err(|error| CliError::machine("the payload", &error))?;
        let payload = Payload::parse(&text).map_err(CliError::refused)?;
        match &payload.event {
            Event::Prompt(prompt) => remember(&payload.session, prompt),
            Event::End => forget(&payload.session),
            Event::Tool { .. } => self.take_snapshot(session, &payload).await,
            Event::Other => Ok(()),
        }
    }

    async fn take_snapshot(&self, session: &mut Session, payload: &Payload) -> Result<(), CliError> {
        if !session.has_store() {
            return Ok(());
        }
        session.cwd.clone_from(&payload.directory);
        let Some(place) = session.attached_directory_if_any().await? else { return Ok(()) };
        let mut client = session.client().await?;
        let prompt = prompt_path(&payload.session).and_then(fs::read_to_string).unwrap_or_default();
        let about = SnapshotInfo {
            message: payload.message(&prompt),
            metadata: payload.metadata(self.agent),
            ..SnapshotInfo::default()
        };
        capture::capture(&session.output, &mut client, &place.directory.name, about).await?;
        Ok(())
    }
}

/// Returns the path of the file with the last prompt of a session.
fn prompt_path(session: &str) -> io::Result<PathBuf> {
    let id = ChunkId::of(session.as_bytes()).to_string();
    Ok(runtime_directory()?.join(format!("{}.prompt", &id[..16])))
}

/// Remembers the beginning of a prompt, for the messages of the snapshots that follow.
fn remember(session: &str, prompt: &str) -> Result<(), CliError> {
    let mut end = prompt.len().min(PROMPT_BYTES_MAX);
    while !prompt.is_char_boundary(end) {
        end -= 1;
    }
    let written = prompt_path(session).and_then(|path| fs::write(path, &prompt[..end]));
    written.map_err(|error| CliError::machine("the prompt", &error))
}

fn forget(session: &str) -> Result<(), CliError> {
    match prompt_path(session).and_then(fs::remove_file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CliError::machine("the prompt", &error)),
        _ => Ok(()),
    }
}
