//! The server: listens, accepts within bounds, ends in order.

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

use crate::connection::{Connection, Patience, UNIT_BYTES};
use crate::dispatch::{Counters, Dispatcher};
use crate::export::Exports;
use crate::mount::{MountWatcher, Mounts};
use crate::reply_cache::ReplyCache;
use crate::reply_log::ReplyLog;

/// How often files without a name are looked at, and for how long one is kept that nobody used.
const EXPIRE_EVERY: Duration = Duration::from_secs(10);
const UNUSED_NANOSECONDS: i64 = 60 * 1_000_000_000;
/// After an accept that failed, mostly for want of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// A connection of which nothing was heard for so long is asked whether it is there, so often, so many times.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEP_ALIVE_PROBES: u32 = 4;

/// How a server is to be.
#[derive(Clone)]
pub struct ServerOptions {
    /// What time it is.
    pub clock: fn() -> Time,
    /// Connections at a time; further ones are closed at once.
    pub connections_max: usize,
    /// Bytes of long requests and answers in memory at a time, of all connections.
    pub memory_bytes_max: usize,
    /// Threads that answer.
    pub threads: usize,
    /// Threads for what may take long: syncs and reads of what is not at hand.
    pub slow_threads: usize,
    /// How long a client may take to send a request.
    pub request_timeout: Duration,
    /// How long a client may take to receive an answer.
    pub reply_timeout: Duration,
    /// How long a connection may be without a request.
    pub idle_timeout: Duration,
    /// Whether only ports below 1024 are served, which only root can use on the client.
    pub reserved_ports_only: bool,
    /// Where answers of changes are kept for the next server, so that a client that asks again after a crash gets its answer.
    pub reply_log: Option<PathBuf>,
    /// Told of mounts.
    pub on_mount: Option<MountWatcher>,
}

impl ServerOptions {
    /// The usual ones.
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
            reply_log: None,
            on_mount: None,
        }
    }
}

/// A server that listens. Ends with [`stop`](Self::stop), or when it is dropped.
pub struct Server {
    address: SocketAddr,
    dispatcher: Arc<Dispatcher>,
    is_ending: watch::Sender<bool>,
    /// All permits are there again when all connections have ended.
    connections: Arc<Semaphore>,
    connections_max: usize,
    runtime: Option<Runtime>,
}

/// What a server did and has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// How often each operation was called.
    pub operations: Vec<(&'static str, u64)>,
    /// Bytes that clients sent.
    pub received_bytes: u64,
    /// Bytes that clients were sent.
    pub sent_bytes: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that are open.
    pub connections: usize,
    /// Mounts that clients told of.
    pub mounts: usize,
    /// Requests that were no requests.
    pub malformed: u64,
    /// Requests that were answered as before.
    pub replayed: u64,
}

impl Server {
    /// Serves exports on a listening socket.
    pub fn start(listener: TcpListener, exports: Arc<Exports>, options: &ServerOptions) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let mut verifier = [0; 8];
        rustix::rand::getrandom(&mut verifier[..], rustix::rand::GetRandomFlags::empty())?;
        let cache = match &options.reply_log {
            Some(path) => {
                let (log, found) = ReplyLog::open(path, (options.clock)())?;
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it serves.
    pub fn exports(&self) -> &Arc<Exports> {
        &self.dispatcher.exports
    }

    /// What it did and has.
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

    /// Accepts nothing more, answers what was asked, and ends; what takes longer than `patience` is given up.
    pub fn stop(mut self, patience: Duration) {
        self.end(patience);
    }

    fn end(&mut self, patience: Duration) {
        let Some(runtime) = self.runtime.take() else { return };
        self.is_ending.send_replace(true);
        let (connections, all) = (Arc::clone(&self.connections), self.connections_max as u32);
        let wait = move || {
            runtime.block_on(async {
                tokio::time::timeout(patience, connections.acquire_many(all)).await.ok();
            });
            runtime.shutdown_timeout(patience);
        };
        // A thread of its own: the caller's may belong to another runtime, which forbids waiting.
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

/// Listens at an address; where its port is taken and `or_another` says so, at another port of it.
pub fn listen(address: SocketAddr, or_another: bool) -> io::Result<TcpListener> {
    match TcpListener::bind(address) {
        Err(error) if or_another && is_refused_port(&error) => TcpListener::bind(SocketAddr::new(address.ip(), 0)),
        listener => listener,
    }
}

fn is_refused_port(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied)
}

/// Gives up files without a name whose handles nobody used for a while.
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
            if self.options.reserved_ports_only && peer.port() >= 1_024 {
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
                patience: Patience {
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

/// Answers are sent at once, and clients that vanished are noticed. A socket that cannot be told so works without.
fn prepare(stream: &tokio::net::TcpStream) {
    stream.set_nodelay(true).ok();
    let socket = stream.as_fd();
    sockopt::set_socket_keepalive(socket, true).ok();
    sockopt::set_tcp_keepidle(socket, KEEP_ALIVE_IDLE).ok();
    sockopt::set_tcp_keepintvl(socket, KEEP_ALIVE_INTERVAL).ok();
    sockopt::set_tcp_keepcnt(socket, KEEP_ALIVE_PROBES).ok();
}
