//! The server: listens, limits connections, stops gracefully.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use amalgam_engine::Time;
use rustix::net::sockopt;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};

use crate::connection::{Connection, Timeouts, UNIT_BYTES};
use crate::dispatch::{Counters, Dispatcher};
use crate::export::Exports;
use crate::mount::{MountWatcher, Mounts};
use crate::network::Network;
use crate::reply_cache::ReplyCache;
use crate::reply_log::ReplyLog;

/// Interval and age for the expiry of unlinked files.
const EXPIRE_EVERY: Duration = Duration::from_secs(10);
const UNUSED_NANOSECONDS: i64 = 60 * 1_000_000_000;
/// Delay after a failed accept, mostly for lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// TCP keep-alive: idle time, interval, number of probes.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEP_ALIVE_PROBES: u32 = 4;

/// Configuration of a server.
#[derive(Clone)]
pub struct ServerOptions {
    /// Clock for expiry and for the reply log.
    pub clock: fn() -> Time,
    /// Limit of connections. The server closes further ones at once.
    pub connections_max: usize,
    /// Limit of memory for long requests and replies over all connections.
    pub memory_bytes_max: usize,
    /// Number of threads that execute calls.
    pub threads: usize,
    /// Number of threads for slow calls: syncs, reads from the store.
    pub slow_threads: usize,
    /// Timeout for a client to send a request.
    pub request_timeout: Duration,
    /// Timeout for a client to read a reply.
    pub reply_timeout: Duration,
    /// Timeout for idle connections.
    pub idle_timeout: Duration,
    /// Accepts only source ports below 1024, which only root can bind on the client.
    pub reserved_ports_only: bool,
    /// Addresses that may connect, in addition to the lists of the exports. Empty: all.
    pub allow: Vec<Network>,
    /// File that keeps replies of changes across restarts of the server.
    pub reply_log: Option<PathBuf>,
    /// Callback for mount events.
    pub on_mount: Option<MountWatcher>,
}

impl ServerOptions {
    /// Returns the defaults.
    pub fn new(clock: fn() -> Time) -> Self {
        Self {
            clock,
            connections_max: 4_096,
            memory_bytes_max: 128 << 20,
            threads: 4,
            slow_threads: 16,
            request_timeout: Duration::from_secs(60),
            reply_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(600),
            reserved_ports_only: false,
            allow: Vec::new(),
            reply_log: None,
            on_mount: None,
        }
    }
}

/// A running server. [`stop`](Self::stop) or dropping it ends it.
pub struct Server {
    address: SocketAddr,
    dispatcher: Arc<Dispatcher>,
    is_ending: watch::Sender<bool>,
    /// Has all permits when no connection is left.
    connections: Arc<Semaphore>,
    connections_max: usize,
    runtime: Option<Runtime>,
}

/// Counters of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of calls of each operation.
    pub operations: Vec<(&'static str, u64)>,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Number of accepted connections.
    pub accepted: u64,
    /// Number of open connections.
    pub connections: usize,
    /// Number of mounts that clients have made and not undone.
    pub mounts: usize,
    /// Number of malformed requests.
    pub malformed: u64,
    /// Number of retransmissions answered from the reply cache.
    pub replayed: u64,
}

impl Server {
    /// Starts a server on a listening socket.
    pub fn start(listener: TcpListener, exports: Arc<Exports>, options: &ServerOptions) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let mut verifier = [0; 8];
        rustix::rand::getrandom(&mut verifier[..], rustix::rand::GetRandomFlags::empty())?;
        let cache = match &options.reply_log {
            Some(path) => {
                let (log, found) = ReplyLog::open(path, (options.clock)(), boot_id().as_deref())?;
                ReplyCache::with_log(log, found)
            }
            None => ReplyCache::default(),
        };
        let dispatcher = Arc::new(Dispatcher {
            exports,
            cache,
            mounts: Mounts::default(),
            counters: Counters::default(),
            verifier,
            on_mount: options.on_mount.clone(),
            clock: options.clock,
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(options.threads.max(1))
            .max_blocking_threads(options.slow_threads.max(1))
            .thread_name("amalgam-nfs")
            .enable_all()
            .build()?;
        let (is_ending, ending) = watch::channel(false);
        let connections = Arc::new(Semaphore::new(options.connections_max));
        let acceptor = Acceptor {
            listener: {
                let _inside = runtime.enter();
                tokio::net::TcpListener::from_std(listener)?
            },
            dispatcher: Arc::clone(&dispatcher),
            memory: Arc::new(Semaphore::new(options.memory_bytes_max.div_ceil(UNIT_BYTES).max(32))),
            connections: Arc::clone(&connections),
            options: options.clone(),
            ending,
        };
        runtime.spawn(expire(Arc::clone(&dispatcher), options.clock));
        runtime.spawn(acceptor.run());
        let (connections_max, runtime) = (options.connections_max, Some(runtime));
        Ok(Self { address, dispatcher, is_ending, connections, connections_max, runtime })
    }

    /// Returns the local address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the exports.
    pub fn exports(&self) -> &Arc<Exports> {
        &self.dispatcher.exports
    }

    /// Returns the counters.
    pub fn statistics(&self) -> Statistics {
        let counters = &self.dispatcher.counters;
        Statistics {
            operations: counters.operations(),
            received_bytes: counters.received_bytes.load(Relaxed),
            sent_bytes: counters.sent_bytes.load(Relaxed),
            accepted: counters.connections.load(Relaxed),
            connections: self.connections_max - self.connections.available_permits(),
            mounts: self.dispatcher.mounts.count(),
            malformed: counters.malformed.load(Relaxed),
            replayed: counters.replayed.load(Relaxed),
        }
    }

    /// Stops accepting, completes calls in progress, and ends. Gives up after `timeout`.
    pub fn stop(mut self, timeout: Duration) {
        self.end(timeout);
    }

    fn end(&mut self, timeout: Duration) {
        let Some(runtime) = self.runtime.take() else { return };
        self.is_ending.send_replace(true);
        let (connections, all) = (Arc::clone(&self.connections), self.connections_max as u32);
        let wait = move || {
            runtime.block_on(async {
                tokio::time::timeout(timeout, connections.acquire_many(all)).await.ok();
            });
            runtime.shutdown_timeout(timeout);
        };
        // On a separate thread: a tokio runtime does not allow blocking waits on its threads.
        if let Ok(thread) = std::thread::Builder::new().name("amalgam-nfs-end".to_owned()).spawn(wait) {
            thread.join().ok();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Duration::from_millis(100));
    }
}

/// Returns the id of this boot of the machine, if the kernel tells it.
fn boot_id() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()
}

/// Binds an address.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address)
}

/// Binds an address, or another port if that one is taken or forbidden.
pub fn listen_or_any_port(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address) {
        Err(error) if is_refused_port(&error) => TcpListener::bind(SocketAddr::new(address.ip(), 0)),
        listener => listener,
    }
}

fn is_refused_port(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied)
}

/// Drops unlinked files whose handles were not used for a minute.
async fn expire(dispatcher: Arc<Dispatcher>, clock: fn() -> Time) {
    loop {
        tokio::time::sleep(EXPIRE_EVERY).await;
        let open = dispatcher.exports.open_ones();
        let since = Time(clock().0.saturating_sub(UNUSED_NANOSECONDS));
        let expired = tokio::task::spawn_blocking(move || open.iter().for_each(|open| open.view.expire_handles(since)));
        expired.await.ok();
    }
}

struct Acceptor {
    listener: tokio::net::TcpListener,
    dispatcher: Arc<Dispatcher>,
    memory: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    options: ServerOptions,
    ending: watch::Receiver<bool>,
}

impl Acceptor {
    fn may_connect(&self, peer: SocketAddr) -> bool {
        let Self { options: ServerOptions { reserved_ports_only, allow, .. }, .. } = self;
        (!reserved_ports_only || peer.port() < 1_024)
            && (allow.is_empty() || allow.iter().any(|network| network.contains(peer.ip())))
    }

    async fn run(self) {
        let mut ending = self.ending.clone();
        loop {
            let accepted = tokio::select! {
                _ = ending.wait_for(|is_ending| *is_ending) => return,
                accepted = self.listener.accept() => accepted,
            };
            let Ok((stream, peer)) = accepted else {
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            };
            if !self.may_connect(peer) {
                continue;
            }
            let Ok(slot) = Arc::clone(&self.connections).try_acquire_owned() else { continue };
            self.dispatcher.counters.connections.fetch_add(1, Relaxed);
            prepare(&stream);
            let options = &self.options;
            let connection = Connection {
                peer,
                dispatcher: Arc::clone(&self.dispatcher),
                memory: Arc::clone(&self.memory),
                timeouts: Timeouts {
                    record: options.request_timeout,
                    send: options.reply_timeout,
                    idle: options.idle_timeout,
                },
                is_ending: self.ending.clone(),
            };
            tokio::spawn(async move {
                connection.serve(stream).await;
                drop(slot);
            });
        }
    }
}

/// Sets TCP_NODELAY and keep-alive. Failures are harmless.
fn prepare(stream: &tokio::net::TcpStream) {
    stream.set_nodelay(true).ok();
    let socket = stream.as_fd();
    sockopt::set_socket_keepalive(socket, true).ok();
    sockopt::set_tcp_keepidle(socket, KEEP_ALIVE_IDLE).ok();
    sockopt::set_tcp_keepintvl(socket, KEEP_ALIVE_INTERVAL).ok();
    sockopt::set_tcp_keepcnt(socket, KEEP_ALIVE_PROBES).ok();
}
