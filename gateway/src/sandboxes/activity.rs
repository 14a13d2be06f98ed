//! Detects connections that are idle for too long.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// The time of the last bytes of a connection. Cheap to clone.
#[derive(Clone)]
pub(super) struct Activity(Arc<Mutex<Instant>>);

impl Activity {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    fn note(&self) {
        *self.0.lock() = Instant::now();
    }

    /// Completes when the connection was idle for `longest`.
    pub(super) async fn idle(&self, longest: Duration) {
        loop {
            let end = *self.0.lock() + longest;
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

/// A connection that records its activity.
pub(super) struct Watched<S> {
    pub(super) inner: S,
    pub(super) activity: Activity,
}

impl<S> Watched<S> {
    fn noted<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if matches!(polled, Poll::Ready(Ok(_))) {
            self.activity.note();
        }
        polled
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.noted(polled)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.noted(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_when_nothing_was_read_or_written_for_so_long() {
        let (one, mut other) = tokio::io::duplex(16);
        let activity = Activity::new();
        let mut watched = Watched { inner: one, activity: activity.clone() };
        let idle = tokio::spawn(async move { activity.idle(Duration::from_secs(10)).await });
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(8)).await;
            other.write_all(b"x").await.expect("written");
            watched.read_exact(&mut [0]).await.expect("read");
        }
        assert!(!idle.is_finished());
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert!(idle.is_finished());
    }
}
