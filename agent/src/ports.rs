//! Connections to ports of the sandbox: dialled for the server, and carried over a socket of their own.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use amalgam_sandbox::agent_v1::DialPortRequest;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UnixStream};

/// The name of the socket, beside that of the agent.
const SOCKET: &str = "ports.sock";
/// How long a program may take to accept a connection at one address.
const DIAL_WITHIN: Duration = Duration::from_secs(5);
/// Where programs listen: many only at one of the two.
const ADDRESSES: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
/// Bytes of one direction that are under way in the agent.
const BUFFER_BYTES: usize = 16 << 10;
/// The answers about a port.
const CONNECTED: u8 = 0;
const REFUSED: u8 = 1;
const FAILED: u8 = 2;

/// Dials a port, reports the result to the server, and carries the bytes of the connection. `link` is the directory of the agent's
/// socket.
pub(crate) async fn serve(link: PathBuf, request: DialPortRequest) {
    let dialled = dial(request.port).await;
    let said = match &dialled {
        Ok(_) => CONNECTED,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => REFUSED,
        Err(_) => FAILED,
    };
    let Ok(mut server) = UnixStream::connect(link.join(SOCKET)).await else { return };
    let mut head = request.ticket.into_bytes();
    head.push(said);
    if server.write_all(&head).await.is_err() {
        return;
    }
    if let Ok(mut program) = dialled {
        // Small messages go at once.
        let _ = program.set_nodelay(true);
        // One of the two ended it.
        let _ = tokio::io::copy_bidirectional_with_sizes(&mut server, &mut program, BUFFER_BYTES, BUFFER_BYTES).await;
    }
}

async fn dial(port: u32) -> io::Result<TcpStream> {
    let port = u16::try_from(port).ok().filter(|port| *port > 0).ok_or(io::ErrorKind::InvalidInput)?;
    let mut failed = io::Error::from(io::ErrorKind::ConnectionRefused);
    for address in ADDRESSES {
        match tokio::time::timeout(DIAL_WITHIN, TcpStream::connect(SocketAddr::new(address, port))).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            // A sandbox without the other family has no such address.
            Ok(Err(error)) if error.kind() == io::ErrorKind::AddrNotAvailable => {}
            Ok(Err(error)) => failed = error,
            Err(_) => failed = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failed)
}
