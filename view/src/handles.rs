//! File handles: persistent names of inodes, for protocols like NFS whose clients never release an inode.
//!
//! A handle is an inode number and a generation; a generation is never reused. For each issued handle the table stores a place (parent and
//! name), so the view finds the inode again after it left the inode table. The inode table reports every rename and removal, through FUSE
//! and NFS alike, to the handle table. A file beside the journal keeps the table: see [`log`]. A number that was issued for one place is
//! never assigned to another place, not even after a restart.
//!
//! The view holds the [`HELD_MAX`] most recently used inodes. An unlinked file stays readable through its handle until the handle is unused for
//! some time ([`View::expire_handles`]), within [`UNLINKED_BYTES_MAX`].

mod log;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use amalgam_engine::{DEPTH_MAX, Error as EngineError, Time};
use foldhash::{HashMap, HashMapExt as _};

use crate::error::{Error, Result};
use crate::inodes::{Ino, Inodes, Place, ROOT, Whereabouts, hash};
use crate::view::{Live, View};
use log::{Log, Record};

/// Limit of inodes that the table holds.
const HELD_MAX: usize = 1 << 16;
/// Limit of issued handles. Beyond it the oldest handles of files are dropped.
const ISSUED_MAX: usize = 1 << 21;
/// Queues below this length are not compacted.
const QUEUE_MIN: usize = 1_024;
/// Limit of bytes of unlinked files that are kept for their handles.
const UNLINKED_BYTES_MAX: u64 = 256 << 20;
/// Name of the table file in the journal directory.
const FILE_NAME: &str = "handles";
/// Generation of the root, the same for every view.
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
pub(crate) struct Handles {
    issued: HashMap<Ino, Issued>,
    /// Issued handles, oldest first; may contain dropped ones.
    order: VecDeque<Ino>,
    /// Held inodes, with a used flag for the clock algorithm.
    held: HashMap<Ino, AtomicBool>,
    /// Clock queue of the held inodes; may contain dropped ones.
    hand: VecDeque<Ino>,
    unlinked: HashMap<Ino, Unlinked>,
    unlinked_bytes: u64,
    next_generation: u64,
    log: Log,
}

struct Issued {
    generation: u64,
    place: Place,
    is_directory: bool,
}

/// An unlinked file, held for its handle.
struct Unlinked {
    generation: u64,
    bytes: u64,
    /// Time of the last use of the handle; 0 until the first expiry pass.
    used: AtomicI64,
}

impl Handles {
    /// Opens or creates a table. Passes numbers that differ from the hash of their place to the inode table.
    fn open(path: &Path, inodes: &mut Inodes) -> Result<Self> {
        let (log, records) =
            Log::open(path).map_err(|source| EngineError::from_io("open the handle table", &source))?;
        let mut base = [0; 8];
        rustix::rand::getrandom(&mut base[..], rustix::rand::GetRandomFlags::empty())
            .map_err(|error| EngineError::from_io("read random bytes", &error.into()))?;
        let mut handles = Self {
            issued: HashMap::with_capacity(records.len()),
            order: VecDeque::with_capacity(records.len()),
            held: HashMap::new(),
            hand: VecDeque::new(),
            unlinked: HashMap::new(),
            unlinked_bytes: 0,
            next_generation: u64::from_le_bytes(base),
            log,
        };
        for Record { ino, generation, is_directory, mut places } in records {
            for place in &places {
                inodes.recall(ino, place.clone());
            }
            if let Some(place) = places.drain(..).next() {
                handles.issued.insert(ino, Issued { generation, place, is_directory });
                handles.order.push_back(ino);
            }
        }
        Ok(handles)
    }

    fn new_generation(&mut self) -> u64 {
        self.next_generation = self.next_generation.wrapping_add(1);
        if self.next_generation == ROOT_GENERATION {
            self.next_generation += 1;
        }
        self.next_generation
    }

    fn generation(&self, ino: Ino) -> Option<u64> {
        let issued = self.issued.get(&ino).map(|issued| issued.generation);
        issued.or_else(|| self.unlinked.get(&ino).map(|unlinked| unlinked.generation))
    }

    /// Removes a handle from the table and the file.
    fn withdraw(&mut self, ino: Ino) -> Option<Issued> {
        let issued = self.issued.remove(&ino)?;
        self.log.put(&Record { ino, generation: issued.generation, is_directory: false, places: Vec::new() });
        Some(issued)
    }

    /// Drops old handles of files if the table is full.
    fn make_room(&mut self) {
        let mut patience = self.order.len().min(64);
        while self.issued.len() >= ISSUED_MAX && patience > 0 {
            patience -= 1;
            let Some(oldest) = self.order.pop_front() else { return };
            match self.issued.get(&oldest) {
                // Handles below the directory need it.
                Some(Issued { is_directory: true, .. }) => self.order.push_back(oldest),
                Some(_) => drop(self.withdraw(oldest)),
                None => {}
            }
        }
    }

    /// Compacts the queues.
    fn tidy_queues(&mut self) {
        if self.order.len() > 2 * self.issued.len() + QUEUE_MIN {
            self.order.retain(|ino| self.issued.contains_key(ino));
        }
        if self.hand.len() > 2 * self.held.len() + QUEUE_MIN {
            self.hand.retain(|ino| self.held.contains_key(ino));
        }
    }

    /// Writes new records. Rewrites the file if most of it is obsolete.
    fn flush(&mut self) {
        self.log.flush();
        if self.log.is_mostly_old(self.issued.len()) {
            let records = self.issued.iter().map(|(ino, issued)| Record {
                ino: *ino,
                generation: issued.generation,
                is_directory: issued.is_directory,
                places: vec![issued.place.clone()],
            });
            self.log.rewrite(records);
        }
    }
}

/// Notifications from the inode table.
impl Inodes {
    /// Whether a number was issued for another place.
    pub(crate) fn is_issued_elsewhere(&self, ino: Ino, place: &Place) -> bool {
        let issued = self.handles.as_ref().and_then(|handles| handles.issued.get(&ino));
        issued.is_some_and(|issued| issued.place != *place)
    }

    /// Records the new places of an inode, which has at least one.
    pub(crate) fn places_changed(&mut self, ino: Ino) {
        let is_issued = self.handles.as_ref().is_some_and(|handles| handles.issued.contains_key(&ino));
        if !is_issued {
            return;
        }
        let Ok(Whereabouts::Named(places)) = self.get(ino).map(|inode| &inode.whereabouts) else { return };
        let places = places.clone();
        let (Some(handles), Some(first)) = (&mut self.handles, places.first()) else { return };
        let Some(issued) = handles.issued.get_mut(&ino) else { return };
        issued.place = first.clone();
        let (generation, is_directory) = (issued.generation, issued.is_directory);
        handles.log.put(&Record { ino, generation, is_directory, places });
        handles.flush();
    }

    /// An inode lost its last name. The handle of a file remains for a while, that of a directory ends.
    pub(crate) fn handle_detached(&mut self, ino: Ino, whereabouts: &Whereabouts) {
        let Some(handles) = &mut self.handles else { return };
        let Some(issued) = handles.withdraw(ino) else { return };
        handles.flush();
        let was_held = handles.held.remove(&ino).is_some();
        let mut given_up = Vec::new();
        let is_kept = match whereabouts {
            Whereabouts::Loose(file) => {
                let bytes = file.stat().size;
                given_up = handles.keep_unlinked(ino, issued.generation, bytes);
                handles.unlinked.contains_key(&ino)
            }
            _ => false,
        };
        match (is_kept, was_held) {
            (true, false) => self.hold(ino),
            (false, true) => self.release(ino),
            _ => {}
        }
        for ino in given_up {
            self.forget(ino, 1);
        }
    }

    /// Called before something new is created at a place: an old handle of the place must not resolve to it.
    pub(crate) fn renew(&mut self, place: &Place) {
        let Some(handles) = &self.handles else { return };
        let ino = self.recalled_at(place).unwrap_or_else(|| hash(place));
        if handles.issued.get(&ino).is_some_and(|issued| issued.place == *place) {
            self.give_up(place);
        }
    }

    /// The inode of a number no longer exists, and no caller holds it.
    pub(crate) fn handle_given_up(&mut self, ino: Ino) {
        if let Some(handles) = &mut self.handles
            && handles.withdraw(ino).is_some()
        {
            handles.flush();
        }
    }

    /// Returns whether a known handle is in the inode table (true) or has to be looked up (false).
    fn recognise(&self, handle: Handle, now: impl FnOnce() -> Time) -> Option<bool> {
        if handle == Handle::ROOT {
            return Some(true);
        }
        let handles = self.handles.as_ref()?;
        if let Some(unlinked) = handles.unlinked.get(&handle.ino) {
            unlinked.used.store(now().0, Relaxed);
            return (unlinked.generation == handle.generation).then_some(true);
        }
        let issued = handles.issued.get(&handle.ino)?;
        if issued.generation != handle.generation {
            return None;
        }
        let held = handles.held.get(&handle.ino);
        held.inspect(|used| used.store(true, Relaxed));
        Some(held.is_some())
    }

    /// Issues a handle for an inode, and for the directories above it.
    fn issue(&mut self, ino: Ino, now: Time) -> Result<Handle> {
        if ino == ROOT {
            return Ok(Handle::ROOT);
        }
        let handle = |generation| Handle { ino, generation };
        if let Some(generation) = self.handles.as_ref().and_then(|handles| handles.generation(ino)) {
            return Ok(handle(generation));
        }
        let inode = self.get(ino)?;
        let is_directory = inode.kind == crate::attributes::Kind::Directory;
        let places = match &inode.whereabouts {
            Whereabouts::Named(places) => places.clone(),
            Whereabouts::Loose(file) => {
                let bytes = file.stat().size;
                let handles = self.handles.as_mut().ok_or(Error::Stale(ino))?;
                let generation = handles.new_generation();
                let given_up = handles.keep_unlinked(ino, generation, bytes);
                let Some(kept) = handles.unlinked.get(&ino) else { return Err(Error::Stale(ino)) };
                kept.used.store(now.0, Relaxed);
                self.hold(ino);
                given_up.into_iter().for_each(|ino| self.forget(ino, 1));
                return Ok(handle(generation));
            }
            Whereabouts::Gone(_) => return Err(Error::Stale(ino)),
        };
        let first = places.first().expect("only the root has no place").clone();
        self.issue(first.parent, now)?;
        let handles = self.handles.as_mut().ok_or(Error::Stale(ino))?;
        handles.make_room();
        let generation = handles.new_generation();
        handles.log.put(&Record { ino, generation, is_directory, places });
        handles.issued.insert(ino, Issued { generation, place: first, is_directory });
        handles.order.push_back(ino);
        handles.tidy_queues();
        Ok(handle(generation))
    }

    /// Takes over one hold of the caller, and releases holds of inodes that were not used recently.
    fn keep_held(&mut self, ino: Ino) {
        let Some(handles) = &mut self.handles else { return self.forget(ino, 1) };
        if let Some(used) = handles.held.get(&ino) {
            used.store(true, Relaxed);
            return self.forget(ino, 1);
        }
        if ino == ROOT || !handles.issued.contains_key(&ino) {
            return self.forget(ino, 1);
        }
        handles.held.insert(ino, AtomicBool::new(true));
        handles.hand.push_back(ino);
        let mut given_back = Vec::new();
        while handles.held.len() > HELD_MAX
            && let Some(oldest) = handles.hand.pop_front()
        {
            match handles.held.get(&oldest) {
                Some(used) if used.swap(false, Relaxed) => handles.hand.push_back(oldest),
                Some(_) => {
                    handles.held.remove(&oldest);
                    given_back.push(oldest);
                }
                None => {}
            }
        }
        for ino in given_back {
            self.forget(ino, 1);
        }
    }
}

impl Handles {
    /// Keeps an unlinked file within the byte limit. Returns the files that are dropped for it.
    fn keep_unlinked(&mut self, ino: Ino, generation: u64, bytes: u64) -> Vec<Ino> {
        let mut given_up = Vec::new();
        if bytes > UNLINKED_BYTES_MAX {
            return given_up;
        }
        while self.unlinked_bytes + bytes > UNLINKED_BYTES_MAX {
            let oldest = self.unlinked.iter().min_by_key(|(_, unlinked)| unlinked.used.load(Relaxed));
            let Some(oldest) = oldest.map(|(ino, _)| *ino) else { break };
            self.drop_unlinked(oldest);
            given_up.push(oldest);
        }
        self.unlinked_bytes += bytes;
        self.unlinked.insert(ino, Unlinked { generation, bytes, used: AtomicI64::new(0) });
        given_up
    }

    fn drop_unlinked(&mut self, ino: Ino) {
        if let Some(unlinked) = self.unlinked.remove(&ino) {
            self.unlinked_bytes -= unlinked.bytes;
        }
    }
}

impl Live {
    /// Looks up an issued inode by its places, from the nearest known directory down.
    fn find_issued(&mut self, view: &View, ino: Ino) -> Result<()> {
        let mut chain: Vec<(Ino, Place)> = Vec::new();
        let mut here = ino;
        while here != ROOT && self.inodes.get(here).is_err() {
            let handles = self.inodes.handles.as_ref().ok_or(Error::Stale(ino))?;
            let issued = handles.issued.get(&here).ok_or(Error::Stale(ino))?;
            chain.push((here, issued.place.clone()));
            here = issued.place.parent;
            if chain.len() > DEPTH_MAX {
                return Err(Error::Stale(ino));
            }
        }
        let mut above = here;
        for (expected, place) in chain.into_iter().rev() {
            let found = match self.path(above)? {
                Some(path) => self.look(view, &path, place),
                None => Ok(None),
            };
            match found {
                Ok(Some(found)) if found.ino == expected => above = expected,
                found => {
                    // No caller holds the directories on the way.
                    let other = found.as_ref().ok().and_then(Option::as_ref).map_or(above, |found| found.ino);
                    self.inodes.forget(other, 0);
                    return match found {
                        Err(Error::Engine(error)) if !is_absence(&error) => Err(error.into()),
                        _ => Err(Error::Stale(ino)),
                    };
                }
            }
        }
        Ok(())
    }
}

fn is_absence(error: &EngineError) -> bool {
    matches!(error, EngineError::NotFound { .. } | EngineError::NotADirectory { .. } | EngineError::Absent { .. })
}

impl View {
    /// Enables handles and keeps them beside the journal, so that the next view on this journal knows them.
    pub fn keep_handles(&self) -> Result<()> {
        let directory = self.directory().ok_or(Error::ReadOnly)?;
        self.keep_handles_at(&directory.join(FILE_NAME))
    }

    /// Enables handles and keeps them in this file. For views of snapshots.
    pub fn keep_handles_at(&self, path: &Path) -> Result<()> {
        let live = &mut *self.shared.live.write();
        if live.inodes.handles.is_none() {
            let handles = Handles::open(path, &mut live.inodes)?;
            live.inodes.handles = Some(Box::new(handles));
        }
        Ok(())
    }

    /// Loads the handles of an earlier view on this journal, so that changes through any door update them.
    pub(crate) fn recall_handles(directory: &Path, inodes: &mut Inodes) -> Result<()> {
        let path = directory.join(FILE_NAME);
        if path.exists() {
            let handles = Handles::open(&path, inodes)?;
            inodes.handles = Some(Box::new(handles));
        }
        Ok(())
    }

    /// Issues handles for inodes that the caller holds once each, and takes over these holds. An inode without a handle is stale.
    pub fn issue_handles(&self, inodes: &[Ino]) -> Vec<Option<Handle>> {
        let now = self.now();
        let live = &mut *self.shared.live.write();
        let mut issued = Vec::with_capacity(inodes.len());
        for ino in inodes {
            issued.push(live.inodes.issue(*ino, now).ok());
            live.inodes.keep_held(*ino);
        }
        if let Some(handles) = &mut live.inodes.handles {
            handles.flush();
        }
        issued
    }

    /// Resolves a handle to an inode. The table holds the inode while it is recently used.
    pub fn resolve(&self, handle: Handle) -> Result<Ino> {
        let stale = Error::Stale(handle.ino);
        match self.shared.live.read().inodes.recognise(handle, || self.now()) {
            Some(true) => return Ok(handle.ino),
            Some(false) => {}
            None => return Err(stale),
        }
        let live = &mut *self.shared.live.write();
        // Another thread may have found or removed it.
        match live.inodes.recognise(handle, || self.now()) {
            Some(true) => return Ok(handle.ino),
            Some(false) => {}
            None => return Err(stale),
        }
        live.find_issued(self, handle.ino)?;
        live.inodes.hold(handle.ino);
        live.inodes.keep_held(handle.ino);
        Ok(handle.ino)
    }

    /// Drops unlinked files whose handles were last used before a time.
    pub fn expire_handles(&self, unused_since: Time) {
        let now = self.now();
        let live = &mut *self.shared.live.write();
        let Some(handles) = &mut live.inodes.handles else { return };
        let mut given_up = Vec::new();
        for (ino, unlinked) in &handles.unlinked {
            match unlinked.used.load(Relaxed) {
                0 => unlinked.used.store(now.0, Relaxed),
                used if used < unused_since.0 => given_up.push(*ino),
                _ => {}
            }
        }
        for ino in given_up {
            if let Some(handles) = &mut live.inodes.handles {
                handles.drop_unlinked(ino);
            }
            live.inodes.forget(ino, 1);
        }
    }

    /// Syncs the table file if it changed.
    pub fn sync_handles(&self) -> Result<()> {
        let unsynced = {
            let live = self.shared.live.read();
            live.inodes.handles.as_ref().and_then(|handles| handles.log.unsynced())
        };
        match unsynced {
            Some(file) => file.sync_data().map_err(|source| {
                let live = self.shared.live.read();
                live.inodes.handles.iter().for_each(|handles| handles.log.sync_failed());
                EngineError::from_io("sync the handle table", &source).into()
            }),
            None => Ok(()),
        }
    }

    /// Returns the number of issued handles and of unlinked files.
    pub fn handles(&self) -> (usize, usize) {
        let live = self.shared.live.read();
        live.inodes.handles.as_ref().map_or((0, 0), |handles| (handles.issued.len(), handles.unlinked.len()))
    }
}
