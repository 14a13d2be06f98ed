//! The file handle table: persistent names of inodes, for protocols like NFS whose clients never release an inode.
//!
//! A handle is an inode number and a generation; a generation is never reused. For each issued handle the table stores a dentry (parent
//! and name), so the view finds the inode again after it left the inode table. The inode table, which owns this one, reports every rename
//! and removal to it, through FUSE and NFS alike. A file beside the journal keeps the table: see [`log`]. A number that was issued for one
//! dentry is never assigned to another one, not even after a restart.
//!
//! The table holds the [`HELD_MAX`] most recently used inodes. An unlinked file stays readable through its handle until the handle is
//! unused for some time ([`View::expire_handles`](crate::View::expire_handles)), within [`UNLINKED_BYTES_MAX`].

mod log;

use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use amalgam_engine::{Error as EngineError, Time};
use foldhash::{HashMap, HashMapExt as _};

use crate::attributes::{Ino, ROOT};
use crate::dentry::Dentry;
use crate::error::Result;
use log::{Log, Record};

/// Limit of inodes that the table holds.
const HELD_MAX: usize = 1 << 16;
/// Limit of issued handles. Beyond it the oldest handles of files are dropped.
const ISSUED_MAX: usize = 1 << 21;
/// Queues below this length are not compacted.
const QUEUE_MIN: usize = 1_024;
/// Handles that one call examines at most when it makes room in a full table.
const EVICTION_SCAN_MAX: usize = 64;
/// Limit of bytes of unlinked files that are kept for their handles.
const UNLINKED_BYTES_MAX: u64 = 256 << 20;
/// Name of the table file in the journal directory.
pub(crate) const FILE_NAME: &str = "handles";
/// Generation of the root, equal in every view.
const ROOT_GENERATION: u64 = 0;

/// A persistent name of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    /// The inode number.
    pub ino: Ino,
    /// Distinguishes inodes that had the same number at different times.
    pub generation: u64,
}

impl Handle {
    /// The handle of the root of every view.
    pub const ROOT: Self = Self { ino: ROOT, generation: ROOT_GENERATION };
}

/// The handle table of a view.
pub(crate) struct HandleTable {
    issued: HashMap<Ino, Issued>,
    /// Issued handles, oldest first; may contain dropped ones.
    order: VecDeque<Ino>,
    /// Held inodes, with a used flag for the clock algorithm.
    held: HashMap<Ino, AtomicBool>,
    /// Clock queue of the held inodes; may contain dropped ones.
    clock_queue: VecDeque<Ino>,
    unlinked: HashMap<Ino, Unlinked>,
    unlinked_bytes: u64,
    next_generation: u64,
    log: Log,
}

struct Issued {
    generation: u64,
    dentry: Dentry,
    is_directory: bool,
}

/// An unlinked file, held for its handle.
struct Unlinked {
    generation: u64,
    bytes: u64,
    /// Time of the removal, or of the last use of the handle since.
    used: AtomicI64,
}

/// Whether the inode of a known handle is in the inode table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleState {
    /// The table holds the inode.
    Held,
    /// The inode has to be looked up by its dentry.
    NotHeld,
}

/// The effect of the removal of an inode's last name on its handle.
pub(crate) struct DetachEffect {
    /// Whether the table now holds the unlinked file.
    pub(crate) is_kept: bool,
    /// Whether the table held the inode before.
    pub(crate) was_held: bool,
    /// Unlinked files that the table no longer holds.
    pub(crate) evicted: Vec<Ino>,
}

/// The effect of a hold that is passed to the table.
pub(crate) struct HoldEffect {
    /// Whether the table keeps the hold. If not, the caller releases it.
    pub(crate) is_kept: bool,
    /// Inodes that the table no longer holds.
    pub(crate) evicted: Vec<Ino>,
}

impl HandleTable {
    /// Opens or creates a table. Also returns every stored dentry with its inode number.
    pub(crate) fn open(path: &Path) -> Result<(Self, Vec<(Ino, Dentry)>)> {
        let (log, records) =
            Log::open(path).map_err(|source| EngineError::from_io("open the handle table", &source))?;
        let mut base = [0; 8];
        rustix::rand::getrandom(&mut base[..], rustix::rand::GetRandomFlags::empty())
            .map_err(|error| EngineError::from_io("read random bytes", &error.into()))?;
        let mut table = Self {
            issued: HashMap::with_capacity(records.len()),
            order: VecDeque::with_capacity(records.len()),
            held: HashMap::new(),
            clock_queue: VecDeque::new(),
            unlinked: HashMap::new(),
            unlinked_bytes: 0,
            next_generation: u64::from_le_bytes(base),
            log,
        };
        let mut numbers = Vec::with_capacity(records.len());
        for Record { ino, generation, is_directory, dentries } in records {
            numbers.extend(dentries.iter().map(|dentry| (ino, dentry.clone())));
            if let Some(dentry) = dentries.into_iter().next() {
                table.issued.insert(ino, Issued { generation, dentry, is_directory });
                table.order.push_back(ino);
            }
        }
        Ok((table, numbers))
    }

    fn new_generation(&mut self) -> u64 {
        self.next_generation = self.next_generation.wrapping_add(1);
        if self.next_generation == ROOT_GENERATION {
            self.next_generation += 1;
        }
        self.next_generation
    }

    /// Returns the generation of the handle of an inode, if it has one.
    pub(crate) fn generation(&self, ino: Ino) -> Option<u64> {
        let issued = self.issued.get(&ino).map(|issued| issued.generation);
        issued.or_else(|| self.unlinked.get(&ino).map(|unlinked| unlinked.generation))
    }

    /// Returns the dentry that a handle was issued for.
    pub(crate) fn issued_dentry(&self, ino: Ino) -> Option<&Dentry> {
        self.issued.get(&ino).map(|issued| &issued.dentry)
    }

    /// Returns the state of a handle, and marks it as used. `None` for an unknown or old handle.
    pub(crate) fn state(&self, handle: Handle, now: impl FnOnce() -> Time) -> Option<HandleState> {
        if let Some(unlinked) = self.unlinked.get(&handle.ino) {
            unlinked.used.store(now().0, Relaxed);
            return (unlinked.generation == handle.generation).then_some(HandleState::Held);
        }
        let issued = self.issued.get(&handle.ino)?;
        if issued.generation != handle.generation {
            return None;
        }
        let held = self.held.get(&handle.ino);
        held.inspect(|used| used.store(true, Relaxed));
        Some(if held.is_some() { HandleState::Held } else { HandleState::NotHeld })
    }

    /// Issues a handle for an inode with at least one name. Returns its generation.
    pub(crate) fn issue(&mut self, ino: Ino, is_directory: bool, dentries: Vec<Dentry>) -> u64 {
        self.evict_old();
        let generation = self.new_generation();
        let dentry = dentries.first().expect("an inode with a handle has a name").clone();
        self.log.put(&Record { ino, generation, is_directory, dentries });
        self.issued.insert(ino, Issued { generation, dentry, is_directory });
        self.order.push_back(ino);
        self.compact_queues();
        generation
    }

    /// Issues a handle for an unlinked file. Returns its generation and the files that are dropped for it; `None` if the file is too large.
    pub(crate) fn issue_unlinked(&mut self, ino: Ino, bytes: u64, now: Time) -> Option<(u64, Vec<Ino>)> {
        let generation = self.new_generation();
        let evicted = self.keep_unlinked(ino, generation, bytes, now);
        self.unlinked.contains_key(&ino).then_some((generation, evicted))
    }

    /// Stores the current dentries of an inode, which has at least one.
    pub(crate) fn update_dentries(&mut self, ino: Ino, dentries: &[Dentry]) {
        let (Some(issued), Some(first)) = (self.issued.get_mut(&ino), dentries.first()) else { return };
        issued.dentry = first.clone();
        let (generation, is_directory) = (issued.generation, issued.is_directory);
        self.log.put(&Record { ino, generation, is_directory, dentries: dentries.to_vec() });
        self.flush();
    }

    /// Handles the removal of the last name of an inode. The handle of a file (`file_bytes`) remains for a while, that of a directory ends.
    pub(crate) fn detach(&mut self, ino: Ino, file_bytes: Option<u64>, now: Time) -> Option<DetachEffect> {
        let issued = self.remove(ino)?;
        self.flush();
        let was_held = self.held.remove(&ino).is_some();
        let keep = |bytes| self.keep_unlinked(ino, issued.generation, bytes, now);
        let evicted = file_bytes.map_or_else(Vec::new, keep);
        Some(DetachEffect { is_kept: self.unlinked.contains_key(&ino), was_held, evicted })
    }

    /// Removes the handle of an inode that no longer exists and that no caller holds.
    pub(crate) fn withdraw(&mut self, ino: Ino) {
        if self.remove(ino).is_some() {
            self.flush();
        }
    }

    /// Passes one hold of an inode to the table, which releases inodes that were not used recently.
    pub(crate) fn take_hold(&mut self, ino: Ino) -> HoldEffect {
        let mut evicted = Vec::new();
        if let Some(used) = self.held.get(&ino) {
            used.store(true, Relaxed);
            return HoldEffect { is_kept: false, evicted };
        }
        if ino == ROOT || !self.issued.contains_key(&ino) {
            return HoldEffect { is_kept: false, evicted };
        }
        self.held.insert(ino, AtomicBool::new(true));
        self.clock_queue.push_back(ino);
        while self.held.len() > HELD_MAX
            && let Some(oldest) = self.clock_queue.pop_front()
        {
            match self.held.get(&oldest) {
                Some(used) if used.swap(false, Relaxed) => self.clock_queue.push_back(oldest),
                Some(_) => {
                    self.held.remove(&oldest);
                    evicted.push(oldest);
                }
                None => {}
            }
        }
        HoldEffect { is_kept: true, evicted }
    }

    /// Drops unlinked files whose handles were last used before a time, and returns them.
    pub(crate) fn expire_unlinked(&mut self, unused_since: Time) -> Vec<Ino> {
        let unused = self.unlinked.iter().filter(|(_, unlinked)| unlinked.used.load(Relaxed) < unused_since.0);
        let expired: Vec<_> = unused.map(|(ino, _)| *ino).collect();
        expired.iter().for_each(|ino| self.drop_unlinked(*ino));
        expired
    }

    /// Returns the number of issued handles and of unlinked files.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.issued.len(), self.unlinked.len())
    }

    /// Writes new records. Rewrites the file if most of it is obsolete.
    pub(crate) fn flush(&mut self) {
        self.log.flush();
        if self.log.is_mostly_obsolete(self.issued.len()) {
            let records = self.issued.iter().map(|(ino, issued)| Record {
                ino: *ino,
                generation: issued.generation,
                is_directory: issued.is_directory,
                dentries: vec![issued.dentry.clone()],
            });
            self.log.rewrite(records);
        }
    }

    /// Returns the table file if it has unsynced records.
    pub(crate) fn unsynced_file(&self) -> Option<Arc<File>> {
        self.log.unsynced()
    }

    pub(crate) fn sync_failed(&self) {
        self.log.sync_failed();
    }

    /// Removes a handle from the table and the file.
    fn remove(&mut self, ino: Ino) -> Option<Issued> {
        let issued = self.issued.remove(&ino)?;
        self.log.put(&Record { ino, generation: issued.generation, is_directory: false, dentries: Vec::new() });
        Some(issued)
    }

    /// Drops old handles of files if the table is full.
    fn evict_old(&mut self) {
        let mut left = self.order.len().min(EVICTION_SCAN_MAX);
        while self.issued.len() >= ISSUED_MAX && left > 0 {
            left -= 1;
            let Some(oldest) = self.order.pop_front() else { return };
            match self.issued.get(&oldest) {
                // Handles below the directory need it.
                Some(Issued { is_directory: true, .. }) => self.order.push_back(oldest),
                Some(_) => drop(self.remove(oldest)),
                None => {}
            }
        }
    }

    fn compact_queues(&mut self) {
        if self.order.len() > 2 * self.issued.len() + QUEUE_MIN {
            self.order.retain(|ino| self.issued.contains_key(ino));
        }
        if self.clock_queue.len() > 2 * self.held.len() + QUEUE_MIN {
            self.clock_queue.retain(|ino| self.held.contains_key(ino));
        }
    }

    /// Keeps an unlinked file within the byte limit. Returns the files that are dropped for it.
    fn keep_unlinked(&mut self, ino: Ino, generation: u64, bytes: u64, now: Time) -> Vec<Ino> {
        let mut evicted = Vec::new();
        if bytes > UNLINKED_BYTES_MAX {
            return evicted;
        }
        while self.unlinked_bytes + bytes > UNLINKED_BYTES_MAX {
            let oldest = self.unlinked.iter().min_by_key(|(_, unlinked)| unlinked.used.load(Relaxed));
            let Some(oldest) = oldest.map(|(ino, _)| *ino) else { break };
            self.drop_unlinked(oldest);
            evicted.push(oldest);
        }
        self.unlinked_bytes += bytes;
        self.unlinked.insert(ino, Unlinked { generation, bytes, used: AtomicI64::new(now.0) });
        evicted
    }

    fn drop_unlinked(&mut self, ino: Ino) {
        if let Some(unlinked) = self.unlinked.remove(&ino) {
            self.unlinked_bytes -= unlinked.bytes;
        }
    }
}
