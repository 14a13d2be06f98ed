//! The channel to the agent of one sandbox: a socket of its own, on which only that agent can register.

mod connections;
mod outgoing;
mod ports;
mod registration;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::{debug, warn};

use crate::agent_v1 as wire;
use crate::agent_v1::agent_service_server::{AgentService, AgentServiceServer};
use crate::agent_v1::connect_request::Payload;
use crate::agent_v1::connect_response::Payload as Order;
use crate::command::{Command, CommandSpec, Secrets};
use crate::error::{Result, SandboxError};
use crate::secret::{Secret, SecretHash};
use crate::spool::{Spool, Spooled};
use crate::terminal::{Terminal, TerminalSize};
use outgoing::Outgoing;
use ports::Ports;
use registration::{Admission, Registration};

pub use outgoing::OnOutgoing;
pub use stream::LinkStream;

/// How long a connection may take to register.
const REGISTER_WITHIN: Duration = Duration::from_secs(10);
/// How long a call waits for an agent that is not connected.
const CONNECT_WITHIN: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });
/// Limit on simultaneous connections of the agent. It has one, and two while it reconnects.
const CONNECTIONS_MAX: usize = 4;
/// Limit on messages that wait for the agent.
const QUEUE: usize = 64;
/// Limit on ended commands that are remembered.
const ENDED_COMMANDS_MAX: usize = 64;
/// Limit on commands that run at once.
const RUNNING_COMMANDS_MAX: usize = 256;
/// Limit on terminals of one sandbox.
const TERMINALS_MAX: usize = 5;
/// Size limit of each of the two files with the output of a command.
const SPOOL_BYTES: u64 = 8 << 20;
/// Delay after which a command that the agent does not name when it registers counts as lost.
const MISSING_AFTER: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 15_000 });
/// Limit on bytes of output that the server has not acknowledged.
const UNACKNOWLEDGED_BYTES_MAX: i32 = 4 << 20;

/// The queue of messages to a connected agent.
type Orders = mpsc::Sender<Result<wire::ConnectResponse, Status>>;

/// The port of the proxy in a sandbox that has one.
pub const PROXY_PORT: u16 = 3128;

/// Parameters of a link.
pub struct LinkOptions {
    /// The id of the sandbox.
    pub sandbox_id: String,
    /// The path of the socket.
    pub socket: PathBuf,
    /// The user and the group of the agent, if they are not the server's.
    pub owner: Option<(u32, u32)>,
    /// The hash of the secret that the agent registers with.
    pub credential: SecretHash,
    /// Stores the hash of the next secret. A hash replaces those of earlier calls.
    pub save_credential: Box<dyn Fn(SecretHash) + Send + Sync>,
    /// Interval between heartbeats of the agent.
    pub heartbeat: Duration,
    /// Time without a connection to the server after which the agent ends its sandbox.
    pub orphaned_after: Duration,
    /// The directory for output that the next server needs if this one is killed.
    pub spool: PathBuf,
    /// Handles connections to the proxy, for a sandbox that has one.
    pub on_outgoing: Option<OnOutgoing>,
    /// Returns the time in milliseconds since 1970.
    pub now_ms: fn() -> i64,
}

/// The resources that all processes of a sandbox use, as its agent reported them last.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// CPU usage; 100 is one CPU.
    pub cpu_percent: f64,
    /// Resident memory.
    pub memory_bytes: u64,
    /// Bytes in the workspace and in the home.
    pub disk_bytes: u64,
    /// The number of processes.
    pub processes: u32,
    /// Bytes received from the network.
    pub received_bytes: u64,
    /// Bytes sent to the network.
    pub sent_bytes: u64,
    /// When the server received the report, in milliseconds since 1970.
    pub at_ms: i64,
}

/// The channel to one agent. Cheap to clone.
#[derive(Clone)]
pub struct Link {
    inner: Arc<Inner>,
}

struct Inner {
    options: LinkOptions,
    spool: Spool,
    ports: Ports,
    outgoing: Option<Outgoing>,
    state: Mutex<State>,
    connected: watch::Sender<bool>,
    serving: Mutex<Option<JoinHandle<()>>>,
}

struct State {
    registration: Registration,
    agent: Option<Agent>,
    connections: u64,
    last_sequence: u64,
    commands: BTreeMap<String, Arc<Command>>,
    /// Ids of commands in the order of their start.
    order: Vec<String>,
    terminals: BTreeMap<String, Arc<Terminal>>,
    usage: Option<Usage>,
    /// Why the link was closed; `None` while it is open.
    closed: Option<String>,
}

/// A connected agent.
struct Agent {
    connection: u64,
    /// Whether it carries connections to ports.
    has_ports: bool,
    orders: Orders,
}

impl Link {
    /// Listens for the agent.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn listen(mut options: LinkOptions) -> Result<Self> {
        let incoming = connections::listen(&options.socket, options.owner, CONNECTIONS_MAX)?;
        let ports = Ports::listen(&options.socket, options.owner)?;
        let answer = options.on_outgoing.take();
        let outgoing = answer.map(|answer| Outgoing::listen(&options.socket, options.owner, answer)).transpose()?;
        let failed = SandboxError::io(format!("the output in {}", options.spool.display()));
        let spool = Spool::new(options.spool.clone(), SPOOL_BYTES).map_err(failed)?;
        let mut state = State {
            registration: Registration::new(options.credential.clone()),
            agent: None,
            connections: 0,
            last_sequence: 0,
            commands: BTreeMap::new(),
            order: Vec::new(),
            terminals: BTreeMap::new(),
            usage: None,
            closed: None,
        };
        state.restore(&spool).map_err(SandboxError::io(format!("the output in {}", options.spool.display())))?;
        let connected = watch::Sender::new(false);
        let inner =
            Inner { options, spool, ports, outgoing, state: Mutex::new(state), connected, serving: Mutex::new(None) };
        let link = Self { inner: Arc::new(inner) };
        let service = AgentServiceServer::new(link.clone());
        let serving = tokio::spawn(async move {
            let served = tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await;
            if let Err(error) = served {
                warn!(%error, "the socket of an agent ended");
            }
        });
        *link.inner.serving.lock() = Some(serving);
        Ok(link)
    }

    /// Returns whether the agent is connected.
    pub fn is_connected(&self) -> bool {
        *self.inner.connected.borrow()
    }

    /// Returns a receiver that holds whether the agent is connected, and is notified of changes.
    pub fn connection_changes(&self) -> watch::Receiver<bool> {
        self.inner.connected.subscribe()
    }

    /// Returns whether two values are the same link.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Waits until the agent is connected.
    pub async fn connected(&self) {
        let mut connected = self.inner.connected.subscribe();
        // The link itself holds the sender.
        let _ = connected.wait_for(|connected| *connected).await;
    }

    /// Returns the resource usage that the agent reported last; `None` before its first report.
    pub fn usage(&self) -> Option<Usage> {
        self.inner.state.lock().usage
    }

    /// Starts a command.
    ///
    /// # Errors
    /// The agent is not connected, or too many commands run.
    pub async fn start_command(&self, spec: CommandSpec) -> Result<Arc<Command>> {
        self.wait_for_agent().await?;
        let id = new_id("cmd")?;
        let started_ms = (self.inner.options.now_ms)();
        let (command, orders) = {
            let mut state = self.inner.state.lock();
            // Under one lock with the insertion: the next registration finds no command that was not yet sent.
            let orders = state.orders()?;
            let running = state.commands.values().filter(|command| command.end().is_none()).count();
            if running >= RUNNING_COMMANDS_MAX {
                return Err(SandboxError::TooManyCommands(running));
            }
            let command = Command::begin(&self.inner.spool, id.clone(), spec.command.clone(), started_ms);
            let command = Arc::new(command.map_err(SandboxError::io("the output of a command"))?);
            state.commands.insert(id.clone(), Arc::clone(&command));
            state.order.push(id.clone());
            for id in state.forget_old_commands() {
                self.inner.spool.remove(&id);
            }
            (command, orders)
        };
        let order = wire::RunCommandRequest {
            command_id: id.clone(),
            command: spec.command,
            cwd: spec.cwd,
            envs: spec.envs,
            timeout_ms: spec.timeout.map_or(0, |timeout| i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX)),
            output_bytes_max: spec.output_bytes_max.unwrap_or(0),
            stdin: spec.stdin,
            stdin_open: spec.is_stdin_open,
            secrets: spec.secrets.0,
        };
        command.count_input(order.stdin.len());
        if let Err(error) = send_to(&orders, Order::RunCommand(order)).await {
            self.inner.state.lock().forget_command(&id);
            self.inner.spool.remove(&id);
            return Err(error);
        }
        Ok(command)
    }

    /// Finds a command.
    ///
    /// # Errors
    /// There is none of the id.
    pub fn command(&self, id: &str) -> Result<Arc<Command>> {
        let found = self.inner.state.lock().commands.get(id).cloned();
        found.ok_or_else(|| SandboxError::NoCommand(id.to_owned()))
    }

    /// Returns all known commands, in the order of their start.
    pub fn commands(&self) -> Vec<Arc<Command>> {
        let state = self.inner.state.lock();
        state.order.iter().filter_map(|id| state.commands.get(id).cloned()).collect()
    }

    /// Sends standard input to a command. Waits while the command has much unread input, unless this is the end of the input.
    ///
    /// # Errors
    /// There is no such command, or the agent is not connected.
    pub async fn write_stdin(&self, id: &str, data: Bytes, is_end: bool) -> Result<()> {
        let command = self.command(id)?;
        let bytes = data.len();
        command.count_input(bytes);
        let input = wire::CommandInput { command_id: command.id.clone(), data, end: is_end };
        if let Err(error) = self.send(Order::CommandInput(input)).await {
            command.uncount_input(bytes);
            return Err(error);
        }
        if !is_end {
            command.room_for_input().await;
        }
        Ok(())
    }

    /// Sends a signal to a command and everything that it started.
    ///
    /// # Errors
    /// There is no such command, or the agent is not connected.
    pub async fn kill_command(&self, id: &str, signal: i32) -> Result<()> {
        let command = self.command(id)?;
        if command.end().is_some() {
            return Ok(());
        }
        self.send(Order::KillCommand(wire::KillCommandRequest { command_id: command.id.clone(), signal })).await
    }

    /// Starts a shell on a new terminal.
    ///
    /// # Errors
    /// The sandbox has too many terminals, or the agent is not connected.
    pub async fn open_terminal(
        &self,
        size: TerminalSize,
        (shell, args): (String, Vec<String>),
        cwd: String,
        envs: std::collections::HashMap<String, String>,
        secrets: Secrets,
    ) -> Result<Arc<Terminal>> {
        self.wait_for_agent().await?;
        let id = new_id("pty")?;
        let (terminal, orders) = {
            let mut state = self.inner.state.lock();
            let orders = state.orders()?;
            let open = state.terminals.values().filter(|terminal| terminal.end().is_none()).count();
            if open >= TERMINALS_MAX {
                return Err(SandboxError::TooManyTerminals(open));
            }
            state.terminals.retain(|id, terminal| {
                let is_open = terminal.end().is_none();
                if !is_open {
                    self.inner.spool.remove(id);
                }
                is_open
            });
            let terminal = Terminal::begin(&self.inner.spool, id.clone());
            let terminal = Arc::new(terminal.map_err(SandboxError::io("the output of a terminal"))?);
            state.terminals.insert(id.clone(), Arc::clone(&terminal));
            (terminal, orders)
        };
        let (cols, rows) = (i32::from(size.cols), i32::from(size.rows));
        let order =
            wire::CreatePtyRequest { pty_id: id.clone(), cols, rows, shell, args, cwd, envs, secrets: secrets.0 };
        if let Err(error) = send_to(&orders, Order::CreatePty(order)).await {
            self.inner.state.lock().terminals.remove(&id);
            self.inner.spool.remove(&id);
            return Err(error);
        }
        Ok(terminal)
    }

    /// Finds a terminal.
    ///
    /// # Errors
    /// There is none of the id.
    pub fn terminal(&self, id: &str) -> Result<Arc<Terminal>> {
        let found = self.inner.state.lock().terminals.get(id).cloned();
        found.ok_or_else(|| SandboxError::NoTerminal(id.to_owned()))
    }

    /// Sends input to a terminal.
    pub async fn write_terminal(&self, id: &str, data: Bytes) -> Result<()> {
        let input = self.terminal(id)?.input(data);
        self.send(Order::PtyInput(input)).await
    }

    /// Sets the size of a terminal.
    pub async fn resize_terminal(&self, id: &str, size: TerminalSize) -> Result<()> {
        let pty_id = self.terminal(id)?.id.clone();
        let (cols, rows) = (i32::from(size.cols), i32::from(size.rows));
        self.send(Order::ResizePty(wire::ResizePtyRequest { pty_id, cols, rows })).await
    }

    /// Ends a terminal and its processes.
    pub async fn kill_terminal(&self, id: &str) -> Result<()> {
        let pty_id = self.terminal(id)?.id.clone();
        self.send(Order::KillPty(wire::KillPtyRequest { pty_id })).await
    }

    /// Connects to a port of the sandbox's loopback address. The agent dials it, so that a sandbox without a network is reached, too.
    ///
    /// # Errors
    /// Nothing listens at the port, the sandbox has too many connections, or the agent is not connected or too old.
    pub async fn dial_port(&self, port: u16) -> Result<LinkStream> {
        let dialled = self.inner.ports.expect()?;
        self.wait_for_agent().await?;
        if !self.inner.state.lock().agent.as_ref().is_some_and(|agent| agent.has_ports) {
            return Err(SandboxError::NoPorts);
        }
        let ticket = dialled.ticket().to_owned();
        self.send(Order::DialPort(wire::DialPortRequest { ticket, port: port.into() })).await?;
        dialled.connected(port).await
    }

    /// Returns the number of open connections to ports of the sandbox.
    pub fn port_connections(&self) -> usize {
        self.inner.ports.connections()
    }

    /// Ends the channel. Commands and terminals that still run end with this reason.
    pub fn close(&self, why: &str) {
        if let Some(serving) = self.inner.serving.lock().take() {
            serving.abort();
        }
        let (commands, terminals) = {
            let mut state = self.inner.state.lock();
            state.closed = Some(why.to_owned());
            state.agent = None;
            let commands: Vec<_> = state.commands.values().cloned().collect();
            (commands, state.terminals.values().cloned().collect::<Vec<_>>())
        };
        self.inner.connected.send_replace(false);
        self.inner.ports.close();
        if let Some(outgoing) = &self.inner.outgoing {
            outgoing.close();
        }
        commands.iter().for_each(|command| command.lose(why));
        terminals.iter().filter(|terminal| terminal.end().is_none()).for_each(|terminal| terminal.lose(why));
        // A failure is harmless: the whole directory of the sandbox is removed later.
        let _ = std::fs::remove_file(&self.inner.options.socket);
    }

    /// Waits for a moment until the agent is connected.
    async fn wait_for_agent(&self) -> Result<()> {
        let waited = tokio::time::timeout(CONNECT_WITHIN, self.connected()).await;
        waited.map_err(|_| SandboxError::NotConnected)
    }

    /// Sends a message to the agent. Waits for a moment if it is not connected.
    async fn send(&self, payload: Order) -> Result<()> {
        self.wait_for_agent().await?;
        let orders = self.inner.state.lock().orders()?;
        send_to(&orders, payload).await
    }

    /// Checks the first message of a connection. Returns the number of the connection.
    fn register(&self, first: &wire::ConnectRequest, orders: &Orders) -> Result<u64, Status> {
        let Some(Payload::Register(register)) = &first.payload else {
            return Err(Status::unauthenticated("the first message registers"));
        };
        let options = &self.inner.options;
        let token = Secret::generate().map_err(|error| Status::internal(error.to_string()))?;
        let mut state = self.inner.state.lock();
        let is_ours = first.sandbox_id == options.sandbox_id && register.sandbox_id == options.sandbox_id;
        let admission = match state.closed.is_none() && is_ours {
            true => state.registration.admit(&register.secret, token.hash()),
            false => Admission::Refused,
        };
        let Admission::Admitted { confirmed } = admission else {
            warn!(sandbox = options.sandbox_id, "a process that is not the agent tried to register");
            return Err(Status::unauthenticated("the secret is not the one of this sandbox"));
        };
        state.connections += 1;
        let connection = state.connections;
        let has_ports = register.capabilities.contains_key("ports");
        state.agent = Some(Agent { connection, has_ports, orders: orders.clone() });
        for id in &register.running_commands {
            if !state.commands.contains_key(id) && state.commands.len() < RUNNING_COMMANDS_MAX {
                // Its output cannot be kept for the next server; it is kept in memory.
                let command = Command::new(id.clone(), String::new(), (options.now_ms)());
                state.commands.insert(id.clone(), Arc::new(command));
                state.order.push(id.clone());
            }
        }
        // Input that was on its way to the earlier connection may be lost, and is not waited for.
        state.commands.values().for_each(|command| command.forget_unread_input());
        let is_missing =
            |command: &&Arc<Command>| command.end().is_none() && !register.running_commands.contains(&command.id);
        let missing: Vec<_> = state.commands.values().filter(is_missing).cloned().collect();
        if !missing.is_empty() {
            // Those that ended meanwhile: the agent sends their ends now. Others were ordered by a server that was killed right then.
            tokio::spawn(async move {
                tokio::time::sleep(MISSING_AFTER).await;
                missing.iter().for_each(|command| command.lose("the agent does not know the command"));
            });
        }
        let seconds = |duration: Duration| i32::try_from(duration.as_secs()).unwrap_or(i32::MAX);
        let response = wire::RegisterResponse {
            success: true,
            message: String::new(),
            config: Some(wire::ServerConfig {
                heartbeat_interval_seconds: seconds(options.heartbeat).max(1),
                max_output_buffer_size: UNACKNOWLEDGED_BYTES_MAX,
                orphaned_after_seconds: seconds(options.orphaned_after),
                proxy_port: if self.inner.outgoing.is_some() { PROXY_PORT.into() } else { 0 },
            }),
            resume_token: token.reveal().to_owned(),
            last_sequence: state.last_sequence,
        };
        drop(state);
        if let Some(credential) = confirmed {
            (options.save_credential)(credential);
        }
        let message = wire::ConnectResponse { payload: Some(Order::RegisterResponse(response)) };
        // The queue is new and empty.
        orders.try_send(Ok(message)).map_err(|_| Status::internal("the queue is full"))?;
        Ok(connection)
    }

    /// Processes the messages of a connection until it ends.
    async fn follow(&self, connection: u64, mut incoming: Streaming<wire::ConnectRequest>) {
        loop {
            let message = match incoming.message().await {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => {
                    debug!(%error, sandbox = self.inner.options.sandbox_id, "the connection of an agent broke");
                    break;
                }
            };
            let (orders, confirmed) = {
                let mut state = self.inner.state.lock();
                let Some(agent) = state.agent.as_ref().filter(|agent| agent.connection == connection) else { return };
                (agent.orders.clone(), state.registration.confirm())
            };
            if let Some(credential) = confirmed {
                (self.inner.options.save_credential)(credential);
                self.inner.connected.send_replace(true);
            }
            if let Some(Payload::CommandOutput(output)) = &message.payload {
                let command = self.inner.state.lock().commands.get(&output.command_id).cloned();
                if let Some(command) = command {
                    command.room_for_output(output.data.len()).await;
                }
            }
            if let Some(sequence) = self.take(message) {
                let acknowledgement = Order::Acknowledgement(wire::Acknowledgement { sequence });
                let message = wire::ConnectResponse { payload: Some(acknowledgement) };
                if orders.send(Ok(message)).await.is_err() {
                    break;
                }
            }
        }
        let mut state = self.inner.state.lock();
        if state.agent.as_ref().is_some_and(|agent| agent.connection == connection) {
            state.agent = None;
            drop(state);
            self.inner.connected.send_replace(false);
        }
    }

    /// Processes one message. Returns the number of the output to acknowledge.
    fn take(&self, message: wire::ConnectRequest) -> Option<u64> {
        let mut state = self.inner.state.lock();
        let is_new = message.sequence > state.last_sequence;
        match message.payload? {
            Payload::Register(_) => return None,
            Payload::Heartbeat(heartbeat) => {
                if let Some(usage) = heartbeat.resource_usage {
                    state.usage = Some(Usage {
                        cpu_percent: usage.cpu_percent,
                        memory_bytes: usage.memory_bytes,
                        disk_bytes: usage.disk_bytes,
                        processes: usage.processes,
                        received_bytes: usage.received_bytes,
                        sent_bytes: usage.sent_bytes,
                        at_ms: (self.inner.options.now_ms)(),
                    });
                }
                return None;
            }
            // Sent twice around a reconnection.
            _ if !is_new => return Some(state.last_sequence),
            Payload::CommandOutput(output) => {
                state.last_sequence = message.sequence;
                if let Some(command) = state.commands.get(&output.command_id).cloned() {
                    drop(state);
                    command.take(message.sequence, output);
                }
            }
            Payload::InputConsumed(consumed) => {
                state.last_sequence = message.sequence;
                if let Some(command) = state.commands.get(&consumed.command_id).cloned() {
                    drop(state);
                    command.input_was_read(consumed.bytes);
                }
            }
            Payload::PtyOutput(output) => {
                state.last_sequence = message.sequence;
                let terminal = state.terminals.get(&output.pty_id).cloned();
                if let (Some(terminal), Some(payload)) = (terminal, output.payload) {
                    drop(state);
                    terminal.take(message.sequence, payload);
                }
            }
        }
        Some(message.sequence)
    }
}

impl State {
    /// Returns the queue of messages to the agent. Fails if it is not connected.
    fn orders(&self) -> Result<Orders> {
        self.agent.as_ref().map(|agent| agent.orders.clone()).ok_or(SandboxError::NotConnected)
    }

    /// Takes over the commands and terminals of an earlier server.
    fn restore(&mut self, spool: &Spool) -> std::io::Result<()> {
        let mut found = spool.load()?;
        let started = |spooled: &Spooled| Command::started_of(&spooled.description);
        found.sort_by_key(started);
        for spooled in found {
            let last = spooled.frames.iter().map(|frame| frame.sequence).max().unwrap_or(0);
            self.last_sequence = self.last_sequence.max(last);
            let id = spooled.id.clone();
            if id.starts_with("pty-") {
                self.terminals.insert(id, Arc::new(Terminal::restore(spool, spooled)?));
            } else {
                self.commands.insert(id.clone(), Arc::new(Command::restore(spool, spooled)?));
                self.order.push(id);
            }
        }
        Ok(())
    }

    /// Forgets old commands that have ended. Returns their ids.
    fn forget_old_commands(&mut self) -> Vec<String> {
        let mut forgotten = Vec::new();
        let ended = |state: &Self, id: &str| state.commands.get(id).is_none_or(|command| command.end().is_some());
        let mut surplus = self.order.iter().filter(|id| ended(self, id)).count().saturating_sub(ENDED_COMMANDS_MAX);
        let mut index = 0;
        while surplus > 0 && index < self.order.len() {
            if ended(self, &self.order[index]) {
                let id = self.order.remove(index);
                self.commands.remove(&id);
                forgotten.push(id);
                surplus -= 1;
            } else {
                index += 1;
            }
        }
        forgotten
    }

    fn forget_command(&mut self, id: &str) {
        self.commands.remove(id);
        self.order.retain(|other| other != id);
    }
}

#[tonic::async_trait]
impl AgentService for Link {
    type ConnectStream = ReceiverStream<Result<wire::ConnectResponse, Status>>;

    async fn connect(
        &self,
        request: Request<Streaming<wire::ConnectRequest>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let mut incoming = request.into_inner();
        let first = tokio::time::timeout(REGISTER_WITHIN, incoming.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("registration took too long"))??;
        let first = first.ok_or_else(|| Status::unauthenticated("the first message registers"))?;
        let (orders, receive) = mpsc::channel(QUEUE);
        let connection = self.register(&first, &orders)?;
        drop(orders);
        let link = self.clone();
        tokio::spawn(async move { link.follow(connection, incoming).await });
        Ok(Response::new(ReceiverStream::new(receive)))
    }
}

/// Sends a message to the agent of a connection. Fails if the connection has ended.
async fn send_to(orders: &Orders, payload: Order) -> Result<()> {
    let message = wire::ConnectResponse { payload: Some(payload) };
    orders.send(Ok(message)).await.map_err(|_| SandboxError::NotConnected)
}

/// Makes a random id: a prefix and 80 random bits.
pub(crate) fn new_id(prefix: &str) -> Result<String> {
    let mut random = [0; 10];
    getrandom::fill(&mut random).map_err(|error| SandboxError::io("random numbers")(std::io::Error::other(error)))?;
    Ok(format!("{prefix}-{}", data_encoding::BASE32_NOPAD.encode(&random).to_ascii_lowercase()))
}
