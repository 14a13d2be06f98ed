//! The channel to the server: dialled, kept, and dialled again when it breaks.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amalgam_sandbox::agent_v1::agent_service_client::AgentServiceClient;
use amalgam_sandbox::agent_v1::connect_request::Payload;
use amalgam_sandbox::agent_v1::connect_response::Payload as Order;
use amalgam_sandbox::agent_v1::{ConnectRequest, DialPortRequest, Heartbeat, RegisterRequest, RegisterResponse};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel as Transport, Endpoint};

use crate::command::Commands;
use crate::outbox::Outbox;
use crate::reaper::Reaper;
use crate::terminal::Terminals;
use crate::usage::Meter;
use crate::{log, now_ms, ports, proxy};

/// Delay before the first new attempt; it doubles up to the longest one.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(50);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);
/// Until the server says for how long.
const ORPHANED_AFTER_DEFAULT: Duration = Duration::from_secs(60);
/// The optional features of this agent, which it announces to the server.
const ABILITIES: [&str; 3] = ["pty", "stdin", "ports"];
/// Messages that wait for the connection.
const QUEUE: usize = 16;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// The agent's end of the channel.
pub(crate) struct Channel {
    socket: PathBuf,
    sandbox_id: String,
    secret: String,
    outbox: Arc<Outbox>,
    commands: Commands,
    terminals: Terminals,
    meter: Meter,
    orphaned_after: Duration,
    /// Whether the proxy listens.
    has_proxy: bool,
}

impl Channel {
    pub(crate) fn new(
        socket: PathBuf,
        sandbox_id: String,
        secret: String,
        reaper: Arc<Reaper>,
        outbox: Arc<Outbox>,
    ) -> Self {
        let commands = Commands::new(Arc::clone(&reaper), Arc::clone(&outbox));
        let terminals = Terminals::new(reaper, Arc::clone(&outbox));
        let (meter, orphaned_after, has_proxy) = (Meter::default(), ORPHANED_AFTER_DEFAULT, false);
        Self { socket, sandbox_id, secret, outbox, commands, terminals, meter, orphaned_after, has_proxy }
    }

    /// Serves the server until it cannot be reached for too long. Then this process ends, and the sandbox with it.
    pub(crate) async fn run(mut self) -> Result<()> {
        let mut delay = RETRY_DELAY_MIN;
        let mut lost = Instant::now();
        loop {
            let mut is_registered = false;
            let ended = self.connect(&mut is_registered).await;
            if is_registered {
                (delay, lost) = (RETRY_DELAY_MIN, Instant::now());
            }
            if let Err(error) = &ended {
                log(&format!("not connected: {error}"));
            }
            if lost.elapsed() > self.orphaned_after {
                return Err("the server is gone".into());
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(RETRY_DELAY_MAX);
        }
    }

    /// Makes one connection and serves it to its end.
    async fn connect(&mut self, is_registered: &mut bool) -> Result<()> {
        let transport = dial(self.socket.clone()).await?;
        let (requests, receive) = mpsc::channel(QUEUE);
        let register = RegisterRequest {
            sandbox_id: self.sandbox_id.clone(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            capabilities: ABILITIES.map(|ability| (ability.to_owned(), "true".to_owned())).into(),
            secret: self.secret.clone(),
            running_commands: self.commands.running(),
        };
        requests.send(self.message(Payload::Register(register))).await?;
        let mut client = AgentServiceClient::new(transport);
        let mut orders = client.connect(ReceiverStream::new(receive)).await?.into_inner();
        let Some(Order::RegisterResponse(welcome)) = orders.message().await?.and_then(|order| order.payload) else {
            return Err("the server did not answer the registration".into());
        };
        let heartbeat = self.take_welcome(welcome)?;
        *is_registered = true;
        // Sent at once: it shows that the next secret has arrived.
        requests.send(self.heartbeat()).await?;
        let forwarding = tokio::spawn(forward(Arc::clone(&self.outbox), requests.clone(), self.sandbox_id.clone()));
        let mut beats = tokio::time::interval(heartbeat);
        beats.tick().await;
        let ended = loop {
            tokio::select! {
                order = orders.message() => match order {
                    Ok(Some(order)) => self.obey(order.payload),
                    Ok(None) => break Ok(()),
                    Err(status) => break Err(status.into()),
                },
                _ = beats.tick() => {
                    let beat = self.heartbeat();
                    // Output is on its way where the queue is full: a sign of life as well.
                    let _ = requests.try_send(beat);
                }
            }
        };
        forwarding.abort();
        ended
    }

    fn take_welcome(&mut self, welcome: RegisterResponse) -> Result<Duration> {
        if !welcome.success {
            return Err(welcome.message.into());
        }
        self.secret = welcome.resume_token;
        let config = welcome.config.unwrap_or_default();
        let seconds = |count: i32| Duration::from_secs(u64::try_from(count).unwrap_or(0).max(1));
        self.orphaned_after = seconds(config.orphaned_after_seconds);
        if let Some(port) = u16::try_from(config.proxy_port).ok().filter(|port| *port > 0 && !self.has_proxy) {
            let link = self.socket.parent().ok_or("the socket has no directory")?;
            proxy::listen(link, port)?;
            self.has_proxy = true;
        }
        let bytes_max = usize::try_from(config.max_output_buffer_size).unwrap_or(0).max(1);
        self.outbox.rewind(welcome.last_sequence, bytes_max);
        Ok(seconds(config.heartbeat_interval_seconds))
    }

    fn obey(&self, order: Option<Order>) {
        match order {
            Some(Order::RunCommand(request)) => self.commands.run(request),
            Some(Order::KillCommand(request)) => self.commands.kill(&request.command_id, request.signal),
            Some(Order::CommandInput(input)) => self.commands.write(input),
            Some(Order::CreatePty(request)) => self.terminals.create(request),
            Some(Order::PtyInput(input)) => self.terminals.write(&input.pty_id, input.data),
            Some(Order::ResizePty(request)) => self.terminals.resize(&request.pty_id, request.cols, request.rows),
            Some(Order::KillPty(request)) => self.terminals.kill(&request.pty_id),
            Some(Order::DialPort(request)) => self.dial(request),
            Some(Order::Acknowledgement(acknowledgement)) => self.outbox.acknowledge(acknowledgement.sequence),
            // A server of another version may say more.
            Some(Order::RegisterResponse(_)) | None => {}
        }
    }

    fn dial(&self, request: DialPortRequest) {
        if let Some(link) = self.socket.parent() {
            tokio::spawn(ports::serve(link.to_owned(), request));
        }
    }

    fn message(&self, payload: Payload) -> ConnectRequest {
        ConnectRequest { sandbox_id: self.sandbox_id.clone(), payload: Some(payload), sequence: 0 }
    }

    fn heartbeat(&mut self) -> ConnectRequest {
        let resource_usage = Some(self.meter.measure());
        self.message(Payload::Heartbeat(Heartbeat { timestamp: now_ms(), resource_usage }))
    }
}

/// Sends output for as long as the connection lives. Apart from the orders: each direction goes on while the other one waits.
async fn forward(outbox: Arc<Outbox>, requests: mpsc::Sender<ConnectRequest>, sandbox_id: String) {
    loop {
        let mut message = outbox.next().await;
        message.sandbox_id.clone_from(&sandbox_id);
        if requests.send(message).await.is_err() {
            return;
        }
    }
}

async fn dial(socket: PathBuf) -> Result<Transport> {
    // The address is not used: the connector dials the socket.
    let endpoint = Endpoint::from_static("http://sandbox.invalid");
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Ok(endpoint.connect_with_connector(connector).await?)
}
