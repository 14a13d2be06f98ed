//! Collections with other things happening in between: at every step of a collection a random handful of what a store is used for. What
//! is promised at any moment must hold at every later one.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use amalgam_engine::object::Snapshot;
use amalgam_engine::reference::{OperationDraft, RefName, RefValue};
use amalgam_engine::{
    Commit, Error, Expect, ObjectId, Pin, RefMove, Result, SnapshotId, Store, Tallies, VerifyOptions, WorkingTree,
    WriteSession, verify,
};
use amalgam_gc::{CollectOptions, CollectReport, Stage, collect};

use super::watched::{end_with_input, tell};
use super::{Random, all_refs, name, read_files};

const REFS: u64 = 5;
const CONTENTS: u64 = 16;
const HELD_MAX: usize = 4;

/// A tree as plain bytes.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// What some collections came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Collections.
    pub collections: u64,
    /// Of these, ended before their end.
    pub ended: u64,
    /// Things that happened between their steps.
    pub events: u64,
    /// Commits among them.
    pub commits: u64,
    /// Objects that went.
    pub deleted: u64,
    /// Trees that were given up although the history leads to their snapshots, counted in each collection.
    pub thinned: u64,
}

/// A store, and all that was promised about it.
pub struct World<'a> {
    store: &'a Store,
    random: Random,
    /// What each reference must hold.
    promised: BTreeMap<RefName, (SnapshotId, Files)>,
    /// Trees that are held, whatever became of their references.
    held: Vec<(WorkingTree, Files)>,
    /// Sessions that are open, with the chunks they put or met.
    sessions: Vec<(WriteSession, Vec<Vec<u8>>)>,
    pins: Vec<(Pin, Files)>,
    /// Every snapshot that ever was.
    known: Vec<SnapshotId>,
    figures: Figures,
}

/// One of a few contents, so that what is deleted is made again. One in five is a rope.
fn content(number: u64) -> Vec<u8> {
    let length = if number.is_multiple_of(5) { 70_000 } else { 40 + number as usize };
    Random::of(&[number]).bytes(length)
}

impl<'a> World<'a> {
    /// Nothing promised yet.
    pub fn new(store: &'a Store, seed: u64) -> Self {
        Self {
            store,
            random: Random::new(seed),
            promised: BTreeMap::new(),
            held: Vec::new(),
            sessions: Vec::new(),
            pins: Vec::new(),
            known: Vec::new(),
            figures: Figures::default(),
        }
    }

    /// What happened so far.
    pub fn figures(&self) -> Figures {
        self.figures
    }

    fn reference(&mut self) -> RefName {
        name(format!("head/{}", self.random.below(REFS)))
    }

    fn edit(&mut self, tree: &mut WorkingTree) -> Result<()> {
        for _ in 0..1 + self.random.below(3) {
            let directory = format!("d{}", self.random.below(3));
            tree.create_directories(&directory)?;
            let path = format!("{directory}/f{}", self.random.below(6));
            match (self.random.below(6), tree.exists(&path)?) {
                (0, true) => tree.remove(&path)?,
                (1, true) if !tree.exists("linked")? => tree.link(&path, "linked")?,
                (2, _) => tree.set_state("k", &self.random.below(3).to_string())?,
                _ => tree.write(&path, &content(self.random.below(CONTENTS)))?,
            }
        }
        Ok(())
    }

    fn commit(&mut self, tree: &mut WorkingTree) -> Result<()> {
        let reference = self.reference();
        self.commit_to(reference, tree)
    }

    fn commit_to(&mut self, reference: RefName, tree: &mut WorkingTree) -> Result<()> {
        let expect = self.promised.get(&reference).map_or(Expect::Absent, |(at, _)| Expect::At(*at));
        let done = tree.commit(Commit::new(&reference, "x").buffered().expecting(expect))?;
        self.known.push(done.snapshot);
        self.promised.insert(reference, (done.snapshot, read_files(tree)?));
        self.figures.commits += 1;
        Ok(())
    }

    /// Opens any snapshot that ever was. It may be gone, but not by half.
    fn open_any(&mut self) -> Result<Option<(WorkingTree, SnapshotId)>> {
        if self.known.is_empty() {
            return Ok(None);
        }
        let snapshot = self.known[self.random.below(self.known.len() as u64) as usize];
        match WorkingTree::open(self.store, snapshot) {
            Ok(tree) => Ok(Some((tree, snapshot))),
            Err(Error::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn drop_ref(&mut self) -> Result<()> {
        let reference = self.reference();
        let Some((snapshot, _)) = self.promised.remove(&reference) else { return Ok(()) };
        let refs = RefMove {
            expect: vec![(reference.clone(), Some(RefValue::to(snapshot)))],
            set: vec![(reference, None)],
            operation: OperationDraft { action: "delete".to_owned(), ..OperationDraft::default() },
            ..RefMove::default()
        };
        self.store.session().commit(snapshot, refs).map(drop)
    }

    /// One thing that a store is used for.
    fn event(&mut self) -> Result<()> {
        self.figures.events += 1;
        match self.random.below(12) {
            0 => {
                if let Some((mut tree, _)) = self.open_any()? {
                    self.edit(&mut tree)?;
                    self.commit(&mut tree)?;
                }
            }
            1 | 2 => {
                // A head goes on, so that there is a history.
                let reference = self.reference();
                if let Some((head, _)) = self.promised.get(&reference) {
                    let mut tree = WorkingTree::open(self.store, *head)?;
                    self.edit(&mut tree)?;
                    self.commit_to(reference, &mut tree)?;
                }
            }
            3 => {
                let mut tree = WorkingTree::new(self.store);
                self.edit(&mut tree)?;
                self.commit(&mut tree)?;
            }
            4 => self.drop_ref()?,
            5 => {
                // What a head was begun from is named by another reference too: a fork.
                if let Some((mut tree, _)) = self.open_any()? {
                    self.commit(&mut tree)?;
                }
            }
            6 => {
                // A restore: the head becomes a tree of long ago.
                let reference = self.reference();
                if let Some((mut tree, snapshot)) = self.open_any()?
                    && self.promised.contains_key(&reference)
                {
                    tree.restore(snapshot)?;
                    self.commit_to(reference, &mut tree)?;
                }
            }
            7 => {
                if let Some((mut tree, _)) = self.open_any()?
                    && self.held.len() < HELD_MAX
                {
                    if self.random.one_in(2) {
                        self.edit(&mut tree)?;
                    }
                    let files = read_files(&tree)?;
                    self.held.push((tree, files));
                }
            }
            8 => {
                if let Some((tree, _)) = self.held.last() {
                    let mut fork = tree.fork();
                    self.edit(&mut fork)?;
                    self.commit(&mut fork)?;
                }
            }
            9 => self.use_session()?,
            10 => {
                if let Some((tree, snapshot)) = self.open_any()?
                    && self.pins.len() < HELD_MAX
                {
                    let pin = self.store.pin(self.store.snapshot(snapshot)?.root);
                    self.pins.push((pin, read_files(&tree)?));
                }
            }
            _ => self.let_go()?,
        }
        Ok(())
    }

    fn use_session(&mut self) -> Result<()> {
        if self.sessions.len() < 2 {
            self.sessions.push((self.store.session(), Vec::new()));
        }
        let bytes = content(self.random.below(CONTENTS));
        let (session, put) = self.sessions.last_mut().expect("one is open");
        if bytes.len() < 60_000 {
            session.put_chunk(&bytes)?;
            put.push(bytes);
        }
        Ok(())
    }

    /// Lets go of something that is held, after a look at whether it is still whole.
    fn let_go(&mut self) -> Result<()> {
        match self.random.below(3) {
            0 if !self.held.is_empty() => {
                let (tree, files) = self.held.swap_remove(0);
                assert!(read_files(&tree)? == files, "a tree that is held changed");
            }
            1 if !self.pins.is_empty() => {
                let (pin, files) = self.pins.swap_remove(0);
                let ObjectId { hash, .. } = pin.id();
                let tree = WorkingTree::open_root(self.store, amalgam_engine::RootId::from_bytes(hash))?;
                assert!(read_files(&tree)? == files, "a tree that is pinned changed");
            }
            _ if !self.sessions.is_empty() => {
                let (session, put) = self.sessions.swap_remove(0);
                for bytes in &put {
                    let id = amalgam_engine::ChunkId::of(bytes);
                    // Still there for this session: putting it again finds it, or puts it.
                    assert_eq!(session.put_chunk(bytes)?, id);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A collection with events between its steps; one in four is ended somewhere.
    pub fn collect(&mut self) -> Result<CollectReport> {
        let store = self.store.clone();
        let thins = self.random.below(3);
        let retention = move |id: SnapshotId, _: &Snapshot| thins == 0 || u64::from(id.as_bytes()[0]) % 3 >= thins;
        let sweep_batch_rows = [1, 3, 16, 1_000][self.random.below(4) as usize];
        // Now and then all of the log goes that may.
        let log_from = if self.random.one_in(4) { u64::MAX } else { 0 };
        let options = CollectOptions { retention: &retention, sweep_batch_rows, log_from, ..CollectOptions::default() };
        let end_after = if self.random.one_in(4) { 1 + self.random.below(40) } else { u64::MAX };
        let (mut steps, mut failed) = (0, None);
        let done = collect(&store, &options, &mut |_| {
            steps += 1;
            for _ in 0..self.random.below(3) {
                // Many small steps would be mostly events.
                if (steps < 30 || self.random.one_in(8))
                    && let Err(error) = self.event()
                {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            if steps >= end_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        let done = done?;
        self.figures.collections += 1;
        self.figures.ended += u64::from(done.ended_in.is_some());
        self.figures.deleted += done.freed.total().objects;
        self.figures.thinned += done.mark.thinned;
        Ok(done)
    }

    /// Some events without a collection.
    pub fn live(&mut self, events: u64) -> Result<()> {
        (0..events).try_for_each(|_| self.event())
    }

    /// Looks at everything that was promised. `reader` is the same store without a cache, which would answer for what is gone.
    pub fn check(&mut self, reader: &Store) -> Result<()> {
        let refs: BTreeMap<_, _> = all_refs(reader)?.into_iter().collect();
        assert_eq!(refs.len(), self.promised.len(), "a reference came or went");
        for (reference, (snapshot, files)) in &self.promised {
            assert_eq!(refs[reference], RefValue::to(*snapshot));
            let tree = WorkingTree::open(reader, *snapshot)?;
            assert!(read_files(&tree)? == *files, "{reference} holds something else");
        }
        for (tree, files) in &self.held {
            assert!(read_files(tree)? == *files, "a tree that is held changed");
        }
        let options = VerifyOptions { read_data: true, ..VerifyOptions::default() };
        let report = verify(reader, &options, &|_| ControlFlow::Continue(()))?;
        assert!(report.is_clean(), "{report:?}");
        Ok(())
    }

    /// Lets go of everything, collects without anything in between, and returns what is left.
    pub fn settle(&mut self) -> Result<Tallies> {
        (self.held, self.sessions, self.pins) = Default::default();
        let done = collect(self.store, &CollectOptions::default(), &mut |_| ControlFlow::Continue(()))?;
        assert_eq!(done.young, Tallies::default(), "nobody is there to need what is young");
        Ok(done.alive)
    }
}

/// The reference that a killed collector must never touch, and that whose history it drops.
const KEPT: &str = "head/kept";
const DROPPED: &str = "head/dropped";
const BULK_FILES: u64 = 40;
const BULK_BYTES: usize = 120_000;

fn bulk(store: &Store, reference: &str, number: u64) -> Result<SnapshotId> {
    let mut tree = match head(store, reference)? {
        Some(snapshot) => WorkingTree::open(store, snapshot)?,
        None => WorkingTree::new(store),
    };
    for file in 0..BULK_FILES {
        tree.write(format!("f{file}"), &Random::of(&[number, file]).bytes(BULK_BYTES))?;
    }
    Ok(tree.commit(Commit::new(&name(reference), number.to_string()))?.snapshot)
}

fn head(store: &Store, reference: &str) -> Result<Option<SnapshotId>> {
    let target = store.read_ref(&name(reference))?.and_then(|value| value.target);
    Ok(target.map(|target| SnapshotId::from_bytes(target.hash)))
}

/// Makes garbage and collects it, again and again, and tells each stage on its standard output.
pub fn collect_until_killed(directory: &Path, seed: u64) -> Result<()> {
    end_with_input();
    let store = Store::open(directory)?;
    for number in seed.. {
        bulk(&store, DROPPED, number)?;
        bulk(&store, DROPPED, number.wrapping_mul(3))?;
        if let Some(snapshot) = head(&store, DROPPED)? {
            let refs = RefMove {
                expect: vec![(name(DROPPED), Some(RefValue::to(snapshot)))],
                set: vec![(name(DROPPED), None)],
                ..RefMove::default()
            };
            store.session().commit(snapshot, refs)?;
        }
        let mut stage = None;
        let log_from = store.last_operation()?.saturating_sub(2);
        let options = CollectOptions { sweep_batch_rows: 64, log_from, ..CollectOptions::default() };
        collect(&store, &options, &mut |progress| {
            if stage.replace(progress.stage) != Some(progress.stage) {
                tell(progress.stage.word());
            }
            ControlFlow::Continue(())
        })?;
        tell("done");
    }
    Ok(())
}

/// Makes what a collector must never touch: each snapshot with its files.
pub(super) fn make_kept(directory: &Path) -> BTreeMap<SnapshotId, Files> {
    let store = Store::open(directory).expect("open");
    let snapshots: Vec<_> = (0..3).map(|number| bulk(&store, KEPT, number).expect("commit")).collect();
    let files = |snapshot| read_files(&WorkingTree::open(&store, snapshot).expect("open")).expect("files");
    snapshots.into_iter().map(|snapshot| (snapshot, files(snapshot))).collect()
}

/// Looks whether a store is sound and all of that is there.
pub(super) fn check_kept(store: &Store, kept: &BTreeMap<SnapshotId, Files>, when: &str) {
    let options = VerifyOptions { read_data: true, ..VerifyOptions::default() };
    let report = verify(store, &options, &|_| ControlFlow::Continue(())).expect("a verification");
    assert!(report.is_clean(), "{when}: {report:?}");
    for (snapshot, files) in kept {
        let tree = WorkingTree::open(store, *snapshot).expect("what is named stays");
        assert!(read_files(&tree).expect("it is whole") == *files, "{when}: other files");
    }
}

/// Kills a collecting process in each of its stages in turn, and looks at what it left. Returns how often each was hit.
pub fn kill_collections(command: &dyn Fn() -> Command, rounds: u64, seed: u64) -> BTreeMap<String, u64> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path().join("store");
    let mut random = Random::new(seed);
    let kept = make_kept(&directory);
    let stages = [Stage::Mark, Stage::Survey, Stage::Sweep, Stage::Trim, Stage::Reclaim].map(Stage::word);
    let mut hits: BTreeMap<String, u64> = BTreeMap::new();
    for round in 0..rounds {
        let wanted = stages[(round % stages.len() as u64) as usize];
        let mut command = command();
        command.arg(&directory).arg((seed % 1_000_000 + round * 1_000).to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the collector starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output is a pipe")).lines();
        let mut seen = None;
        // Not always the first time, so that what lies before differs.
        let mut passes = 1 + random.below(2);
        for line in &mut lines {
            let line = line.expect("lines of text");
            passes -= u64::from(line == wanted);
            seen = Some(line);
            if passes == 0 {
                break;
            }
        }
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        assert!(child.try_wait().expect("it is our child").is_none(), "the collector ended by itself");
        child.kill().expect("it is our child and runs");
        child.wait().expect("it was killed");
        let last = lines.map_while(std::result::Result::ok).last().or(seen).expect("it said something");
        *hits.entry(last).or_default() += 1;
        let store = Store::open(&directory).expect("a killed store opens without repair");
        check_kept(&store, &kept, &format!("killed in {wanted}"));
        if round % 8 == 7 {
            let options = VerifyOptions { read_data: true, ..VerifyOptions::default() };
            collect(&store, &CollectOptions::default(), &mut |_| ControlFlow::Continue(())).expect("the next one ends");
            let report = verify(&store, &options, &|_| ControlFlow::Continue(())).expect("a verification");
            let held = head(&store, DROPPED).expect("read").is_some();
            assert!(report.is_clean() && report.unreachable == 0, "{report:?}");
            assert!(held || report.orphans == 0, "what a kill left behind is still there: {report:?}");
        }
    }
    hits
}
