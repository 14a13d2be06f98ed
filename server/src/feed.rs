//! The newest operations for all watches: one thread reads the log for all of them, while there is a watch.

use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::{OperationCursor, Store};
use amalgam_proto::v1;
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::error::Result;
use crate::messages::operation_message;

/// How long the thread waits before it checks whether there are listeners.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The number of operations that the channel keeps for slow listeners; slower ones read the log.
const KEPT: usize = 256;

/// Broadcasts new operations to all watches of a store.
#[derive(Default)]
pub(crate) struct OperationFeed {
    sender: Mutex<Option<broadcast::Sender<Arc<v1::Operation>>>>,
}

impl OperationFeed {
    /// Returns a reader of the log that begins after an operation.
    pub(crate) fn follow(self: &Arc<Self>, store: &Store, after: u64) -> Following {
        let mut sender = self.sender.lock();
        let new = match &*sender {
            Some(sender) => sender.subscribe(),
            None => {
                let (new_sender, new) = broadcast::channel(KEPT);
                *sender = Some(new_sender.clone());
                // Opened here and not in the thread: an operation recorded before the thread starts would not be sent.
                let (feed, cursor) = (Arc::clone(self), OperationCursor::at_end(store));
                std::thread::spawn(move || feed.run(cursor, &new_sender));
                new
            }
        };
        Following { store: store.clone(), after, new, is_behind: true }
    }

    /// Sends new operations until the last listener is gone.
    fn run(&self, mut cursor: amalgam_engine::Result<OperationCursor>, sender: &broadcast::Sender<Arc<v1::Operation>>) {
        loop {
            let page = cursor.as_mut().map(|cursor| cursor.wait(CHECK_INTERVAL));
            let is_wanted = {
                let mut current = self.sender.lock();
                let is_wanted = sender.receiver_count() > 0 && matches!(page, Ok(Ok(_)));
                if !is_wanted {
                    // The next listener starts a new thread; present listeners get the failure when they read.
                    *current = None;
                }
                is_wanted
            };
            let Ok(Ok(page)) = page else { return };
            for operation in &page {
                let _ = sender.send(Arc::new(operation_message(operation)));
            }
            if !is_wanted {
                return;
            }
        }
    }
}

/// A reader of the operation log that waits for new operations.
pub(crate) struct Following {
    store: Store,
    after: u64,
    new: broadcast::Receiver<Arc<v1::Operation>>,
    /// Whether the log may have operations that the channel does not deliver.
    is_behind: bool,
}

impl Following {
    /// Waits for the next operations and returns them: a page of the log, or one new operation.
    pub(crate) async fn next(&mut self) -> Result<Vec<v1::Operation>> {
        loop {
            if self.is_behind {
                let page = self.read().await?;
                if !page.is_empty() {
                    return Ok(page);
                }
                self.is_behind = false;
            }
            match self.new.recv().await {
                Ok(operation) if operation.sequence == self.after + 1 => {
                    self.after = operation.sequence;
                    return Ok(vec![(*operation).clone()]);
                }
                // Read from the log already.
                Ok(operation) if operation.sequence <= self.after => {}
                Ok(_) | Err(RecvError::Lagged(_)) => self.is_behind = true,
                Err(RecvError::Closed) => {
                    tokio::time::sleep(CHECK_INTERVAL).await;
                    self.is_behind = true;
                }
            }
        }
    }

    /// Reads the next page of the log and advances the position. The page is empty at the end of the log.
    async fn read(&mut self) -> Result<Vec<v1::Operation>> {
        let mut cursor = OperationCursor::after(&self.store, self.after);
        let read = tokio::task::spawn_blocking(move || {
            let page = cursor.read()?;
            Ok::<_, amalgam_engine::Error>((page.iter().map(operation_message).collect(), cursor.position()))
        });
        let (page, after) = read.await.expect("reading the log does not panic")?;
        self.after = after;
        Ok(page)
    }
}
