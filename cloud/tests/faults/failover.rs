//! PostgreSQL replaced by its synchronous standby while nodes commit: nothing acknowledged is lost, nothing is done twice, and the old
//! server acknowledges nothing more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use amalgam_engine::reference::RequestId;

use super::*;

const NODES: u64 = 3;
const COMMITS: u64 = 30;
/// Commits of each node before the failover.
const COMMITS_BEFORE: u64 = 8;

fn bytes_of(commit: u64) -> usize {
    if commit.is_multiple_of(3) { 200 << 10 } else { 1_000 }
}

fn object_of(node: u64, commit: u64) -> StoredObject {
    object(&format!("node {node} commit {commit}"), bytes_of(commit))
}

/// Moves the reference of a node from one number to the next, durably, with a request id.
fn durable_step(cloud: &Cloud, node: u64, commit: u64) -> Result<Committed> {
    let reference = name(&format!("node {node}"));
    let value = |number: u64| RefValue::noting(number.to_string());
    let request = Some(RequestId::new(format!("node {node} commit {commit}")).expect("a valid id"));
    cloud.transact(Transaction {
        objects: vec![object_of(node, commit)],
        expect: vec![(reference.clone(), (commit > 1).then(|| value(commit - 1)))],
        set: vec![(reference, Some(value(commit)))],
        operation: Some(OperationDraft { request, ..OperationDraft::default() }),
        durability: Durability::Durable,
    })
}

/// Opens a project until it succeeds.
fn open_again(settings: &CloudOptions) -> Cloud {
    let begun = Instant::now();
    loop {
        match Cloud::open(settings) {
            Ok(cloud) => return cloud,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "{error}"),
        }
    }
}

/// Commits as a node does whose caller repeats a request until it is acknowledged. Returns how often the node was expelled, and how
/// many requests had been done by an attempt that failed.
fn write(settings: &CloudOptions, node: u64, acknowledged: &AtomicU64, has_failed_over: &AtomicBool) -> (u64, u64) {
    let mut cloud = open_again(settings);
    let (mut expelled, mut replayed) = (0, 0);
    for commit in 1..=COMMITS {
        // A fast node leaves commits for the time after the failover, however slow the others are.
        let begun = Instant::now();
        while commit > COMMITS / 2 && !has_failed_over.load(Ordering::SeqCst) {
            assert!(begun.elapsed() < Duration::from_secs(90), "the failover does not come");
            std::thread::sleep(Duration::from_millis(1));
        }
        loop {
            match durable_step(&cloud, node, commit) {
                Ok(done) => {
                    replayed += u64::from(done.replayed);
                    break;
                }
                Err(error) => {
                    assert!(matches!(error, Error::Unreachable { .. }), "node {node} commit {commit}: {error:?}");
                    expelled += u64::from(error.to_string().contains("expelled"));
                    drop(cloud);
                    cloud = open_again(settings);
                }
            }
        }
        acknowledged.fetch_add(1, Ordering::SeqCst);
    }
    (expelled, replayed)
}

#[test]
fn a_failover_in_the_middle_of_commits_loses_nothing_acknowledged_and_doubles_nothing() {
    let Some(mut primary) = postgres::own() else { return };
    let mut standby = primary.start_standby().expect("a standby");
    let bucket = FaultyBucket::new();
    let proxies: Vec<_> = (0..NODES).map(|_| Proxy::start(primary.directory())).collect();
    let counts: Vec<_> = (0..NODES).map(|_| AtomicU64::new(0)).collect();
    let has_failed_over = AtomicBool::new(false);
    let results: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..NODES)
            .map(|node| {
                let settings = options(postgres::url(proxies[node as usize].directory()), &bucket, "failover");
                let count = &counts[node as usize];
                let has_failed_over = &has_failed_over;
                scope.spawn(move || write(&settings, node, count, has_failed_over))
            })
            .collect();
        let begun = Instant::now();
        while counts.iter().any(|count| count.load(Ordering::SeqCst) < COMMITS_BEFORE) {
            assert!(begun.elapsed() < Duration::from_secs(60) && writers.iter().all(|writer| !writer.is_finished()));
            std::thread::sleep(Duration::from_millis(1));
        }
        // At least these commits are done, and no node learns of it before the failover.
        proxies.iter().for_each(Proxy::swallow_next_answer);
        std::thread::sleep(Duration::from_millis(20));
        primary.stop();
        standby.promote();
        proxies.iter().for_each(|proxy| proxy.redirect(standby.directory()));
        has_failed_over.store(true, Ordering::SeqCst);
        writers.into_iter().map(|writer| writer.join().expect("no panic")).collect()
    });
    assert!(results.iter().all(|(expelled, _)| *expelled > 0), "each node is fenced by the failover: {results:?}");
    let fresh = open(&options(standby.url(), &bucket, "failover"));
    for node in 0..NODES {
        let value = fresh.read_ref(&name(&format!("node {node}"))).expect("read");
        assert_eq!(value, Some(RefValue::noting(COMMITS.to_string())), "node {node}");
        for commit in 1..=COMMITS {
            let object = object_of(node, commit);
            assert_eq!(fresh.get(object.id).expect("get").expect("there"), object.bytes, "{node} {commit}");
        }
    }
    let operations = fresh.list_operations(0, 1_000).expect("list");
    assert_eq!(operations.len() as u64, NODES * COMMITS, "one operation for each acknowledged commit");
    assert!(operations.iter().zip(1..).all(|(operation, number)| operation.sequence == number), "no gap");
}

/// The old server runs on and does not know that it was replaced. Its commits wait for the standby, which does not come back.
#[test]
fn a_server_that_was_replaced_acknowledges_no_durable_commit() {
    let Some(mut primary) = postgres::own() else { return };
    let mut standby = primary.start_standby().expect("a standby");
    let bucket = FaultyBucket::new();
    let proxy = Proxy::start(primary.directory());
    let mut settings = options(postgres::url(proxy.directory()), &bucket, "replaced");
    settings.retry_time = Duration::from_secs(3);
    let cloud = open(&settings);
    durable_step(&cloud, 0, 1).expect("committed");
    standby.promote();
    // The connections that exist lead to the old server still.
    proxy.redirect(standby.directory());
    let error = durable_step(&cloud, 0, 2).expect_err("the new server does not know this node");
    assert!(error.to_string().contains("expelled"), "{error}");
    let again = open_again(&settings);
    assert_eq!(again.last_operation().expect("last"), 1, "the new server does not have it");
    let done = durable_step(&again, 0, 2).expect("committed");
    assert!(!done.replayed && done.operation.is_some_and(|operation| operation.sequence == 2));
    assert_eq!(again.list_operations(0, 10).expect("list").len(), 2);
}

/// A standby would answer reads with what was true a while ago.
#[test]
fn a_standby_is_refused() {
    let Some(mut primary) = postgres::own() else { return };
    let bucket = FaultyBucket::new();
    let cloud = open(&options(primary.url(), &bucket, "standby"));
    durable_step(&cloud, 0, 1).expect("committed");
    let mut standby = primary.start_standby().expect("a standby");
    let mut settings = options(standby.url(), &bucket, "standby");
    settings.retry_time = Duration::from_millis(100);
    let error = Cloud::open(&settings).err().expect("refused");
    assert!(error.to_string().contains("is a standby"), "{error}");
    standby.promote();
    assert_eq!(open(&settings).last_operation().expect("last"), 1);
}
