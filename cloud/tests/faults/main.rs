//! Faults between a node, PostgreSQL and the bucket: lost answers, expelled nodes, damaged packs. Nothing acknowledged is lost, nothing
//! is done twice, and an error names the damaged pack.

mod cache;
mod connections;
mod failover;
mod storm;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use amalgam_cloud::{Cloud, CloudOptions};
use amalgam_engine::backend::{
    Backend as _, Committed, Durability, FilePart, KeptRows, LiveTrees as _, StoredObject, Sweep as _, Transaction,
};
use amalgam_engine::reference::{OperationDraft, RefName, RefValue};
use amalgam_engine::{
    Commit, Error, ObjectId, ObjectKind, Result, SnapshotId, SplitMix64, Store, StoreOptions, WorkingTree,
};
use amalgam_test_support::faulty_bucket::{Fault, FaultyBucket};
use amalgam_test_support::postgres;
use amalgam_test_support::postgres_proxy::PostgresProxy as Proxy;
use bytes::Bytes;

fn options(database: String, bucket: &Arc<FaultyBucket>, project: &str) -> CloudOptions {
    let mut options = CloudOptions::new(database, Arc::clone(bucket) as Arc<_>, project);
    options.connections = 4;
    options.grace = Duration::ZERO;
    options
}

fn open(options: &CloudOptions) -> Cloud {
    Cloud::open(options).expect("the server runs")
}

fn name(text: &str) -> RefName {
    RefName::new(text).expect("a valid name")
}

/// An object that cannot be confused with another.
fn object(text: &str, bytes: usize) -> StoredObject {
    let bytes: Bytes = text.bytes().cycle().take(bytes).collect();
    StoredObject { id: ObjectId::of(ObjectKind::Directory, &bytes), bytes }
}

/// Moves a reference from one number to the next, with objects.
fn step(cloud: &Cloud, reference: &str, from: Option<u64>, to: u64, objects: Vec<StoredObject>) -> Result<Committed> {
    let value = |number: u64| RefValue::noting(number.to_string());
    cloud.transact(Transaction {
        objects,
        expect: vec![(name(reference), from.map(value))],
        set: vec![(name(reference), Some(value(to)))],
        operation: Some(OperationDraft::default()),
        durability: Durability::Buffered,
    })
}

#[test]
fn a_lost_answer_of_a_commit_is_found_again_and_nothing_is_done_twice() {
    let Some(server) = postgres::own() else { return };
    let proxy = Proxy::start(server.directory());
    let bucket = FaultyBucket::new();
    let mut settings = options(postgres::url(proxy.directory()), &bucket, "lost answers");
    // One connection, so that the next answer is that of the commit.
    settings.connections = 1;
    let cloud = open(&settings);
    step(&cloud, "a", None, 0, Vec::new()).expect("the first");
    for number in 0..20 {
        proxy.swallow_next_answer();
        let object = object(&format!("object {number}"), 100);
        let id = object.id;
        let done = step(&cloud, "a", Some(number), number + 1, vec![object]).expect("sent again");
        let operation = done.operation.expect("it has a record");
        assert_eq!((operation.sequence, done.replayed), (number + 2, false));
        assert_eq!(operation.changes[0].previous, number + 1);
        assert!(cloud.get(id).expect("get").is_some(), "its object is there");
    }
    assert_eq!(proxy.swallowed(), 20, "every answer was lost once");
    assert_eq!(cloud.last_operation().expect("last"), 21);
    assert_eq!(cloud.list_operations(0, 100).expect("list").len(), 21, "no operation twice, and no gap");
}

#[test]
fn a_lost_answer_of_a_deletion_is_found_again() {
    let Some(server) = postgres::own() else { return };
    let proxy = Proxy::start(server.directory());
    let bucket = FaultyBucket::new();
    let mut settings = options(postgres::url(proxy.directory()), &bucket, "lost deletions");
    settings.connections = 1;
    let cloud = open(&settings);
    let (dead, young) = (object("dead", 100), object("young", 100));
    cloud.put_ahead(vec![dead.clone()]).expect("put");
    let epoch = cloud.advance_epoch().expect("a collection");
    cloud.put_ahead(vec![young.clone()]).expect("put");
    proxy.swallow_next_answer();
    let ids = [dead.id, young.id, object("absent", 100).id];
    assert_eq!(cloud.delete(&ids, epoch).expect("sent again").deleted(), [true, false, false]);
    assert_eq!(proxy.swallowed(), 1);
    assert_eq!(cloud.contains_many(&ids, 0).expect("contains"), [false, true, false]);
    cloud.end_collection();
}

#[test]
fn a_put_whose_answer_was_lost_is_sent_again() {
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let cloud = open(&options(url, &bucket, "lost puts"));
    let large = object("large", 300 << 10);
    bucket.inject(Fault::LosePutAnswer);
    step(&cloud, "a", None, 1, vec![large.clone()]).expect("committed");
    assert_eq!(bucket.injected(), 1);
    cloud.release_memory().expect("the cache is empty");
    assert_eq!(cloud.get(large.id).expect("get").expect("there"), large.bytes);

    // A put that fails for good leaves no reference.
    bucket.inject(Fault::FailPut);
    bucket.inject(Fault::FailPut);
    let error = step(&cloud, "a", Some(1), 2, vec![object("other", 300 << 10)]).expect_err("the bucket fails");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert_eq!(cloud.read_ref(&name("a")).expect("read"), Some(RefValue::noting("1")));
    step(&cloud, "a", Some(1), 2, vec![object("other", 300 << 10)]).expect("the bucket works again");
}

#[test]
fn a_body_that_ends_early_is_read_again() {
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let cloud = open(&options(url, &bucket, "short bodies"));
    let large = object("large", 300 << 10);
    step(&cloud, "a", None, 1, vec![large.clone()]).expect("committed");
    for fault in [Fault::TruncateGet, Fault::FlipGet, Fault::FailGet] {
        cloud.release_memory().expect("the cache is empty");
        bucket.inject(fault);
        assert_eq!(cloud.get(large.id).expect("get").expect("there"), large.bytes, "{fault:?}");
    }
    assert_eq!(bucket.injected(), 3);
}

#[test]
fn a_flipped_byte_in_a_pack_names_it_and_the_others_are_readable() {
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let settings = options(url, &bucket, "flipped");
    let cloud = open(&settings);
    let (first, second) = (object("first", 200 << 10), object("second", 200 << 10));
    step(&cloud, "a", None, 1, vec![first.clone()]).expect("committed");
    let pack = bucket.names().remove(0);
    step(&cloud, "a", Some(1), 2, vec![second.clone()]).expect("committed");
    cloud.release_memory().expect("the cache is empty");
    bucket.flip(&pack, 1_000);
    let error = cloud.get(first.id).expect_err("damaged");
    assert!(error.to_string().contains(&pack), "{error}");
    assert_eq!(cloud.get(second.id).expect("get").expect("there"), second.bytes);

    // The footer of a pack, and a pack that is gone: another node opens the project all the same.
    bucket.flip(&pack, 1_000);
    bucket.flip(&pack, (200 << 10) + 5);
    let other = open(&settings);
    assert_eq!(other.get(second.id).expect("get").expect("there"), second.bytes);
    let error = other.get(first.id).expect_err("damaged");
    assert!(error.to_string().contains(&pack), "{error}");
    bucket.remove(&pack);
    let error = cloud.get(first.id).expect_err("missing");
    assert!(error.to_string().contains(&pack) && error.to_string().contains("missing"), "{error}");
}

#[test]
fn two_swapped_packs_are_named_and_the_others_are_readable() {
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let settings = options(url, &bucket, "swapped");
    let cloud = open(&settings);
    // Two packs of one size, and one of another.
    let objects = [object("first", 200 << 10), object("second", 200 << 10), object("third", 300 << 10)];
    let mut packs: Vec<String> = Vec::new();
    for (number, object) in (0..).zip(&objects) {
        step(&cloud, "a", u64::checked_sub(number, 1), number, vec![object.clone()]).expect("committed");
        let new: Vec<_> = bucket.names().into_iter().filter(|name| !packs.contains(name)).collect();
        packs.extend(new);
    }
    let kept = object("kept", 200 << 10);
    step(&cloud, "a", Some(2), 3, vec![kept.clone()]).expect("committed");
    for (one, other) in [(0, 1), (1, 2)] {
        bucket.swap([&packs[one], &packs[other]]);
        cloud.release_memory().expect("the cache is empty");
        let fresh = open(&settings);
        for node in [&cloud, &fresh] {
            for at in [one, other] {
                let error = node.get(objects[at].id).expect_err("the bytes are those of another pack");
                assert!(error.to_string().contains(&packs[at]), "{error}");
            }
            assert_eq!(node.get(kept.id).expect("get").expect("there"), kept.bytes);
        }
        bucket.swap([&packs[one], &packs[other]]);
    }
    let fresh = open(&settings);
    for object in &objects {
        assert_eq!(fresh.get(object.id).expect("get").expect("there"), object.bytes);
    }
}

#[test]
fn a_stale_read_of_the_bucket_is_repeated() {
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let settings = options(url, &bucket, "stale reads");
    let cloud = open(&settings);
    let large = object("large", 300 << 10);
    step(&cloud, "a", None, 1, vec![large.clone()]).expect("committed");
    cloud.release_memory().expect("the cache is empty");
    bucket.inject(Fault::StaleGet);
    assert_eq!(cloud.get(large.id).expect("get").expect("there"), large.bytes);
    // A node whose first look at a new pack is stale, or damaged on the way, finds its objects all the same.
    for fault in [Fault::StaleGet, Fault::FlipGet, Fault::TruncateGet] {
        bucket.inject(fault);
        let other = open(&settings);
        assert_eq!(other.get(large.id).expect("get").expect("there"), large.bytes, "{fault:?}");
    }
    // Three times in a row, the node gives the pack up, and looks at it again when an object is not found.
    for _ in 0..3 {
        bucket.inject(Fault::FlipGet);
    }
    let other = open(&settings);
    assert_eq!(bucket.injected(), 7);
    assert_eq!(other.get(large.id).expect("get").expect("there"), large.bytes);
}

#[test]
fn a_fenced_node_reads_and_does_not_write() {
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let mut settings = options(url, &bucket, "fenced");
    settings.node = Some([7; 16]);
    let first = open(&settings);
    step(&first, "a", None, 1, vec![object("before", 100)]).expect("committed");
    // The same node starts again somewhere else.
    let second = open(&settings);
    for objects in [vec![object("large", 300 << 10)], Vec::new(), vec![object("inline", 100)]] {
        let error = step(&first, "a", Some(1), 2, objects).expect_err("fenced");
        assert!(error.to_string().contains("expelled"), "{error}");
    }
    first.put_ahead(vec![object("ahead", 100)]).expect_err("fenced");
    first.advance_epoch().expect_err("fenced");
    assert_eq!(first.read_ref(&name("a")).expect("read"), Some(RefValue::noting("1")));
    assert!(first.get(object("before", 100).id).expect("get").is_some());
    step(&second, "a", Some(1), 2, Vec::new()).expect("the other one writes");
    assert_eq!(second.last_operation().expect("last"), 2);

    // The pack of the refused transaction is found by its reservation.
    assert_eq!(bucket.names().len(), 1, "it was put before it was refused");
    second.advance_epoch().expect("a collection");
    let nothing = KeptRows { numbers: Arc::default(), gone: Arc::default(), end: 0 };
    assert!(second.reclaim(nothing, &mut |_| ControlFlow::Continue(())).expect("reclaimed").finished);
    assert_eq!(bucket.names(), Vec::<String>::new());
}

#[test]
fn a_silent_node_is_expelled_by_a_collection_and_an_alive_one_is_not() {
    let Some(server) = postgres::own() else { return };
    let bucket = FaultyBucket::new();
    let proxy = Proxy::start(server.directory());
    let mut settings = options(postgres::url(proxy.directory()), &bucket, "silent");
    settings.lease = Duration::from_millis(300);
    settings.retry_time = Duration::from_secs(60);
    let silent = open(&settings);
    step(&silent, "a", None, 1, Vec::new()).expect("committed");
    let collector = open(&options(server.url(), &bucket, "silent"));
    collector.advance_epoch().expect("a collection");
    collector.sessions_elsewhere().expect("the other node answers");
    collector.end_collection();
    step(&silent, "a", Some(1), 2, Vec::new()).expect("its lease is alive");
    // As if it were stopped: its heartbeat and its answer do not arrive until the collector has expelled it.
    proxy.hold();
    let sent = std::thread::spawn(move || (step(&silent, "a", Some(2), 3, Vec::new()), silent));
    collector.advance_epoch().expect("a collection");
    collector.sessions_elsewhere().expect("the silent node is expelled");
    let joined = open(&options(server.url(), &bucket, "silent"));
    let error = joined.advance_epoch().expect_err("a collection is under way");
    assert!(error.to_string().contains("another node collects"), "{error}");
    proxy.release();
    let (sent, silent) = sent.join().expect("no panic");
    let error = sent.expect_err("it was expelled");
    assert!(error.to_string().contains("expelled"), "{error}");
    step(&collector, "a", Some(2), 3, Vec::new()).expect("history did not fork");
    assert_eq!(silent.read_ref(&name("a")).expect("read"), Some(RefValue::noting("3")));
    collector.end_collection();
}

#[test]
fn a_collector_that_lost_its_lease_deletes_nothing() {
    let Some(server) = postgres::own() else { return };
    let bucket = FaultyBucket::new();
    let proxy = Proxy::start(server.directory());
    let mut settings = options(postgres::url(proxy.directory()), &bucket, "lost leases");
    settings.lease = Duration::from_millis(300);
    settings.retry_time = Duration::from_secs(60);
    let first = open(&settings);
    let dead = object("dead", 300 << 10);
    first.put_ahead(vec![dead.clone()]).expect("put");
    let epoch = first.advance_epoch().expect("a collection");
    proxy.hold();
    let second = open(&options(server.url(), &bucket, "lost leases"));
    while second.advance_epoch().is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    second.sessions_elsewhere().expect("the first one is expelled");
    // A session of the second node relies on the object now.
    assert_eq!(second.contains_many(&[dead.id], second.epoch()).expect("checked"), [true]);
    second.end_collection();
    proxy.release();
    first.delete(&[dead.id], epoch + 1).expect_err("its lease is lost");
    let nothing = KeptRows { numbers: Arc::default(), gone: Arc::default(), end: 1_000 };
    first.reclaim(nothing, &mut |_| ControlFlow::Continue(())).expect_err("its lease is lost");
    first.end_collection();
    second.release_memory().expect("the cache is empty");
    assert_eq!(second.get(dead.id).expect("get").expect("kept"), dead.bytes);
}

#[test]
fn a_pack_that_was_put_and_never_named_goes_while_its_node_lives() {
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let mut settings = options(url, &bucket, "never named");
    settings.pack_bytes = 256 << 10;
    let cloud = open(&settings);
    step(&cloud, "a", None, 1, vec![object("kept", 200 << 10)]).expect("committed");
    // One put is not done, and one is done and fails all the same.
    bucket.inject(Fault::FailPut);
    bucket.inject(Fault::FailPut);
    step(&cloud, "a", Some(1), 2, vec![object("failed", 200 << 10)]).expect_err("the bucket fails");
    bucket.inject(Fault::LosePutAnswer);
    bucket.inject(Fault::FailPut);
    step(&cloud, "a", Some(1), 2, vec![object("lost", 200 << 10)]).expect_err("the bucket fails");
    assert_eq!(bucket.names().len(), 2, "a pack that nothing names");
    // Names are given up with the next reservation.
    for number in 1..80 {
        step(&cloud, "a", Some(number), number + 1, vec![object(&format!("more {number}"), 200 << 10)])
            .expect("committed");
    }
    let before = bucket.names().len();
    cloud.advance_epoch().expect("a collection");
    let everything = KeptRows { numbers: Arc::default(), gone: Arc::default(), end: 0 };
    assert!(cloud.reclaim(everything, &mut |_| ControlFlow::Continue(())).expect("reclaimed").finished);
    cloud.end_collection();
    assert_eq!(bucket.names().len(), before - 1);
    assert!(cloud.get(object("kept", 200 << 10).id).expect("get").is_some());
}

#[test]
fn nodes_survive_a_restart_of_postgres_and_are_fenced_by_its_crash() {
    let Some(mut server) = postgres::own() else { return };
    let bucket = FaultyBucket::new();
    let settings = options(server.url(), &bucket, "restarts");
    let cloud = open(&settings);
    step(&cloud, "a", None, 1, vec![object("one", 100)]).expect("committed");
    server.restart();
    step(&cloud, "a", Some(1), 2, vec![object("two", 100)]).expect("connections are made anew");
    let taken = cloud.take("main").expect("take");
    let names = ["0.journal".to_owned()];
    let part = |start: u64, text: &str| FilePart { name: names[0].clone(), start, bytes: text.as_bytes().to_vec() };
    assert!(cloud.write(taken.number, taken.token, &names, &[part(0, "edit")]).expect("write"));
    cloud.sync().expect("durable");
    server.crash();
    let error = step(&cloud, "a", Some(2), 3, Vec::new()).expect_err("buffered commits may be lost");
    assert!(error.to_string().contains("open the store again"), "{error}");
    for error in [
        cloud.sync().expect_err("buffered commits may be lost"),
        cloud.write(taken.number, taken.token, &names, &[part(4, " late")]).expect_err("fenced"),
        cloud.release(taken.number, taken.token).expect_err("fenced"),
    ] {
        assert!(error.to_string().contains("expelled"), "{error}");
    }
    let again = open(&settings);
    assert_eq!(again.read_ref(&name("a")).expect("read"), Some(RefValue::noting("2")), "what was synced is there");
    step(&again, "a", Some(2), 3, Vec::new()).expect("committed");
    assert_eq!(again.take("main").expect("take").files, [(names[0].clone(), b"edit".to_vec())]);
    for text in ["one", "two"] {
        assert!(again.get(object(text, 100).id).expect("get").is_some(), "{text}");
    }
}

#[test]
fn two_readers_of_one_object_fetch_it_once() {
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let cloud = open(&options(url, &bucket, "one fetch"));
    let large = object("large", 300 << 10);
    step(&cloud, "a", None, 1, vec![large.clone()]).expect("committed");
    cloud.release_memory().expect("the cache is empty");
    let before = bucket.gets();
    // The first get waits until the other threads have asked too.
    bucket.hold_gets();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| cloud.get(large.id).expect("get"))).collect();
        while bucket.gets() == before {
            std::thread::yield_now();
        }
        bucket.release_gets();
        for thread in threads {
            assert_eq!(thread.join().expect("no panic").expect("there"), large.bytes);
        }
    });
    assert_eq!(bucket.gets() - before, 1);
}

#[test]
fn neighbours_are_read_with_one_request() {
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let cloud = open(&options(url, &bucket, "neighbours"));
    let objects: Vec<_> = (0..400).map(|number| object(&format!("object {number}"), 2_000)).collect();
    cloud.put_ahead(objects.clone()).expect("put");
    cloud.release_memory().expect("the cache is empty");
    let before = bucket.gets();
    let ids: Vec<_> = objects.iter().rev().map(|object| object.id).collect();
    let found = cloud.get_many(&ids).expect("get");
    assert!(found.iter().zip(objects.iter().rev()).all(|(found, object)| found.as_ref() == Some(&object.bytes)));
    assert_eq!(bucket.gets() - before, 1, "of {} objects", ids.len());
    assert_eq!(bucket.puts(), 1);
}

/// A large file has chunks, and a rope and directories above them, which are objects of another family.
#[test]
fn a_commit_of_a_large_file_is_one_statement_with_one_put_before_it() {
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let settings = options(url, &bucket, "round trips of files");
    let cloud = Arc::new(open(&settings));
    let store = Store::new(Arc::clone(&cloud) as Arc<_>, &StoreOptions::default());
    let mut tree = WorkingTree::new(&store);
    tree.create_directories("directory").expect("made");
    let head = name("head/main");
    let mut commit = |seed: u64, bytes: usize| {
        let before = (cloud.calls(), bucket.puts());
        tree.write("directory/file", &SplitMix64::new(seed).bytes(bytes)).expect("write");
        tree.commit(Commit::new(&head, "an edit")).expect("commit");
        let after = (cloud.calls(), bucket.puts());
        (after.0.statements - before.0.statements, after.1 - before.1)
    };
    // Makes the directory, and reserves names of packs.
    commit(0, 512 << 10);
    for (seed, bytes, puts) in [(1, 1 << 10, 0), (2, 512 << 10, 1), (3, 5 << 20, 1), (4, 100 << 10, 0)] {
        assert_eq!(commit(seed, bytes), (1, puts), "{bytes} bytes");
    }
    drop(tree);
    let reader = Store::new(Arc::new(open(&settings)), &StoreOptions::default());
    let target = reader.read_ref(&head).expect("read").and_then(|value| value.target).expect("a head");
    let tree = WorkingTree::open(&reader, SnapshotId::from_bytes(target.hash)).expect("open");
    assert!(tree.read("directory/file").expect("read") == SplitMix64::new(4).bytes(100 << 10));
}

#[test]
fn a_commit_is_one_statement_and_a_large_one_has_one_put_before_it() {
    let Some(url) = postgres::shared() else { return };
    let bucket = FaultyBucket::new();
    let cloud = open(&options(url, &bucket, "round trips"));
    // Reserves names of packs.
    step(&cloud, "a", None, 0, vec![object("first", 200 << 10)]).expect("committed");
    for (from, bytes, puts) in [(0, 10, 0), (1, 128 << 10, 0), (2, (128 << 10) + 1, 1), (3, 5 << 20, 1)] {
        let before = cloud.calls();
        step(&cloud, "a", Some(from), from + 1, vec![object(&format!("of {bytes}"), bytes)]).expect("committed");
        let after = cloud.calls();
        assert_eq!((after.statements - before.statements, after.puts - before.puts), (1, puts), "{bytes} bytes");
    }
}
