//! A command in a sandbox: its output so far, and its end.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::warn;

use crate::agent_v1 as wire;
use crate::output::{Output, Part, Stream};
use crate::spool::{Content, Frame, Spool, SpoolWriter, Spooled};

/// Limit on output that is kept in memory for readers.
const KEPT_BYTES_MAX: usize = 8 << 20;
/// How long a command waits for a reader that takes no output. After that the reader loses the bytes that new output replaces.
const READER_PATIENCE: Duration = Duration::from_secs(5);
/// Approximate limit on the bytes that one read returns.
const READ_BYTES_MAX: usize = 1 << 20;
/// Limit on unread standard input of a command. Beyond it the writer waits.
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
    /// Time after which the command and all processes that it started are killed.
    pub timeout: Option<Duration>,
    /// Limit on the bytes of output that are passed on; `None` for no limit.
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

/// A reader that takes the output of a command as it comes. The command waits for it, so that a reader that is slower than the command
/// gets all of the output.
#[derive(Debug)]
pub struct OutputReader {
    command: Arc<Command>,
    id: u64,
    offset: u64,
}

impl OutputReader {
    /// Waits until there is more output, or the end.
    pub async fn next(&mut self) -> (Part, Option<CommandEnd>) {
        let (part, end) = self.command.next(self.offset).await;
        self.offset = part.next;
        self.command.reader_is_at(self.id, self.offset);
        (part, end)
    }
}

impl Drop for OutputReader {
    fn drop(&mut self) {
        self.command.state.lock().readers.remove(&self.id);
        self.command.changes.send_replace(());
    }
}

/// The place of a reader in the output.
#[derive(Debug)]
struct Reader {
    offset: u64,
    moved: Instant,
}

#[derive(Debug)]
struct State {
    output: Output,
    end: Option<CommandEnd>,
    readers: HashMap<u64, Reader>,
    readers_so_far: u64,
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
    /// Creates a command whose output is also written to disk.
    pub(crate) fn begin(spool: &Spool, id: String, text: String, started_ms: i64) -> io::Result<Self> {
        let description = json!({"text": text, "startedMs": started_ms}).to_string();
        let writer = spool.begin(&id, description.as_bytes())?;
        let command = Self::new(id, text, started_ms);
        command.state.lock().spool = Some(writer);
        Ok(command)
    }

    /// Restores a command that an earlier server has started, from its output on disk.
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

    /// Reads the start time of a command from its description, in milliseconds since 1970. Returns 0 if the description is damaged.
    pub(crate) fn started_of(description: &[u8]) -> i64 {
        serde_json::from_slice::<Value>(description).ok().and_then(|value| value["startedMs"].as_i64()).unwrap_or(0)
    }

    pub(crate) fn new(id: String, text: String, started_ms: i64) -> Self {
        let output = Output::new(KEPT_BYTES_MAX);
        let (readers, readers_so_far) = (HashMap::new(), 0);
        let state = State { output, end: None, readers, readers_so_far, input_sent: 0, input_read: 0, spool: None };
        Self { id, text, started_ms, state: Mutex::new(state), changes: watch::Sender::new(()) }
    }

    /// Returns how the command ended; `None` while it runs.
    pub fn end(&self) -> Option<CommandEnd> {
        self.state.lock().end.clone()
    }

    /// Returns the number of bytes of output so far.
    pub fn output_bytes(&self) -> u64 {
        self.state.lock().output.end()
    }

    /// Reads output from an offset on. Also returns the end of the command if no output follows.
    pub fn read(&self, from: u64) -> (Part, Option<CommandEnd>) {
        let state = self.state.lock();
        let part = state.output.read(from, READ_BYTES_MAX);
        let is_all = part.next == state.output.end();
        (part, state.end.clone().filter(|_| is_all))
    }

    /// Waits until there is output after an offset, or the command has ended.
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

    /// Creates a reader that takes output as it comes, from an offset on.
    pub fn reader(self: &Arc<Self>, offset: u64) -> OutputReader {
        let mut state = self.state.lock();
        let id = state.readers_so_far;
        state.readers_so_far += 1;
        state.readers.insert(id, Reader { offset, moved: Instant::now() });
        drop(state);
        OutputReader { command: Arc::clone(self), id, offset }
    }

    fn reader_is_at(&self, id: u64, offset: u64) {
        let mut state = self.state.lock();
        if let Some(reader) = state.readers.get_mut(&id) {
            *reader = Reader { offset, moved: Instant::now() };
        }
        drop(state);
        self.changes.send_replace(());
    }

    /// Waits until the new output replaces no bytes that a reader still has to read. Does not wait for readers that took nothing
    /// for `READER_PATIENCE`.
    pub(crate) async fn room_for_output(&self, bytes: usize) {
        let mut changes = self.changes.subscribe();
        loop {
            let left = {
                let state = self.state.lock();
                let first_kept = state.output.first_kept_after(bytes);
                let behind = state.readers.values().filter(|reader| reader.offset < first_kept);
                behind.filter_map(|reader| READER_PATIENCE.checked_sub(reader.moved.elapsed())).max()
            };
            let Some(left) = left.filter(|left| !left.is_zero()) else { return };
            // A reader has moved, or its time is up: check all readers again.
            let _ = tokio::time::timeout(left, changes.changed()).await;
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

    /// Takes back a count of standard input that was not sent.
    pub(crate) fn uncount_input(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.input_sent = state.input_sent.saturating_sub(bytes as u64).max(state.input_read);
        drop(state);
        self.changes.send_replace(());
    }

    /// Counts all standard input that was sent as read.
    pub(crate) fn forget_unread_input(&self) {
        let mut state = self.state.lock();
        state.input_sent = state.input_read;
        drop(state);
        self.changes.send_replace(());
    }

    /// Records how many bytes of standard input the command has read in total.
    pub(crate) fn input_was_read(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.input_read = state.input_read.max(bytes);
        // An earlier server may have sent more than this one has counted.
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

    /// Processes a message of the agent about the command: output, its exit, or a failure.
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

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE_BYTES: usize = 1 << 20;

    fn command() -> Arc<Command> {
        Arc::new(Command::new("c".to_owned(), "yes".to_owned(), 0))
    }

    /// Feeds output to a command as the connection of an agent does.
    async fn feed(command: &Command, messages: u64) {
        for sequence in 1..=messages {
            let data = Bytes::from(vec![u8::try_from(sequence % 251).expect("small"); MESSAGE_BYTES]);
            let offset = (sequence - 1) * MESSAGE_BYTES as u64;
            command.room_for_output(data.len()).await;
            let r#type = wire::OutputType::Stdout.into();
            command.take(sequence, wire::CommandOutput { r#type, offset, data, ..Default::default() });
        }
        command.take(messages + 1, wire::CommandOutput { r#type: wire::OutputType::Exit.into(), ..Default::default() });
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_reader_that_is_slower_than_the_command_gets_all_of_its_output() {
        let command = command();
        let mut reader = command.reader(0);
        let fed = Arc::clone(&command);
        let feeding = tokio::spawn(async move { feed(&fed, 40).await });
        let mut bytes = 0;
        loop {
            let (part, end) = reader.next().await;
            assert_eq!(part.skipped, 0);
            bytes += part.chunks.iter().map(|chunk| chunk.data.len()).sum::<usize>();
            if end.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(bytes, 40 * MESSAGE_BYTES);
        feeding.await.expect("fed");
    }

    #[tokio::test]
    async fn a_writer_does_not_wait_for_input_that_was_not_sent_or_is_lost() {
        let within = |command: Arc<Command>| async move {
            tokio::time::timeout(Duration::from_millis(50), command.room_for_input()).await.is_ok()
        };
        let (command, much) = (command(), 2 * usize::try_from(INPUT_BYTES_MAX).expect("small"));
        command.count_input(much);
        assert!(!within(Arc::clone(&command)).await);
        command.uncount_input(much);
        assert!(within(Arc::clone(&command)).await);
        command.count_input(much);
        command.input_was_read(10);
        assert!(!within(Arc::clone(&command)).await);
        command.forget_unread_input();
        assert!(within(Arc::clone(&command)).await);
        // The call that sent lost input fails late: the bytes that were read stay counted.
        command.uncount_input(much);
        assert!(within(command).await);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_command_goes_on_without_a_reader_that_takes_nothing_or_leaves() {
        let command = command();
        let idle = command.reader(0);
        let leaving = command.reader(0);
        let fed = Arc::clone(&command);
        let feeding = tokio::spawn(async move { feed(&fed, 40).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(command.end().is_none(), "it waits for its readers");
        drop(leaving);
        feeding.await.expect("the other one is not waited for any more");
        let (part, _) = command.read(0);
        assert!(part.skipped > 0, "only the last bytes are kept");
        drop(idle);
    }
}
