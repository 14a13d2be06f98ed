//! Writes the output of a command in a sandbox as it comes, and continues where it stopped if the connection breaks.

use std::io::{self, Read as _, Write as _};
use std::time::{Duration, Instant};

use amalgam_proto::v1;
use amalgam_proto::v1::sandbox_service_client::SandboxServiceClient;
use rustix::process::Signal;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tonic::codegen::Bytes;
use tonic::{Code, Status, Streaming};

use super::sandbox_calls::failure;
use crate::connect::CallerChannel;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::session::Session;

/// Maximum bytes of standard input that one call sends.
const INPUT_BYTES: usize = 64 << 10;
/// Maximum number of blocks of standard input that wait to be sent.
const INPUT_QUEUE: usize = 4;
/// First delay before a reconnect; it doubles up to [`RETRY_DELAY_MAX`].
const RETRY_DELAY_MIN: Duration = Duration::from_secs(1);
/// Longest delay before a reconnect.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(30);
/// Time without a connection after which the client gives up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(120);
/// Number of Ctrl-C that kills the command; fewer interrupt it.
const INTERRUPTS_MAX: u32 = 3;

/// A command whose output is followed.
pub struct CommandStream {
    /// The client of the sandbox service.
    pub client: SandboxServiceClient<CallerChannel>,
    /// The id of the sandbox.
    pub sandbox_id: String,
    /// The id of the command.
    pub command_id: String,
    /// Offset of the next output to read, in bytes.
    pub offset: i64,
    /// Whether standard input is passed on.
    pub reads_stdin: bool,
}

/// An event of a command: output, exit or error.
struct Event {
    kind: String,
    output: Bytes,
    exit_code: i32,
    message: String,
    next_offset: i64,
    is_truncated: bool,
}

/// The stream of a command that was started, or of one that is attached to.
enum Events {
    Started(Streaming<v1::StreamCommandResponse>),
    Attached(Streaming<v1::AttachCommandResponse>),
}

impl Events {
    async fn next(&mut self) -> Result<Option<Event>, Status> {
        macro_rules! event {
            ($found:expr) => {
                $found.map(|event| Event {
                    kind: event.r#type,
                    output: event.output,
                    exit_code: event.exit_code,
                    message: event.message,
                    next_offset: event.next_offset,
                    is_truncated: event.truncated,
                })
            };
        }
        match self {
            Self::Started(events) => Ok(event!(events.message().await?)),
            Self::Attached(events) => Ok(event!(events.message().await?)),
        }
    }
}

/// Follows a command to its end. Returns its exit code.
pub async fn follow(
    session: &mut Session,
    mut stream: CommandStream,
    started: Option<Streaming<v1::StreamCommandResponse>>,
) -> Outcome {
    session.interrupts.leave_to_child(true);
    let input = stream.reads_stdin.then(|| tokio::spawn(feed(stream.client.clone(), stream.ids())));
    let signals = tokio::spawn(pass_signals_on(stream.client.clone(), stream.ids()));
    let done = read(session, &mut stream, started.map(Events::Started)).await;
    signals.abort();
    input.inspect(tokio::task::JoinHandle::abort);
    session.interrupts.leave_to_child(false);
    done
}

impl CommandStream {
    fn ids(&self) -> (String, String) {
        (self.sandbox_id.clone(), self.command_id.clone())
    }

    async fn attach(&mut self) -> Result<Events, Status> {
        let request = v1::AttachCommandRequest {
            sandbox_id: self.sandbox_id.clone(),
            command_id: self.command_id.clone(),
            offset: self.offset,
            binary: true,
        };
        Ok(Events::Attached(self.client.attach_command(request).await?.into_inner()))
    }
}

async fn read(session: &mut Session, stream: &mut CommandStream, mut events: Option<Events>) -> Outcome {
    let (mut delay, mut lost): (_, Option<Instant>) = (RETRY_DELAY_MIN, None);
    loop {
        let next = match &mut events {
            Some(events) => events.next().await,
            None => match stream.attach().await {
                Ok(attached) => {
                    events = Some(attached);
                    continue;
                }
                Err(status) => Err(status),
            },
        };
        match next {
            Ok(Some(event)) => {
                (delay, lost) = (RETRY_DELAY_MIN, None);
                if let Some(exit) = tell(session, stream, &event)? {
                    return exit;
                }
                stream.offset = event.next_offset.max(stream.offset);
            }
            // The server ends a stream only after the last event, or because it stops.
            Ok(None) => {
                events = None;
                let status = Status::unavailable("the server ended the stream before the end of the command");
                wait_again(session, stream, status, &mut lost, &mut delay).await?;
            }
            Err(status) if is_broken(&status) => {
                events = None;
                wait_again(session, stream, status, &mut lost, &mut delay).await?;
            }
            Err(status) => return Err(failure(status)),
        }
    }
}

/// Waits before the command is attached to again. Fails if the connection has been broken for [`GIVE_UP_AFTER`].
async fn wait_again(
    session: &mut Session,
    stream: &CommandStream,
    status: Status,
    lost: &mut Option<Instant>,
    delay: &mut Duration,
) -> Result<(), CliError> {
    let since = *lost.get_or_insert_with(Instant::now);
    if since.elapsed() > GIVE_UP_AFTER {
        return Err(failure(status).hint(format!(
            "the command may still run; `amalgam attach {} {}` follows it",
            stream.sandbox_id, stream.command_id
        )));
    }
    session.output.remark("the connection broke; connecting again")?;
    tokio::time::sleep(*delay).await;
    *delay = (*delay * 2).min(RETRY_DELAY_MAX);
    Ok(())
}

/// Returns whether a call failed because of the connection: the status is of the transport, and carries no failure of the service.
pub fn is_broken(status: &Status) -> bool {
    let is_of_transport = matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal);
    is_of_transport && amalgam_proto::Failure::of_status(status).is_none()
}

/// Writes an event. Returns the outcome if it is the last one.
fn tell(session: &mut Session, stream: &CommandStream, event: &Event) -> Result<Option<Outcome>, CliError> {
    let ids = json!({"sandbox": stream.sandbox_id, "command_id": stream.command_id});
    if event.is_truncated && matches!(event.kind.as_str(), "stdout" | "stderr") {
        session.output.remark("output is missing here: the server keeps the last 8 MiB only")?;
    }
    match event.kind.as_str() {
        "stdout" | "stderr" if session.output.is_json() => {
            let mut line = lines::line("command_output", ids);
            line["stream"] = event.kind.as_str().into();
            lines::put_bytes(&mut line, "data", &event.output);
            session.output.emit(&line)?;
            session.output.flush()?;
        }
        "stdout" => {
            session.output.raw(&event.output)?;
            session.output.flush()?;
        }
        "stderr" => {
            // A closed standard error cannot be reported.
            drop(io::stderr().write_all(&event.output));
        }
        "exit" => {
            let mut line = lines::line("command_ended", ids);
            line["exit_code"] = event.exit_code.into();
            line["truncated"] = event.is_truncated.into();
            line["message"] = event.message.as_str().into();
            session.output.emit(&line)?;
            if !event.message.is_empty() {
                session.output.remark(&event.message)?;
            }
            return Ok(Some(Ok(Exit(u8::try_from(event.exit_code).unwrap_or(1)))));
        }
        "error" => {
            return Ok(Some(Err(CliError::new(Exit::ERROR, "COMMAND_FAILED", event.message.as_str()))));
        }
        // `started`, or an event of a newer server.
        _ => {}
    }
    Ok(None)
}

/// Sends standard input until its end. A call returns when the command has taken enough of it.
async fn feed(mut client: SandboxServiceClient<CallerChannel>, (sandbox_id, command_id): (String, String)) {
    let (send, mut parts) = mpsc::channel(INPUT_QUEUE);
    // A separate thread, because a read from a terminal may block for ever.
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
    loop {
        let part = parts.recv().await;
        let end = part.is_none();
        let request = v1::WriteCommandRequest {
            sandbox_id: sandbox_id.clone(),
            command_id: command_id.clone(),
            data: part.unwrap_or_default(),
            end,
        };
        // A command that has ended takes no input; the output stream reports its end.
        if client.write_command(request).await.is_err() || end {
            return;
        }
    }
}

/// Passes signals on to the command. The third Ctrl-C kills it.
async fn pass_signals_on(mut client: SandboxServiceClient<CallerChannel>, (sandbox_id, command_id): (String, String)) {
    let listen = |kind| signal(kind).ok();
    let (Some(mut interrupt), Some(mut terminate)) = (listen(SignalKind::interrupt()), listen(SignalKind::terminate()))
    else {
        return;
    };
    let mut interrupts = 0;
    loop {
        let sent = tokio::select! {
            _ = interrupt.recv() => {
                interrupts += 1;
                if interrupts < INTERRUPTS_MAX { Signal::INT } else { Signal::KILL }
            }
            _ = terminate.recv() => Signal::TERM,
        };
        let request = v1::KillCommandRequest {
            sandbox_id: sandbox_id.clone(),
            command_id: command_id.clone(),
            signal: sent.as_raw(),
        };
        // The output stream reports the end of the command.
        let _ = client.kill_command(request).await;
    }
}
