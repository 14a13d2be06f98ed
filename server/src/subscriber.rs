//! The receiver of a watch: sends answers without a thread, until the client disconnects or the process ends.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tonic::Status;

use crate::caller::{ends, gone};
use crate::calls::{Calls, Kind};
use crate::error::{Error, Result};

/// Sends the answers of a watch.
pub(crate) struct Subscriber<T> {
    send: mpsc::Sender<Result<T, Status>>,
    calls: Arc<Calls>,
}

impl<T> Subscriber<T> {
    pub(crate) fn new(send: mpsc::Sender<Result<T, Status>>, calls: &Arc<Calls>) -> Self {
        Self { send, calls: Arc::clone(calls) }
    }

    /// Sends one answer. Returns an error when the client disconnected or watches end.
    pub(crate) async fn send(&self, answer: T) -> Result<()> {
        tokio::select! {
            sent = self.send.send(Ok(answer)) => sent.map_err(|_| gone()),
            () = self.calls.watches_end() => Err(ends()),
        }
    }

    /// Waits for the end of the watch, and returns its reason.
    pub(crate) async fn ended(&self) -> Error {
        tokio::select! {
            () = self.send.closed() => gone(),
            () = self.calls.watches_end() => ends(),
        }
    }

    /// Waits for a permit to use a thread.
    pub(crate) async fn permit(&self) -> OwnedSemaphorePermit {
        self.calls.permit(Kind::Work).await
    }
}
