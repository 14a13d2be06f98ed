//! Reading ahead over the files of a tree that are read one after the other.
//!
//! Whoever lists directories and reads their files in the order of the listings will most likely go on: a search, an archiver,
//! a copy. Such a reader becomes a habit after a few files, and from then on a *walk* goes ahead of it, over the same tree in
//! the same order, below and above the directory it is in: files are fetched many in one question to the store, which has
//! them side by side, and so are the directories on the way. A walk stays a few megabytes ahead, is begun anew where the
//! reader is found somewhere else, and ends when nobody reads.
//!
//! What is fetched belongs to a content, which never changes, so it never has to be taken back.

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

use crate::inodes::Ino;

/// Listings that are remembered, and files of each that are not read yet.
const LISTINGS_MAX: usize = 8;
const LISTED_MAX: usize = 4_096;
/// Larger files are for whoever reads ahead within one.
const FILE_BYTES_MAX: u64 = 2 << 20;
/// What a walk is ahead, and what is fetched in one question.
const AHEAD_BYTES: u64 = 4 << 20;
const BATCH_BYTES: u64 = 256 << 10;
const BATCH_FILES: usize = 64;
/// So many files may be left out between two that are read and it is still their order: to begin a walk, and to go on.
const LEFT_OUT_FIRST: usize = 4;
const LEFT_OUT_MAX: u64 = 32;
/// Readings in order that make a habit: so many at first, up to so many after walks that were of no use.
const HABIT_MIN: u32 = 4;
const HABIT_MAX: u32 = 256;
/// Readings elsewhere after which a walk is lost, and those that it has to serve to have been of use.
const LOST: u32 = 8;
const USEFUL: u32 = 32;
/// How long a walk waits for its reader.
const PATIENCE: Duration = Duration::from_secs(1);
/// Threads that fetch: a disk answers several questions as quickly as one.
const FETCHERS: usize = 2;
/// How far they stand back. Whoever reads, and whoever answers it, take turns on one processor, and must not wait for it: what is
/// fetched is for later.
const NICE: i32 = 5;
/// How long a reader waits for what is on its way. On a busy machine those who stand back come to nothing, and a walk is of no use.
const READER_PATIENCE: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(crate) struct Neighbours {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// With the view everything ends that holds its store.
impl Drop for Neighbours {
    fn drop(&mut self) {
        self.shared.state.lock().end_walk();
        self.shared.taken.notify_all();
        for thread in self.threads.get_mut().drain(..) {
            // Whether it panicked makes no difference any more.
            thread.join().ok();
        }
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    fetched: Condvar,
    taken: Condvar,
}

#[derive(Default)]
struct State {
    /// The newest last.
    listings: VecDeque<Listing>,
    /// How many of the last readings went by listings, and how many make a habit now, above the least.
    in_order: u32,
    reserve: u32,
    walk: Option<Walk>,
    walks: u64,
    fetched: HashMap<Content, Fetched>,
    /// In the order of the walk.
    order: VecDeque<(u64, Content)>,
    numbers: u64,
    kept_bytes: u64,
}

/// The files of a directory, in order.
struct Listing {
    directory: Ino,
    files: Vec<Ino>,
    /// The first that was neither read nor left out.
    next: usize,
}

struct Walk {
    id: u64,
    /// Before that it cannot be lost.
    has_fetched: bool,
    served: u32,
    missed: u32,
}

/// What became of bytes that a walk may have fetched.
pub(crate) enum Fetch {
    /// Here they are.
    Done(Bytes),
    OnItsWay,
    No,
}

/// What is stored of a file, if walks fetch such files.
fn of_walks(file: &LooseFile) -> Option<(Content, u64)> {
    file.stored().filter(|(_, size)| (1..=FILE_BYTES_MAX).contains(size))
}

struct Fetched {
    number: u64,
    size: u64,
    /// Nothing yet: on its way.
    bytes: Option<Bytes>,
}

impl State {
    /// Whether a reading goes on in the order of a listing, which then goes on behind it.
    fn follow(&mut self, ino: Ino) -> bool {
        let is_next = self.listings.iter_mut().rev().any(|listing| {
            let near = listing.files.iter().skip(listing.next).take(LEFT_OUT_FIRST);
            let place = near.copied().position(|other| other == ino);
            listing.next += place.map_or(0, |place| place + 1);
            place.is_some()
        });
        self.in_order = if is_next { (self.in_order + 1).min(HABIT_MAX) } else { self.in_order.saturating_sub(1) };
        is_next
    }

    /// Whether a walk should begin at a file that is read and was not fetched.
    fn should_walk(&mut self) -> bool {
        let Some(walk) = &mut self.walk else {
            return self.in_order >= HABIT_MIN + self.reserve;
        };
        walk.missed += u32::from(walk.has_fetched);
        if walk.missed < LOST {
            return false;
        }
        if walk.served < USEFUL {
            self.end_useless();
            return false;
        }
        true
    }

    /// The next walk has to wait for a longer habit.
    fn end_useless(&mut self) {
        self.reserve = (self.reserve * 2 + HABIT_MIN).min(HABIT_MAX - HABIT_MIN);
        self.in_order = 0;
        self.end_walk();
    }

    fn begin_walk(&mut self) -> u64 {
        self.end_walk();
        self.walks += 1;
        self.walk = Some(Walk { id: self.walks, has_fetched: false, served: 0, missed: 0 });
        self.walks
    }

    /// What it has fetched goes with it.
    fn end_walk(&mut self) {
        self.walk = None;
        self.fetched.clear();
        self.order.clear();
        self.kept_bytes = 0;
    }

    fn is_under_way(&self, walk: u64) -> bool {
        self.walk.as_ref().is_some_and(|found| found.id == walk)
    }

    /// A reader has come to a file: those well before it were left out.
    fn pass(&mut self, number: u64) {
        if let Some(walk) = &mut self.walk {
            walk.served += 1;
            walk.missed = 0;
            if walk.served == USEFUL {
                self.reserve = 0;
            }
        }
        while let Some((earlier, content)) = self.order.front().copied()
            && earlier + LEFT_OUT_MAX < number
        {
            self.order.pop_front();
            self.take_away(content);
        }
    }

    fn take_away(&mut self, content: Content) {
        if let Some(fetched) = self.fetched.remove(&content) {
            self.kept_bytes -= fetched.size;
        }
    }

    /// Puts files on their way that are not yet.
    fn announce(&mut self, files: &mut Vec<(Content, u64)>) {
        if let Some(walk) = &mut self.walk {
            walk.has_fetched = true;
        }
        files.retain(|(content, size)| {
            let is_new = !self.fetched.contains_key(content);
            if is_new {
                self.numbers += 1;
                self.fetched.insert(*content, Fetched { number: self.numbers, size: *size, bytes: None });
                self.order.push_back((self.numbers, *content));
                self.kept_bytes += size;
            }
            is_new
        });
    }
}

impl Neighbours {
    /// A directory was listed, from its beginning or further on.
    pub(crate) fn listed(&self, directory: Ino, from_beginning: bool, files: Vec<Ino>) {
        let mut state = self.shared.state.lock();
        if from_beginning {
            // Whoever only lists has no such habit.
            state.in_order = state.in_order.saturating_sub(1);
            state.listings.retain(|listing| listing.directory != directory);
            state.listings.push_back(Listing { directory, files, next: 0 });
            if state.listings.len() > LISTINGS_MAX {
                state.listings.pop_front();
            }
        } else if let Some(listing) = state.listings.iter_mut().find(|listing| listing.directory == directory) {
            let room = (listing.next + LISTED_MAX).saturating_sub(listing.files.len());
            listing.files.extend(files.into_iter().take(room));
        }
    }

    /// Says whether bytes were fetched. Where a walk should begin, `here` is asked for the tree and the file's place in it.
    pub(crate) fn read(
        &self,
        ino: Ino,
        file: &LooseFile,
        offset: u64,
        length: usize,
        here: impl FnOnce() -> Option<(WorkingTree, TreePath)>,
    ) -> Fetch {
        let Some((content, size)) = of_walks(file) else { return Fetch::No };
        let mut state = self.shared.state.lock();
        if offset == 0 {
            let is_next = state.follow(ino);
            match state.fetched.get(&content).map(|fetched| fetched.number) {
                Some(number) => state.pass(number),
                None if is_next && state.should_walk() => {
                    let walk = state.begin_walk();
                    drop(state);
                    if let Some((tree, path)) = here() {
                        self.begin(walk, tree, path);
                    }
                    return Fetch::No;
                }
                None => return Fetch::No,
            }
        }
        self.take(&mut state, content, size, offset, length)
    }

    /// The bytes, waited for. Nothing when they were given up.
    pub(crate) fn wait(&self, file: &LooseFile, offset: u64, length: usize) -> Option<Bytes> {
        let (content, size) = of_walks(file)?;
        let mut state = self.shared.state.lock();
        let (until, walk) = (Instant::now() + READER_PATIENCE, state.walk.as_ref().map(|walk| walk.id));
        let mut is_late = false;
        loop {
            match self.take(&mut state, content, size, offset, length) {
                Fetch::Done(bytes) => return Some(bytes),
                Fetch::OnItsWay if !is_late => is_late = self.shared.fetched.wait_until(&mut state, until).timed_out(),
                Fetch::OnItsWay => {
                    if walk.is_some_and(|walk| state.is_under_way(walk)) {
                        state.end_useless();
                        self.shared.taken.notify_all();
                        // Others wait for it, too.
                        self.shared.fetched.notify_all();
                    }
                    return None;
                }
                Fetch::No => return None,
            }
        }
    }

    fn take(&self, state: &mut State, content: Content, size: u64, offset: u64, length: usize) -> Fetch {
        let bytes = match state.fetched.get(&content) {
            Some(Fetched { bytes: Some(bytes), .. }) => bytes.clone(),
            Some(_) => return Fetch::OnItsWay,
            None => return Fetch::No,
        };
        let end = offset.saturating_add(length as u64).min(size);
        if end == size {
            state.take_away(content);
            self.shared.taken.notify_one();
        }
        Fetch::Done(if offset < end { bytes.slice(offset as usize..end as usize) } else { Bytes::new() })
    }

    /// Sends a walk on its way, behind a file. It ends by itself.
    fn begin(&self, id: u64, tree: WorkingTree, path: TreePath) {
        let (sender, receiver) = sync_channel::<Vec<(Content, u64)>>(FETCHERS);
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..FETCHERS {
            let (shared, receiver, store) = (Arc::clone(&self.shared), Arc::clone(&receiver), tree.store().clone());
            self.spawn(move || {
                stand_back();
                loop {
                    // The lock is given back before anything is fetched.
                    let next = receiver.lock().recv();
                    let Ok(files) = next else { return };
                    shared.load(&store, &files);
                }
            });
        }
        drop(receiver);
        let shared = Arc::clone(&self.shared);
        let begun = self.spawn(move || {
            let mut ahead = Ahead { shared: &shared, id, sender, files: Vec::new(), bytes: 0 };
            // What cannot be read is left to whoever asks for it, who gets the error.
            if !matches!(walk(&tree, &path, &mut ahead), Ok(false)) {
                ahead.send();
            }
        });
        if !begun {
            self.shared.end(id);
        }
    }

    fn spawn(&self, work: impl FnOnce() + Send + 'static) -> bool {
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        let spawned = std::thread::Builder::new().name("amalgam-ahead".to_owned()).spawn(work);
        spawned.map(|thread| threads.push(thread)).is_ok()
    }
}

/// Lets everybody else go first, from now on. Of this thread alone; where it cannot be, readers only wait longer.
fn stand_back() {
    let nice = rustix::process::getpriority_process(None).unwrap_or(0);
    rustix::process::setpriority_process(None, nice + NICE).ok();
}

/// Goes over a tree in its order, from behind a file to the end. False when it is not wanted any more.
fn walk(tree: &WorkingTree, from: &TreePath, ahead: &mut Ahead<'_>) -> amalgam_engine::Result<bool> {
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
            && !ahead.add(*content, *size)
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The end of a walk that fetches.
struct Ahead<'a> {
    shared: &'a Shared,
    id: u64,
    sender: SyncSender<Vec<(Content, u64)>>,
    files: Vec<(Content, u64)>,
    bytes: u64,
}

impl Ahead<'_> {
    fn add(&mut self, content: Content, size: u64) -> bool {
        if !(1..=FILE_BYTES_MAX).contains(&size) || !matches!(content, Content::Chunk(_) | Content::Rope(_)) {
            return true;
        }
        self.files.push((content, size));
        self.bytes += size;
        (self.bytes < BATCH_BYTES && self.files.len() < BATCH_FILES) || self.send()
    }

    /// False when nobody wants it.
    fn send(&mut self) -> bool {
        let mut state = self.shared.state.lock();
        while state.is_under_way(self.id) && state.kept_bytes > AHEAD_BYTES {
            if self.shared.taken.wait_for(&mut state, PATIENCE).timed_out() && state.is_under_way(self.id) {
                state.end_walk();
            }
        }
        if !state.is_under_way(self.id) {
            return false;
        }
        let mut files = std::mem::take(&mut self.files);
        self.bytes = 0;
        state.announce(&mut files);
        drop(state);
        if self.sender.send(files).is_err() {
            self.shared.end(self.id);
            return false;
        }
        true
    }
}

impl Shared {
    fn end(&self, walk: u64) {
        let mut state = self.state.lock();
        if state.is_under_way(walk) {
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
            match (bytes, state.fetched.get_mut(content)) {
                (Some(bytes), Some(fetched)) => fetched.bytes = Some(bytes),
                (None, Some(_)) => state.take_away(*content),
                (_, None) => {}
            }
            drop(state);
            self.fetched.notify_all();
        }
    }
}
