//! Collections of a project that several nodes write to: nothing that a node of any of them relies on is deleted, however nodes and
//! collectors end, and everything else is.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::io::{BufRead as _, BufReader};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amalgam_cloud::{Cloud, CloudOptions, open_bucket};
use amalgam_engine::backend::{Backend as _, Durability, Sweep as _, Transaction};
use amalgam_engine::reference::{OperationDraft, RefValue};
use amalgam_engine::{
    Commit, Error, ErrorKind, Expect, Result, RootId, SnapshotId, SplitMix64, Store, StoreOptions, VerifyOptions,
    WorkingTree, verify,
};
use amalgam_gc::{CollectOptions, Stage, collect};
use amalgam_test_support::postgres;
use amalgam_tests::harness::{CloudPlace, check_log, name, read_files, seed};
use parking_lot::Mutex;

/// The number of rounds of the random test.
const ROUNDS_VARIABLE: &str = "AMALGAM_CLUSTER_ROUNDS";
const ROUNDS_DEFAULT: u64 = 4;

fn store(place: &CloudPlace) -> Store {
    Store::new(Arc::new(place.node()), &StoreOptions::default())
}

fn collect_all(store: &Store) -> Result<u64> {
    let options = CollectOptions { sweep_batch_rows: 32, ..CollectOptions::default() };
    let done = collect(store, &options, &mut |_| ControlFlow::Continue(()))?;
    Ok(done.freed.total().objects)
}

fn assert_clean(store: &Store) {
    let report = verify(store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(())).expect("verified");
    assert!(report.is_clean(), "{report:?}");
}

/// Writes a tree that no reference names, and returns its root.
fn write_tree(store: &Store, seed: u64) -> (RootId, amalgam_engine::Pin) {
    let mut tree = WorkingTree::new(store);
    tree.create_directories("directory").expect("made");
    for number in 0..4 {
        let bytes = SplitMix64::new(seed * 10 + number).bytes(3_000);
        tree.write(&*format!("directory/{number}"), &bytes).expect("write");
    }
    tree.freeze().hold().expect("hold")
}

fn is_whole(store: &Store, root: RootId) -> bool {
    match WorkingTree::open_root(store, root) {
        Ok(tree) => read_files(&tree).expect("a tree whose root exists is whole").len() == 4,
        Err(_) => false,
    }
}

#[test]
fn a_pinned_tree_of_another_node_stays_until_its_pin_goes() {
    let Some(place) = CloudPlace::new() else { return };
    let (collector, holder) = (store(&place), store(&place));
    let (root, pin) = write_tree(&holder, 1);
    for _ in 0..3 {
        assert_eq!(collect_all(&collector).expect("collected"), 0);
    }
    assert!(is_whole(&store(&place), root));
    drop(pin);
    assert!(collect_all(&collector).expect("collected") > 4);
    assert!(!is_whole(&store(&place), root));
    // The other node learns of the deletion when the collection ends, or with the next pin.
    let gone = Instant::now();
    while holder.hold(root).is_ok() {
        assert!(gone.elapsed() < Duration::from_secs(20), "its index is old");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_session_of_another_node_keeps_what_it_put_and_checked_for() {
    let Some(mut place) = CloudPlace::new() else { return };
    // Packs are full, so that a collection does not join them: joined ones would be new.
    place.options.pack_bytes = 4 << 10;
    let (collector, writer) = (store(&place), store(&place));
    // Dead objects that a session checks for, and new ones that it puts.
    let content = SplitMix64::new(1).bytes(3_000);
    let (_, pin) = write_tree(&writer, 7);
    for _ in 0..2 {
        assert_eq!(collect_all(&collector).expect("collected"), 0, "the next session has a later epoch than the tree");
    }
    drop(pin);
    let session = writer.session();
    let fresh = session.put_chunk(&content).expect("put");
    let reused = session.put_chunk(&SplitMix64::new(70).bytes(3_000)).expect("put");
    session.write_all_ahead().expect("written");
    assert!(collect_all(&collector).expect("collected") > 4, "the rest of the tree");
    let other = store(&place);
    assert_eq!(other.chunk(fresh, 3_000).expect("kept"), content);
    assert_eq!(other.chunk(reused, 3_000).expect("kept").len(), 3_000);
    drop(session);
    assert_eq!(collect_all(&collector).expect("collected"), 2);
    assert!(store(&place).chunk(fresh, 3_000).is_err());
}

#[test]
fn a_pin_during_a_collection_stops_it_or_comes_too_late() {
    let Some(place) = CloudPlace::new() else { return };
    let (collector, holder) = (store(&place), store(&place));
    let (early, early_pin) = write_tree(&holder, 1);
    let (late, late_pin) = write_tree(&holder, 2);
    let (joined, joined_pin) = write_tree(&holder, 3);
    drop((early_pin, late_pin, joined_pin));
    let mut pins = Vec::new();
    let options = CollectOptions { sweep_batch_rows: 4, ..CollectOptions::default() };
    let done = collect(&collector, &options, &mut |progress| {
        // The marking is over: these trees are not marked.
        if progress.stage == Stage::Survey && pins.is_empty() {
            pins.push(holder.hold(early).expect("nothing is deleted yet"));
            let newcomer = store(&place);
            pins.push(newcomer.hold(joined).expect("nothing is deleted yet"));
        }
        if progress.stage == Stage::Reclaim {
            holder.hold(late).expect_err("its root is deleted, and the node knows that");
        }
        ControlFlow::Continue(())
    });
    assert!(done.expect("collected").freed.total().objects >= 4, "the tree without a pin is gone");
    assert!(is_whole(&store(&place), early) && is_whole(&store(&place), joined));
    assert!(!is_whole(&store(&place), late));
}

#[test]
fn a_second_collector_is_refused_while_one_is_at_work() {
    let Some(place) = CloudPlace::new() else { return };
    let (one, two) = (store(&place), store(&place));
    let round = one.begin_sweep().expect("a collection");
    let error = two.begin_sweep().err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let state = two.last_collection().expect("asked").expect("a shared store");
    assert!(state.is_under_way && state.age.is_none());
    drop(round);
    collect_all(&two).expect("collected");
    let state = one.last_collection().expect("asked").expect("a shared store");
    assert!(!state.is_under_way && state.age.is_some());
}

/// A node whose project another thread may open anew under its name, as if it had been killed and started again.
struct Slot {
    number: u8,
    open: Mutex<Arc<OpenNode>>,
}

struct OpenNode {
    cloud: Arc<Cloud>,
    store: Store,
}

struct World {
    options: CloudOptions,
    slots: Vec<Slot>,
    fenced: AtomicU64,
    freed: AtomicU64,
    collections: AtomicU64,
    commits: AtomicU64,
}

const REFS: u64 = 5;
const CONTENTS: u64 = 40;

impl World {
    /// Opens the project as a node. Names of nodes belong to the database, which tests share: the project is part of them.
    fn open(options: &CloudOptions, number: u8) -> Arc<OpenNode> {
        let mut name = [number; 16];
        for (at, byte) in options.project.bytes().enumerate() {
            name[1 + at % 15] = name[1 + at % 15].rotate_left(3) ^ byte;
        }
        let options = CloudOptions { node: Some(name), ..options.clone() };
        let cloud = Arc::new(Cloud::open(&options).expect("the server runs"));
        let store = Store::new(Arc::clone(&cloud) as Arc<_>, &StoreOptions::default());
        Arc::new(OpenNode { cloud, store })
    }

    fn new(options: CloudOptions, nodes: u8) -> Self {
        let slot = |number: u8| Slot { number, open: Mutex::new(Self::open(&options, number)) };
        let slots = (1..=nodes).map(slot).collect();
        let zero = || AtomicU64::new(0);
        Self { slots, options, fenced: zero(), freed: zero(), collections: zero(), commits: zero() }
    }

    fn node(&self, number: usize) -> Arc<OpenNode> {
        Arc::clone(&self.slots[number].open.lock())
    }

    /// Starts a node anew: whatever its old process still does is refused.
    fn fence(&self, number: usize) {
        let slot = &self.slots[number];
        // Locked before: of two that start it anew, the second would expel the first while it joins.
        let mut open = slot.open.lock();
        *open = Self::open(&self.options, slot.number);
        drop(open);
        self.fenced.fetch_add(1, Ordering::Relaxed);
    }

    /// One random action of a writer.
    fn act(&self, node: &OpenNode, random: &mut SplitMix64) -> Result<()> {
        let reference = name(format!("head/{}", random.below(REFS)));
        let value = node.store.read_ref(&reference)?;
        match random.below(10) {
            0 => {
                let other = name(format!("head/{}", random.below(REFS)));
                if other == reference {
                    return Ok(());
                }
                let before = node.store.read_ref(&other)?;
                self.transact(node, vec![(reference, value.clone()), (other.clone(), before)], (other, value))
            }
            1 => self.transact(node, vec![(reference.clone(), value)], (reference, None)),
            2 => {
                // Objects that nothing will ever name.
                let session = node.store.session();
                for _ in 0..3 {
                    session.put_chunk(&SplitMix64::new(random.next_u64()).bytes(9_000))?;
                }
                session.write_all_ahead()
            }
            kind => {
                let head = value.as_ref().and_then(|value| value.target).map(|id| SnapshotId::from_bytes(id.hash));
                let mut tree = match head {
                    // The reference may move before the tree is pinned, and its old tree may be collected.
                    Some(head) => match WorkingTree::open(&node.store, head) {
                        Err(Error::Missing { .. }) => return Ok(()),
                        opened => opened?,
                    },
                    None => WorkingTree::new(&node.store),
                };
                for _ in 0..=random.below(3) {
                    let content = random.below(CONTENTS);
                    let bytes = SplitMix64::new(content).bytes(100 + 700 * content as usize);
                    tree.write(&*format!("file {}", random.below(18)), &bytes)?;
                }
                if kind == 3 {
                    let (root, _pin) = tree.freeze().hold()?;
                    drop(tree);
                    std::thread::sleep(Duration::from_millis(random.below(40)));
                    read_files(&WorkingTree::open_root(&node.store, root)?)?;
                    return Ok(());
                }
                let expect = head.map_or(Expect::Absent, Expect::At);
                tree.commit(Commit::new(&reference, "work").expecting(expect).buffered())?;
                self.commits.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    fn transact(
        &self,
        node: &OpenNode,
        expect: Vec<(amalgam_engine::RefName, Option<RefValue>)>,
        set: (amalgam_engine::RefName, Option<RefValue>),
    ) -> Result<()> {
        let operation = Some(OperationDraft::default());
        let transaction =
            Transaction { objects: Vec::new(), expect, set: vec![set], operation, durability: Durability::Buffered };
        node.cloud.transact(transaction).map(drop)
    }

    /// Returns whether fences and races explain an error. A fenced node reads on, but nothing is kept for it.
    fn is_expected(node: &OpenNode, error: &Error) -> bool {
        let is_race = matches!(error.kind(), ErrorKind::Stale | ErrorKind::Busy);
        is_race || error.to_string().contains("another one is under way") || Self::is_fenced(node)
    }

    fn is_fenced(node: &OpenNode) -> bool {
        let written = node.cloud.transact(Transaction::default());
        written.is_err_and(|error| error.to_string().contains("expelled"))
    }

    fn round(&self, seed: u64) {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..self.slots.len())
                .map(|number| {
                    scope.spawn(move || {
                        let mut random = SplitMix64::new(seed * 100 + number as u64);
                        for _ in 0..15 {
                            let node = self.node(number);
                            if let Err(error) = self.act(&node, &mut random) {
                                assert!(Self::is_expected(&node, &error), "node {number}: {error:?}");
                                if Self::is_fenced(&self.node(number)) {
                                    self.fence(number);
                                }
                            }
                        }
                    })
                })
                .collect();
            for thread in 0..2 {
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut random = SplitMix64::new(seed * 100 + 50 + thread);
                    while !is_over.load(Ordering::SeqCst) {
                        let number = random.below(self.slots.len() as u64) as usize;
                        if random.below(6) == 0 {
                            self.fence(number);
                        }
                        let node = self.node(number);
                        match collect_all(&node.store) {
                            Ok(freed) => {
                                self.freed.fetch_add(freed, Ordering::Relaxed);
                                self.collections.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => assert!(Self::is_expected(&node, &error), "a collection: {error:?}"),
                        }
                    }
                });
            }
            let panics: Vec<_> = writers.into_iter().filter_map(|writer| writer.join().err()).collect();
            is_over.store(true, Ordering::SeqCst);
            if let Some(panic) = panics.into_iter().next() {
                std::panic::resume_unwind(panic);
            }
        });
    }
}

/// Returns the number of files below a directory.
fn files(directory: &Path) -> usize {
    let count = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("readable").path();
        if path.is_dir() { files(&path) } else { 1 }
    };
    std::fs::read_dir(directory).map_or(0, |entries| entries.map(count).sum())
}

#[test]
fn nothing_reachable_is_lost_beside_collections_and_orphaned_packs_go() {
    let Some(url) = postgres::shared() else { return };
    let seed = seed();
    let rounds = std::env::var(ROUNDS_VARIABLE).ok().map_or(ROUNDS_DEFAULT, |text| text.parse().expect("a number"));
    println!("seed {seed}, {rounds} rounds");
    let bucket = tempfile::tempdir().expect("a directory");
    let stored = open_bucket(&format!("file://{}", bucket.path().display())).expect("a directory");
    let mut options = CloudOptions::new(url, stored, format!("collections of {seed}"));
    options.connections = 4;
    // Longer than a put of a node that was fenced meanwhile.
    options.grace = Duration::from_secs(2);
    options.lease = Duration::from_secs(6);
    options.inline_bytes_max = 4 << 10;
    options.pack_bytes = 32 << 10;
    let world = World::new(options, 3);
    for round in 0..rounds {
        world.round(seed.wrapping_add(round) % (1 << 40));
        let fresh = World::open(&world.options, 9);
        assert_clean(&fresh.store);
        check_log(&fresh.store).expect("a log without gaps");
    }
    let figures =
        [&world.commits, &world.collections, &world.freed, &world.fenced].map(|count| count.load(Ordering::Relaxed));
    println!("{figures:?} commits, collections, freed objects, fenced nodes");
    assert!(figures.iter().all(|figure| *figure > 0), "each of them happened");

    let last = World::open(&world.options, 9);
    for (reference, value) in last.store.list_refs("", None, 100).expect("references") {
        world.transact(&last, vec![(reference.clone(), Some(value))], (reference, None)).expect("removed");
    }
    let grace = world.options.grace;
    drop(world);
    // The nodes have left: their reserved names are given up, and nothing holds any object.
    collect_all(&last.store).expect("collected");
    std::thread::sleep(grace + Duration::from_millis(200));
    collect_all(&last.store).expect("collected");
    assert_eq!(last.cloud.scan(None, 1).expect("rows"), [], "no object is left");
    assert_eq!(files(bucket.path()), 0, "no pack is left");
}

/// A collector in a process of its own.
struct Collector {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Collector {
    fn start(database: &str, bucket: &str, project: &str, lease: Duration) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_node-collector"));
        command.args([database, bucket, project, &lease.as_millis().to_string()]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let (sender, lines) = std::sync::mpsc::channel();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        std::thread::spawn(move || output.lines().map_while(|line| line.ok()).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    /// Waits for a line that begins with one of these words.
    fn wait_for(&self, words: &[&str]) -> String {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(60)).expect("it goes on");
            if words.iter().any(|word| line.starts_with(word)) {
                return line;
            }
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_raw(self.child.id() as i32).expect("an id");
        rustix::process::kill_process(id, signal).expect("it runs");
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn a_collector_that_is_stopped_longer_than_its_lease_deletes_nothing_when_it_goes_on() {
    let Some(url) = postgres::shared() else { return };
    let lease = Duration::from_millis(600);
    let directory = tempfile::tempdir().expect("a directory");
    let bucket = format!("file://{}", directory.path().display());
    let project = format!("stopped collectors {}", seed());
    let mut options = CloudOptions::new(&url, open_bucket(&bucket).expect("a directory"), &project);
    options.connections = 4;
    // The lease of this node is long: only the collector is to lose its own.
    options.grace = Duration::ZERO;
    options.inline_bytes_max = 1 << 10;
    options.pack_bytes = 16 << 10;
    let node = World::open(&options, 1);
    let commit = |round: u64| {
        let mut tree = WorkingTree::new(&node.store);
        for number in 0..20 {
            tree.write(&*format!("file {number}"), &SplitMix64::new(round * 100 + number).bytes(2_000)).expect("write");
        }
        tree.commit(Commit::new(&name(format!("head/{round}")), "round").expecting(Expect::Absent)).expect("commit");
    };
    let forget = |round: u64| {
        let reference = name(format!("head/{round}"));
        let value = node.store.read_ref(&reference).expect("read");
        let operation = Some(OperationDraft::default());
        let (expect, set) = (vec![(reference.clone(), value)], vec![(reference, None)]);
        let transaction = Transaction { objects: Vec::new(), expect, set, operation, durability: Durability::Durable };
        node.cloud.transact(transaction).expect("removed");
    };
    commit(0);
    let mut refused = 0;
    for (round, stage) in (1..).zip(["begin", "mark", "survey", "sweep", "reclaim"]) {
        commit(round);
        forget(round - 1);
        let collector = Collector::start(&url, &bucket, &project, lease);
        collector.wait_for(&[stage]);
        collector.signal(rustix::process::Signal::STOP);
        std::thread::sleep(lease * 2);
        // Another node takes the lease, deletes, and the dead contents come back under a new name.
        let freed = collect_all(&node.store).expect("the lease has expired");
        commit(round - 1);
        collector.signal(rustix::process::Signal::CONT);
        let line = collector.wait_for(&["error", "done"]);
        refused += u64::from(line.starts_with("error"));
        println!("stopped at {stage}: another node freed {freed} objects; then: {line}");
        drop(collector);
        let fresh = World::open(&options, 9);
        assert_clean(&fresh.store);
        let heads = [round - 1, round].map(|round| fresh.store.read_ref(&name(format!("head/{round}"))).expect("read"));
        for head in heads.iter().map(|value| value.as_ref().and_then(|value| value.target).expect("a head")) {
            let tree = WorkingTree::open(&fresh.store, SnapshotId::from_bytes(head.hash)).expect("open");
            assert_eq!(read_files(&tree).expect("whole").len(), 20);
        }
        forget(round - 1);
    }
    assert!(refused >= 4, "a collector that was stopped in the middle is refused");
}
