//! The rule of collection under every schedule that a model checker finds. The core of it is mirrored here, lock by lock: sessions and their
//! epochs, stripes, pins, references with their log, and the sweep (`engine/src/store/{session,pin,sweep}.rs`, `engine/src/backend/rocks.rs`).
//! Objects are plain numbers; their bytes, the order of rows and the room are not part of it. Each part of the rule is also taken away
//! once, and then a schedule must be found in which something is lost: so the search reaches where it should.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use shuttle::rand::{Rng as _, thread_rng};
use shuttle::sync::{Arc, Mutex, RwLock};
use shuttle::thread;

/// Chunks are 0 to 2. A root is 8 and a bit for each chunk in it, so that equal trees are one object.
type Id = u8;
type Epoch = u64;
const CHUNKS: [Id; 3] = [0, 1, 2];
const ROOTS: Id = 8;

fn root_of(chunks: &[Id]) -> Id {
    chunks.iter().fold(ROOTS, |root, chunk| root | 1 << chunk)
}

fn is_root(id: Id) -> bool {
    id >= ROOTS
}

fn below(root: Id) -> impl Iterator<Item = Id> {
    CHUNKS.into_iter().filter(move |chunk| root & 1 << chunk != 0)
}

/// What is left out of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// What a session meets gets the epoch of the session.
    Stamp,
    /// A sweep spares the epoch of a session that was open when it began.
    OldestSession,
    /// While something is deleted no pin comes in that the collector does not know.
    UntoldPins,
    /// Roots that are too young to go are marked whole.
    YoungRoots,
    /// Roots that were met while it runs are marked whole, too.
    MetRoots,
    /// Trees go root first.
    RootsFirst,
    /// The log tells of references that moved while they were read.
    Log,
}

/// What a database does by itself: every look and every batch is one moment.
#[derive(Default)]
struct Disk {
    /// The epoch and the number of each object.
    index: BTreeMap<Id, Row>,
    next: u64,
    refs: BTreeMap<u8, Id>,
    log: Vec<[Option<Id>; 2]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Row {
    epoch: Epoch,
    number: u64,
}

#[derive(Default)]
struct Pins {
    counts: BTreeMap<Id, usize>,
    since_sweep: Option<HashSet<Id>>,
    untold: Vec<Id>,
}

struct Model {
    without: Without,
    disk: Mutex<Disk>,
    epoch: RwLock<Epoch>,
    stripes: [Mutex<()>; 2],
    sessions: Mutex<BTreeMap<Epoch, usize>>,
    pins: Mutex<Pins>,
}

impl Model {
    /// A tree that is named, and one that is not.
    fn new(without: Without) -> Self {
        let (named, dead) = (root_of(&[0, 1]), root_of(&[1, 2]));
        let index = [0, 1, 2, named, dead].into_iter().map(|id| (id, Row { epoch: 0, number: 0 })).collect();
        let disk = Disk { index, next: 1, refs: BTreeMap::from([(0, named)]), log: Vec::new() };
        Self {
            without,
            disk: Mutex::new(disk),
            epoch: RwLock::new(0),
            stripes: [Mutex::new(()), Mutex::new(())],
            sessions: Mutex::default(),
            pins: Mutex::default(),
        }
    }

    fn lock_stripes(&self, ids: &[Id]) -> Vec<shuttle::sync::MutexGuard<'_, ()>> {
        let wanted: BTreeSet<_> = ids.iter().map(|id| usize::from(id % 2)).collect();
        wanted.into_iter().map(|stripe| self.stripes[stripe].lock().expect("no panic")).collect()
    }

    fn row(&self, id: Id) -> Option<Row> {
        self.disk.lock().expect("no panic").index.get(&id).copied()
    }

    fn contains(&self, id: Id, at_least: Epoch) -> bool {
        match self.row(id) {
            None => false,
            Some(row) if row.epoch >= at_least || self.without == Without::Stamp => true,
            Some(_) => {
                let epoch = self.epoch.read().expect("no panic");
                let _stripe = self.lock_stripes(&[id]);
                let mut disk = self.disk.lock().expect("no panic");
                // A sweep may have taken it in the meantime.
                disk.index.get_mut(&id).map(|row| row.epoch = *epoch).is_some()
            }
        }
    }

    /// Objects and a reference, in one batch; what the reference was must still hold.
    fn transact(&self, objects: &[Id], name: u8, before: Option<Id>, after: Option<Id>) -> bool {
        let epoch = self.epoch.read().expect("no panic");
        let _stripes = self.lock_stripes(objects);
        let mut disk = self.disk.lock().expect("no panic");
        if disk.refs.get(&name).copied() != before {
            return false;
        }
        for id in objects {
            let row = Row { epoch: *epoch, number: disk.next };
            disk.index.insert(*id, row);
            disk.next += 1;
        }
        match after {
            Some(root) => disk.refs.insert(name, root),
            None => disk.refs.remove(&name),
        };
        disk.log.push([before, after]);
        true
    }

    fn read_ref(&self, name: u8) -> Option<Id> {
        self.disk.lock().expect("no panic").refs.get(&name).copied()
    }

    fn pin(&self, id: Id, is_own: bool) {
        let mut pins = self.pins.lock().expect("no panic");
        *pins.counts.entry(id).or_default() += 1;
        if pins.since_sweep.as_mut().is_some_and(|seen| seen.insert(id)) && !is_own {
            pins.untold.push(id);
        }
    }

    fn unpin(&self, id: Id) {
        let mut pins = self.pins.lock().expect("no panic");
        let count = pins.counts.get_mut(&id).expect("it is pinned");
        *count -= 1;
        if *count == 0 {
            pins.counts.remove(&id);
        }
    }

    /// A tree that is kept from now on, if it is there.
    fn hold(&self, root: Id) -> bool {
        self.pin(root, false);
        if self.contains(root, 0) {
            return true;
        }
        self.unpin(root);
        false
    }

    fn assert_whole(&self, root: Id, who: &str) {
        let disk = self.disk.lock().expect("no panic");
        for id in below(root).chain([root]) {
            assert!(disk.index.contains_key(&id), "{who}: {id} of {root} is gone");
        }
    }
}

/// A write session, from its beginning to its commit.
struct Session<'a> {
    model: &'a Model,
    epoch: Epoch,
    /// What waits, and whether it is known not to be there.
    pending: BTreeMap<Id, bool>,
}

impl<'a> Session<'a> {
    fn open(model: &'a Model) -> Self {
        let mut sessions = model.sessions.lock().expect("no panic");
        let epoch = *model.epoch.read().expect("no panic");
        *sessions.entry(epoch).or_default() += 1;
        Self { model, epoch, pending: BTreeMap::new() }
    }

    fn put_chunk(&mut self, chunk: Id) {
        if !self.pending.contains_key(&chunk) && !self.model.contains(chunk, self.epoch) {
            self.pending.insert(chunk, true);
        }
    }

    /// What refers to something new is new, and not looked for.
    fn put_root(&mut self, root: Id) {
        let is_new = below(root).any(|chunk| self.pending.contains_key(&chunk));
        self.pending.insert(root, is_new);
    }

    fn commit(self, root: Id, name: u8, before: Option<Id>) -> bool {
        let is_new = |(id, is_new): &(&Id, &bool)| **is_new || !self.model.contains(**id, self.epoch);
        let new: Vec<_> = self.pending.iter().filter(is_new).map(|(id, _)| *id).collect();
        let done = self.model.transact(&new, name, before, Some(root));
        if done {
            self.model.pin(root, true);
        }
        done
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let mut sessions = self.model.sessions.lock().expect("no panic");
        let open = sessions.get_mut(&self.epoch).expect("it is open");
        *open -= 1;
        if *open == 0 {
            sessions.remove(&self.epoch);
        }
    }
}

/// A collection.
struct Round<'a> {
    model: &'a Model,
    epoch: Epoch,
    older_than: Epoch,
    numbers_end: u64,
    log_read: usize,
    marked: BTreeSet<Id>,
}

impl<'a> Round<'a> {
    fn begin(model: &'a Model) -> Self {
        let sessions = model.sessions.lock().expect("no panic");
        {
            let mut pins = model.pins.lock().expect("no panic");
            pins.since_sweep = Some(pins.counts.keys().copied().collect());
        }
        let epoch = {
            let mut epoch = model.epoch.write().expect("no panic");
            *epoch += 1;
            *epoch
        };
        let oldest = sessions.keys().next().copied().filter(|_| model.without != Without::OldestSession);
        let older_than = oldest.map_or(epoch, |oldest| oldest.min(epoch));
        drop(sessions);
        let (log_read, numbers_end) = {
            let disk = model.disk.lock().expect("no panic");
            (disk.log.len(), disk.next)
        };
        Self { model, epoch, older_than, numbers_end, log_read, marked: BTreeSet::new() }
    }

    fn mark(&mut self, roots: &[Id]) {
        for root in roots {
            // One that is gone already was pinned too late.
            if self.model.row(*root).is_some() {
                self.marked.insert(*root);
                self.marked.extend(below(*root));
            }
        }
    }

    fn late_roots(&mut self) -> Vec<Id> {
        let mut roots = std::mem::take(&mut self.model.pins.lock().expect("no panic").untold);
        let disk = self.model.disk.lock().expect("no panic");
        if self.model.without != Without::Log {
            roots.extend(disk.log[self.log_read..].iter().flatten().flatten());
        }
        self.log_read = disk.log.len();
        roots
    }

    fn run(mut self) {
        let pinned: Vec<_> = {
            let mut pins = self.model.pins.lock().expect("no panic");
            pins.untold.clear();
            pins.since_sweep.iter().flatten().copied().collect()
        };
        self.mark(&pinned);
        // One reference at a time: others move meanwhile.
        for name in 0..2 {
            let root = self.model.read_ref(name);
            self.mark(&Vec::from_iter(root));
        }
        loop {
            let late = self.late_roots();
            if late.is_empty() {
                break;
            }
            self.mark(&late);
        }
        let mut stages = [true, false];
        if self.model.without == Without::RootsFirst {
            stages.reverse();
        }
        for of_roots in stages {
            self.sweep(of_roots);
        }
        let mut pins = self.model.pins.lock().expect("no panic");
        pins.since_sweep = None;
        pins.untold.clear();
    }

    fn sweep(&mut self, of_roots: bool) {
        let ids: Vec<_> = if of_roots { (ROOTS..ROOTS + 8).collect() } else { CHUNKS.to_vec() };
        for page in ids.chunks(2) {
            while !self.sweep_page(page, of_roots) {}
        }
    }

    /// False when there was something to mark first.
    fn sweep_page(&mut self, page: &[Id], of_roots: bool) -> bool {
        let rows: Vec<_> = page.iter().filter_map(|id| Some((*id, self.model.row(*id)?))).collect();
        let unmarked: Vec<_> = rows.into_iter().filter(|(id, _)| !self.marked.contains(id)).collect();
        if of_roots && self.model.without != Without::YoungRoots {
            let is_met = |row: &Row| row.number < self.numbers_end && self.model.without != Without::MetRoots;
            let was_there = |row: &Row| row.epoch < self.epoch || is_met(row);
            let too_young = unmarked.iter().filter(|(_, row)| row.epoch >= self.older_than && was_there(row));
            let too_young: Vec<_> = too_young.map(|(id, _)| *id).collect();
            if !too_young.is_empty() {
                // Gone or not, it is looked at once.
                self.marked.extend(&too_young);
                self.mark(&too_young);
                return false;
            }
        }
        let old: Vec<_> = unmarked.iter().filter(|(_, row)| row.epoch < self.older_than).map(|(id, _)| *id).collect();
        let dead: Vec<_> = unmarked.into_iter().map(|(id, _)| id).collect();
        let mut pins = self.model.pins.lock().expect("no panic");
        if !pins.untold.is_empty() && self.model.without != Without::UntoldPins {
            let untold = std::mem::take(&mut pins.untold);
            drop(pins);
            self.mark(&untold);
            return false;
        }
        let _stripes = self.model.lock_stripes(&dead);
        let mut disk = self.model.disk.lock().expect("no panic");
        disk.index.retain(|id, row| !dead.contains(id) || row.epoch >= self.older_than);
        let met: Vec<_> = old.into_iter().filter(|id| disk.index.contains_key(id)).collect();
        drop((disk, pins));
        if of_roots && !met.is_empty() && self.model.without != Without::MetRoots {
            self.marked.extend(&met);
            self.mark(&met);
            return false;
        }
        true
    }
}

/// Makes a tree of chunks that may be there or not, and names it.
fn write(model: &Model) {
    for _ in 0..2 {
        let name = thread_rng().gen_range(0..2);
        let before = model.read_ref(name);
        let mut chunks: Vec<_> = CHUNKS.into_iter().filter(|_| thread_rng().gen_range(0..2) == 0).collect();
        chunks.push(thread_rng().gen_range(0..3));
        let mut session = Session::open(model);
        chunks.iter().for_each(|chunk| session.put_chunk(*chunk));
        let root = root_of(&chunks);
        session.put_root(root);
        if session.commit(root, name, before) {
            model.assert_whole(root, "a commit");
            model.unpin(root);
        }
    }
}

/// Opens a tree, which is whole while it is held, and makes another of it: what lies in it is not looked for.
fn edit(model: &Model) {
    for _ in 0..2 {
        let base = thread_rng().gen_range(1..8) + ROOTS;
        if !model.hold(base) {
            continue;
        }
        model.assert_whole(base, "a tree that was found");
        let name = thread_rng().gen_range(0..2);
        let before = model.read_ref(name);
        let mut session = Session::open(model);
        let chunk = thread_rng().gen_range(0..3);
        session.put_chunk(chunk);
        let root = base | root_of(&[chunk]);
        session.put_root(root);
        let done = session.commit(root, name, before);
        model.assert_whole(base, "a tree that is held");
        model.unpin(base);
        if done {
            model.assert_whole(root, "a commit");
            model.unpin(root);
        }
    }
}

/// Moves a tree from one name to the other, and the other away.
fn rename(model: &Model) {
    for (from, to) in [(0, 1), (1, 0)] {
        let (root, before) = (model.read_ref(from), model.read_ref(to));
        let Some(root) = root else { continue };
        if model.hold(root) {
            if model.transact(&[], to, before, Some(root)) {
                model.transact(&[], from, Some(root), None);
            }
            model.unpin(root);
        }
    }
}

/// Meets trees without asking for what is below, as one whom a stream sends roots alone, and gives up.
fn ask(model: &Model) {
    for _ in 0..2 {
        let session = Session::open(model);
        for root in ROOTS + 1..ROOTS + 8 {
            model.contains(root, session.epoch);
        }
    }
}

fn story(without: Without) {
    let model = Arc::new(Model::new(without));
    let actors: [fn(&Model); 5] = [write, edit, rename, ask, |model| (0..2).for_each(|_| Round::begin(model).run())];
    let actors = actors.map(|actor| {
        let model = Arc::clone(&model);
        thread::spawn(move || actor(&model))
    });
    actors.into_iter().for_each(|actor| actor.join().expect("no panic"));
    let named: Vec<_> = model.disk.lock().expect("no panic").refs.values().copied().collect();
    named.into_iter().for_each(|root| model.assert_whole(root, "a reference"));
    let found: Vec<_> = model.disk.lock().expect("no panic").index.keys().copied().filter(|id| is_root(*id)).collect();
    found.into_iter().for_each(|root| model.assert_whole(root, "whoever finds a root finds all below it"));
}

const SCHEDULES: usize = 20_000;

#[test]
fn nothing_that_was_promised_is_lost_under_any_schedule() {
    shuttle::check_random(|| story(Without::Nothing), SCHEDULES);
    shuttle::check_pct(|| story(Without::Nothing), SCHEDULES, 4);
}

#[test]
fn without_any_part_of_the_rule_a_schedule_is_found_that_loses_something() {
    for without in [
        Without::Stamp,
        Without::OldestSession,
        Without::UntoldPins,
        Without::YoungRoots,
        Without::MetRoots,
        Without::RootsFirst,
    ] {
        let random = || shuttle::check_random(move || story(without), SCHEDULES);
        let deep = || shuttle::check_pct(move || story(without), SCHEDULES, 4);
        let found = catch_unwind(AssertUnwindSafe(random)).is_err() || catch_unwind(AssertUnwindSafe(deep)).is_err();
        assert!(found, "{without:?} was missed by nobody");
    }
}
