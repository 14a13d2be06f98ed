//! Prefetch of small files that are read in the order of their directory listings.
//!
//! A process that lists directories and reads their files in that order will most likely continue: a search, an archiver, a copy. After
//! a few such reads a *walk* starts: a thread traverses the tree in the same order, ahead of the reader, below and above its directory.
//! It reads many files in one request to the store, which has stored them next to each other, and the directories on the way. A walk
//! stays a few megabytes ahead. It restarts where the reader continues elsewhere, and ends when nothing is read.
//!
//! Prefetched data belongs to a content, which never changes, so it is never invalidated.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use amalgam_engine::content::read;
use amalgam_engine::object::{Content, EntryKind, Node};
use amalgam_engine::work::LooseFile;
use amalgam_engine::{ChunkId, Store, TreePath, WorkingTree};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::attributes::Ino;

/// Limit of remembered listings.
const LISTINGS_MAX: usize = 8;
/// Limit of unread files of a listing.
const LISTED_MAX: usize = 4_096;
/// Larger files are not prefetched by walks.
const FILE_BYTES_MAX: u64 = 2 << 20;
/// How far a walk is ahead of the reader.
const PREFETCH_BYTES_MAX: u64 = 4 << 20;
/// Size of one request to the store.
const BATCH_BYTES: u64 = 256 << 10;
const BATCH_FILES: usize = 64;
/// Files that a reader may skip and still be in order, before a walk starts.
const SKIPPED_MAX_BEFORE: usize = 4;
/// Files that a reader may skip and still be in order, during a walk.
const SKIPPED_MAX_DURING: u64 = 32;
/// Reads in order that start a walk: the minimum, and the maximum after useless walks.
const READS_TO_START_MIN: u32 = 4;
const READS_TO_START_MAX: u32 = 256;
/// Consecutive misses after which a walk has lost its reader.
const MISSES_MAX: u32 = 8;
/// Reads that a walk has to serve to count as useful.
const USEFUL_HITS: u32 = 32;
/// How long a walk waits for its reader.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Worker threads of a walk: a disk serves several requests as quickly as one.
const WORKERS: usize = 2;
/// Niceness of the workers. The reader and the thread that answers it alternate on a processor, and must not wait for prefetching.
const NICE: i32 = 5;
/// How long a reader waits for data in flight. On a busy machine the nice workers do not run, and the walk is useless.
const READER_WAIT_MAX: Duration = Duration::from_millis(5);

/// The walk and the prefetched files of a view.
#[derive(Default)]
pub(crate) struct TreePrefetch {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Ends the walk and its threads, which hold the store.
impl Drop for TreePrefetch {
    fn drop(&mut self) {
        self.shared.state.lock().end_walk();
        self.shared.taken.notify_all();
        for thread in self.threads.get_mut().drain(..) {
            // A panic of the thread has no effect here.
            thread.join().ok();
        }
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Signals that data arrived.
    fetched: Condvar,
    /// Signals that a reader took data.
    taken: Condvar,
}

#[derive(Default)]
struct State {
    /// Newest last.
    listings: VecDeque<Listing>,
    /// Recent reads in the order of listings.
    in_order: u32,
    /// Reads that start a walk, above the minimum. Grows with useless walks.
    extra_reads_to_start: u32,
    walk: Option<Walk>,
    /// Number of walks, from which their ids come.
    walks: u64,
    files: HashMap<Content, PrefetchedFile>,
    /// Prefetched files in the order of the walk.
    order: VecDeque<(u64, Content)>,
    last_number: u64,
    prefetched_bytes: u64,
}

/// The files of a listed directory, in order.
struct Listing {
    directory: Ino,
    files: Vec<Ino>,
    /// Index of the first file that was neither read nor skipped.
    next: usize,
}

struct Walk {
    id: u64,
    /// Whether it has requested data; before that, misses do not count.
    has_requested: bool,
    hits: u32,
    /// Consecutive misses.
    misses: u32,
}

/// Whether data was prefetched.
pub(crate) enum Prefetched {
    Ready(Bytes),
    /// A worker is fetching it.
    InFlight,
    No,
}

/// Returns content and size of a file, if walks prefetch such files.
fn content_of(file: &LooseFile) -> Option<(Content, u64)> {
    file.stored().filter(|(_, size)| (1..=FILE_BYTES_MAX).contains(size))
}

struct PrefetchedFile {
    number: u64,
    size: u64,
    /// `None` while in flight.
    bytes: Option<Bytes>,
}

impl State {
    /// Records a read, and returns whether it continues a listing.
    fn is_in_order(&mut self, ino: Ino) -> bool {
        let is_next = self.listings.iter_mut().rev().any(|listing| {
            let near = listing.files.iter().skip(listing.next).take(SKIPPED_MAX_BEFORE);
            let place = near.copied().position(|other| other == ino);
            listing.next += place.map_or(0, |place| place + 1);
            place.is_some()
        });
        self.in_order =
            if is_next { (self.in_order + 1).min(READS_TO_START_MAX) } else { self.in_order.saturating_sub(1) };
        is_next
    }

    /// Returns whether a walk should start at a file that is read and was not prefetched.
    fn should_walk(&mut self) -> bool {
        let Some(walk) = &mut self.walk else {
            return self.in_order >= READS_TO_START_MIN + self.extra_reads_to_start;
        };
        walk.misses += u32::from(walk.has_requested);
        if walk.misses < MISSES_MAX {
            return false;
        }
        if walk.hits < USEFUL_HITS {
            self.end_useless_walk();
            return false;
        }
        true
    }

    /// Ends a useless walk. The next one starts after more reads in order.
    fn end_useless_walk(&mut self) {
        self.extra_reads_to_start =
            (self.extra_reads_to_start * 2 + READS_TO_START_MIN).min(READS_TO_START_MAX - READS_TO_START_MIN);
        self.in_order = 0;
        self.end_walk();
    }

    fn begin_walk(&mut self) -> u64 {
        self.end_walk();
        self.walks += 1;
        self.walk = Some(Walk { id: self.walks, has_requested: false, hits: 0, misses: 0 });
        self.walks
    }

    /// Ends the walk and drops its files.
    fn end_walk(&mut self) {
        self.walk = None;
        self.files.clear();
        self.order.clear();
        self.prefetched_bytes = 0;
    }

    fn is_current(&self, walk: u64) -> bool {
        self.walk.as_ref().is_some_and(|found| found.id == walk)
    }

    /// Records a hit, and drops files that the reader has skipped.
    fn record_hit(&mut self, number: u64) {
        if let Some(walk) = &mut self.walk {
            walk.hits += 1;
            walk.misses = 0;
            if walk.hits == USEFUL_HITS {
                self.extra_reads_to_start = 0;
            }
        }
        while let Some((earlier, content)) = self.order.front().copied()
            && earlier + SKIPPED_MAX_DURING < number
        {
            self.order.pop_front();
            self.drop_file(content);
        }
    }

    fn drop_file(&mut self, content: Content) {
        if let Some(fetched) = self.files.remove(&content) {
            self.prefetched_bytes -= fetched.size;
        }
    }

    /// Marks files as in flight. Removes those that already are from the list.
    fn mark_in_flight(&mut self, files: &mut Vec<(Content, u64)>) {
        if let Some(walk) = &mut self.walk {
            walk.has_requested = true;
        }
        files.retain(|(content, size)| {
            let is_new = !self.files.contains_key(content);
            if is_new {
                self.last_number += 1;
                self.files.insert(*content, PrefetchedFile { number: self.last_number, size: *size, bytes: None });
                self.order.push_back((self.last_number, *content));
                self.prefetched_bytes += size;
            }
            is_new
        });
    }
}

impl TreePrefetch {
    /// Records the first files of a directory listing.
    pub(crate) fn listing_started(&self, directory: Ino, files: Vec<Ino>) {
        let mut state = self.shared.state.lock();
        // A process that only lists directories does not read in their order.
        state.in_order = state.in_order.saturating_sub(1);
        state.listings.retain(|listing| listing.directory != directory);
        state.listings.push_back(Listing { directory, files, next: 0 });
        if state.listings.len() > LISTINGS_MAX {
            state.listings.pop_front();
        }
    }

    /// Records further files of a directory listing.
    pub(crate) fn listing_continued(&self, directory: Ino, files: Vec<Ino>) {
        let mut state = self.shared.state.lock();
        if let Some(listing) = state.listings.iter_mut().find(|listing| listing.directory == directory) {
            let left = (listing.next + LISTED_MAX).saturating_sub(listing.files.len());
            listing.files.extend(files.into_iter().take(left));
        }
    }

    /// Returns a range of a file if it was prefetched. Starts a walk if the reads are in order; `position` then returns the tree and the
    /// path of the file.
    pub(crate) fn read(
        &self,
        ino: Ino,
        file: &LooseFile,
        offset: u64,
        length: usize,
        position: impl FnOnce() -> Option<(WorkingTree, TreePath)>,
    ) -> Prefetched {
        let Some((content, size)) = content_of(file) else { return Prefetched::No };
        let mut state = self.shared.state.lock();
        if offset == 0 {
            let is_next = state.is_in_order(ino);
            match state.files.get(&content).map(|fetched| fetched.number) {
                Some(number) => state.record_hit(number),
                None if is_next && state.should_walk() => {
                    let walk = state.begin_walk();
                    drop(state);
                    if let Some((tree, path)) = position() {
                        self.start_walk(walk, tree, path);
                    }
                    return Prefetched::No;
                }
                None => return Prefetched::No,
            }
        }
        self.take(&mut state, content, size, offset, length)
    }

    /// Waits for a range in flight. Returns `None` if it was dropped or takes too long.
    pub(crate) fn wait(&self, file: &LooseFile, offset: u64, length: usize) -> Option<Bytes> {
        let (content, size) = content_of(file)?;
        let mut state = self.shared.state.lock();
        let (until, walk) = (Instant::now() + READER_WAIT_MAX, state.walk.as_ref().map(|walk| walk.id));
        let mut is_late = false;
        loop {
            match self.take(&mut state, content, size, offset, length) {
                Prefetched::Ready(bytes) => return Some(bytes),
                Prefetched::InFlight if !is_late => {
                    is_late = self.shared.fetched.wait_until(&mut state, until).timed_out()
                }
                Prefetched::InFlight => {
                    if walk.is_some_and(|walk| state.is_current(walk)) {
                        state.end_useless_walk();
                        self.shared.taken.notify_all();
                        // Wakes other readers that wait for the walk.
                        self.shared.fetched.notify_all();
                    }
                    return None;
                }
                Prefetched::No => return None,
            }
        }
    }

    fn take(&self, state: &mut State, content: Content, size: u64, offset: u64, length: usize) -> Prefetched {
        let bytes = match state.files.get(&content) {
            Some(PrefetchedFile { bytes: Some(bytes), .. }) => bytes.clone(),
            Some(_) => return Prefetched::InFlight,
            None => return Prefetched::No,
        };
        let end = offset.saturating_add(length as u64).min(size);
        if end == size {
            state.drop_file(content);
            self.shared.taken.notify_one();
        }
        Prefetched::Ready(if offset < end { bytes.slice(offset as usize..end as usize) } else { Bytes::new() })
    }

    /// Starts the threads of a walk behind a file. They end by themselves.
    fn start_walk(&self, id: u64, tree: WorkingTree, path: TreePath) {
        let (sender, receiver) = sync_channel::<Vec<(Content, u64)>>(WORKERS);
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..WORKERS {
            let (shared, receiver, store) = (Arc::clone(&self.shared), Arc::clone(&receiver), tree.store().clone());
            self.spawn(move || {
                lower_priority();
                loop {
                    // The lock is released before the files are fetched.
                    let next = receiver.lock().recv();
                    let Ok(files) = next else { return };
                    shared.load(&store, &files);
                }
            });
        }
        drop(receiver);
        let shared = Arc::clone(&self.shared);
        let begun = self.spawn(move || {
            let mut batch = Batch { shared: &shared, id, sender, files: Vec::new(), bytes: 0 };
            // A reader of a file that cannot be read gets the error.
            if !matches!(walk(&tree, &path, &mut batch), Ok(false)) {
                batch.send();
            }
        });
        if !begun {
            self.shared.end_walk(id);
        }
    }

    fn spawn(&self, work: impl FnOnce() + Send + 'static) -> bool {
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        let spawned = std::thread::Builder::new().name("amalgam-prefetch".to_owned()).spawn(work);
        spawned.map(|thread| threads.push(thread)).is_ok()
    }
}

/// Lowers the priority of the current thread. If that fails, readers only wait longer.
fn lower_priority() {
    let nice = rustix::process::getpriority_process(None).unwrap_or(0);
    rustix::process::setpriority_process(None, nice + NICE).ok();
}

/// Traverses a tree in listing order, from behind a file to the end. Returns false if the walk was ended.
fn walk(tree: &WorkingTree, from: &TreePath, batch: &mut Batch<'_>) -> amalgam_engine::Result<bool> {
    let mut above = Vec::new();
    let mut directory = TreePath::root();
    for name in from.names() {
        let mut listing = tree.list_from(&directory, &name)?.peekable();
        listing.next_if(|item| item.as_ref().is_ok_and(|(found, _)| *found == name));
        above.push((directory.clone(), listing));
        directory = directory.join(&name);
    }
    while let Some((directory, listing)) = above.last_mut() {
        let Some(item) = listing.next() else {
            above.pop();
            continue;
        };
        let (name, stat) = item?;
        if stat.kind == EntryKind::Directory {
            let below = directory.join(&name);
            let listing = tree.list(&below)?.peekable();
            above.push((below, listing));
        } else if let Some(Node::File { content, size }) = stat.entry.as_ref().map(|entry| &entry.node)
            && !batch.add(*content, *size)
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The files that a walk will request next.
struct Batch<'a> {
    shared: &'a Shared,
    id: u64,
    sender: SyncSender<Vec<(Content, u64)>>,
    files: Vec<(Content, u64)>,
    bytes: u64,
}

impl Batch<'_> {
    /// Adds a file, and sends the batch when it is full. Returns false if the walk was ended.
    fn add(&mut self, content: Content, size: u64) -> bool {
        if !(1..=FILE_BYTES_MAX).contains(&size) || !matches!(content, Content::Chunk(_) | Content::Rope(_)) {
            return true;
        }
        self.files.push((content, size));
        self.bytes += size;
        (self.bytes < BATCH_BYTES && self.files.len() < BATCH_FILES) || self.send()
    }

    /// Passes the batch to the workers, once the reader is close enough. Returns false if the walk was ended.
    fn send(&mut self) -> bool {
        let mut state = self.shared.state.lock();
        while state.is_current(self.id) && state.prefetched_bytes > PREFETCH_BYTES_MAX {
            if self.shared.taken.wait_for(&mut state, IDLE_MAX).timed_out() && state.is_current(self.id) {
                state.end_walk();
            }
        }
        if !state.is_current(self.id) {
            return false;
        }
        let mut files = std::mem::take(&mut self.files);
        self.bytes = 0;
        state.mark_in_flight(&mut files);
        drop(state);
        if self.sender.send(files).is_err() {
            self.shared.end_walk(self.id);
            return false;
        }
        true
    }
}

impl Shared {
    fn end_walk(&self, walk: u64) {
        let mut state = self.state.lock();
        if state.is_current(walk) {
            state.end_walk();
        }
        self.fetched.notify_all();
    }

    fn load(&self, store: &Store, files: &[(Content, u64)]) {
        let chunk = |(content, size): &(Content, u64)| match content {
            Content::Chunk(id) => Some((*id, *size)),
            _ => None,
        };
        let small: Vec<(ChunkId, u64)> = files.iter().filter_map(chunk).collect();
        let mut chunks = store.chunks(&small).unwrap_or_default().into_iter();
        for (content, size) in files {
            let bytes = match content {
                Content::Chunk(_) => chunks.next(),
                _ => read(store, content, *size, 0, *size).ok().map(Bytes::from),
            };
            let mut state = self.state.lock();
            match (bytes, state.files.get_mut(content)) {
                (Some(bytes), Some(fetched)) => fetched.bytes = Some(bytes),
                (None, Some(_)) => state.drop_file(*content),
                (_, None) => {}
            }
            drop(state);
            self.fetched.notify_all();
        }
    }
}
