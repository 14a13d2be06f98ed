//! A command in a sandbox: its output so far, and its end.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::warn;

use crate::agent_v1 as wire;
use crate::output::{Output, Part, Stream};
use crate::spool::{Content, Frame, Spool, SpoolWriter, Spooled};

/// Output that is kept for readers.
const KEPT_BYTES_MAX: usize = 8 << 20;
/// The most bytes that one read returns, roughly.
const READ_BYTES_MAX: usize = 1 << 20;
/// Standard input that may wait for a command before a writer waits.
const INPUT_BYTES_MAX: u64 = 1 << 20;

/// A command to be started.
#[derive(Clone, Debug, Default)]
pub struct CommandSpec {
    /// The command line, for `/bin/sh -c`.
    pub command: String,
    /// The working directory; empty for `/workspace`.
    pub cwd: String,
    /// Environment variables to add.
    pub envs: HashMap<String, String>,
    /// The command and everything that it started are killed after so long.
    pub timeout: Option<Duration>,
    /// Bytes of output that are passed on; nothing for all.
    pub output_bytes_max: Option<u64>,
    /// Standard input.
    pub stdin: Bytes,
    /// Whether more standard input follows.
    pub is_stdin_open: bool,
    /// Secrets, for files in memory.
    pub secrets: Secrets,
}

/// Secrets by name. They are never printed.
#[derive(Clone, Default)]
pub struct Secrets(pub HashMap<String, String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// How a command ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandEnd {
    /// Its exit code; 128 and the signal's number if a signal ended it.
    pub exit_code: i32,
    /// There was more output than the command was allowed.
    pub is_truncated: bool,
    /// It was killed because its time was up.
    pub is_timed_out: bool,
    /// Why it could not be started or its end is not known.
    pub error: Option<String>,
}

impl CommandEnd {
    fn to_json(&self) -> Bytes {
        let fields = json!({
            "exitCode": self.exit_code,
            "truncated": self.is_truncated,
            "timedOut": self.is_timed_out,
            "error": self.error,
        });
        fields.to_string().into()
    }

    fn of_json(bytes: &[u8]) -> Self {
        let fields: Value = serde_json::from_slice(bytes).unwrap_or_default();
        Self {
            exit_code: fields["exitCode"].as_i64().and_then(|code| i32::try_from(code).ok()).unwrap_or(-1),
            is_truncated: fields["truncated"] == true,
            is_timed_out: fields["timedOut"] == true,
            error: fields["error"].as_str().map(str::to_owned),
        }
    }
}

/// A command that runs or has ended.
#[derive(Debug)]
pub struct Command {
    /// Its id.
    pub id: String,
    /// Its command line.
    pub text: String,
    /// When it was started, in milliseconds since 1970.
    pub started_ms: i64,
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    output: Output,
    end: Option<CommandEnd>,
    /// Bytes of standard input that were sent to the agent, and those that the command has read.
    input_sent: u64,
    input_read: u64,
    spool: Option<SpoolWriter>,
}

impl State {
    /// Writes a frame for the next server. A full disk costs the next server output, not this one.
    fn write(&mut self, id: &str, sequence: u64, content: Content) {
        if let Some(spool) = &mut self.spool
            && let Err(error) = spool.write(&Frame { sequence, content })
        {
            warn!(command = id, %error, "output cannot be kept for the next server");
            self.spool = None;
        }
    }
}

impl Command {
    /// A command whose output is kept on the disk, too.
    pub(crate) fn begin(spool: &Spool, id: String, text: String, started_ms: i64) -> io::Result<Self> {
        let description = json!({"text": text, "startedMs": started_ms}).to_string();
        let writer = spool.begin(&id, description.as_bytes())?;
        let command = Self::new(id, text, started_ms);
        command.state.lock().spool = Some(writer);
        Ok(command)
    }

    /// A command that an earlier server has started.
    pub(crate) fn restore(spool: &Spool, spooled: Spooled) -> io::Result<Self> {
        let description: Value = serde_json::from_slice(&spooled.description).unwrap_or_default();
        let text = description["text"].as_str().unwrap_or_default().to_owned();
        let command = Self::new(spooled.id.clone(), text, Self::started_of(&spooled.description));
        let mut state = command.state.lock();
        for frame in spooled.frames {
            match frame.content {
                Content::Output(stream, offset, data) => {
                    state.output.skip_to(offset);
                    state.output.push(stream, data);
                }
                Content::End(end) => state.end = Some(CommandEnd::of_json(&end)),
            }
        }
        state.spool = Some(spool.go_on(&spooled.id)?);
        drop(state);
        Ok(command)
    }

    /// When a command was started, by its description.
    pub(crate) fn started_of(description: &[u8]) -> i64 {
        serde_json::from_slice::<Value>(description).ok().and_then(|value| value["startedMs"].as_i64()).unwrap_or(0)
    }

    pub(crate) fn new(id: String, text: String, started_ms: i64) -> Self {
        let output = Output::new(KEPT_BYTES_MAX);
        let state = State { output, end: None, input_sent: 0, input_read: 0, spool: None };
        Self { id, text, started_ms, state: Mutex::new(state), changes: watch::Sender::new(()) }
    }

    /// How it ended, if it has.
    pub fn end(&self) -> Option<CommandEnd> {
        self.state.lock().end.clone()
    }

    /// The number of bytes of output so far.
    pub fn output_bytes(&self) -> u64 {
        self.state.lock().output.end()
    }

    /// Output from an offset on, and the end if there is no more.
    pub fn read(&self, from: u64) -> (Part, Option<CommandEnd>) {
        let state = self.state.lock();
        let part = state.output.read(from, READ_BYTES_MAX);
        let is_all = part.next == state.output.end();
        (part, state.end.clone().filter(|_| is_all))
    }

    /// Waits until there is output after an offset, or the end.
    pub async fn next(&self, from: u64) -> (Part, Option<CommandEnd>) {
        let mut changes = self.changes.subscribe();
        loop {
            let (part, end) = self.read(from);
            if !part.chunks.is_empty() || part.skipped > 0 || end.is_some() {
                return (part, end);
            }
            // The command itself holds the sender.
            let _ = changes.changed().await;
        }
    }

    /// Waits for the end.
    pub async fn ended(&self) -> CommandEnd {
        let mut changes = self.changes.subscribe();
        loop {
            if let Some(end) = self.end() {
                return end;
            }
            let _ = changes.changed().await;
        }
    }

    /// Counts standard input that is sent to the agent.
    pub(crate) fn count_input(&self, bytes: usize) {
        self.state.lock().input_sent += bytes as u64;
    }

    /// The command has read so much standard input.
    pub(crate) fn input_was_read(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.input_read = state.input_read.max(bytes);
        // A command that an earlier server has fed.
        state.input_sent = state.input_sent.max(bytes);
        drop(state);
        self.changes.send_replace(());
    }

    /// Waits until little standard input is on its way to the command, or the command has ended.
    pub(crate) async fn room_for_input(&self) {
        let mut changes = self.changes.subscribe();
        loop {
            {
                let state = self.state.lock();
                if state.end.is_some() || state.input_sent - state.input_read <= INPUT_BYTES_MAX {
                    return;
                }
            }
            let _ = changes.changed().await;
        }
    }

    /// Takes what the agent says about the command.
    pub(crate) fn take(&self, sequence: u64, output: wire::CommandOutput) {
        let mut state = self.state.lock();
        if state.end.is_some() {
            return;
        }
        match output.r#type() {
            wire::OutputType::Stdout | wire::OutputType::Stderr => {
                let is_stderr = output.r#type() == wire::OutputType::Stderr;
                let stream = if is_stderr { Stream::Stderr } else { Stream::Stdout };
                state.output.skip_to(output.offset);
                state.write(&self.id, sequence, Content::Output(stream, output.offset, output.data.clone()));
                state.output.push(stream, output.data);
            }
            wire::OutputType::Exit => {
                let end = CommandEnd {
                    exit_code: output.exit_code,
                    is_truncated: output.truncated,
                    is_timed_out: output.timed_out,
                    error: None,
                };
                state.write(&self.id, sequence, Content::End(end.to_json()));
                state.end = Some(end);
            }
            wire::OutputType::Error | wire::OutputType::Unspecified => {
                let end = CommandEnd { exit_code: -1, error: Some(output.message), ..CommandEnd::default() };
                state.write(&self.id, sequence, Content::End(end.to_json()));
                state.end = Some(end);
            }
        }
        drop(state);
        self.changes.send_replace(());
    }

    /// Ends a command whose sandbox is gone.
    pub(crate) fn lose(&self, why: &str) {
        let mut state = self.state.lock();
        if state.end.is_none() {
            state.end = Some(CommandEnd { exit_code: -1, error: Some(why.to_owned()), ..CommandEnd::default() });
        }
        drop(state);
        self.changes.send_replace(());
    }
}
