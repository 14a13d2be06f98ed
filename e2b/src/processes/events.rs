//! Events of commands and terminals of the API, and the events that e2b clients get for them.

use amalgam_proto::v1;
use bytes::Bytes;
use prost::{Message, Name};
use tonic::Streaming;

use crate::process_table::Kind;
use crate::refusal::Refusal;
use crate::target::Target;
use crate::wire::process as wire;

const SIGNAL_BASE: i32 = 128;
const SIGTERM: i32 = 15;

/// An event of a command or a terminal.
pub(super) enum Event {
    Output {
        is_stderr: bool,
        data: Bytes,
        /// The offset from which a reader attaches to continue behind it.
        next_offset: i64,
        /// Output before it is lost.
        is_cut: bool,
    },
    Ended {
        exit_code: i32,
        is_timed_out: bool,
    },
    Failed {
        why: String,
    },
}

/// The stream that events come from.
pub(super) enum Source {
    Started(Streaming<v1::StreamCommandResponse>),
    Command(Streaming<v1::AttachCommandResponse>),
    Terminal(Streaming<v1::AttachTerminalResponse>),
}

impl Source {
    /// Follows a process from an offset on.
    pub(super) async fn attach(target: &Target, kind: &Kind, offset: i64) -> Result<Self, Refusal> {
        let sandbox_id = target.id.clone();
        let mut sandboxes = target.caller.sandboxes();
        Ok(match kind {
            Kind::Command(id) => {
                let request = v1::AttachCommandRequest { sandbox_id, command_id: id.clone(), offset, binary: true };
                Self::Command(sandboxes.attach_command(request).await?.into_inner())
            }
            Kind::Terminal(id) => {
                let request = v1::AttachTerminalRequest { sandbox_id, pty_id: id.clone(), offset };
                Self::Terminal(sandboxes.attach_terminal(request).await?.into_inner())
            }
        })
    }

    /// Waits for the next event. Returns `None` when the stream has ended.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, Refusal> {
        Ok(match self {
            Self::Started(stream) => stream.message().await?.map(|event| {
                command_event(Parts {
                    kind: &event.r#type,
                    output: event.output,
                    exit_code: event.exit_code,
                    message: event.message,
                    next_offset: event.next_offset,
                    is_truncated: event.truncated,
                })
            }),
            Self::Command(stream) => stream.message().await?.map(|event| {
                command_event(Parts {
                    kind: &event.r#type,
                    output: event.output,
                    exit_code: event.exit_code,
                    message: event.message,
                    next_offset: event.next_offset,
                    is_truncated: event.truncated,
                })
            }),
            Self::Terminal(stream) => stream.message().await?.map(|event| match event.r#type.as_str() {
                "output" => {
                    let next_offset = event.next_offset;
                    Event::Output { is_stderr: false, data: event.data, next_offset, is_cut: false }
                }
                "exit" => Event::Ended { exit_code: event.exit_code, is_timed_out: false },
                _ => Event::Failed { why: event.message },
            }),
        })
    }
}

/// The fields of both messages of commands.
struct Parts<'a> {
    kind: &'a str,
    output: Bytes,
    exit_code: i32,
    message: String,
    next_offset: i64,
    is_truncated: bool,
}

fn command_event(parts: Parts<'_>) -> Event {
    match parts.kind {
        "stdout" | "stderr" => Event::Output {
            is_stderr: parts.kind == "stderr",
            data: parts.output,
            next_offset: parts.next_offset,
            is_cut: parts.is_truncated,
        },
        // A message at an exit says that the time limit was reached.
        "exit" => Event::Ended { exit_code: parts.exit_code, is_timed_out: !parts.message.is_empty() },
        _ => Event::Failed { why: parts.message },
    }
}

/// One of the two messages that carry an event.
pub(super) trait EventMessage: Message + Name {
    fn of(event: wire::ProcessEvent) -> Self;
}

impl EventMessage for wire::StartResponse {
    fn of(event: wire::ProcessEvent) -> Self {
        Self { event: Some(event) }
    }
}

impl EventMessage for wire::ConnectResponse {
    fn of(event: wire::ProcessEvent) -> Self {
        Self { event: Some(event) }
    }
}

fn event(event: wire::process_event::Event) -> wire::ProcessEvent {
    wire::ProcessEvent { event: Some(event) }
}

pub(super) fn start_event(pid: u32) -> wire::ProcessEvent {
    event(wire::process_event::Event::Start(wire::process_event::StartEvent { pid }))
}

pub(super) fn keepalive_event() -> wire::ProcessEvent {
    event(wire::process_event::Event::Keepalive(wire::process_event::KeepAlive {}))
}

pub(super) fn data_event(kind: &Kind, is_stderr: bool, data: Bytes) -> wire::ProcessEvent {
    use wire::process_event::data_event::Output;
    let output = match (kind, is_stderr) {
        (Kind::Terminal(_), _) => Output::Pty(data),
        (Kind::Command(_), true) => Output::Stderr(data),
        (Kind::Command(_), false) => Output::Stdout(data),
    };
    event(wire::process_event::Event::Data(wire::process_event::DataEvent { output: Some(output) }))
}

/// Builds the event of the end of a process. If a signal of a client ended it, the exit code is -1, as clients expect.
pub(super) fn end_event(exit_code: i32, signal: Option<i32>) -> wire::ProcessEvent {
    let by_signal = signal.filter(|signal| exit_code == SIGNAL_BASE + signal || exit_code == -1);
    let (exit_code, status) = match by_signal {
        Some(signal) => (-1, format!("signal: {}", if signal == SIGTERM { "terminated" } else { "killed" })),
        None => (exit_code, format!("exit status {exit_code}")),
    };
    event(wire::process_event::Event::End(wire::process_event::EndEvent {
        exit_code,
        exited: by_signal.is_none(),
        error: (exit_code != 0).then(|| status.clone()),
        status,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_by_a_signal_of_a_client_is_no_exit() {
        let end = |code, signal| match end_event(code, signal).event {
            Some(wire::process_event::Event::End(end)) => (end.exit_code, end.exited, end.status),
            _ => panic!("an end"),
        };
        assert_eq!(end(0, None), (0, true, "exit status 0".to_owned()));
        assert_eq!(end(3, None), (3, true, "exit status 3".to_owned()));
        assert_eq!(end(137, None), (137, true, "exit status 137".to_owned()));
        assert_eq!(end(137, Some(9)), (-1, false, "signal: killed".to_owned()));
        assert_eq!(end(143, Some(15)), (-1, false, "signal: terminated".to_owned()));
        // It caught the signal.
        assert_eq!(end(5, Some(15)), (5, true, "exit status 5".to_owned()));
    }
}
