//! Commands: each runs in a process group of its own; the agent sends its output and its exit status to the server.

use std::collections::HashMap;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use amalgam_sandbox::agent_v1::connect_request::Payload;
use amalgam_sandbox::agent_v1::{CommandInput, CommandOutput, InputConsumed, OutputType, RunCommandRequest};
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::outbox::Outbox;
use crate::process_tree::{self, COMMAND_VARIABLE};
use crate::reaper::Reaper;
use crate::secrets::Secrets;
use crate::{OWN_VARIABLES, now_ms};

const SHELL: &str = "/bin/sh";
const WORKSPACE: &str = "/workspace";
/// Size of the buffer for one read of output.
const READ_BYTES: usize = 64 << 10;
/// Idle time after which the agent stops reading the output of a command that has exited. A process that the command left behind
/// may hold the pipe open.
const QUIET: Duration = Duration::from_millis(50);

/// The commands of the sandbox.
pub(crate) struct Commands {
    reaper: Arc<Reaper>,
    outbox: Arc<Outbox>,
    running: Arc<Mutex<HashMap<String, Running>>>,
}

struct Running {
    leader: Pid,
    input: Option<mpsc::UnboundedSender<Bytes>>,
}

/// Number of output bytes of a command, and their limit.
#[derive(Default)]
struct Counted {
    bytes: u64,
    bytes_max: u64,
    is_truncated: bool,
    /// The end of the command was sent to the server: later output is read and dropped.
    is_over: bool,
}

impl Commands {
    pub(crate) fn new(reaper: Arc<Reaper>, outbox: Arc<Outbox>) -> Self {
        Self { reaper, outbox, running: Arc::default() }
    }

    /// Returns the ids of all running commands.
    pub(crate) fn running(&self) -> Vec<String> {
        self.running.lock().keys().cloned().collect()
    }

    /// Starts a command.
    pub(crate) fn run(&self, request: RunCommandRequest) {
        let id = request.command_id.clone();
        if let Err(error) = self.start(request) {
            let output = CommandOutput {
                command_id: id,
                r#type: OutputType::Error.into(),
                message: error.to_string(),
                timestamp: now_ms(),
                ..CommandOutput::default()
            };
            self.outbox.push(Payload::CommandOutput(output), 0);
        }
    }

    fn start(&self, request: RunCommandRequest) -> std::io::Result<()> {
        let cwd = if request.cwd.is_empty() { WORKSPACE } else { request.cwd.as_str() };
        let mut command = Command::new(SHELL);
        // Shells show the name that the caller gave, although `/tmp` may be a link.
        command.arg("-c").arg(&request.command).current_dir(cwd).env("PWD", cwd);
        for name in OWN_VARIABLES {
            command.env_remove(name);
        }
        let secrets = Secrets::write(&request.command_id, &request.secrets)?;
        command.envs(&request.envs).envs(secrets.variables()).env(COMMAND_VARIABLE, &request.command_id);
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (started, child) = self.reaper.spawn(move || command.spawn())?;
        let missing = || std::io::Error::other("a pipe is missing");
        let stdin = pipe::Sender::from_owned_fd(child.stdin.ok_or_else(missing)?.into())?;
        let stdout = pipe::Receiver::from_owned_fd(child.stdout.ok_or_else(missing)?.into())?;
        let stderr = pipe::Receiver::from_owned_fd(child.stderr.ok_or_else(missing)?.into())?;
        let id = request.command_id;
        let input = feed(stdin, request.stdin, request.stdin_open, Arc::clone(&self.outbox), id.clone());
        self.running.lock().insert(id.clone(), Running { leader: started.pid, input });
        let counted = Counted { bytes_max: request.output_bytes_max, ..Counted::default() };
        let output = Arc::new(Forward { id, outbox: Arc::clone(&self.outbox), counted: Mutex::new(counted) });
        let pumps = [
            tokio::spawn(pump(Arc::clone(&output), stdout, OutputType::Stdout)),
            tokio::spawn(pump(Arc::clone(&output), stderr, OutputType::Stderr)),
        ];
        let running = Arc::clone(&self.running);
        let timeout = u64::try_from(request.timeout_ms).ok().filter(|milliseconds| *milliseconds > 0);
        tokio::spawn(async move {
            let mut exit = started.exit;
            let mut is_timed_out = false;
            let late = async {
                match timeout {
                    Some(milliseconds) => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
                    None => std::future::pending().await,
                }
            };
            let code = tokio::select! {
                code = &mut exit => code,
                () = late => {
                    is_timed_out = true;
                    process_tree::kill(started.pid, &output.id).await;
                    exit.await
                }
            };
            drop(secrets);
            output.drained(pumps).await;
            output.end(code.unwrap_or(-1), is_timed_out);
            running.lock().remove(&output.id);
        });
        Ok(())
    }

    /// Passes standard input on.
    pub(crate) fn write(&self, input: CommandInput) {
        let mut running = self.running.lock();
        let Some(command) = running.get_mut(&input.command_id) else { return };
        if let Some(sender) = &command.input
            && !input.data.is_empty()
        {
            // The server sends no more than a command has read, and a little ahead. A command that closed its input has no receiver.
            let _ = sender.send(input.data);
        }
        if input.end {
            command.input = None;
        }
    }

    /// Sends a signal to a command and everything that it started.
    pub(crate) fn kill(&self, id: &str, signal: i32) {
        let Some(leader) = self.running.lock().get(id).map(|command| command.leader) else { return };
        match Signal::from_named_raw(signal) {
            Some(Signal::KILL) => {
                let id = id.to_owned();
                tokio::spawn(async move { process_tree::kill(leader, &id).await });
            }
            Some(signal) => process_tree::signal(leader, id, signal),
            None => {}
        }
    }
}

/// Writes standard input, and reports to the server how much the command has read. Returns the sender for more input.
fn feed(
    mut stdin: pipe::Sender,
    first: Bytes,
    is_open: bool,
    outbox: Arc<Outbox>,
    command_id: String,
) -> Option<mpsc::UnboundedSender<Bytes>> {
    let (send, mut receive) = mpsc::unbounded_channel::<Bytes>();
    tokio::spawn(async move {
        let mut bytes = first.len() as u64;
        let tell =
            |bytes| outbox.push(Payload::InputConsumed(InputConsumed { command_id: command_id.clone(), bytes }), 0);
        // A command that does not read its input closes the pipe. Input for it is dropped, and counts as read.
        let mut is_closed = stdin.write_all(&first).await.is_err();
        if !first.is_empty() {
            tell(bytes);
        }
        while let Some(data) = receive.recv().await {
            is_closed = is_closed || stdin.write_all(&data).await.is_err();
            bytes += data.len() as u64;
            tell(bytes);
        }
    });
    is_open.then_some(send)
}

/// Where the output of one command goes.
struct Forward {
    id: String,
    outbox: Arc<Outbox>,
    counted: Mutex<Counted>,
}

impl Forward {
    fn message(&self, kind: OutputType) -> CommandOutput {
        let (command_id, timestamp) = (self.id.clone(), now_ms());
        CommandOutput { command_id, r#type: kind.into(), timestamp, ..CommandOutput::default() }
    }

    /// Passes bytes on as far as the command may have output. The one thread does this at once, so offsets are in order.
    fn forward(&self, kind: OutputType, mut data: Bytes) {
        let mut counted = self.counted.lock();
        if counted.is_over {
            return;
        }
        let left = if counted.bytes_max == 0 { u64::MAX } else { counted.bytes_max.saturating_sub(counted.bytes) };
        if data.len() as u64 > left {
            data.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            counted.is_truncated = true;
        }
        if data.is_empty() {
            return;
        }
        let (offset, bytes) = (counted.bytes, data.len());
        counted.bytes += bytes as u64;
        self.outbox.push(Payload::CommandOutput(CommandOutput { data, offset, ..self.message(kind) }), bytes);
    }

    /// Waits until all output was read, or a process that stayed behind is quiet.
    async fn drained(&self, pumps: [JoinHandle<()>; 2]) {
        let [stdout, stderr] = pumps;
        let both = async { drop(tokio::join!(stdout, stderr)) };
        tokio::pin!(both);
        loop {
            let before = self.counted.lock().bytes;
            tokio::select! {
                () = &mut both => return,
                () = tokio::time::sleep(QUIET) => {
                    if self.counted.lock().bytes == before && !self.outbox.is_full() {
                        return;
                    }
                }
            }
        }
    }

    fn end(&self, exit_code: i32, timed_out: bool) {
        let mut counted = self.counted.lock();
        counted.is_over = true;
        let (truncated, offset) = (counted.is_truncated, counted.bytes);
        let end = CommandOutput { exit_code, timed_out, truncated, offset, ..self.message(OutputType::Exit) };
        self.outbox.push(Payload::CommandOutput(end), 0);
    }
}

/// Reads a pipe to its end.
async fn pump(output: Arc<Forward>, mut from: pipe::Receiver, kind: OutputType) {
    let mut block = vec![0; READ_BYTES];
    loop {
        output.outbox.room().await;
        match from.read(&mut block).await {
            Ok(0) | Err(_) => return,
            // A copy, so that a message of a few bytes does not keep the whole buffer.
            Ok(read) => output.forward(kind, Bytes::copy_from_slice(&block[..read])),
        }
    }
}
