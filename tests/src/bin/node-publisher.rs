//! Submits entries to the merge queue of a project of PostgreSQL and a bucket, and folds the queue, as a node of its own, until it is
//! killed. Each submission has a request id and is repeated until it is acknowledged. Started by the tests:
//! `node-publisher DATABASE BUCKET PROJECT LEASE_MILLISECONDS NAME`.
//!
//! Prints `queued NUMBER ENTRY`, `test ENTRY MICROSECONDS` when a test begins, `tested ENTRY MICROSECONDS` when it has ended and counts,
//! `cancelled ENTRY MICROSECONDS` when its node was expelled meanwhile, `landed ENTRY` and `review ENTRY` when a fold was acknowledged,
//! and `opened` whenever the project was opened.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a process of its own tells its progress")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use amalgam_cloud::{Cloud, CloudOptions, open_bucket};
use amalgam_engine::queue::{EntryOutcome, MergePolicy, Queue, QueueEntry, QueueOptions, TestVerdict};
use amalgam_engine::workspace::Change;
use amalgam_engine::{
    Error, ErrorKind, History, MergeContents, OperationContext, RequestId, Result, RootId, Store, StoreOptions, Time,
    Workspaces,
};
use amalgam_tests::harness::merging::{MAIN, Strict, named};
use parking_lot::Mutex;

/// How long a test takes.
const TEST_TIME: Duration = Duration::from_millis(60);
/// The number of waiting entries from which on no more are submitted.
const WAITING_MAX: usize = 12;
/// Delay after a call that failed or found nothing to do.
const DELAY: Duration = Duration::from_millis(10);

/// The project as this process has it open.
struct Node {
    cloud: Arc<Cloud>,
    workspaces: Workspaces,
    queue: Queue,
}

impl Node {
    fn open(options: &CloudOptions) -> Result<Arc<Self>> {
        let cloud = Arc::new(Cloud::open(options)?);
        let store = Store::new(Arc::clone(&cloud) as Arc<_>, &StoreOptions::default());
        let (workspaces, history) = (Workspaces::of(&store), History::of(&store));
        let queue = Queue::of(&workspaces, &history).with_leases(Arc::clone(&cloud) as Arc<_>);
        println!("opened");
        Ok(Arc::new(Self { cloud, workspaces, queue }))
    }
}

/// Runs the tests of entries: an entry whose test says `fail` does not pass. As a server does, it ends a test when its node was expelled.
struct Tests<'a>(&'a Node);

impl MergePolicy for Tests<'_> {
    fn contents(&self, _entry: &QueueEntry) -> Result<Box<dyn MergeContents + '_>> {
        Ok(Box::new(Strict))
    }

    fn test(&self, entry: &QueueEntry, _tree: RootId) -> Result<TestVerdict> {
        println!("test {} {}", entry.id, microseconds());
        let begun = Instant::now();
        while begun.elapsed() < TEST_TIME {
            if self.0.cloud.is_expelled() {
                println!("cancelled {} {}", entry.id, microseconds());
                return Err(Error::Interrupted);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        println!("tested {} {}", entry.id, microseconds());
        let fails = entry.options.test.iter().any(|word| word == "fail");
        Ok(if fails { TestVerdict::Failed("it fails".to_owned()) } else { TestVerdict::Passed })
    }
}

#[expect(clippy::disallowed_methods, reason = "a program of a test tells when it did something")]
fn microseconds() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros())
}

fn now() -> Time {
    Time(i64::try_from(microseconds() * 1_000).unwrap_or(i64::MAX))
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [database, bucket, project, lease, name] = &words[..] else {
        eprintln!("usage: node-publisher DATABASE BUCKET PROJECT LEASE_MILLISECONDS NAME");
        return ExitCode::FAILURE;
    };
    let (Ok(lease), Ok(bucket)) = (lease.parse(), open_bucket(bucket)) else {
        eprintln!("node-publisher: a number and a bucket");
        return ExitCode::FAILURE;
    };
    let mut options = CloudOptions::new(database, bucket, project);
    options.connections = 4;
    options.lease = Duration::from_millis(lease);
    options.inline_bytes_max = 4 << 10;
    // A call over a partition fails and is repeated by the caller.
    options.retry_time = Duration::from_millis(lease);
    let node = Mutex::new(patiently(|| Node::open(&options)));
    // Opens the project anew if this process was expelled from it.
    let mend = |old: &Arc<Node>| {
        let mut node = node.lock();
        if Arc::ptr_eq(&node, old)
            && old.cloud.is_expelled()
            && let Ok(fresh) = Node::open(&options)
        {
            *node = fresh;
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let open = Arc::clone(&node.lock());
                if let Err(error) = fold(&open) {
                    check(&error);
                    mend(&open);
                }
                std::thread::sleep(DELAY);
            }
        });
        for number in 1.. {
            let waiting = || {
                let open = Arc::clone(&node.lock());
                open.queue.list(Some(&named(MAIN))).map_or(0, |entries| entries.len())
            };
            while waiting() >= WAITING_MAX {
                std::thread::sleep(DELAY);
            }
            let moment = now();
            loop {
                let open = Arc::clone(&node.lock());
                match submit(&open, name, number, moment) {
                    Ok(entry) => {
                        println!("queued {number} {}", entry.id);
                        break;
                    }
                    Err(error) => {
                        check(&error);
                        mend(&open);
                        std::thread::sleep(DELAY);
                    }
                }
            }
        }
    });
    ExitCode::SUCCESS
}

fn patiently<T>(mut call: impl FnMut() -> Result<T>) -> T {
    loop {
        match call() {
            Ok(done) => return done,
            Err(error) => check(&error),
        }
        std::thread::sleep(DELAY);
    }
}

/// Ends the process with a panic for an error that no fault explains.
fn check(error: &Error) {
    let is_excused =
        matches!(error.kind(), ErrorKind::Busy | ErrorKind::Fault | ErrorKind::Interrupted | ErrorKind::Stale);
    assert!(is_excused, "{error:?}");
}

/// Makes a workspace with a file of its own, and puts it into the queue of `main`. Does what is left of that when it is called again.
fn submit(node: &Node, name: &str, number: u64, moment: Time) -> Result<QueueEntry> {
    let workspace = named(format!("{name}/{number}"));
    let context = |what: &str| {
        let request = RequestId::new(format!("{name} {number} {what}")).expect("a valid id");
        OperationContext::new(name, moment).as_request(request)
    };
    let submitting = context("submit");
    // A workspace that ends with its merge may be gone already.
    if let Some(entry) = node.queue.find_submitted(&submitting)? {
        return Ok(entry);
    }
    if node.workspaces.find(&workspace)?.is_none() {
        node.workspaces.fork(&named(MAIN), std::slice::from_ref(&workspace), &context("fork"))?;
    }
    let path = format!("{name}-{number}");
    let mut tree = node.workspaces.open(&workspace)?;
    if !tree.exists(&path)? {
        tree.write(&path, path.as_bytes())?;
        node.workspaces.commit(&workspace, &mut tree, &Change::new("work"), &context("commit"))?;
    }
    let test = match number % 6 {
        0 => vec!["fail".to_owned()],
        2 | 4 => vec!["pass".to_owned()],
        _ => Vec::new(),
    };
    let options = QueueOptions { ends: number.is_multiple_of(2), test, ..QueueOptions::default() };
    node.queue.submit(&workspace, &named(MAIN), &options, &submitting)
}

fn fold(node: &Node) -> Result<()> {
    let done = node.queue.fold(&named(MAIN), &Tests(node), &OperationContext::new("queue", now()))?.done;
    for folded in done {
        match folded.outcome {
            EntryOutcome::Landed(_) => println!("landed {}", folded.entry.id),
            EntryOutcome::Review(_) => println!("review {}", folded.entry.id),
            outcome => println!("unexpected {} {outcome:?}", folded.entry.id),
        }
    }
    Ok(())
}
