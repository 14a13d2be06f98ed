//! The merge queue on three nodes that are killed, stopped for longer than their lease and continued, and cut off from PostgreSQL: each
//! entry lands exactly once or becomes a review, history does not fork, and one node at a time runs tests.
//!
//! The bucket is the one that `AMALGAM_TEST_BUCKET` names, or a directory.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use amalgam_cloud::{Cloud, CloudOptions, open_bucket};
use amalgam_engine::backend::FoldLeases as _;
use amalgam_engine::queue::{MergePolicy, QueueEntry, QueueOptions, TestVerdict};
use amalgam_engine::workspace::Change;
use amalgam_engine::{
    MergeContents, OperationContext, RequestId, Result, RootId, SnapshotId, Store, StoreOptions, Time,
};
use amalgam_test_support::postgres;
use amalgam_test_support::postgres_proxy::PostgresProxy;
use amalgam_tests::harness::merging::{MAIN, Merged, Strict, named};
use amalgam_tests::harness::{CloudPlace, Random, check_log, seed};
use parking_lot::Mutex;
use rustix::process::Signal;

/// The number of nodes that are disturbed.
const ROUNDS_VARIABLE: &str = "AMALGAM_NODE_QUEUE_ROUNDS";
const ROUNDS_DEFAULT: u64 = 8;
const NODES: usize = 3;
const LEASE: Duration = Duration::from_secs(1);
/// The time within which something must happen.
const WITHIN: Duration = Duration::from_secs(120);

#[expect(clippy::disallowed_methods, reason = "the test is told the time")]
fn microseconds() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_micros()
}

/// The time during which a node ran the test of an entry.
#[derive(Clone, Debug)]
struct TestRun {
    node: String,
    entry: String,
    start: u128,
    end: u128,
    is_cancelled: bool,
}

/// What the nodes said.
#[derive(Default)]
struct Told {
    /// Entries by workspace.
    queued: BTreeMap<String, String>,
    landed: BTreeSet<String>,
    reviews: BTreeSet<String>,
    /// Tests that have begun, by node.
    running: BTreeMap<String, (String, u128)>,
    tests: Vec<TestRun>,
    lines: u64,
    opened: u64,
}

impl Told {
    fn note(&mut self, node: &str, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        self.lines += 1;
        let moment = |text: &str| text.parse().expect("a time");
        match words[..] {
            ["queued", number, entry] => drop(self.queued.insert(format!("{node}/{number}"), entry.to_owned())),
            ["landed", entry] => assert!(self.landed.insert(entry.to_owned()), "{entry} landed twice"),
            ["review", entry] => assert!(self.reviews.insert(entry.to_owned()), "{entry} became a review twice"),
            ["test", entry, start] => {
                self.running.insert(node.to_owned(), (entry.to_owned(), moment(start)));
            }
            [how @ ("tested" | "cancelled"), _, end] => self.end_test(node, moment(end), how == "cancelled"),
            ["opened"] => self.opened += 1,
            // The last line of a node that was killed may be cut.
            ["unexpected", ..] => panic!("{line}"),
            _ => {}
        }
    }

    fn end_test(&mut self, node: &str, end: u128, is_cancelled: bool) {
        if let Some((entry, start)) = self.running.remove(node) {
            self.tests.push(TestRun { node: node.to_owned(), entry, start, end, is_cancelled });
        }
    }
}

/// A node in a process of its own, with a proxy before PostgreSQL.
struct Publisher {
    child: Child,
    proxy: PostgresProxy,
    name: String,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Publisher {
    fn start(server: &std::path::Path, bucket: &str, name: &str, told: &Arc<Mutex<Told>>) -> Self {
        let proxy = PostgresProxy::start(server);
        let mut command = Command::new(env!("CARGO_BIN_EXE_node-publisher"));
        let database = postgres::url(proxy.directory());
        command.args([&database, bucket, "queue", &LEASE.as_millis().to_string(), name]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (told, own) = (Arc::clone(told), name.to_owned());
        let reader = std::thread::spawn(move || {
            output.lines().map_while(|line| line.ok()).for_each(|line| told.lock().note(&own, &line));
        });
        Self { child, proxy, name: name.to_owned(), reader: Some(reader) }
    }

    fn signal(&self, signal: Signal) {
        let id = rustix::process::Pid::from_raw(self.child.id() as i32).expect("an id");
        rustix::process::kill_process(id, signal).expect("it runs");
    }

    /// Kills the node, and reads what it said.
    fn kill(&mut self, told: &Mutex<Told>) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
        if let Some(reader) = self.reader.take() {
            reader.join().expect("its lines can be read");
        }
        told.lock().end_test(&self.name, microseconds(), true);
    }

    fn assert_runs(&mut self) {
        let ended = self.child.try_wait().expect("it is our child");
        assert!(ended.is_none(), "{} ended by itself: {ended:?}", self.name);
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The time during which a node did not reach PostgreSQL, or did not run.
struct Disturbance {
    node: String,
    start: u128,
}

/// Waits until some entries more have landed than before.
fn wait_for_progress(told: &Mutex<Told>, nodes: &mut [Publisher], more: usize) {
    let (begun, before) = (Instant::now(), told.lock().landed.len());
    while told.lock().landed.len() < before + more {
        nodes.iter_mut().for_each(Publisher::assert_runs);
        assert!(begun.elapsed() < WITHIN, "the queue does not go on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a node runs a test, and returns its number.
fn wait_for_test(told: &Mutex<Told>, nodes: &[Publisher]) -> usize {
    let begun = Instant::now();
    loop {
        let running: Vec<_> = told.lock().running.keys().cloned().collect();
        if let Some(number) = nodes.iter().position(|node| running.contains(&node.name)) {
            return number;
        }
        assert!(begun.elapsed() < WITHIN, "no node runs a test");
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct FinalTests;

impl MergePolicy for FinalTests {
    fn contents(&self, _entry: &QueueEntry) -> Result<Box<dyn MergeContents + '_>> {
        Ok(Box::new(Strict))
    }

    fn test(&self, entry: &QueueEntry, _tree: RootId) -> Result<TestVerdict> {
        let fails = entry.options.test.iter().any(|word| word == "fail");
        Ok(if fails { TestVerdict::Failed("it fails".to_owned()) } else { TestVerdict::Passed })
    }
}

#[test]
fn entries_of_three_disturbed_nodes_land_once_and_history_does_not_fork() {
    let Some(server) = postgres::own() else { return };
    let seed = seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let rounds = std::env::var(ROUNDS_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS_DEFAULT);
    let directory = tempfile::tempdir().expect("a directory");
    let bucket = std::env::var("AMALGAM_TEST_BUCKET").unwrap_or(format!("file://{}", directory.path().display()));
    let options = CloudOptions::new(server.url(), open_bucket(&bucket).expect("a bucket"), "queue");
    let open = || Store::new(Arc::new(Cloud::open(&options).expect("the server runs")), &StoreOptions::default());
    Merged::of(&open()).expect("the target");
    let told = Arc::new(Mutex::new(Told::default()));
    let start = |name: &str| Publisher::start(server.directory(), &bucket, name, &told);
    let mut nodes: Vec<_> = (0..NODES).map(|number| start(&format!("node-{number}-0"))).collect();
    let mut disturbances = Vec::new();
    for round in 1..=rounds {
        wait_for_progress(&told, &mut nodes, 3);
        let kind = random.below(5);
        // Most are disturbed in the middle of a test.
        let number = match kind {
            0..4 => wait_for_test(&told, &nodes),
            _ => random.below(NODES as u64) as usize,
        };
        let (name, begun) = (nodes[number].name.clone(), microseconds());
        match kind {
            0 => {
                nodes[number].kill(&told);
                nodes[number] = start(&format!("node-{number}-{round}"));
            }
            1 | 2 => {
                nodes[number].signal(Signal::STOP);
                std::thread::sleep(LEASE * 2);
                // The others go on without it.
                let (begun, before) = (Instant::now(), told.lock().landed.len());
                while told.lock().landed.len() < before + 2 {
                    assert!(begun.elapsed() < WITHIN, "a node that is stopped blocks the queue");
                    std::thread::sleep(Duration::from_millis(5));
                }
                nodes[number].signal(Signal::CONT);
            }
            3 => {
                nodes[number].proxy.hold();
                std::thread::sleep(LEASE * 2);
                nodes[number].proxy.release();
            }
            _ => {
                nodes[number].proxy.swallow_next_answer();
                std::thread::sleep(Duration::from_millis(random.below(100)));
                nodes[number].proxy.cut();
            }
        }
        disturbances.push(Disturbance { node: name, start: begun });
    }
    wait_for_progress(&told, &mut nodes, 3);
    nodes.iter_mut().for_each(|node| node.kill(&told));
    let told = told.lock();
    let merged = Merged::of(&open()).expect("the target");
    // Nobody has leases any more: this process is a node of its own, and takes what is left.
    let act = OperationContext::new("queue", Time(1));
    while !merged.queue.fold(&named(MAIN), &FinalTests, &act).expect("folded").done.is_empty() {}
    check_outcomes(&merged, &told);
    check_tests(&told.tests, &disturbances);
    println!(
        "{rounds} disturbances: {} queued, {} told as landed, {} as reviews, {} tests of {} entries, {} cancelled, opened {} times",
        told.queued.len(),
        told.landed.len(),
        told.reviews.len(),
        told.tests.len(),
        told.tests.iter().map(|test| &test.entry).collect::<HashSet<_>>().len(),
        told.tests.iter().filter(|test| test.is_cancelled).count(),
        told.opened,
    );
}

/// Each acknowledged entry is in the history of the target once, or is a review; and no head was left behind.
fn check_outcomes(merged: &Merged, told: &Told) {
    let store = merged.workspaces.store();
    let operations = check_log(store).expect("a log without gaps");
    let mut requests = HashSet::new();
    for request in operations.iter().filter_map(|operation| operation.draft.request.clone()) {
        assert!(requests.insert(request.clone()), "{request:?} was executed twice");
    }
    let main = named(MAIN).reference();
    for change in operations.iter().flat_map(|operation| &operation.changes).filter(|change| change.name == main) {
        let head = |value: &Option<amalgam_engine::reference::RefValue>| {
            value.as_ref().and_then(|value| value.target).map(|target| SnapshotId::from_bytes(target.hash))
        };
        if let (Some(before), Some(after)) = (head(&change.before), head(&change.after)) {
            assert!(merged.history.is_ancestor(before, after).expect("a history"), "the history forks");
        }
    }
    assert!(merged.queue.list(None).expect("a list").is_empty());
    let reviews: HashSet<_> =
        merged.queue.reviews(None).expect("reviews").into_iter().map(|review| review.entry.id).collect();
    let head = merged.workspaces.get(&named(MAIN)).expect("main").head.expect("a head");
    let mut landed = HashSet::new();
    for snapshot in merged.history.range(head, &[]).expect("a history") {
        if let Some(entry) = store.snapshot(snapshot).expect("a snapshot").metadata.get("queue") {
            assert!(landed.insert(entry.clone()), "{entry} was merged twice");
        }
    }
    let files = merged.files(&named(MAIN)).expect("files");
    for (workspace, entry) in &told.queued {
        let number: u64 = workspace.rsplit('/').next().and_then(|text| text.parse().ok()).expect("a number");
        let is_failing = number.is_multiple_of(6);
        assert_eq!(reviews.contains(entry), is_failing, "{workspace}: {entry}");
        assert_eq!(landed.contains(entry), !is_failing, "{workspace}: {entry}");
        assert_eq!(files.contains_key(&workspace.replace('/', "-")), !is_failing, "{workspace}");
        let is_left = merged.workspaces.find(&named(workspace.clone())).expect("a look").is_some();
        assert_eq!(is_left, is_failing || !number.is_multiple_of(2), "{workspace} ends when it has landed");
    }
    assert!(told.landed.iter().all(|entry| landed.contains(entry)), "what was told as landed has landed");
    assert!(told.reviews.iter().all(|entry| reviews.contains(entry)), "what was told as a review is one");
    assert!(told.queued.len() > NODES, "hardly anything was queued");
}

/// Two nodes ran tests at once only if the first of them had been disturbed since its test began.
fn check_tests(tests: &[TestRun], disturbances: &[Disturbance]) {
    for first in tests {
        for second in tests.iter().filter(|second| second.node != first.node) {
            let is_overlap = first.start <= second.start && second.start < first.end;
            let is_disturbed = disturbances.iter().any(|one| one.node == first.node && one.start < second.start);
            assert!(!is_overlap || is_disturbed, "{first:?} and {second:?} ran at once");
        }
    }
    assert!(!tests.is_empty(), "no test ran");
}

#[test]
fn the_lease_of_a_target_is_held_by_one_node_and_taken_over_from_an_expired_one() {
    let Some(mut place) = CloudPlace::new() else { return };
    place.options.lease = Duration::from_secs(60);
    let (one, two) = (place.node(), place.node());
    assert!(one.take_fold_lease("main").expect("taken") && one.take_fold_lease("main").expect("taken again"));
    assert!(!two.take_fold_lease("main").expect("asked"));
    assert!(two.take_fold_lease("other").expect("another target"));
    two.release_fold_lease("main").expect("nothing to give back");
    assert!(!two.take_fold_lease("main").expect("asked"));
    one.release_fold_lease("main").expect("given back");
    assert!(two.take_fold_lease("main").expect("taken"));
    // A node that leaves has no leases any more.
    drop(two);
    assert!(one.take_fold_lease("main").expect("taken"));
    // Under the name of another node that was started anew, as after a kill.
    let mut killed = place.options;
    killed.node = Some(*b"a killed node 16");
    killed.lease = Duration::from_millis(1);
    let silent = Cloud::open(&killed).expect("the server runs");
    assert!(silent.take_fold_lease("third").expect("taken"));
    std::mem::forget(Cloud::open(&killed).expect("the server runs"));
    assert!(one.take_fold_lease("third").expect("its generation is over"));
    let error = silent.take_fold_lease("third").expect_err("it was fenced");
    assert!(error.to_string().contains("expelled") && silent.is_expelled(), "{error}");
}

#[test]
fn a_target_that_another_node_folds_is_left_alone() {
    let Some(place) = CloudPlace::new() else { return };
    let (one, two) = (Arc::new(place.node()), Arc::new(place.node()));
    let store = |cloud: &Arc<Cloud>| Store::new(Arc::clone(cloud) as Arc<_>, &StoreOptions::default());
    let merged = Merged::of(&store(&one)).expect("the target");
    let name = named("agent");
    let act = OperationContext::new("agent", Time(2));
    merged.workspaces.fork(&named(MAIN), std::slice::from_ref(&name), &act).expect("forked");
    let mut tree = merged.workspaces.open(&name).expect("a tree");
    tree.write("file", b"text").expect("written");
    merged.workspaces.commit(&name, &mut tree, &Change::new("work"), &act).expect("committed");
    let entry = merged.queue.submit(&name, &named(MAIN), &QueueOptions::default(), &act).expect("queued");
    assert!(one.take_fold_lease(MAIN).expect("taken"));
    let other = Merged::of(&store(&two)).expect("the target");
    let queue = other.queue.with_leases(Arc::clone(&two) as Arc<_>);
    let fold = queue.fold(&named(MAIN), &FinalTests, &act).expect("asked");
    assert!(fold.is_elsewhere && fold.done.is_empty());
    assert_eq!(queue.list(None).expect("a list").len(), 1);
    one.release_fold_lease(MAIN).expect("given back");
    let fold = queue.fold(&named(MAIN), &FinalTests, &act).expect("folded");
    assert_eq!(fold.done.iter().map(|folded| folded.entry.id.clone()).collect::<Vec<_>>(), [entry.id]);
    assert!(one.take_fold_lease(MAIN).expect("the other node gave it back"));
}

/// A client that repeats its submission through another node while the first one is under way gets the same entry.
#[test]
fn one_request_through_two_nodes_at_once_is_one_entry() {
    let Some(place) = CloudPlace::new() else { return };
    let store = || place_store(&place);
    let merged = [Merged::of(&store()).expect("the target"), Merged::of(&store()).expect("the target")];
    let first = OperationContext::new("agent", Time(2));
    for number in 0..20 {
        let name = named(format!("agent/{number}"));
        merged[0].workspaces.fork(&named(MAIN), std::slice::from_ref(&name), &first).expect("forked");
        let request = RequestId::new(format!("request {number}")).expect("a valid id");
        let barrier = std::sync::Barrier::new(2);
        let entries: Vec<QueueEntry> = std::thread::scope(|scope| {
            let submit = |at: usize| {
                let (merged, name, barrier) = (&merged[at], &name, &barrier);
                // Each node has its own clock.
                let act = OperationContext::new("agent", Time(10 + at as i64)).as_request(request.clone());
                scope.spawn(move || {
                    barrier.wait();
                    merged.queue.submit(name, &named(MAIN), &QueueOptions::default(), &act).expect("queued")
                })
            };
            [submit(0), submit(1)].map(|thread| thread.join().expect("no panic")).into()
        });
        assert_eq!(entries[0].id, entries[1].id, "both callers wait for the entry that exists");
        assert_eq!(merged[0].queue.list(None).expect("a list").len(), number + 1);
    }
}

fn place_store(place: &CloudPlace) -> Store {
    Store::new(Arc::new(place.node()), &StoreOptions::default())
}
