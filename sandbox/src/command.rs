//! A command in a sandbox: its output so far, and its end.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::agent_v1 as wire;
use crate::output::{Output, Part, Stream};

/// Output that is kept for readers.
const KEPT_BYTES_MAX: usize = 8 << 20;
/// The most bytes that one read returns, roughly.
const READ_BYTES_MAX: usize = 1 << 20;

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
}

impl Command {
    pub(crate) fn new(id: String, text: String, started_ms: i64) -> Self {
        let state = State { output: Output::new(KEPT_BYTES_MAX), end: None };
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

    /// Takes what the agent says about the command.
    pub(crate) fn take(&self, output: wire::CommandOutput) {
        let mut state = self.state.lock();
        if state.end.is_some() {
            return;
        }
        match output.r#type() {
            wire::OutputType::Stdout | wire::OutputType::Stderr => {
                let is_stderr = output.r#type() == wire::OutputType::Stderr;
                let stream = if is_stderr { Stream::Stderr } else { Stream::Stdout };
                state.output.skip_to(output.offset);
                state.output.push(stream, output.data);
            }
            wire::OutputType::Exit => {
                state.end = Some(CommandEnd {
                    exit_code: output.exit_code,
                    is_truncated: output.truncated,
                    is_timed_out: output.timed_out,
                    error: None,
                });
            }
            wire::OutputType::Error | wire::OutputType::Unspecified => {
                state.end = Some(CommandEnd { exit_code: -1, error: Some(output.message), ..CommandEnd::default() });
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
