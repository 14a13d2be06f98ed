//! The proxy of a sandbox with an allow-list: a port of the loopback address, whose connections go to the server.

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;

use crate::log;

/// The name of the socket, beside that of the agent.
const SOCKET: &str = "proxy.sock";
/// Connections at a time. More wait.
const CONNECTIONS_MAX: usize = 128;
/// Bytes of one direction that are under way in the agent.
const BUFFER_BYTES: usize = 16 << 10;
/// Delay after a connection could not be accepted.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Listens at a port before any command runs. `link` is the directory of the agent's socket.
pub(crate) fn listen(link: &Path, port: u16) -> io::Result<()> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    tokio::spawn(accept(listener, link.join(SOCKET)));
    Ok(())
}

async fn accept(listener: TcpListener, socket: PathBuf) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let socket = socket.clone();
                tokio::spawn(async move {
                    let _held = place;
                    carry(stream, socket).await;
                });
            }
            Err(error) => {
                log(&format!("the proxy accepts no connection: {error}"));
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}

async fn carry(mut program: TcpStream, socket: PathBuf) {
    // Small messages go at once.
    let _ = program.set_nodelay(true);
    let Ok(mut server) = UnixStream::connect(socket).await else { return };
    // One of the two ended it.
    let _ = tokio::io::copy_bidirectional_with_sizes(&mut program, &mut server, BUFFER_BYTES, BUFFER_BYTES).await;
}
