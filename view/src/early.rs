//! Large files that are written are on their way to the disk before anybody asks for it.
//!
//! Whoever writes a gigabyte and syncs it would otherwise wait twice: while it is taken in, and while the disk writes what it could
//! have written meanwhile. Small files are left to the kernel: most of them are committed, and their journal gone, before it would
//! write them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::view::{Live, View};

/// A piece of this size is part of something large.
const PIECE_BYTES_MIN: u64 = 64 << 10;
/// So much of it is put on disk at a time.
const EARLY_BYTES: u64 = 64 << 20;

#[derive(Default)]
pub(crate) struct Early {
    /// What was written in large pieces and not put on its way.
    bytes: AtomicU64,
    is_busy: Arc<AtomicBool>,
}

impl View {
    /// Somebody wrote so many bytes in one piece.
    pub(crate) fn sync_early(&self, live: &Live, length: u64) {
        let Early { bytes, is_busy } = &self.shared.early;
        if length < PIECE_BYTES_MIN || bytes.fetch_add(length, Ordering::Relaxed) + length < EARLY_BYTES {
            return;
        }
        if is_busy.swap(true, Ordering::AcqRel) {
            return;
        }
        bytes.store(0, Ordering::Relaxed);
        let Some(Ok(unsynced)) = live.journal.as_ref().map(|journal| journal.unsynced()) else {
            is_busy.store(false, Ordering::Release);
            return;
        };
        let is_busy = Arc::clone(is_busy);
        // The names of the files are left to whoever asks for a sync. It does not keep the view: who closes it, and the store, need not
        // wait for it.
        let (syncing, shared) = (Arc::clone(&self.shared.syncing), Arc::downgrade(&self.shared));
        let sync = move || {
            // As every sync: the kernel says of an error once.
            let one = syncing.lock();
            if let Err(source) = unsynced.sync_files()
                && let Some(shared) = shared.upgrade()
                && let Some(journal) = shared.live.write().journal.as_mut()
            {
                journal.fail(source.to_string());
            }
            drop(one);
            is_busy.store(false, Ordering::Release);
        };
        if std::thread::Builder::new().name("amalgam-early".to_owned()).spawn(sync).is_err() {
            self.shared.early.is_busy.store(false, Ordering::Release);
        }
    }
}
