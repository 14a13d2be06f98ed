//! Proxies that delay each request, before a Unix socket and before a TCP port. The delay adds to the time of a round trip and limits
//! no rate: bytes that come together go on together.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use amalgam_benches::Result;

const BUFFER_BYTES: usize = 256 << 10;

/// A connection whose two directions two threads use.
trait Connection: Read + Write + Send + Sized + 'static {
    fn twin(&self) -> std::io::Result<Self>;
    fn end(&self);
}

impl Connection for UnixStream {
    fn twin(&self) -> std::io::Result<Self> {
        self.try_clone()
    }

    fn end(&self) {
        self.shutdown(Shutdown::Both).ok();
    }
}

impl Connection for TcpStream {
    fn twin(&self) -> std::io::Result<Self> {
        self.try_clone()
    }

    fn end(&self) {
        self.shutdown(Shutdown::Both).ok();
    }
}

/// Listens at a new socket, and forwards to another one.
pub(crate) fn before_socket(listen: &Path, server: PathBuf, delay: Duration) -> Result<()> {
    let listener = UnixListener::bind(listen)?;
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(|client| client.ok()) {
            if let Ok(server) = UnixStream::connect(&server) {
                forward(client, server, delay);
            }
        }
    });
    Ok(())
}

/// Listens at a free port of the loopback address, and forwards to another one. Returns the new address.
pub(crate) fn before_port(server: SocketAddr, delay: Duration) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(|client| client.ok()) {
            if let Ok(server) = TcpStream::connect(server) {
                client.set_nodelay(true).ok();
                server.set_nodelay(true).ok();
                forward(client, server, delay);
            }
        }
    });
    Ok(address)
}

fn forward<C: Connection>(client: C, server: C, delay: Duration) {
    let (Ok(from), Ok(to)) = (client.twin(), server.twin()) else { return };
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut from = from;
        let mut buffer = vec![0; BUFFER_BYTES];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if sender.send((Instant::now() + delay, buffer[..length].to_vec())).is_err() {
                break;
            }
        }
    });
    std::thread::spawn(move || write_when_due(to, &receiver));
    std::thread::spawn(move || {
        let (mut server, mut back) = (server, client);
        let _ = std::io::copy(&mut server, &mut back);
        back.end();
    });
}

fn write_when_due<C: Connection>(mut to: C, receiver: &Receiver<(Instant, Vec<u8>)>) {
    while let Ok((due, bytes)) = receiver.recv() {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    to.end();
}
