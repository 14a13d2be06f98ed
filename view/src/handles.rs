//! File handles: names of inodes that outlive the table of inodes, for protocols whose clients never say that they forget.
//!
//! A handle is an inode's number and a generation, which is never used twice. The table of issued handles knows a place (directory and
//! name) for each of them, so an inode that nobody holds is found again. The table follows renames and removals through every door,
//! because the table of inodes tells it of them, and it is kept in a file: see [`log`]. A number that was issued for one place is not
//! given to another, in this life of the view and in later ones.
//!
//! The inodes that were used last are held in the table of inodes, at most [`HELD_MAX`]. A file that lost its last name stays readable
//! through its handle until nobody used it for a while ([`View::expire_handles`]), within [`UNLINKED_BYTES_MAX`].

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

/// Inodes that are held in the table because their handles were used last.
const HELD_MAX: usize = 1 << 16;
/// Handles that are known. Beyond it those of files go that were issued first.
const ISSUED_MAX: usize = 1 << 21;
/// A queue of so few is never tidied.
const QUEUE_MIN: usize = 1_024;
/// Bytes of files without a name that are kept for their handles, in all.
const UNLINKED_BYTES_MAX: u64 = 256 << 20;
/// The name of the table's file in a view's directory.
const FILE_NAME: &str = "handles";
/// The generation of the root, which is the same in every life of a view.
const ROOT_GENERATION: u64 = 0;

/// A persistent name of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    /// The inode's number.
    pub ino: Ino,
    /// Tells it from others that had or will have the number.
    pub generation: u64,
}

impl Handle {
    /// The handle of every view's root.
    pub const ROOT: Self = Self { ino: ROOT, generation: ROOT_GENERATION };
}

/// All handles of a view.
pub(crate) struct Handles {
    issued: HashMap<Ino, Issued>,
    /// The issued ones, the oldest first; some may be gone.
    order: VecDeque<Ino>,
    /// Inodes that are held, and whether they were used since they were last considered.
    held: HashMap<Ino, AtomicBool>,
    /// The held ones in the order in which they are considered; some may be gone.
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

/// A file that lost its last name, held for its handle.
struct Unlinked {
    generation: u64,
    bytes: u64,
    /// When its handle was last used; 0 until somebody looked at the clock.
    used: AtomicI64,
}

impl Handles {
    /// Reads the table of a file, or begins one. Numbers that their places do not give are told to the table of inodes.
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

    /// Takes a handle out of the table, in the file too.
    fn withdraw(&mut self, ino: Ino) -> Option<Issued> {
        let issued = self.issued.remove(&ino)?;
        self.log.put(&Record { ino, generation: issued.generation, is_directory: false, places: Vec::new() });
        Some(issued)
    }

    /// The handles that have to go for there to be room for a new one.
    fn make_room(&mut self) {
        let mut patience = self.order.len().min(64);
        while self.issued.len() >= ISSUED_MAX && patience > 0 {
            patience -= 1;
            let Some(oldest) = self.order.pop_front() else { return };
            match self.issued.get(&oldest) {
                // What lies below it could not be found without it.
                Some(Issued { is_directory: true, .. }) => self.order.push_back(oldest),
                Some(_) => drop(self.withdraw(oldest)),
                None => {}
            }
        }
    }

    /// Takes out of the queues what is gone, once that is most of them.
    fn tidy_queues(&mut self) {
        if self.order.len() > 2 * self.issued.len() + QUEUE_MIN {
            self.order.retain(|ino| self.issued.contains_key(ino));
        }
        if self.hand.len() > 2 * self.held.len() + QUEUE_MIN {
            self.hand.retain(|ino| self.held.contains_key(ino));
        }
    }

    /// Writes down what is new, and writes the file anew where most of it is old.
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

/// What the table of inodes tells the table of handles.
impl Inodes {
    /// Whether a number was issued for something that is elsewhere.
    pub(crate) fn is_issued_elsewhere(&self, ino: Ino, place: &Place) -> bool {
        let issued = self.handles.as_ref().and_then(|handles| handles.issued.get(&ino));
        issued.is_some_and(|issued| issued.place != *place)
    }

    /// The names of an inode changed, and it has at least one.
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

    /// An inode lost its last name: the handle of a file goes on for a while, that of a directory ends.
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

    /// Something new is to be at a place: a handle of what was there before does not lead to it.
    pub(crate) fn renew(&mut self, place: &Place) {
        let Some(handles) = &self.handles else { return };
        let ino = self.recalled_at(place).unwrap_or_else(|| hash(place));
        if handles.issued.get(&ino).is_some_and(|issued| issued.place == *place) {
            self.give_up(place);
        }
    }

    /// What a number was issued for is there no more, and nobody holds it.
    pub(crate) fn handle_given_up(&mut self, ino: Ino) {
        if let Some(handles) = &mut self.handles
            && handles.withdraw(ino).is_some()
        {
            handles.flush();
        }
    }

    /// Says whether a handle is known: found in the table of inodes, or yet to be found.
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

    /// Issues a handle for an inode in the table, and for the directories above it.
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

    /// Takes over one hold of an inode, and gives back that of others that were not used for longer.
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
    /// Keeps a file without a name within the bound; returns those that have to go for it.
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
    /// Finds an inode that was issued and is not in the table, by the places of its directories.
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
                    // The ones on the way are held by nobody.
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
    /// From here on handles are issued, and kept beside the journal: the next life of the view knows them.
    pub fn keep_handles(&self) -> Result<()> {
        let directory = self.directory().ok_or(Error::ReadOnly)?;
        self.keep_handles_at(&directory.join(FILE_NAME))
    }

    /// From here on handles are issued, and kept in a file of this path: for views that show snapshots.
    pub fn keep_handles_at(&self, path: &Path) -> Result<()> {
        let live = &mut *self.shared.live.write();
        if live.inodes.handles.is_none() {
            let handles = Handles::open(path, &mut live.inodes)?;
            live.inodes.handles = Some(Box::new(handles));
        }
        Ok(())
    }

    /// Takes up the handles of an earlier life, where there are any: changes through any door are to be known to them.
    pub(crate) fn recall_handles(directory: &Path, inodes: &mut Inodes) -> Result<()> {
        let path = directory.join(FILE_NAME);
        if path.exists() {
            let handles = Handles::open(&path, inodes)?;
            inodes.handles = Some(Box::new(handles));
        }
        Ok(())
    }

    /// Issues handles for inodes that the caller holds once each, and takes these holds over. One that has no handle is stale.
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

    /// The inode of a handle, held for as long as it is among those that were used last.
    pub fn resolve(&self, handle: Handle) -> Result<Ino> {
        let stale = Error::Stale(handle.ino);
        match self.shared.live.read().inodes.recognise(handle, || self.now()) {
            Some(true) => return Ok(handle.ino),
            Some(false) => {}
            None => return Err(stale),
        }
        let live = &mut *self.shared.live.write();
        // It may have been found, or have gone, since.
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

    /// Gives up the files without a name whose handles were not used since a time.
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

    /// Puts the table of handles on disk, as far as it changed.
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

    /// How many handles are known, and how many files without a name are kept for theirs.
    pub fn handles(&self) -> (usize, usize) {
        let live = self.shared.live.read();
        live.inodes.handles.as_ref().map_or((0, 0), |handles| (handles.issued.len(), handles.unlinked.len()))
    }
}
