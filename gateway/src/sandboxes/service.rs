//! Implements the gRPC service of sandboxes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::Time;
use amalgam_proto::v1::sandbox_service_server::SandboxService;
use amalgam_proto::{Failure, Reason, timestamp, v1};
use amalgam_sandbox::{Command, CommandSpec, SandboxError, SandboxState, Stream, TerminalSize};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::access::Access;
use super::creation::{LIFETIME_SECONDS_MAX, Owner, Plan, check_envs, check_secrets};
use super::home::Keep;
use super::messages::{Event, command_message, sandbox_message, stats_message};
use super::port_token::PortToken;
use super::ports::port_of;
use super::streams::{command_stream, terminal_stream};
use super::{Living, Sandboxes, sandbox_status};
use crate::catalog::SandboxFilter;
use crate::identity::Identity;
use crate::project::ProjectName;

type Answer<T> = Result<Response<T>, Status>;

/// Maximum time that a call waits for a command without a time-out. The command goes on after that.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time that a call waits for the end of a command that was killed by its time-out.
const KILLED_WITHIN: Duration = Duration::from_secs(10);
const OUTPUT_BYTES_DEFAULT: u64 = 1 << 20;
const OUTPUT_BYTES_MAX: u64 = 4 << 20;
const COMMAND_BYTES_MAX: usize = 1 << 20;
const PAGE_DEFAULT: u32 = 20;
const PAGE_MAX: u32 = 100;
const BATCH_MAX: usize = 50;
const EXTEND_SECONDS_MAX: i32 = 3_600;
/// Default lifetime of the URL of a port, in seconds.
const PORT_URL_DEFAULT_SECONDS: i64 = 3_600;
const NANOSECONDS: i64 = 1_000_000_000;
const SIGTERM: i32 = 15;
const SIGNAL_MAX: i32 = 64;

fn invalid(why: impl Into<String>) -> Status {
    Failure::new(Reason::Invalid, why).into_status()
}

/// Returns the project of a call, which the gate has put into the request.
fn project_of<T>(request: &Request<T>) -> Result<ProjectName, Status> {
    let found = request.extensions().get::<ProjectName>().cloned();
    found.ok_or_else(|| Status::internal("the call did not pass the gate"))
}

fn identity_of<T>(request: &Request<T>) -> Result<&Identity, Status> {
    request.extensions().get::<Identity>().ok_or_else(|| Status::internal("the call did not pass the gate"))
}

fn owner_of<T>(request: &Request<T>) -> Result<Owner, Status> {
    Ok(Owner::new(project_of(request)?, identity_of(request)?))
}

/// Checks a command of a request, and adds the environment variables of its sandbox.
pub(super) fn command_spec(
    living: &Living,
    command: String,
    cwd: String,
    envs: HashMap<String, String>,
    timeout: Option<i64>,
) -> Result<CommandSpec, Status> {
    if command.is_empty() || command.len() > COMMAND_BYTES_MAX || command.contains('\0') {
        return Err(invalid("command: 1 byte to 1 MiB, without zero bytes"));
    }
    if cwd.contains('\0') {
        return Err(invalid("cwd: has a zero byte"));
    }
    check_envs(&envs)?;
    let timeout = match timeout {
        None => None,
        Some(milliseconds) => match u64::try_from(milliseconds) {
            Ok(milliseconds) if milliseconds > 0 => Some(Duration::from_millis(milliseconds)),
            _ => return Err(invalid("timeout: milliseconds, more than 0")),
        },
    };
    let mut all = living.envs.clone();
    all.extend(envs);
    Ok(CommandSpec { command, cwd, envs: all, timeout, ..CommandSpec::default() })
}

fn offset_of(offset: i64) -> Result<u64, Status> {
    u64::try_from(offset).map_err(|_| invalid("offset: not negative"))
}

fn size_of(cols: i32, rows: i32) -> Result<TerminalSize, Status> {
    let one = |count: i32| u16::try_from(count).ok().filter(|count| *count > 0);
    let size = one(cols).zip(one(rows)).map(|(cols, rows)| TerminalSize { cols, rows });
    size.ok_or_else(|| invalid("cols, rows: 1 to 65535"))
}

fn timed_out(command: &Command, is_killed: bool) -> Status {
    let message = match is_killed {
        true => format!("command {} was killed with everything that it started, because its time was up", command.id),
        false => format!("command {} still runs; attach to it, or kill it", command.id),
    };
    let failure = Failure::new(Reason::ProcessTimeout, message).with("commandId", &*command.id);
    failure.with("killed", is_killed.to_string()).into_status()
}

impl Sandboxes {
    pub(super) async fn start_command(
        &self,
        id: &str,
        living: &Living,
        spec: CommandSpec,
    ) -> Result<Arc<Command>, Status> {
        let started = living.link.start_command(spec).await.map_err(|error| sandbox_status(&error))?;
        self.note(id, &format!("command {} started", started.id));
        Ok(started)
    }
}

#[tonic::async_trait]
impl SandboxService for Sandboxes {
    type StreamCommandStream = ReceiverStream<Result<v1::StreamCommandResponse, Status>>;
    type AttachCommandStream = ReceiverStream<Result<v1::AttachCommandResponse, Status>>;
    type AttachTerminalStream = ReceiverStream<Result<v1::AttachTerminalResponse, Status>>;
    type RunOnForkStream = ReceiverStream<Result<v1::RunOnForkResponse, Status>>;
    type WatchSandboxesStream = ReceiverStream<Result<v1::WatchSandboxesResponse, Status>>;

    async fn create_sandbox(&self, request: Request<v1::CreateSandboxRequest>) -> Answer<v1::CreateSandboxResponse> {
        let owner = owner_of(&request)?;
        let plan = Plan::of_request(request.into_inner())?;
        // The creation goes on if the caller disconnects, so that no half-made sandbox is left.
        let sandboxes = self.clone();
        let started = tokio::spawn(async move { sandboxes.start(&owner, plan).await }).await;
        let record = started.map_err(|_| Status::internal("a bug in the server; its log says more"))??;
        Ok(Response::new(v1::CreateSandboxResponse { sandbox: Some(sandbox_message(&record)) }))
    }

    async fn get_sandbox(&self, request: Request<v1::GetSandboxRequest>) -> Answer<v1::GetSandboxResponse> {
        let record = self.find(&project_of(&request)?, &request.get_ref().id).await?;
        Ok(Response::new(v1::GetSandboxResponse { sandbox: Some(sandbox_message(&record)) }))
    }

    async fn list_sandboxes(&self, request: Request<v1::ListSandboxesRequest>) -> Answer<v1::ListSandboxesResponse> {
        let project = project_of(&request)?;
        let request = request.into_inner();
        let page = u32::try_from(request.page).map_err(|_| invalid("page: not negative"))?.max(1);
        let limit = match u32::try_from(request.limit) {
            Ok(0) => PAGE_DEFAULT,
            Ok(limit @ 1..=PAGE_MAX) => limit,
            _ => return Err(invalid("limit: 1 to 100")),
        };
        let state = Some(request.state.as_str()).filter(|state| !state.is_empty());
        let state = state.map(str::parse::<SandboxState>).transpose().map_err(invalid)?;
        let filter = SandboxFilter { state, name_prefix: request.name_prefix };
        let skip = (page - 1).saturating_mul(limit);
        let (items, total) = self.inner.catalog.list_sandboxes(&project, &filter, skip, limit).await?;
        Ok(Response::new(v1::ListSandboxesResponse {
            items: items.iter().map(sandbox_message).collect(),
            total,
            page: i32::try_from(page).unwrap_or(i32::MAX),
            limit: i32::try_from(limit).unwrap_or(i32::MAX),
        }))
    }

    async fn delete_sandbox(&self, request: Request<v1::DeleteSandboxRequest>) -> Answer<v1::DeleteSandboxResponse> {
        let (project, sandboxes) = (project_of(&request)?, self.clone());
        let request = request.into_inner();
        // The deletion goes on if the caller disconnects, so that no sandbox is left half ended.
        let deleted = tokio::spawn(async move {
            sandboxes.delete(&project, &request.id, Keep::of_request(request.keep_workspace)).await
        });
        deleted.await.map_err(|_| Status::internal("a bug in the server; its log says more"))??;
        Ok(Response::new(v1::DeleteSandboxResponse {}))
    }

    async fn batch_delete_sandboxes(
        &self,
        request: Request<v1::BatchDeleteSandboxesRequest>,
    ) -> Answer<v1::BatchDeleteSandboxesResponse> {
        let (project, sandboxes) = (project_of(&request)?, self.clone());
        let request = request.into_inner();
        if request.ids.len() > BATCH_MAX {
            return Err(invalid("ids: at most 50"));
        }
        // The deletions go on if the caller disconnects, so that no sandbox is left half ended.
        let deleted = tokio::spawn(async move {
            let mut response = v1::BatchDeleteSandboxesResponse::default();
            for id in request.ids {
                match sandboxes.delete(&project, &id, Keep::of_request(request.keep_workspace)).await {
                    Ok(()) => response.succeeded.push(id),
                    Err(status) => response.failed.push(v1::FailedDeletion { id, error: status.message().to_owned() }),
                }
            }
            response
        });
        let response = deleted.await.map_err(|_| Status::internal("a bug in the server; its log says more"))?;
        Ok(Response::new(response))
    }

    async fn get_sandbox_logs(
        &self,
        request: Request<v1::GetSandboxLogsRequest>,
    ) -> Answer<v1::GetSandboxLogsResponse> {
        let project = project_of(&request)?;
        let request = request.into_inner();
        self.find(&project, &request.id).await?;
        Ok(Response::new(self.read_log(&request)?))
    }

    async fn get_sandbox_stats(
        &self,
        request: Request<v1::GetSandboxStatsRequest>,
    ) -> Answer<v1::GetSandboxStatsResponse> {
        let id = &request.get_ref().id;
        let project = project_of(&request)?;
        let mut living = self.running(&project, id).await?;
        if Access::of_record(&self.find(&project, id).await?) == Access::Checkout {
            // Nothing limits the size of a checkout.
            living.limits.disk_bytes = 0;
        }
        Ok(Response::new(stats_message(id, &living, living.link.usage())))
    }

    async fn extend_sandbox(&self, request: Request<v1::ExtendSandboxRequest>) -> Answer<v1::ExtendSandboxResponse> {
        let project = project_of(&request)?;
        let request = request.into_inner();
        if !(1..=EXTEND_SECONDS_MAX).contains(&request.seconds) {
            return Err(invalid("seconds: 1 to 3600"));
        }
        let record = self.find(&project, &request.id).await?;
        self.running(&project, &request.id).await?;
        let expires = Time(record.expires.0 + i64::from(request.seconds) * NANOSECONDS);
        if expires.0 > record.created.0 + LIFETIME_SECONDS_MAX * NANOSECONDS {
            return Err(invalid("seconds: a sandbox lives for 24 hours at most"));
        }
        self.inner.catalog.set_sandbox_expiry(&request.id, expires).await?;
        let record = self.find(&project, &request.id).await?;
        Ok(Response::new(v1::ExtendSandboxResponse { sandbox: Some(sandbox_message(&record)) }))
    }

    async fn set_sandbox_timeout(
        &self,
        request: Request<v1::SetSandboxTimeoutRequest>,
    ) -> Answer<v1::SetSandboxTimeoutResponse> {
        let project = project_of(&request)?;
        let request = request.into_inner();
        let record = self.set_timeout(&project, &request.id, request.seconds).await?;
        Ok(Response::new(v1::SetSandboxTimeoutResponse { sandbox: Some(sandbox_message(&record)) }))
    }

    async fn pause_sandbox(&self, request: Request<v1::PauseSandboxRequest>) -> Answer<v1::PauseSandboxResponse> {
        let (project, sandboxes) = (project_of(&request)?, self.clone());
        // The pause goes on if the caller disconnects, so that no sandbox is left half ended.
        let paused = tokio::spawn(async move { sandboxes.pause(&project, &request.get_ref().id).await }).await;
        let record = paused.map_err(|_| Status::internal("a bug in the server; its log says more"))??;
        Ok(Response::new(v1::PauseSandboxResponse { sandbox: Some(sandbox_message(&record)) }))
    }

    async fn resume_sandbox(&self, request: Request<v1::ResumeSandboxRequest>) -> Answer<v1::ResumeSandboxResponse> {
        let (owner, sandboxes) = (owner_of(&request)?, self.clone());
        let resumed = tokio::spawn(async move { sandboxes.resume_stopped(&owner, request.get_ref()).await }).await;
        let record = resumed.map_err(|_| Status::internal("a bug in the server; its log says more"))??;
        Ok(Response::new(v1::ResumeSandboxResponse { sandbox: Some(sandbox_message(&record)) }))
    }

    async fn fork_sandbox(&self, request: Request<v1::ForkSandboxRequest>) -> Answer<v1::ForkSandboxResponse> {
        let owner = owner_of(&request)?;
        let sandboxes = self.clone();
        let forked = tokio::spawn(async move { sandboxes.fork(&owner, request.into_inner()).await }).await;
        let records = forked.map_err(|_| Status::internal("a bug in the server; its log says more"))??;
        Ok(Response::new(v1::ForkSandboxResponse { sandboxes: records.iter().map(sandbox_message).collect() }))
    }

    async fn run_command(&self, request: Request<v1::RunCommandRequest>) -> Answer<v1::RunCommandResponse> {
        let project = project_of(&request)?;
        let request = request.into_inner();
        if request.stream {
            return Err(invalid("stream: send `Accept: text/event-stream`, or call StreamCommand"));
        }
        let living = self.running(&project, &request.sandbox_id).await?;
        let bytes_max = match u64::try_from(request.max_output_size) {
            Ok(0) => OUTPUT_BYTES_DEFAULT,
            Ok(bytes @ 1..=OUTPUT_BYTES_MAX) => bytes,
            _ => return Err(invalid("max_output_size: 1 to 4194304")),
        };
        let mut spec = command_spec(&living, request.command, request.cwd, request.envs, request.timeout)?;
        (spec.output_bytes_max, spec.stdin) = (Some(bytes_max), request.stdin);
        spec.secrets = check_secrets(request.secrets)?;
        let timeout = spec.timeout;
        let command = self.start_command(&request.sandbox_id, &living, spec).await?;
        let within = timeout.map_or(CALL_TIMEOUT, |timeout| timeout + KILLED_WITHIN);
        let Ok(end) = tokio::time::timeout(within, command.ended()).await else {
            return Err(timed_out(&command, false));
        };
        if end.is_timed_out {
            return Err(timed_out(&command, true));
        }
        if let Some(error) = end.error {
            let failure = Failure::new(Reason::CommandFailed, error).with("commandId", &*command.id);
            return Err(failure.into_status());
        }
        let (mut stdout, mut stderr, mut offset, mut skipped) = (Vec::new(), Vec::new(), 0, 0);
        loop {
            let (part, end) = command.read(offset);
            skipped += part.skipped;
            for chunk in &part.chunks {
                let into = if chunk.stream == Stream::Stderr { &mut stderr } else { &mut stdout };
                into.extend_from_slice(&chunk.data);
            }
            offset = part.next;
            if end.is_some() || part.chunks.is_empty() {
                break;
            }
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Response::new(v1::RunCommandResponse {
            command_id: command.id.clone(),
            exit_code: end.exit_code,
            stdout: text(&stdout),
            stderr: text(&stderr),
            truncated: end.is_truncated || skipped > 0,
        }))
    }

    async fn stream_command(&self, request: Request<v1::StreamCommandRequest>) -> Answer<Self::StreamCommandStream> {
        let project = project_of(&request)?;
        let request = request.into_inner();
        let living = self.running(&project, &request.sandbox_id).await?;
        let mut spec = command_spec(&living, request.command, request.cwd, request.envs, request.timeout)?;
        let bytes_max = u64::try_from(request.max_output_size).map_err(|_| invalid("max_output_size: not negative"))?;
        spec.output_bytes_max = Some(bytes_max).filter(|bytes| *bytes > 0);
        (spec.stdin, spec.is_stdin_open) = (request.stdin, request.stdin_open);
        spec.secrets = check_secrets(request.secrets)?;
        let command = self.start_command(&request.sandbox_id, &living, spec).await?;
        let mut first = Event::of_stream(Stream::Stdout, &command.id, self.now());
        first.kind = "started";
        Ok(Response::new(command_stream(command, Some(first), 0, request.binary, self.inner.now)))
    }

    async fn attach_command(&self, request: Request<v1::AttachCommandRequest>) -> Answer<Self::AttachCommandStream> {
        let project = project_of(&request)?;
        let request = request.into_inner();
        let living = self.running(&project, &request.sandbox_id).await?;
        let command = living.link.command(&request.command_id).map_err(|error| sandbox_status(&error))?;
        let offset = offset_of(request.offset)?;
        Ok(Response::new(command_stream(command, None, offset, request.binary, self.inner.now)))
    }

    async fn list_commands(&self, request: Request<v1::ListCommandsRequest>) -> Answer<v1::ListCommandsResponse> {
        let living = self.running(&project_of(&request)?, &request.get_ref().sandbox_id).await?;
        let commands = living.link.commands().iter().map(|command| command_message(command)).collect();
        Ok(Response::new(v1::ListCommandsResponse { commands }))
    }

    async fn write_command(&self, request: Request<v1::WriteCommandRequest>) -> Answer<v1::WriteCommandResponse> {
        let project = project_of(&request)?;
        let request = request.into_inner();
        let living = self.running(&project, &request.sandbox_id).await?;
        let written = living.link.write_stdin(&request.command_id, request.data, request.end).await;
        written.map_err(|error| sandbox_status(&error))?;
        Ok(Response::new(v1::WriteCommandResponse {}))
    }

    async fn kill_command(&self, request: Request<v1::KillCommandRequest>) -> Answer<v1::KillCommandResponse> {
        let project = project_of(&request)?;
        let request = request.into_inner();
        let signal = match request.signal {
            0 => SIGTERM,
            signal @ 1..=SIGNAL_MAX => signal,
            _ => return Err(invalid("signal: 1 to 64")),
        };
        let living = self.running(&project, &request.sandbox_id).await?;
        let killed = living.link.kill_command(&request.command_id, signal).await;
        killed.map_err(|error| sandbox_status(&error))?;
        self.note(&request.sandbox_id, &format!("command {} got signal {signal}", request.command_id));
        Ok(Response::new(v1::KillCommandResponse {}))
    }

    async fn create_terminal(&self, request: Request<v1::CreateTerminalRequest>) -> Answer<v1::CreateTerminalResponse> {
        let project = project_of(&request)?;
        let identity = identity_of(&request)?.clone();
        let host = request.metadata().get("host").and_then(|host| host.to_str().ok()).map(str::to_owned);
        let request = request.into_inner();
        let size = size_of(request.cols, request.rows)?;
        check_envs(&request.envs)?;
        if request.args.iter().any(|word| word.contains('\0')) {
            return Err(invalid("args: a zero byte"));
        }
        let secrets = check_secrets(request.secrets)?;
        let living = self.running(&project, &request.sandbox_id).await?;
        let mut envs = living.envs.clone();
        envs.extend(request.envs);
        let opened = living.link.open_terminal(size, (request.shell, request.args), request.cwd, envs, secrets).await;
        let terminal = opened.map_err(|error| sandbox_status(&error))?;
        self.note(&request.sandbox_id, &format!("terminal {} opened", terminal.id));
        let ticket = self.new_ticket(&terminal.id, identity, project.clone())?;
        let scheme = if self.inner.is_tls { "wss" } else { "ws" };
        // A caller on a Unix socket sends no host.
        let server = host.map_or_else(String::new, |host| format!("{scheme}://{host}"));
        let (sandbox, id) = (&request.sandbox_id, terminal.id.clone());
        let websocket_url =
            format!("{server}/api/v1/projects/{project}/sandboxes/{sandbox}/pty/{id}/ws?ticket={ticket}");
        Ok(Response::new(v1::CreateTerminalResponse { id, websocket_url }))
    }

    async fn attach_terminal(&self, request: Request<v1::AttachTerminalRequest>) -> Answer<Self::AttachTerminalStream> {
        let project = project_of(&request)?;
        let request = request.into_inner();
        let living = self.running(&project, &request.sandbox_id).await?;
        let terminal = living.link.terminal(&request.pty_id).map_err(|error| sandbox_status(&error))?;
        Ok(Response::new(terminal_stream(terminal, offset_of(request.offset)?)))
    }

    async fn write_terminal(&self, request: Request<v1::WriteTerminalRequest>) -> Answer<v1::WriteTerminalResponse> {
        let project = project_of(&request)?;
        let request = request.into_inner();
        let living = self.running(&project, &request.sandbox_id).await?;
        let written = living.link.write_terminal(&request.pty_id, request.data).await;
        written.map_err(|error| sandbox_status(&error))?;
        Ok(Response::new(v1::WriteTerminalResponse {}))
    }

    async fn resize_terminal(&self, request: Request<v1::ResizeTerminalRequest>) -> Answer<v1::ResizeTerminalResponse> {
        let project = project_of(&request)?;
        let request = request.into_inner();
        let size = size_of(request.cols, request.rows)?;
        let living = self.running(&project, &request.sandbox_id).await?;
        let resized = living.link.resize_terminal(&request.pty_id, size).await;
        resized.map_err(|error| sandbox_status(&error))?;
        Ok(Response::new(v1::ResizeTerminalResponse {}))
    }

    async fn kill_terminal(&self, request: Request<v1::KillTerminalRequest>) -> Answer<v1::KillTerminalResponse> {
        let project = project_of(&request)?;
        let request = request.into_inner();
        let living = self.running(&project, &request.sandbox_id).await?;
        living.link.kill_terminal(&request.pty_id).await.map_err(|error| sandbox_status(&error))?;
        Ok(Response::new(v1::KillTerminalResponse {}))
    }

    async fn open_port(&self, request: Request<v1::OpenPortRequest>) -> Answer<v1::OpenPortResponse> {
        let project = project_of(&request)?;
        let identity = identity_of(&request)?.clone();
        let host = request.metadata().get("host").and_then(|host| host.to_str().ok()).map(str::to_owned);
        let request = request.into_inner();
        if identity.is_same_user() {
            let message = "this process listens on a Unix socket only, so that a URL would lead nowhere; `amalgam serve --listen` has an \
                           address, and at the socket the port is /api/v1/sandboxes/ID/ports/PORT/";
            return Err(Failure::new(Reason::PortUnreachable, message).into_status());
        }
        let port = port_of(&request.port.to_string())?;
        let seconds = match i64::from(request.timeout_seconds) {
            0 => PORT_URL_DEFAULT_SECONDS,
            seconds @ 1..=LIFETIME_SECONDS_MAX => seconds,
            _ => return Err(invalid("timeout_seconds: 1 to 86400")),
        };
        self.running(&project, &request.sandbox_id).await?;
        let expires = Time(self.now().0.saturating_add(seconds * NANOSECONDS));
        let sandbox = request.sandbox_id;
        let token = PortToken { sandbox: sandbox.clone(), port, holder: (identity, project), expires };
        let host = self.port_host(&self.new_port_token(token)?, host.as_deref());
        self.note(&sandbox, &format!("port {port} opened for {seconds} s"));
        let scheme = if self.inner.is_tls { "https" } else { "http" };
        // A caller on a Unix socket sends no host.
        let url = if host.starts_with('/') { format!("{host}/") } else { format!("{scheme}://{host}/") };
        Ok(Response::new(v1::OpenPortResponse { url, host, expires_at: Some(timestamp(expires)) }))
    }

    async fn run_on_fork(&self, request: Request<v1::RunOnForkRequest>) -> Answer<Self::RunOnForkStream> {
        let owner = owner_of(&request)?;
        Ok(Response::new(self.begin_round(owner, request.into_inner())?))
    }

    async fn watch_sandboxes(&self, request: Request<v1::WatchSandboxesRequest>) -> Answer<Self::WatchSandboxesStream> {
        let project = project_of(&request)?;
        Ok(Response::new(self.watch_events(project, request.into_inner()).await?))
    }

    async fn list_templates(&self, request: Request<v1::ListTemplatesRequest>) -> Answer<v1::ListTemplatesResponse> {
        let calls = self.calls_of(&owner_of(&request)?).await?;
        Ok(Response::new(v1::ListTemplatesResponse { templates: self.all_templates(&calls).await? }))
    }

    async fn get_template(&self, request: Request<v1::GetTemplateRequest>) -> Answer<v1::GetTemplateResponse> {
        let calls = self.calls_of(&owner_of(&request)?).await?;
        let name = request.into_inner().name;
        let found = self.all_templates(&calls).await?.into_iter().find(|template| template.name == name);
        let unknown = || sandbox_status(&SandboxError::NoTemplate(name.clone()));
        Ok(Response::new(v1::GetTemplateResponse { template: Some(found.ok_or_else(unknown)?) }))
    }
}
