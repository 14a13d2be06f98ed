//! Random edits through three nodes, with faults between the nodes, PostgreSQL and the bucket: lost answers of commits and puts, cut
//! connections, partitions, delays, 5xx storms, bodies that are truncated or wrong, stale reads, restarts and crashes of PostgreSQL, and
//! a collector beside all of that. After each sequence every node agrees with the plain model, nothing acknowledged is lost, and no
//! request was executed twice.
//!
//! The bucket is the one that `AMALGAM_TEST_BUCKET` names, or one in memory.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amalgam_cloud::{Cloud, CloudOptions, open_bucket};
use amalgam_engine::reference::{RefName, RequestId};
use amalgam_engine::{
    Commit, Error, ErrorKind, Expect, Result, SnapshotId, Store, StoreOptions, Time, VerifyOptions, WorkingTree, verify,
};
use amalgam_gc::{CollectOptions, collect};
use amalgam_test_support::faulty_bucket::{Fault, FaultyBucket};
use amalgam_test_support::postgres::{self, Postgres};
use amalgam_test_support::postgres_proxy::PostgresProxy;
use amalgam_tests::harness::{Random, check_log, name, seed};
use amalgam_tests::model::{Model, Op, contents, op, ops, try_perform};
use parking_lot::Mutex;
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// The number of sequences.
const SEQUENCES_VARIABLE: &str = "AMALGAM_NODE_SEQUENCES";
const SEQUENCES_DEFAULT: u64 = 4;
const NODES: usize = 3;
const CLIENTS: usize = 3;
/// Commits of each client in a sequence.
const STEPS: usize = 24;
/// The time within which a call succeeds that is repeated.
const WITHIN: Duration = Duration::from_secs(120);
/// The time for which a node repeats a call of PostgreSQL: shorter than the long partitions.
const RETRY_TIME: Duration = Duration::from_millis(1_500);
/// Faults that follow each other closely, and the time without faults after them.
const STORM_FAULTS: u64 = 20;
const CALM: Duration = Duration::from_millis(400);

struct OpenNode {
    cloud: Arc<Cloud>,
    store: Store,
}

/// Three nodes, each with a proxy before PostgreSQL, and one bucket.
struct World {
    options: Vec<CloudOptions>,
    nodes: Vec<Mutex<Arc<OpenNode>>>,
    is_over: AtomicBool,
    faults: AtomicU64,
    reopened: AtomicU64,
    replayed: AtomicU64,
    collections: AtomicU64,
}

fn open_node(options: &CloudOptions) -> Result<Arc<OpenNode>> {
    let cloud = Arc::new(Cloud::open(options)?);
    let store = Store::new(Arc::clone(&cloud) as Arc<_>, &StoreOptions::default());
    Ok(Arc::new(OpenNode { cloud, store }))
}

/// Calls until it succeeds.
fn patiently<T>(what: &str, mut call: impl FnMut() -> Result<T>) -> T {
    let begun = Instant::now();
    loop {
        match call() {
            Ok(done) => return done,
            Err(error) => assert!(begun.elapsed() < WITHIN, "{what}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether an error may come of the faults here. Another one is a bug: a reference that another client moved, for example, or an object
/// that was collected.
fn is_excused(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Busy | ErrorKind::Fault | ErrorKind::Corrupt)
}

impl World {
    fn new(proxies: &[PostgresProxy], bucket: &Arc<FaultyBucket>, project: &str) -> Self {
        let options: Vec<_> = proxies
            .iter()
            .map(|proxy| {
                let url = postgres::url(proxy.directory());
                let mut options = CloudOptions::new(url, Arc::clone(bucket) as Arc<_>, project);
                options.connections = 4;
                options.grace = Duration::ZERO;
                options.retry_time = RETRY_TIME;
                options.lease = Duration::from_secs(2);
                // Most commits have a put.
                options.inline_bytes_max = 8 << 10;
                options.cache_bytes = 1 << 20;
                options
            })
            .collect();
        let open = |options| Mutex::new(patiently("open", || open_node(options)));
        let zero = || AtomicU64::new(0);
        Self {
            nodes: options.iter().map(open).collect(),
            options,
            is_over: AtomicBool::new(false),
            faults: zero(),
            reopened: zero(),
            replayed: zero(),
            collections: zero(),
        }
    }

    fn node(&self, number: usize) -> Arc<OpenNode> {
        Arc::clone(&self.nodes[number].lock())
    }

    /// Opens a node anew that was expelled, unless another thread has done so. Fails while PostgreSQL cannot be reached.
    fn mend(&self, number: usize, old: &Arc<OpenNode>) {
        let mut node = self.nodes[number].lock();
        if Arc::ptr_eq(&node, old)
            && old.cloud.is_expelled()
            && let Ok(fresh) = open_node(&self.options[number])
        {
            *node = fresh;
            self.reopened.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Calls one node after another until one of them does it.
    fn through_any<T>(&self, what: &str, random: &mut Random, call: impl Fn(&Store) -> Result<T>) -> T {
        patiently(what, || {
            let number = random.below(NODES as u64) as usize;
            let node = self.node(number);
            call(&node.store).inspect_err(|error| {
                assert!(is_excused(error), "{what}: {error:?}");
                self.mend(number, &node);
            })
        })
    }
}

/// One edit of a client: what it does, and the model after it.
struct Edit<'a> {
    head: RefName,
    base: Option<SnapshotId>,
    ops: &'a [Op],
    before: &'a Model,
    request: RequestId,
}

impl Edit<'_> {
    /// Edits the tree of a node and commits it. A request that was executed before returns its snapshot.
    fn apply(&self, store: &Store, replayed: &AtomicU64) -> Result<(SnapshotId, Model)> {
        let mut tree = match self.base {
            Some(base) => WorkingTree::open(store, base)?,
            None => WorkingTree::new(store),
        };
        let mut model = self.before.clone();
        for op in self.ops {
            let (ours, theirs) = (try_perform(&mut tree, op)?, model.perform(op));
            assert_eq!(ours, theirs, "{op:?}");
        }
        let mut commit = Commit::new(&self.head, "").expecting(self.base.map_or(Expect::Absent, Expect::At));
        commit.request = Some(self.request.clone());
        let done = tree.commit(commit)?;
        replayed.fetch_add(u64::from(done.replayed), Ordering::Relaxed);
        Ok((done.snapshot, model))
    }
}

fn check(store: &Store, snapshot: SnapshotId, model: &Model) -> Result<()> {
    let found = contents(&WorkingTree::open(store, snapshot)?)?;
    assert_eq!(found, model.contents());
    Ok(())
}

fn head_of(client: usize) -> RefName {
    name(format!("head/client {client}"))
}

/// Commits all edits of a client, each through any node, and returns its head and its model.
fn run_client(world: &World, client: usize, edits: &[Vec<Op>], seed: u64) -> (SnapshotId, Model) {
    let mut random = Random::of(&[seed, client as u64]);
    let (mut base, mut model) = (None, Model::default());
    for (step, edit) in edits.iter().enumerate() {
        // A tree that was just opened has its own clock.
        let mut ops = vec![Op::SetNow { now: Time(step as i64 + 1) }];
        ops.extend(edit.iter().cloned());
        let request = RequestId::new(format!("client {client} step {step}")).expect("a valid id");
        let edit = Edit { head: head_of(client), base, ops: &ops, before: &model, request };
        let (snapshot, after) = world.through_any("commit", &mut random, |store| edit.apply(store, &world.replayed));
        // A node that did not write it sees it at once.
        world.through_any("read", &mut random, |store| {
            let value = store.read_ref(&edit.head)?.and_then(|value| value.target);
            assert_eq!(value.map(|target| SnapshotId::from_bytes(target.hash)), Some(snapshot), "a stale read");
            check(store, snapshot, &after)
        });
        (base, model) = (Some(snapshot), after);
    }
    (base.expect("there were edits"), model)
}

/// Causes one random fault.
fn cause(random: &mut Random, proxies: &[PostgresProxy], bucket: &FaultyBucket) {
    let proxy = &proxies[random.below(NODES as u64) as usize];
    let moment = Duration::from_millis(5 + random.below(60));
    match random.below(40) {
        0..6 => proxy.swallow_next_answer(),
        6..9 => proxy.cut(),
        9..12 => {
            // A short partition, which a node survives, or a long one, which fails its calls.
            let is_long = random.below(8) == 0;
            proxy.hold();
            std::thread::sleep(if is_long { RETRY_TIME * 2 } else { moment });
            proxy.release();
        }
        12..15 => {
            proxy.delay(Duration::from_millis(random.below(8)));
            std::thread::sleep(moment);
            proxy.delay(Duration::ZERO);
        }
        15..19 => {
            bucket.fail_all(true);
            std::thread::sleep(moment);
            bucket.fail_all(false);
        }
        19..22 => bucket.inject(Fault::LosePutAnswer),
        22..25 => bucket.inject(Fault::FailPut),
        25..27 => bucket.inject(Fault::SlowPut),
        27..30 => bucket.inject(Fault::FailGet),
        30..33 => bucket.inject(Fault::TruncateGet),
        33..36 => bucket.inject(Fault::FlipGet),
        36..38 => bucket.inject(Fault::SlowGet),
        _ => bucket.inject(Fault::StaleGet),
    }
}

/// Collects through one node after another.
fn keep_collecting(world: &World, seed: u64) {
    let mut random = Random::of(&[seed, 77]);
    while !world.is_over.load(Ordering::SeqCst) {
        let number = random.below(NODES as u64) as usize;
        let node = world.node(number);
        match collect(&node.store, &CollectOptions::default(), &mut |_| ControlFlow::Continue(())) {
            Ok(_) => drop(world.collections.fetch_add(1, Ordering::Relaxed)),
            Err(error) => {
                assert!(is_excused(&error), "collect: {error:?}");
                world.mend(number, &node);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn sequence_edits(seed: u64) -> Vec<Vec<Vec<Op>>> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let mut edit = || ops(op(), 1..16).new_tree(&mut runner).expect("operations").current();
    (0..CLIENTS).map(|_| (0..STEPS).map(|_| edit()).collect()).collect()
}

/// Runs a sequence, and returns how often a node that was expelled was opened anew.
fn run_sequence(server: &mut Postgres, sequence: u64, seed: u64) -> u64 {
    let inner = match std::env::var("AMALGAM_TEST_BUCKET") {
        Ok(url) => open_bucket(&url).expect("a bucket"),
        Err(_) => open_bucket("memory:").expect("memory"),
    };
    let bucket = FaultyBucket::before(inner);
    let proxies: Vec<_> = (0..NODES).map(|_| PostgresProxy::start(server.directory())).collect();
    let project = format!("sequence {sequence}");
    let world = World::new(&proxies, &bucket, &project);
    let edits = sequence_edits(seed);
    let done: Vec<(SnapshotId, Model)> = std::thread::scope(|scope| {
        let chaos = scope.spawn(|| {
            let mut random = Random::of(&[seed, 99]);
            // PostgreSQL is restarted once and crashes once: each crash expels all nodes.
            let moments = [3 + random.below(6), 12 + random.below(6)];
            for number in 0.. {
                if world.is_over.load(Ordering::SeqCst) {
                    break;
                }
                match moments.iter().position(|moment| *moment == number) {
                    Some(0) => server.restart(),
                    Some(_) => server.crash(),
                    None => cause(&mut random, &proxies, &bucket),
                }
                world.faults.fetch_add(1, Ordering::Relaxed);
                // Times without faults, so that the clients get on.
                let delay = if number % STORM_FAULTS == STORM_FAULTS - 1 { CALM } else { Duration::from_millis(10) };
                std::thread::sleep(delay);
            }
        });
        let collector = scope.spawn(|| keep_collecting(&world, seed));
        let clients: Vec<_> = edits
            .iter()
            .enumerate()
            .map(|(client, edits)| {
                let world = &world;
                scope.spawn(move || run_client(world, client, edits, seed))
            })
            .collect();
        let done: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        world.is_over.store(true, Ordering::SeqCst);
        chaos.join().expect("no panic");
        collector.join().expect("no panic");
        done.into_iter().map(|done| done.expect("no panic")).collect()
    });
    while bucket.take_fault() {}
    // Every node agrees with the model, and so does one that was never disturbed.
    for number in 0..NODES {
        for (client, (snapshot, model)) in done.iter().enumerate() {
            patiently("agree", || {
                let node = world.node(number);
                let read = || {
                    let value = node.store.read_ref(&head_of(client))?.and_then(|value| value.target);
                    assert_eq!(value.map(|target| SnapshotId::from_bytes(target.hash)), Some(*snapshot));
                    check(&node.store, *snapshot, model)
                };
                read().inspect_err(|_| world.mend(number, &node))
            });
        }
    }
    let fresh = CloudOptions { database: server.url(), ..world.options[0].clone() };
    let fresh = open_node(&fresh).expect("the server runs");
    for (snapshot, model) in &done {
        check(&fresh.store, *snapshot, model).expect("nothing acknowledged is lost");
    }
    let report =
        verify(&fresh.store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(())).expect("verified");
    assert!(report.is_clean(), "{report:?}");
    check_requests(&fresh.store);
    let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
    let swallowed: usize = proxies.iter().map(PostgresProxy::swallowed).sum();
    println!(
        "sequence {sequence}: {} faults, {swallowed} answers lost, {} requests of the bucket disturbed, {} nodes opened anew, \
         {} commits found done, {} collections",
        count(&world.faults),
        bucket.injected(),
        count(&world.reopened),
        count(&world.replayed),
        count(&world.collections),
    );
    assert!(count(&world.faults) > 0 && swallowed + bucket.injected() > 0, "there were faults");
    count(&world.reopened)
}

/// One operation for each request, and none besides.
fn check_requests(store: &Store) {
    let operations = check_log(store).expect("a log without gaps");
    let mut seen = HashSet::new();
    let mut moves = BTreeMap::<_, usize>::new();
    for operation in &operations {
        let request = operation.draft.request.clone().expect("every operation has a request id");
        assert!(seen.insert(request.clone()), "{request:?} was executed twice");
        for change in &operation.changes {
            *moves.entry(change.name.clone()).or_default() += 1;
        }
    }
    assert_eq!(operations.len(), CLIENTS * STEPS, "one operation for each acknowledged commit");
    assert!(moves.values().all(|moves| *moves == STEPS), "{moves:?}");
}

#[test]
fn three_nodes_agree_with_the_model_after_faults_of_all_kinds() {
    let Some(mut server) = postgres::own() else { return };
    let seed = seed();
    println!("seed {seed}");
    let sequences = std::env::var(SEQUENCES_VARIABLE).ok().and_then(|text| text.parse().ok());
    let sequences = 0..sequences.unwrap_or(SEQUENCES_DEFAULT);
    let reopened: u64 =
        sequences.map(|sequence| run_sequence(&mut server, sequence, seed.wrapping_add(sequence))).sum();
    assert!(reopened > 0, "crashes of PostgreSQL expel nodes");
}
