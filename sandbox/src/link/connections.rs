//! Connections to the socket of one sandbox: few at a time, so that a hostile sandbox takes no descriptors from others.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::error::{Result, SandboxError};

/// Delay after a connection could not be accepted.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// A connection that holds one of a limited number of permits.
pub(super) struct Connection {
    stream: UnixStream,
    _permit: OwnedSemaphorePermit,
}

/// Binds a socket at a path of any length: the address of a Unix socket holds 107 bytes, so it goes by a handle of the directory.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(parent, flags, Mode::empty())?;
    UnixListener::bind(Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name))
}

/// Makes a socket and accepts connections to it, of the server's user or of another one, up to a limit at a time.
pub(super) fn listen(
    path: &Path,
    owner: Option<(u32, u32)>,
    connections_max: usize,
) -> Result<ReceiverStream<io::Result<Connection>>> {
    let failed = |error| SandboxError::io(format!("listen on {}", path.display()))(error);
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    if let Some((uid, gid)) = owner {
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).map_err(failed)?;
    }
    let (send, receive) = mpsc::channel(1);
    let places = Arc::new(Semaphore::new(connections_max));
    tokio::spawn(async move {
        loop {
            let Ok(permit) = Arc::clone(&places).acquire_owned().await else { return };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = send.closed() => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    if send.send(Ok(Connection { stream, _permit: permit })).await.is_err() {
                        return;
                    }
                }
                // Out of descriptors: others give some back.
                Err(_) => tokio::time::sleep(RETRY_DELAY).await,
            }
        }
    });
    Ok(ReceiverStream::new(receive))
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_made_in_a_directory_whose_path_is_too_long_for_an_address() {
        let scratch = tempfile::tempdir().expect("a directory");
        let directory = scratch.path().join("d".repeat(200));
        std::fs::create_dir(&directory).expect("make it");
        let path = directory.join("agent.sock");
        let _connections = listen(&path, None, 1).expect("listen");
        assert_eq!(path.metadata().expect("a socket").permissions().mode() & 0o777, 0o600);
    }
}
