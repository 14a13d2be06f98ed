//! Connections of programs in a sandbox to the proxy, which the agent carries to a socket here.

use std::path::{Path, PathBuf};

use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;

use super::connections;
use super::stream::LinkStream;
use crate::error::Result;

/// The name of the socket, beside that of the agent.
const SOCKET: &str = "proxy.sock";
/// Limit on simultaneous connections of one sandbox. More wait.
const CONNECTIONS_MAX: usize = 128;

/// Handles connections of a sandbox to the proxy.
pub struct OnOutgoing(pub Box<dyn Fn(LinkStream) + Send + Sync>);

/// The socket of the proxy of one sandbox.
pub(super) struct Outgoing {
    socket: PathBuf,
    accepting: JoinHandle<()>,
}

impl Outgoing {
    /// Listens beside the socket of the agent.
    pub(super) fn listen(agent_socket: &Path, owner: Option<(u32, u32)>, answer: OnOutgoing) -> Result<Self> {
        let socket = agent_socket.with_file_name(SOCKET);
        let mut incoming = connections::listen(&socket, owner, CONNECTIONS_MAX)?;
        let accepting = tokio::spawn(async move {
            while let Some(accepted) = incoming.next().await {
                if let Ok(connection) = accepted {
                    (answer.0)(LinkStream::new(connection, None));
                }
            }
        });
        Ok(Self { socket, accepting })
    }

    /// Closes the socket. Open connections end with the processes of the sandbox.
    pub(super) fn close(&self) {
        self.accepting.abort();
        // A failure is harmless: the whole directory of the sandbox is removed later.
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
