//! Processes of a sandbox: commands and terminals of the API, with the numbers that they have in the sandbox.

mod events;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use amalgam_proto::v1;
use bytes::{Bytes, BytesMut};
use http::Response;
use http::request::Parts;
use tonic::Code;
use tonic::body::Body;

use crate::calls::Calls;
use crate::connect::{Events, Requests, Rpc, Shape, refuse};
use crate::process_table::{Kind, Process};
use crate::program::{HOME, quoted};
use crate::refusal::Refusal;
use crate::state::State;
use crate::target::{Target, check_user};
use crate::wire::process as wire;
use events::{Event, EventMessage, Source, data_event, end_event, keepalive_event, start_event};

/// Size of the parts in which standard input is sent to a process.
const INPUT_BYTES: usize = 1 << 20;
/// Length limit of the first line of output, which holds the pid.
const NUMBER_BYTES_MAX: usize = 32;
const SIGKILL: i32 = 9;

/// Answers a call of `process.Process`.
pub(crate) async fn answer(
    state: &Arc<State>,
    calls: &Calls,
    method: &str,
    head: &Parts,
    body: Body,
) -> Response<Body> {
    let shape = match method {
        "Start" | "Connect" | "StreamInput" => Shape::Stream,
        "List" | "Update" | "SendInput" | "SendSignal" | "CloseStdin" => Shape::Unary,
        _ => {
            calls.of(&head.headers).record_unknown().await;
            return Refusal::not_served(&format!("process.Process/{}", method.escape_debug())).into_connect();
        }
    };
    let found = match check_user(&head.headers, None) {
        Ok(()) => Target::find(calls, head).await,
        Err(refusal) => Err(refusal),
    };
    let target = match found {
        Ok((target, _)) => target,
        Err(refusal) => return refuse(shape, head, refusal),
    };
    let rpc = match Rpc::new(shape, head, body) {
        Ok(rpc) => rpc,
        Err(response) => return *response,
    };
    let (state, times) = (Arc::clone(state), Times { timeout: rpc.timeout, keepalive: rpc.keepalive });
    match method {
        "Start" => rpc.stream(move |request, events| start(state, target, request, events, times)).await,
        "Connect" => rpc.stream(move |request, events| connect(state, target, request, events, times)).await,
        "StreamInput" => {
            rpc.client_stream::<_, wire::StreamInputResponse>(async |requests| {
                stream_input(&state, &target, requests).await
            })
            .await
        }
        "List" => {
            rpc.unary(async |_: wire::ListRequest| {
                let processes = state.processes.running(&target.id).iter().map(|process| process.info()).collect();
                Ok(wire::ListResponse { processes })
            })
            .await
        }
        "Update" => rpc.unary(async |request| update(&state, &target, request).await).await,
        "SendInput" => {
            rpc.unary(async |request: wire::SendInputRequest| {
                let process = state.processes.find(&target.id, request.process.as_ref())?;
                send_input(&target, &process, request.input).await?;
                Ok(wire::SendInputResponse {})
            })
            .await
        }
        "SendSignal" => rpc.unary(async |request| send_signal(&state, &target, request).await).await,
        _ => rpc.unary(async |request| close_stdin(&state, &target, request).await).await,
    }
}

/// Time limits of a stream.
#[derive(Clone, Copy)]
struct Times {
    timeout: Option<Duration>,
    keepalive: Duration,
}

/// Returns the environment variables of a process. `HOME` is the workspace, which is part of snapshots and forks.
fn variables(config: &wire::ProcessConfig) -> HashMap<String, String> {
    let own = [("HOME", HOME), ("USER", "user"), ("LOGNAME", "user")];
    let mut all: HashMap<_, _> = own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    all.extend(config.envs.clone());
    all
}

/// Returns the working directory of a process. Relative paths and `~` begin at the workspace.
fn directory(config: &wire::ProcessConfig) -> String {
    match config.cwd.as_deref().unwrap_or_default() {
        "" | "~" => HOME.to_owned(),
        absolute if absolute.starts_with('/') => absolute.to_owned(),
        relative => format!("{HOME}/{}", relative.strip_prefix("~/").unwrap_or(relative)),
    }
}

/// Builds a command line that prints the pid and then replaces the shell by the program.
fn command_line(config: &wire::ProcessConfig) -> Result<String, Refusal> {
    let words = std::iter::once(&config.cmd).chain(&config.args);
    if config.cmd.is_empty() || words.clone().any(|word| word.contains('\0')) {
        return Err(Refusal::invalid("cmd, args: a command without zero bytes"));
    }
    Ok(format!("echo $$; exec {}", words.map(|word| quoted(word)).collect::<Vec<_>>().join(" ")))
}

async fn start(
    state: Arc<State>,
    target: Target,
    request: wire::StartRequest,
    events: Events<wire::StartResponse>,
    times: Times,
) -> Result<(), Refusal> {
    let config = request.process.unwrap_or_default();
    let line = command_line(&config)?;
    let has_stdin = request.stdin.unwrap_or(true);
    let (kind, mut source) = match &request.pty {
        None => start_command(&target, &config, line, has_stdin, times.timeout).await?,
        Some(pty) => start_terminal(&target, &config, line, pty).await?,
    };
    let (pid, rest) = number(&mut source).await?;
    let process = Arc::new(Process::new(pid, kind, config, request.tag, has_stdin));
    state.processes.add(&target.id, Arc::clone(&process));
    // The deadline of a command is enforced in the sandbox, that of a terminal here.
    let kill_after = request.pty.is_some().then_some(times.timeout).flatten();
    let follower = Follower { target, process, keepalive: times.keepalive, kill_after, end_after: None };
    follower.follow(source, rest, &events).await
}

async fn start_command(
    target: &Target,
    config: &wire::ProcessConfig,
    line: String,
    has_stdin: bool,
    timeout: Option<Duration>,
) -> Result<(Kind, Source), Refusal> {
    let timeout = timeout.map(|timeout| i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX).max(1));
    let request = v1::StreamCommandRequest {
        sandbox_id: target.id.clone(),
        command: line,
        cwd: directory(config),
        envs: variables(config),
        timeout,
        stdin_open: has_stdin,
        binary: true,
        ..v1::StreamCommandRequest::default()
    };
    let mut stream = target.caller.sandboxes().stream_command(request).await?.into_inner();
    let started = stream.message().await?.unwrap_or_default();
    Ok((Kind::Command(started.command_id), Source::Started(stream)))
}

async fn start_terminal(
    target: &Target,
    config: &wire::ProcessConfig,
    line: String,
    pty: &wire::Pty,
) -> Result<(Kind, Source), Refusal> {
    let (cols, rows) = size(pty)?;
    let request = v1::CreateTerminalRequest {
        sandbox_id: target.id.clone(),
        cols,
        rows,
        shell: "/bin/sh".to_owned(),
        args: vec!["-c".to_owned(), line],
        cwd: directory(config),
        envs: variables(config),
        ..v1::CreateTerminalRequest::default()
    };
    let id = target.caller.sandboxes().create_terminal(request).await?.into_inner().id;
    let source = Source::attach(target, &Kind::Terminal(id.clone()), 0).await?;
    Ok((Kind::Terminal(id), source))
}

fn size(pty: &wire::Pty) -> Result<(i32, i32), Refusal> {
    let size = pty.size.unwrap_or_default();
    let one = |count: u32| i32::try_from(count).map_err(|_| Refusal::invalid("pty: the size is too large"));
    Ok((one(size.cols)?, one(size.rows)?))
}

/// Reads the pid of a process from its first line of output. Returns the output behind it.
async fn number(source: &mut Source) -> Result<(u32, Vec<Event>), Refusal> {
    let (mut line, mut others) = (BytesMut::new(), Vec::new());
    loop {
        let failed = |why: &str| Refusal::invalid(format!("the process was not started: {}", why.trim()));
        let Some(event) = source.next().await? else { return Err(failed("its stream ended")) };
        let Event::Output { is_stderr: false, data, next_offset, .. } = &event else {
            match event {
                Event::Output { .. } => others.push(event),
                Event::Failed { why } => return Err(failed(&why)),
                Event::Ended { .. } => return Err(failed("it ended before it told its number")),
            }
            continue;
        };
        line.extend_from_slice(data);
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            let pid = std::str::from_utf8(&line[..end]).ok().and_then(|text| text.trim().parse().ok());
            let pid = pid.ok_or_else(|| failed("its number is malformed"))?;
            let rest = Bytes::copy_from_slice(&line[end + 1..]);
            let after = Event::Output { is_stderr: false, data: rest, next_offset: *next_offset, is_cut: false };
            others.push(after);
            return Ok((pid, others));
        }
        if line.len() > NUMBER_BYTES_MAX {
            return Err(failed("its number is malformed"));
        }
    }
}

async fn connect(
    state: Arc<State>,
    target: Target,
    request: wire::ConnectRequest,
    events: Events<wire::ConnectResponse>,
    times: Times,
) -> Result<(), Refusal> {
    let process = state.processes.find_any(&target.id, request.process.as_ref())?;
    let source = match Source::attach(&target, &process.kind, process.read_to()).await {
        Ok(source) => source,
        Err(refusal) => {
            // A command that ended long ago is forgotten, but its end is known.
            let Some(end) = process.end() else { return Err(refusal) };
            events.send(&EventMessage::of(start_event(process.pid))).await;
            events.send(&EventMessage::of(end)).await;
            return Ok(());
        }
    };
    let (keepalive, end_after) = (times.keepalive, times.timeout);
    Follower { target, process, keepalive, kill_after: None, end_after }.follow(source, Vec::new(), &events).await
}

/// Passes the events of a process on to one client.
struct Follower {
    target: Target,
    process: Arc<Process>,
    keepalive: Duration,
    /// Time after which the process is killed.
    kill_after: Option<Duration>,
    /// Time after which the stream ends while the process goes on.
    end_after: Option<Duration>,
}

impl Follower {
    /// Follows a process to its end. Goes on when the client has left, to record the end.
    async fn follow<A: EventMessage>(
        &self,
        mut source: Source,
        first: Vec<Event>,
        events: &Events<A>,
    ) -> Result<(), Refusal> {
        let process = &self.process;
        let mut is_attached = events.send(&A::of(start_event(process.pid))).await;
        let (kill, end) = (sleep(self.kill_after), sleep(self.end_after));
        tokio::pin!(kill, end);
        let mut is_late = false;
        let mut waiting = first.into_iter();
        loop {
            let event = match waiting.next() {
                Some(event) => Some(event),
                None => tokio::select! {
                    event = source.next() => event?,
                    () = tokio::time::sleep(self.keepalive), if is_attached => {
                        is_attached = events.send(&A::of(keepalive_event())).await;
                        continue;
                    }
                    () = events.closed(), if is_attached => {
                        is_attached = false;
                        continue;
                    }
                    () = &mut kill, if !is_late => {
                        is_late = true;
                        self.kill().await;
                        continue;
                    }
                    () = &mut end => return Err(timed_out()),
                },
            };
            match event {
                Some(Event::Output { is_cut: true, .. }) if is_attached => {
                    let message = "output was lost, because the client did not read it in time";
                    return Err(Refusal::new(Code::DataLoss, message));
                }
                Some(Event::Output { is_stderr, data, next_offset, .. }) => {
                    if !is_attached {
                        continue;
                    }
                    if !data.is_empty() {
                        is_attached = events.send(&A::of(data_event(&process.kind, is_stderr, data))).await;
                    }
                    if is_attached {
                        process.was_read_to(next_offset);
                    }
                }
                Some(Event::Ended { exit_code, is_timed_out }) => {
                    let end = end_event(exit_code, process.signal());
                    process.set_end(end.clone());
                    if is_timed_out || is_late {
                        return Err(timed_out());
                    }
                    events.send(&A::of(end)).await;
                    return Ok(());
                }
                Some(Event::Failed { why }) => {
                    process.set_end(end_event(-1, Some(SIGKILL)));
                    return Err(Refusal::new(Code::Unavailable, why));
                }
                None => {
                    process.set_end(end_event(-1, Some(SIGKILL)));
                    return Err(Refusal::new(Code::Unavailable, "the stream of the process was cut"));
                }
            }
        }
    }

    async fn kill(&self) {
        let killed = match &self.process.kind {
            Kind::Terminal(id) => kill_terminal(&self.target, id).await,
            Kind::Command(id) => kill_command(&self.target, id, SIGKILL).await,
        };
        if let Err(refusal) = killed {
            tracing::debug!(sandbox = self.target.id, why = refusal.message, "a process was not killed in time");
        }
    }
}

async fn sleep(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

fn timed_out() -> Refusal {
    Refusal::new(Code::DeadlineExceeded, "the time-out of the call was reached")
}

async fn kill_command(target: &Target, id: &str, signal: i32) -> Result<(), Refusal> {
    let request = v1::KillCommandRequest { sandbox_id: target.id.clone(), command_id: id.to_owned(), signal };
    target.caller.sandboxes().kill_command(request).await?;
    Ok(())
}

async fn kill_terminal(target: &Target, id: &str) -> Result<(), Refusal> {
    let request = v1::KillTerminalRequest { sandbox_id: target.id.clone(), pty_id: id.to_owned() };
    target.caller.sandboxes().kill_terminal(request).await?;
    Ok(())
}

async fn send_signal(
    state: &State,
    target: &Target,
    request: wire::SendSignalRequest,
) -> Result<wire::SendSignalResponse, Refusal> {
    let process = state.processes.find(&target.id, request.process.as_ref())?;
    let signal = match request.signal() {
        wire::Signal::Unspecified => return Err(Refusal::invalid("signal: SIGNAL_SIGTERM or SIGNAL_SIGKILL")),
        signal => signal as i32,
    };
    process.set_signal(signal);
    match &process.kind {
        Kind::Command(id) => kill_command(target, id, signal).await?,
        Kind::Terminal(id) => kill_terminal(target, id).await?,
    }
    Ok(wire::SendSignalResponse {})
}

async fn update(state: &State, target: &Target, request: wire::UpdateRequest) -> Result<wire::UpdateResponse, Refusal> {
    let process = state.processes.find(&target.id, request.process.as_ref())?;
    if let Some(pty) = &request.pty {
        let Kind::Terminal(id) = &process.kind else {
            return Err(Refusal::new(Code::FailedPrecondition, format!("process {} has no terminal", process.pid)));
        };
        let (cols, rows) = size(pty)?;
        let request = v1::ResizeTerminalRequest { sandbox_id: target.id.clone(), pty_id: id.clone(), cols, rows };
        target.caller.sandboxes().resize_terminal(request).await?;
    }
    Ok(wire::UpdateResponse {})
}

/// Sends input to a process, part by part.
async fn send_input(target: &Target, process: &Process, input: Option<wire::ProcessInput>) -> Result<(), Refusal> {
    use wire::process_input::Input;
    let mismatch =
        |what: &str| Err(Refusal::new(Code::FailedPrecondition, format!("process {} has no open {what}", process.pid)));
    let (mut data, is_pty) = match input.and_then(|input| input.input) {
        Some(Input::Stdin(data)) => (data, false),
        Some(Input::Pty(data)) => (data, true),
        None => return Err(Refusal::invalid("input: stdin or pty")),
    };
    match (&process.kind, is_pty) {
        (Kind::Command(_), true) => return mismatch("terminal"),
        (Kind::Terminal(_), false) => return mismatch("standard input"),
        (Kind::Command(_), false) if !process.has_stdin() => return mismatch("standard input"),
        _ => {}
    }
    while !data.is_empty() {
        let part = data.split_to(data.len().min(INPUT_BYTES));
        match &process.kind {
            Kind::Command(id) => write_command(target, id, part, false).await?,
            Kind::Terminal(id) => {
                let request =
                    v1::WriteTerminalRequest { sandbox_id: target.id.clone(), pty_id: id.clone(), data: part };
                target.caller.sandboxes().write_terminal(request).await?;
            }
        }
    }
    Ok(())
}

async fn write_command(target: &Target, id: &str, data: Bytes, is_end: bool) -> Result<(), Refusal> {
    let request =
        v1::WriteCommandRequest { sandbox_id: target.id.clone(), command_id: id.to_owned(), data, end: is_end };
    target.caller.sandboxes().write_command(request).await?;
    Ok(())
}

async fn stream_input(
    state: &State,
    target: &Target,
    mut requests: Requests<wire::StreamInputRequest>,
) -> Result<(), Refusal> {
    use wire::stream_input_request::Event;
    let mut process = None;
    while let Some(request) = requests.next().await? {
        match request.event {
            Some(Event::Start(start)) if process.is_none() => {
                process = Some(state.processes.find(&target.id, start.process.as_ref())?);
            }
            Some(Event::Start(_)) => return Err(Refusal::invalid("start: sent twice")),
            Some(Event::Data(data)) => {
                let process = process.as_ref().ok_or_else(|| Refusal::invalid("the first message is `start`"))?;
                send_input(target, process, data.input).await?;
            }
            Some(Event::Keepalive(_)) | None => {}
        }
    }
    Ok(())
}

async fn close_stdin(
    state: &State,
    target: &Target,
    request: wire::CloseStdinRequest,
) -> Result<wire::CloseStdinResponse, Refusal> {
    let process = state.processes.find(&target.id, request.process.as_ref())?;
    match &process.kind {
        Kind::Command(id) if process.has_stdin() => write_command(target, id, Bytes::new(), true).await?,
        Kind::Command(_) | Kind::Terminal(_) => {
            let message = format!("process {} has no open standard input", process.pid);
            return Err(Refusal::new(Code::FailedPrecondition, message));
        }
    }
    Ok(wire::CloseStdinResponse {})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_has_its_words_as_they_are() {
        let config = |cmd: &str, args: &[&str]| wire::ProcessConfig {
            cmd: cmd.to_owned(),
            args: args.iter().map(|word| (*word).to_owned()).collect(),
            ..wire::ProcessConfig::default()
        };
        let line = command_line(&config("/bin/bash", &["-l", "-c", "echo 'a'; $(b)"])).expect("a line");
        assert_eq!(line, r"echo $$; exec '/bin/bash' '-l' '-c' 'echo '\''a'\''; $(b)'");
        for (cmd, args) in [("", vec![]), ("a\0", vec![]), ("a", vec!["\0"])] {
            assert!(command_line(&config(cmd, &args)).is_err(), "{cmd:?} {args:?}");
        }
    }

    #[test]
    fn directories_begin_at_the_workspace() {
        let of = |cwd: Option<&str>| {
            directory(&wire::ProcessConfig { cwd: cwd.map(str::to_owned), ..wire::ProcessConfig::default() })
        };
        for (cwd, expected) in [
            (None, "/workspace"),
            (Some(""), "/workspace"),
            (Some("~"), "/workspace"),
            (Some("~/a"), "/workspace/a"),
            (Some("a/b"), "/workspace/a/b"),
            (Some("/tmp"), "/tmp"),
        ] {
            assert_eq!(of(cwd), expected);
        }
    }
}
