//! Syncs of the journal, and write-back of large writes before a caller asks for a sync.
//!
//! A caller that writes a gigabyte and then syncs would otherwise wait twice: while the view takes the data, and while the disk writes it.
//! Small files are left to the kernel: most of them are committed, and their journal removed, before it would write them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::error::Result;
use crate::file_system::FileSystem;

/// Shorter writes do not count for write-back.
const WRITE_BYTES_MIN: u64 = 64 << 10;
/// Bytes after which a write-back starts.
const WRITEBACK_BYTES: u64 = 64 << 20;

/// The sync lock of a journal, and the state of its write-back.
#[derive(Default)]
pub(crate) struct Writeback {
    /// One sync at a time: the kernel reports an error once, and another thread that syncs meanwhile would not see it.
    syncing: Arc<Mutex<()>>,
    /// Bytes of large writes since the last write-back.
    dirty_bytes: AtomicU64,
    is_running: Arc<AtomicBool>,
}

impl Writeback {
    /// Waits for a sync that is running, and prevents others.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.syncing.lock()
    }

    /// Syncs all changes to disk. Once a sync has failed, all later ones fail.
    pub(crate) fn sync(&self, fs: &RwLock<FileSystem>) -> Result<()> {
        let _one = self.syncing.lock();
        let unsynced = match &fs.read().journal {
            Some(journal) => journal.unsynced()?,
            None => return Ok(()),
        };
        if unsynced.needs_store {
            let store = fs.read().tree.store().clone();
            store.sync()?;
        }
        let synced = unsynced.sync();
        fs.write().finish_sync(&unsynced, synced)
    }

    /// Counts a write, and starts a write-back when enough is dirty. `locked` is the state behind the lock `fs`.
    pub(crate) fn data_written(&self, fs: &Arc<RwLock<FileSystem>>, locked: &FileSystem, length: u64) {
        if length < WRITE_BYTES_MIN || self.dirty_bytes.fetch_add(length, Ordering::Relaxed) + length < WRITEBACK_BYTES
        {
            return;
        }
        if self.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        self.dirty_bytes.store(0, Ordering::Relaxed);
        let Some(Ok(unsynced)) = locked.journal.as_ref().map(|journal| journal.unsynced()) else {
            self.is_running.store(false, Ordering::Release);
            return;
        };
        let (syncing, is_running) = (Arc::clone(&self.syncing), Arc::clone(&self.is_running));
        // The thread does not keep the view alive: closing the view and the store need not wait for it.
        let fs = Arc::downgrade(fs);
        let sync = move || {
            let one = syncing.lock();
            // File names are left to the next sync that a caller asks for.
            if let Err(source) = unsynced.sync_files()
                && let Some(fs) = fs.upgrade()
                && let Some(journal) = fs.write().journal.as_mut()
            {
                journal.fail(source.to_string());
            }
            drop(one);
            is_running.store(false, Ordering::Release);
        };
        if std::thread::Builder::new().name("amalgam-writeback".to_owned()).spawn(sync).is_err() {
            self.is_running.store(false, Ordering::Release);
        }
    }
}
