//! Several nodes on one project of PostgreSQL and a bucket: one history, seen by all.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use amalgam_cloud::{Cloud, CloudOptions, open_bucket};
use amalgam_engine::backend::{Backend, Committed, Durability, Epoch, Inspect, StoredObject, Transaction};
use amalgam_engine::reference::{Operation, RefName, RefValue, RequestId};
use amalgam_engine::{
    Commit, ErrorKind, Expect, ObjectId, Result, SnapshotId, SplitMix64, Store, StoreOptions, Tombstone, VerifyOptions,
    WorkingTree, verify,
};
use amalgam_gc::{CollectOptions, collect};
use amalgam_test_support::postgres;
use amalgam_test_support::postgres_proxy::PostgresProxy;
use amalgam_tests::harness::{CloudPlace, check_log, name, seed};
use amalgam_tests::linear::{HistoryOptions, check_history, record};
use bytes::Bytes;
use parking_lot::RwLock;

/// Sends each call to the next of some nodes.
struct Nodes {
    nodes: Vec<RwLock<Arc<Cloud>>>,
    next: AtomicUsize,
    /// How to open a node anew that was expelled; without it an expulsion is an error.
    reopening: Option<Vec<CloudOptions>>,
    reopened: AtomicUsize,
    replayed: AtomicUsize,
}

impl Nodes {
    fn new(nodes: impl IntoIterator<Item = Cloud>) -> Self {
        let nodes = nodes.into_iter().map(|node| RwLock::new(Arc::new(node))).collect();
        let zero = || AtomicUsize::new(0);
        Self { nodes, next: zero(), reopening: None, reopened: zero(), replayed: zero() }
    }

    fn any(&self) -> Arc<Cloud> {
        self.node(self.next())
    }

    fn next(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % self.nodes.len()
    }

    fn node(&self, number: usize) -> Arc<Cloud> {
        Arc::clone(&self.nodes[number].read())
    }

    /// Opens a node anew, unless another thread has done so.
    fn reopen(&self, number: usize, expelled: &Arc<Cloud>, options: &CloudOptions) {
        let mut node = self.nodes[number].write();
        if Arc::ptr_eq(&node, expelled) {
            *node = Arc::new(open_patiently(options));
            self.reopened.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Commits durably, and repeats the request over failovers, as a careful client does.
    fn transact_patiently(&self, transaction: Transaction, options: &[CloudOptions]) -> Result<Committed> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let mut transaction = Transaction { durability: Durability::Durable, ..transaction };
        if let Some(draft) = &mut transaction.operation {
            let request = format!("request {}", NEXT.fetch_add(1, Ordering::Relaxed));
            draft.request = Some(RequestId::new(request).expect("a valid id"));
        }
        loop {
            let number = self.next();
            let node = self.node(number);
            match node.transact(transaction.clone()) {
                Err(error) if error.to_string().contains("expelled") => self.reopen(number, &node, &options[number]),
                Ok(committed) => {
                    self.replayed.fetch_add(usize::from(committed.replayed), Ordering::Relaxed);
                    return Ok(committed);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Opens a project until it succeeds.
fn open_patiently(options: &CloudOptions) -> Cloud {
    let begun = Instant::now();
    loop {
        match Cloud::open(options) {
            Ok(cloud) => return cloud,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "{error}"),
        }
    }
}

impl Backend for Nodes {
    fn get(&self, id: ObjectId) -> Result<Option<Bytes>> {
        self.any().get(id)
    }

    fn get_many(&self, ids: &[ObjectId]) -> Result<Vec<Option<Bytes>>> {
        self.any().get_many(ids)
    }

    fn contains_many(&self, ids: &[ObjectId], at_least: Epoch) -> Result<Vec<bool>> {
        self.any().contains_many(ids, at_least)
    }

    fn put_ahead(&self, objects: Vec<StoredObject>) -> Result<()> {
        self.any().put_ahead(objects)
    }

    fn transact(&self, transaction: Transaction) -> Result<Committed> {
        match &self.reopening {
            Some(options) => self.transact_patiently(transaction, options),
            None => self.any().transact(transaction),
        }
    }

    fn sync(&self) -> Result<()> {
        (0..self.nodes.len()).try_for_each(|number| self.node(number).sync())
    }

    fn empty_log(&self) -> Result<()> {
        self.any().empty_log()
    }

    fn epoch(&self) -> Epoch {
        self.any().epoch()
    }

    fn read_ref(&self, name: &RefName) -> Result<Option<RefValue>> {
        self.any().read_ref(name)
    }

    fn last_move(&self, name: &RefName) -> Result<u64> {
        self.any().last_move(name)
    }

    fn list_refs(&self, prefix: &str, after: Option<&RefName>, limit: usize) -> Result<Vec<(RefName, RefValue)>> {
        self.any().list_refs(prefix, after, limit)
    }

    fn list_operations(&self, after: u64, limit: usize) -> Result<Vec<Operation>> {
        self.any().list_operations(after, limit)
    }

    fn last_operation(&self) -> Result<u64> {
        self.any().last_operation()
    }

    fn first_operation(&self) -> Result<u64> {
        self.any().first_operation()
    }

    fn find_request(&self, request: &RequestId) -> Result<Option<Operation>> {
        self.any().find_request(request)
    }

    fn tombstone(&self, id: ObjectId) -> Result<Option<Tombstone>> {
        self.any().tombstone(id)
    }
}

fn store(place: &CloudPlace) -> Store {
    Store::new(Arc::new(place.node()), &StoreOptions::default())
}

fn head(store: &Store) -> SnapshotId {
    let value = store.read_ref(&name("head/main")).expect("read").expect("there is a head");
    SnapshotId::from_bytes(value.target.expect("it has a target").hash)
}

#[test]
fn references_are_linearizable_over_three_nodes() {
    let Some(place) = CloudPlace::new() else { return };
    let seed = seed();
    println!("seed {seed}");
    let nodes = Nodes::new((0..3).map(|_| place.node()));
    let options = HistoryOptions { seed, threads: 12, calls: 200, registers: 3 };
    let calls = record(&nodes, options);
    println!("{:?}", check_history(&calls, options));
}

/// The same while nodes lose answers, connections and PostgreSQL itself.
#[test]
fn references_are_linearizable_over_three_nodes_through_faults() {
    let Some(mut server) = postgres::own() else { return };
    let seed = seed();
    println!("seed {seed}");
    let bucket = open_bucket("memory:").expect("memory");
    let proxies: Vec<_> = (0..3).map(|_| PostgresProxy::start(server.directory())).collect();
    let node = |proxy: &PostgresProxy| {
        let url = postgres::url(proxy.directory());
        let mut options = CloudOptions::new(url, Arc::clone(&bucket), "linear through faults");
        options.connections = 4;
        Cloud::open(&options).expect("the server runs")
    };
    let nodes = Nodes::new(proxies.iter().map(node));
    let options = HistoryOptions { seed, threads: 9, calls: 60, registers: 3 };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = SplitMix64::new(seed);
            for number in 0.. {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                let proxy = &proxies[random.below(3) as usize];
                match random.below(4) {
                    0 | 1 => proxy.swallow_next_answer(),
                    2 => proxy.cut(),
                    _ => {
                        proxy.hold();
                        std::thread::sleep(Duration::from_millis(random.below(50)));
                        proxy.release();
                    }
                }
                if number == 20 {
                    server.restart();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let calls = record(&nodes, options);
        is_over.store(true, Ordering::SeqCst);
        println!("{:?}", check_history(&calls, options));
    });
    let swallowed: usize = proxies.iter().map(PostgresProxy::swallowed).sum();
    println!("{swallowed} answers were lost");
    assert!(swallowed > 0);
}

/// The same while PostgreSQL crashes, and is then replaced by its standby, in the middle of commits: every node is expelled each time.
#[test]
fn references_are_linearizable_over_three_nodes_through_a_crash_and_a_failover() {
    let Some(mut primary) = postgres::own() else { return };
    let seed = seed();
    println!("seed {seed}");
    let mut standby = primary.start_standby().expect("a standby");
    let bucket = open_bucket("memory:").expect("memory");
    let proxies: Vec<_> = (0..3).map(|_| PostgresProxy::start(primary.directory())).collect();
    let settings = |proxy: &PostgresProxy| {
        let url = postgres::url(proxy.directory());
        let mut options = CloudOptions::new(url, Arc::clone(&bucket), "linear through failover");
        options.connections = 4;
        options
    };
    let settings: Vec<_> = proxies.iter().map(settings).collect();
    let mut nodes = Nodes::new(settings.iter().map(open_patiently));
    nodes.reopening = Some(settings);
    let options = HistoryOptions { seed, threads: 9, calls: 80, registers: 3 };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let chaos = scope.spawn(|| {
            let mut random = SplitMix64::new(seed);
            let mut pause = || {
                // Lost answers: what was done then is found by its request.
                for _ in 0..8 {
                    proxies[random.below(3) as usize].swallow_next_answer();
                    std::thread::sleep(Duration::from_millis(10 + random.below(20)));
                }
            };
            pause();
            primary.crash();
            // What was done and not acknowledged at that moment can be read now: the standby must have it, too.
            primary.wait_for_standby();
            pause();
            let is_early = !is_over.load(Ordering::SeqCst);
            primary.stop();
            standby.promote();
            proxies.iter().for_each(|proxy| proxy.redirect(standby.directory()));
            is_early
        });
        let calls = record(&nodes, options);
        is_over.store(true, Ordering::SeqCst);
        println!("{:?}", check_history(&calls, options));
        assert!(chaos.join().expect("no panic"), "the failover came after the last call");
    });
    let figures = [&nodes.reopened, &nodes.replayed].map(|count| count.load(Ordering::Relaxed));
    println!("{figures:?} nodes opened anew, requests found again");
    assert!(figures[0] >= 3, "each node was expelled: {figures:?}");
}

#[test]
fn commits_of_two_nodes_make_one_history_and_lose_nothing() {
    const COMMITS: usize = 25;
    let Some(place) = CloudPlace::new() else { return };
    let first = store(&place);
    let mut tree = WorkingTree::new(&first);
    tree.write("start", b"start").expect("write");
    tree.commit(Commit::new(&name("head/main"), "start")).expect("commit");
    std::thread::scope(|scope| {
        for node in 0..2 {
            let place = &place;
            scope.spawn(move || {
                let store = store(place);
                for number in 0..COMMITS {
                    // Again from the head that the other one moved.
                    loop {
                        let base = head(&store);
                        let mut tree = WorkingTree::open(&store, base).expect("a reference names what exists");
                        tree.write(&*format!("{node}-{number}"), format!("{node} {number}").as_bytes()).expect("write");
                        let commit = Commit::new(&name("head/main"), "more").expecting(Expect::At(base));
                        match tree.commit(commit) {
                            Ok(_) => break,
                            Err(error) => assert_eq!(error.kind(), ErrorKind::Stale, "{error}"),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(check_log(&first).expect("the log").len(), 2 * COMMITS + 1);
    let tree = WorkingTree::open(&first, head(&first)).expect("open");
    for (node, number) in (0..2).flat_map(|node| (0..COMMITS).map(move |number| (node, number))) {
        let read = tree.read(&*format!("{node}-{number}")).expect("every commit is in the history");
        assert_eq!(read, format!("{node} {number}").as_bytes());
    }
}

#[test]
fn inline_packs_move_to_the_bucket_and_a_collection_frees_what_is_dead() {
    let Some(mut place) = CloudPlace::new() else { return };
    place.options.inline_total_bytes_max = u64::MAX;
    let store = store(&place);
    let mut tree = WorkingTree::new(&store);
    for number in 0..30 {
        tree.write(&*format!("file {}", number % 5), format!("content {number}").repeat(100).as_bytes())
            .expect("write");
        tree.commit(Commit::new(&name("head/main"), "more")).expect("commit");
    }
    store.empty_log().expect("packed");
    let reader = self::store(&place);
    let open = WorkingTree::open(&reader, head(&reader)).expect("open");
    assert_eq!(open.read("file 4").expect("read"), "content 29".repeat(100).as_bytes());
    drop((open, reader));
    let report = verify(&store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(())).expect("verified");
    assert!(report.is_clean(), "{report:?}");
    let collected = collect(&store, &CollectOptions::default(), &mut |_| ControlFlow::Continue(())).expect("collected");
    println!("{collected:?}");
    let report = verify(&store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(())).expect("verified");
    assert!(report.is_clean(), "{report:?}");
    drop((tree, store));
    let again = self::store(&place);
    assert_eq!(WorkingTree::open(&again, head(&again)).expect("open").list("").expect("list").count(), 5);
}

/// A dead root that moved during a sweep would look new, and outlive the objects below it.
#[test]
fn objects_do_not_move_while_a_collection_runs() {
    let Some(place) = CloudPlace::new() else { return };
    let backend: Arc<dyn Inspect> = Arc::new(place.node());
    let store = Store::new(Arc::clone(&backend), &StoreOptions::default());
    let mut tree = WorkingTree::new(&store);
    tree.write("file", b"content").expect("write");
    tree.commit(Commit::new(&name("head/main"), "first")).expect("commit");
    let numbers = || -> Vec<u64> { backend.scan(None, 100).expect("rows").iter().map(|row| row.number).collect() };
    let before = numbers();
    let round = store.begin_sweep().expect("a collection");
    store.empty_log().expect("nothing moves");
    assert_eq!(numbers(), before);
    drop(round);
    store.empty_log().expect("inline packs move to the bucket");
    assert!(numbers().iter().all(|number| !before.contains(number)), "all moved");
    place.node();
}
