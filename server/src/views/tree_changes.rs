//! Tells watches that a live tree may have changed. Costs one look at a counter while nothing is watched.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

/// The watches of live trees, by the numbers of their views.
#[derive(Clone, Default)]
pub(super) struct TreeChanges(Arc<Inner>);

#[derive(Default)]
struct Inner {
    watched: AtomicUsize,
    senders: Mutex<HashMap<u64, watch::Sender<u64>>>,
}

impl TreeChanges {
    /// Registers a watch of a view.
    pub(super) fn watch(&self, id: u64) -> watch::Receiver<u64> {
        let mut senders = self.0.senders.lock();
        senders.retain(|_, sender| !sender.is_closed());
        let receiver = senders.entry(id).or_insert_with(|| watch::Sender::new(0)).subscribe();
        self.0.watched.store(senders.len(), Ordering::Relaxed);
        receiver
    }

    /// Tells the watches of a view that its tree may have changed. Called while the view is locked.
    pub(super) fn notify(&self, id: u64) {
        if self.0.watched.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(sender) = self.0.senders.lock().get(&id) {
            sender.send_modify(|count| *count = count.wrapping_add(1));
        }
    }
}
