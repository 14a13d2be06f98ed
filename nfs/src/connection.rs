//! One TCP connection of a client: receives RPC records, dispatches them, sends the replies as they become ready.
//!
//! The task that receives a call also executes it, unless the call is slow (a sync, a read from the store, opening a view). Replies that are
//! ready together go out in one write. Slow calls run on the blocking thread pool. Limits: slow calls per connection, bytes in memory over all
//! connections. The server stops reading from a client that does not read its replies, and closes the connection after a timeout.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::dispatch::{Blocking, Dispatcher, Outcome};
use crate::procedures::Answer;
use crate::reply_cache::{self, Pending};
use crate::rpc::{RECORD_BYTES_MAX, Records};

/// Size of one read from the socket, unless a record is longer.
const RECEIVE_BYTES: usize = 64 << 10;
/// Number of buffered reply bytes from which on the task writes them.
const SEND_BYTES: usize = 256 << 10;
/// Unit in which the memory semaphore counts.
pub(crate) const UNIT_BYTES: usize = 64 << 10;
/// Limit of concurrent slow calls of one connection.
const SLOW_CALLS_MAX: usize = 64;

/// Timeouts for clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// To send a complete record after its first byte.
    pub(crate) record: Duration,
    /// To read a reply.
    pub(crate) send: Duration,
    /// Between two calls.
    pub(crate) idle: Duration,
}

/// State that a connection needs.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) peer: SocketAddr,
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// Limits memory for long records and long replies over all connections, in units of `UNIT_BYTES`.
    pub(crate) memory: Arc<Semaphore>,
    pub(crate) timeouts: Timeouts,
    pub(crate) is_ending: watch::Receiver<bool>,
}

/// Reason for the end of a connection. It is not sent to the client.
enum Closed {
    ByPeer,
    ByServer,
}

impl Connection {
    /// Serves a client until it disconnects, violates a limit, or the server stops.
    pub(crate) async fn serve(self, stream: TcpStream) {
        let (receive, send) = stream.into_split();
        let sender = Sender { stream: Arc::new(Mutex::new(send)), connection: self.clone() };
        let slots = Arc::new(Semaphore::new(SLOW_CALLS_MAX));
        let send_timeout = self.timeouts.send;
        let served = Session {
            connection: self,
            receive,
            sender,
            slots: Arc::clone(&slots),
            records: Records::default(),
            input: BytesMut::new(),
            deadline: None,
            memory: None,
            ready: Vec::new(),
            ready_memory: Vec::new(),
        }
        .run()
        .await;
        // Wait for the replies of calls in progress, which count as part of the connection.
        let idle = slots.acquire_many(SLOW_CALLS_MAX as u32);
        match served {
            Closed::ByPeer => drop(idle.await),
            Closed::ByServer => drop(timeout(send_timeout, idle).await),
        }
    }
}

/// The sending half of a connection.
#[derive(Clone)]
struct Sender {
    stream: Arc<Mutex<OwnedWriteHalf>>,
    connection: Connection,
}

impl Sender {
    async fn send(&self, bytes: &[u8]) -> Result<(), Closed> {
        let mut stream = self.stream.lock().await;
        self.connection.dispatcher.counters.sent_bytes.fetch_add(bytes.len() as u64, Relaxed);
        match timeout(self.connection.timeouts.send, stream.write_all(bytes)).await {
            Ok(Ok(())) => Ok(()),
            _ => {
                // The receiving half then reads the end of the stream.
                stream.shutdown().await.ok();
                Err(Closed::ByServer)
            }
        }
    }

    /// Reserves memory for a long reply. The caller holds no other memory, so tasks cannot deadlock.
    async fn reserve(&self, bytes: usize) -> Result<Option<OwnedSemaphorePermit>, Closed> {
        if bytes < UNIT_BYTES {
            return Ok(None);
        }
        let units = bytes.div_ceil(UNIT_BYTES) as u32;
        let memory = Arc::clone(&self.connection.memory);
        match timeout(self.connection.timeouts.send, memory.acquire_many_owned(units)).await {
            Ok(Ok(counted)) => Ok(Some(counted)),
            _ => {
                // The receiving half then reads the end of the stream.
                self.stream.lock().await.shutdown().await.ok();
                Err(Closed::ByServer)
            }
        }
    }
}

struct Session {
    connection: Connection,
    receive: OwnedReadHalf,
    sender: Sender,
    slots: Arc<Semaphore>,
    records: Records,
    input: BytesMut,
    /// Deadline of the record that is being received, and the memory reserved for it.
    deadline: Option<Instant>,
    memory: Option<Arc<OwnedSemaphorePermit>>,
    /// Replies that are ready to be sent, and the memory reserved for them.
    ready: Vec<u8>,
    ready_memory: Vec<OwnedSemaphorePermit>,
}

impl Session {
    async fn run(mut self) -> Closed {
        loop {
            let received = match self.receive_some().await {
                Ok(()) => self.answer_received().await,
                ended => ended,
            };
            if let Err(end) = received {
                return end;
            }
            if !self.records.is_within(&self.input) {
                self.deadline = None;
                self.memory = None;
            }
        }
    }

    /// Executes all complete records in the input buffer.
    async fn answer_received(&mut self) -> Result<(), Closed> {
        loop {
            match self.records.next(&mut self.input) {
                Ok(Some(record)) => {
                    // The next record has its own deadline.
                    self.deadline = None;
                    self.take(record).await?;
                }
                Ok(None) => return self.flush().await,
                Err(_) => {
                    self.connection.dispatcher.counters.malformed.fetch_add(1, Relaxed);
                    return Err(Closed::ByServer);
                }
            }
        }
    }

    /// Receives until the input holds a complete fragment.
    async fn receive_some(&mut self) -> Result<(), Closed> {
        if !self.records.is_within(&self.input) {
            // An idle connection has no buffer.
            self.input = BytesMut::new();
            let mut ending = self.connection.is_ending.clone();
            tokio::select! {
                _ = ending.wait_for(|is_ending| *is_ending) => return Err(Closed::ByPeer),
                readable = timeout(self.connection.timeouts.idle, self.receive.readable()) => match readable {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return Err(Closed::ByPeer),
                    Err(_) => return Err(Closed::ByServer),
                },
            }
        }
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + self.connection.timeouts.record);
        loop {
            let missing = self.records.missing_bytes(&self.input);
            if missing == 0 {
                return Ok(());
            }
            // The client must send part of a long record before the server reserves memory for all of it.
            let is_long = missing + self.input.len() > RECEIVE_BYTES && self.input.len() >= RECEIVE_BYTES / 2;
            if (is_long || self.records.assembled_bytes() > UNIT_BYTES) && self.memory.is_none() {
                let units = RECORD_BYTES_MAX.div_ceil(UNIT_BYTES) as u32;
                let counted = timeout_at(deadline, Arc::clone(&self.connection.memory).acquire_many_owned(units)).await;
                self.memory = Some(Arc::new(counted.map_err(|_| Closed::ByServer)?.map_err(|_| Closed::ByServer)?));
            }
            let wanted = if is_long { missing } else { RECEIVE_BYTES - self.input.len().min(RECEIVE_BYTES / 2) };
            if self.input.capacity() - self.input.len() < wanted.min(RECEIVE_BYTES / 4) || is_long {
                self.input.reserve(wanted);
            }
            match timeout_at(deadline, self.receive.read_buf(&mut self.input)).await {
                Ok(Ok(0)) | Ok(Err(_)) => return Err(Closed::ByPeer),
                Ok(Ok(count)) => {
                    self.connection.dispatcher.counters.received_bytes.fetch_add(count as u64, Relaxed);
                }
                Err(_) => return Err(Closed::ByServer),
            }
        }
    }

    /// Executes one record.
    async fn take(&mut self, record: Bytes) -> Result<(), Closed> {
        let connection = &self.connection;
        match connection.dispatcher.answer(connection.peer, &record, Blocking::Forbidden) {
            Outcome::CutOff => Err(Closed::ByServer),
            Outcome::Answer(Answer::Now(reply), pending) => {
                connection.dispatcher.settle(pending.as_ref(), &reply);
                self.add(reply).await
            }
            Outcome::Answer(answer, pending) => self.begin(SlowCall::Answer(answer, pending)).await,
            Outcome::Replay(answer) => self.begin(SlowCall::Replay(answer)).await,
            Outcome::Wait => self.begin(SlowCall::Wait(record)).await,
        }
    }

    /// Adds a reply to the buffered ones.
    async fn add(&mut self, reply: Vec<u8>) -> Result<(), Closed> {
        if reply.len() >= UNIT_BYTES {
            let units = reply.len().div_ceil(UNIT_BYTES) as u32;
            let memory = Arc::clone(&self.connection.memory);
            match Arc::clone(&memory).try_acquire_many_owned(units) {
                Ok(counted) => self.ready_memory.push(counted),
                Err(_) => {
                    // A task that waits for memory holds none, so tasks cannot deadlock.
                    self.flush().await?;
                    let counted = timeout(self.connection.timeouts.send, memory.acquire_many_owned(units)).await;
                    self.ready_memory.push(counted.map_err(|_| Closed::ByServer)?.map_err(|_| Closed::ByServer)?);
                }
            }
        }
        if self.ready.is_empty() {
            self.ready = reply;
        } else {
            self.ready.extend_from_slice(&reply);
        }
        if self.ready.len() >= SEND_BYTES { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), Closed> {
        if self.ready.is_empty() {
            return Ok(());
        }
        let ready = std::mem::take(&mut self.ready);
        let sent = self.sender.send(&ready).await;
        self.ready_memory.clear();
        sent
    }

    /// Starts a slow call. Waits if the connection has too many of them.
    async fn begin(&mut self, slow: SlowCall) -> Result<(), Closed> {
        // Only a call that is not executed yet needs its record.
        let memory = self.memory.clone().filter(|_| matches!(slow, SlowCall::Wait(_)));
        let slot = match Arc::clone(&self.slots).try_acquire_owned() {
            Ok(slot) => slot,
            Err(_) => {
                self.flush().await?;
                // The calls in progress may wait for memory.
                self.memory = None;
                Arc::clone(&self.slots).acquire_owned().await.map_err(|_| Closed::ByServer)?
            }
        };
        let sender = self.sender.clone();
        tokio::spawn(async move {
            if let Some(CountedReply { bytes, memory }) = slow.finish(&sender, memory).await {
                sender.send(&bytes).await.ok();
                drop(memory);
            }
            drop(slot);
        });
        Ok(())
    }
}

/// A reply with the memory reserved for it.
struct CountedReply {
    bytes: Vec<u8>,
    memory: Option<OwnedSemaphorePermit>,
}

/// A slow call.
enum SlowCall {
    Answer(Answer, Option<Pending>),
    Replay(watch::Receiver<Option<Bytes>>),
    Wait(Bytes),
}

impl SlowCall {
    /// Returns the reply, or `None` if there is none to send. `memory` is that of the record.
    async fn finish(self, sender: &Sender, memory: Option<Arc<OwnedSemaphorePermit>>) -> Option<CountedReply> {
        let connection = &sender.connection;
        let outcome = match self {
            Self::Answer(answer, pending) => Outcome::Answer(answer, pending),
            Self::Replay(answer) => Outcome::Replay(answer),
            Self::Wait(record) => {
                let (dispatcher, peer) = (Arc::clone(&connection.dispatcher), connection.peer);
                tokio::task::spawn_blocking(move || dispatcher.answer(peer, &record, Blocking::Allowed)).await.ok()?
            }
        };
        // Release the memory of the record before reserving memory for the reply.
        drop(memory);
        match outcome {
            Outcome::Answer(answer, pending) => {
                let reply = finish(answer, sender).await?;
                connection.dispatcher.settle(pending.as_ref(), &reply.bytes);
                Some(reply)
            }
            // Cached replies are short.
            Outcome::Replay(answer) => {
                reply_cache::wait(answer).await.map(|reply| CountedReply { bytes: reply.to_vec(), memory: None })
            }
            Outcome::Wait | Outcome::CutOff => None,
        }
    }
}

async fn finish(answer: Answer, sender: &Sender) -> Option<CountedReply> {
    let bytes = match answer {
        Answer::Now(reply) => reply,
        Answer::Synced { done, failed, syncer } => match syncer.sync().await {
            true => done,
            false => failed,
        },
        Answer::Later { reply_bytes_max, work } => {
            let memory = sender.reserve(reply_bytes_max).await.ok()?;
            let bytes = tokio::task::spawn_blocking(work).await.ok()?;
            return Some(CountedReply { bytes, memory });
        }
    };
    let memory = sender.reserve(bytes.len()).await.ok()?;
    Some(CountedReply { bytes, memory })
}
