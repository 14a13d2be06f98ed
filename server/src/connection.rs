//! A connection that the server can close at any time.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::transport::server::{Connected, UdsConnectInfo};

/// A stream of a client. It fails once the server closes its connections.
pub(crate) struct Connection {
    stream: UnixStream,
    closed: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_closed: bool,
}

impl Connection {
    /// Wraps a stream that fails once `closing` becomes true.
    pub(crate) fn new(stream: UnixStream, mut closing: watch::Receiver<bool>) -> Self {
        let closed = async move {
            // A server that no longer exists has closed its connections, too.
            let _ = closing.wait_for(|closing| *closing).await;
        };
        Self { stream, closed: Box::pin(closed), is_closed: false }
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.is_closed = self.is_closed || self.closed.as_mut().poll(context).is_ready();
        match self.is_closed {
            true => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server ends")),
            false => Ok(()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl Connected for Connection {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}
