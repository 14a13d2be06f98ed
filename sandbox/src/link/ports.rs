//! Connections to ports inside one sandbox. The agent dials a port on the server's order, and dials the socket here to carry the
//! bytes.
//!
//! Each connection is one connection of the socket: the kernel holds back the side that is too fast, and no connection waits for another.
//! A process in the sandbox can dial the socket, too, but knows no ticket, and is disconnected.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncReadExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;

use super::connections::{self, Connection};
use super::stream::LinkStream;
use crate::error::{Result, SandboxError};
use crate::secret::{Secret, SecretHash};

/// The name of the socket, which lies in the directory of the agent's socket.
const SOCKET: &str = "ports.sock";
/// Limit on simultaneous connections to ports of one sandbox.
const CONNECTIONS_MAX: usize = 256;
/// Limit on further connections that have not shown a ticket yet.
const UNIDENTIFIED_MAX: usize = 32;
/// How long a connection may take to show its ticket.
const TICKET_WITHIN: Duration = Duration::from_secs(5);
/// How long the agent may take to dial a port.
const DIAL_WITHIN: Duration = Duration::from_secs(15);
/// Length of a ticket.
const TICKET_BYTES: usize = 64;
/// Byte behind the ticket that says that the agent has reached the port.
const CONNECTED: u8 = 0;

/// Result of an order to dial: the connection, or `None` if the agent could not reach the port.
type Dialled = Option<Connection>;
/// Orders to dial that the agent has not answered, by the hash of their ticket.
type Expected = Arc<Mutex<HashMap<String, oneshot::Sender<Dialled>>>>;

/// The connections to ports of one sandbox.
pub(super) struct Ports {
    socket: PathBuf,
    expected: Expected,
    places: Arc<Semaphore>,
    accepting: JoinHandle<()>,
}

impl Ports {
    /// Listens beside the socket of the agent.
    pub(super) fn listen(agent_socket: &Path, owner: Option<(u32, u32)>) -> Result<Self> {
        let socket = agent_socket.with_file_name(SOCKET);
        let mut incoming = connections::listen(&socket, owner, CONNECTIONS_MAX + UNIDENTIFIED_MAX)?;
        let expected = Expected::default();
        let accepting = tokio::spawn({
            let expected = Arc::clone(&expected);
            async move {
                while let Some(accepted) = incoming.next().await {
                    let Ok(connection) = accepted else { continue };
                    tokio::spawn(identify(connection, Arc::clone(&expected)));
                }
            }
        });
        Ok(Self { socket, expected, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)), accepting })
    }

    /// Reserves a connection and makes the ticket that the agent has to show.
    pub(super) fn expect(&self) -> Result<Expectation> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| SandboxError::TooManyConnections(CONNECTIONS_MAX))?;
        let ticket = Secret::generate().map_err(SandboxError::io("random numbers"))?;
        let (send, receive) = oneshot::channel();
        self.expected.lock().insert(ticket.hash().as_hex().to_owned(), send);
        Ok(Expectation { ticket, receive, place: Some(place), expected: Arc::clone(&self.expected) })
    }

    /// Returns the number of reserved and open connections.
    pub(super) fn connections(&self) -> usize {
        CONNECTIONS_MAX - self.places.available_permits()
    }

    /// Closes the socket. Open connections end with the processes of the sandbox.
    pub(super) fn close(&self) {
        self.places.close();
        self.accepting.abort();
        self.expected.lock().clear();
        // A failure is harmless: the whole directory of the sandbox is removed later.
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Reads the ticket of a connection and passes the connection to the task that waits for it.
async fn identify(mut connection: Connection, expected: Expected) {
    let mut head = [0; TICKET_BYTES + 1];
    if !matches!(tokio::time::timeout(TICKET_WITHIN, connection.read_exact(&mut head)).await, Ok(Ok(_))) {
        return;
    }
    let (ticket, said) = head.split_at(TICKET_BYTES);
    let Ok(ticket) = std::str::from_utf8(ticket) else { return };
    let waiting = expected.lock().remove(SecretHash::of(ticket).as_hex());
    if let Some(waiting) = waiting {
        // The waiting task may be gone.
        let _ = waiting.send((said == [CONNECTED]).then_some(connection));
    }
}

/// A connection that the agent was ordered to make.
pub(super) struct Expectation {
    ticket: Secret,
    receive: oneshot::Receiver<Dialled>,
    place: Option<OwnedSemaphorePermit>,
    expected: Expected,
}

impl Expectation {
    /// Returns the ticket that the agent has to show.
    pub(super) fn ticket(&self) -> &str {
        self.ticket.reveal()
    }

    /// Waits for the connection of the agent.
    pub(super) async fn connected(mut self, port: u16) -> Result<LinkStream> {
        match tokio::time::timeout(DIAL_WITHIN, &mut self.receive).await {
            Ok(Ok(Some(connection))) => Ok(LinkStream::new(connection, self.place.take())),
            Ok(Ok(None)) => Err(SandboxError::PortClosed(port)),
            Ok(Err(_)) | Err(_) => Err(SandboxError::NotConnected),
        }
    }
}

impl Drop for Expectation {
    fn drop(&mut self) {
        self.expected.lock().remove(self.ticket.hash().as_hex());
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::UnixStream;

    use super::*;

    /// Dials a socket and shows a ticket, like an agent.
    async fn dial(directory: &Path, ticket: &str, said: u8) -> UnixStream {
        let mut stream = UnixStream::connect(directory.join(SOCKET)).await.expect("the socket");
        stream.write_all(ticket.as_bytes()).await.expect("sent");
        stream.write_all(&[said]).await.expect("sent");
        stream
    }

    #[tokio::test]
    async fn a_ticket_of_another_sandbox_or_a_used_one_connects_nothing() {
        let (one, other) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
        let ports = Ports::listen(&one.path().join("agent.sock"), None).expect("listens");
        let _others = Ports::listen(&other.path().join("agent.sock"), None).expect("listens");
        let expected = ports.expect().expect("a place");
        let ticket = expected.ticket().to_owned();
        // A process in the other sandbox that somehow knows the ticket.
        let mut foreign = dial(other.path(), &ticket, CONNECTED).await;
        assert_eq!(foreign.read(&mut [0]).await.expect("closed"), 0);
        let mut guessed = dial(one.path(), &"0".repeat(TICKET_BYTES), CONNECTED).await;
        assert_eq!(guessed.read(&mut [0]).await.expect("closed"), 0);
        let mut agent = dial(one.path(), &ticket, CONNECTED).await;
        let mut stream = expected.connected(80).await.expect("connected");
        agent.write_all(b"from inside").await.expect("sent");
        let mut bytes = [0; 11];
        stream.read_exact(&mut bytes).await.expect("read");
        assert_eq!(&bytes, b"from inside");
        let mut replayed = dial(one.path(), &ticket, CONNECTED).await;
        assert_eq!(replayed.read(&mut [0]).await.expect("closed"), 0);
        assert_eq!(ports.connections(), 1);
        drop(stream);
        assert_eq!(ports.connections(), 0);
    }

    #[tokio::test]
    async fn connections_beyond_the_limit_are_refused_and_places_come_back() {
        let directory = tempfile::tempdir().expect("made");
        let ports = Ports::listen(&directory.path().join("agent.sock"), None).expect("listens");
        let mut held: Vec<_> = (0..CONNECTIONS_MAX).map(|_| ports.expect().expect("a place")).collect();
        assert!(matches!(ports.expect(), Err(SandboxError::TooManyConnections(CONNECTIONS_MAX))));
        let expected = held.pop().expect("one");
        let _agent = dial(directory.path(), expected.ticket(), 1).await;
        assert!(matches!(expected.connected(81).await, Err(SandboxError::PortClosed(81))));
        assert!(ports.expect().is_ok());
        drop(held);
        assert!(ports.expected.lock().is_empty());
        ports.close();
        assert!(ports.expect().is_err());
    }
}
