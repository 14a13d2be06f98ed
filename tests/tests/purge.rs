//! Forgetting: purged bytes are in no file of the store, reads say so, verification knows it, and what is shared stays.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amalgam_engine::backend::{Family, Inspect, Rocks, RocksOptions, RowEdit};
use amalgam_engine::purge::{PurgeOptions, PurgePlan, PurgeTarget, forget_tombstone, plan_purge, purge, tombstones};
use amalgam_engine::verify::Repaired;
use amalgam_engine::{
    ChunkId, Commit, Error, ErrorKind, ObjectId, ObjectKind, OperationContext, SnapshotId, Store, StoreOptions, Time,
    TreePath, VerifyOptions, WorkingTree, repair, verify,
};
use amalgam_tests::harness::{Place, Random, check_log, name, over_all, over_both};
use bytes::Bytes;

fn act() -> OperationContext {
    OperationContext::new("ada", Time::from_seconds(1_700_000_000, 0))
}

fn path(text: &str) -> PurgeTarget {
    PurgeTarget::Path(TreePath::new(text).expect("a path"))
}

fn plan(store: &Store, target: &PurgeTarget) -> PurgePlan {
    plan_purge(store, target, &PurgeOptions::default()).expect("a plan")
}

fn everywhere(store: &Store, target: &PurgeTarget) -> PurgePlan {
    plan_purge(store, target, &PurgeOptions { everywhere: true }).expect("a plan")
}

/// Every file below a directory that holds these bytes.
fn files_with(directory: &Path, bytes: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).expect("list") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                open.push(path);
            } else if fs::read(&path).expect("read").windows(bytes.len()).any(|window| window == bytes) {
                found.push(path);
            }
        }
    }
    found
}

fn write(store: &Store, from: Option<SnapshotId>, files: &[(&str, &[u8])]) -> SnapshotId {
    let mut tree = match from {
        Some(from) => WorkingTree::open(store, from).expect("open"),
        None => WorkingTree::new(store),
    };
    for (path, bytes) in files {
        if let Some((directory, _)) = path.rsplit_once('/') {
            tree.create_directories(directory).expect("mkdir");
        }
        tree.write(path, bytes).expect("write");
    }
    tree.commit(Commit::new(&name("head/main"), "a step")).expect("commit").snapshot
}

fn assert_clean(store: &Store, purged: u64) {
    let report = verify(store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(())).expect("a report");
    assert!(report.is_clean(), "{report:#?}");
    assert_eq!(report.purged, purged);
}

#[test]
fn purged_bytes_are_in_no_file_of_the_store() {
    for flushed in [false, true] {
        for length in [50, 3_000, 200_000] {
            let directory = tempfile::tempdir().expect("a directory");
            let home = directory.path().join("store");
            let mut random = Random::of(&[length, u64::from(flushed)]);
            // One that is stored as it is, and one that is pressed.
            let noise = random.bytes(length as usize);
            let text: Vec<u8> = (0..400).flat_map(|_| [&random.bytes(6)[..], b" and more text "].concat()).collect();
            let other = random.bytes(5_000);
            let mut store = Store::open(&home).expect("open");
            let first = write(&store, None, &[("secret/noise", &noise), ("secret/text", &text), ("kept", &other)]);
            let second = write(&store, Some(first), &[("more", &random.bytes(2_000))]);
            let pressed = store
                .stored_many(&[ObjectId::of(ObjectKind::Chunk, &text)])
                .expect("stored")
                .remove(0)
                .expect("the text is there");
            assert!(pressed.len() < text.len(), "the text is pressed");
            if flushed {
                drop(store);
                store = Store::open(&home).expect("open");
                write(&store, Some(second), &[("after", &random.bytes(1_000))]);
            }
            let probes = [&noise[..40], &noise[noise.len() - 40..], &pressed[5..60], &other[..40]];
            let held = |bytes: &[u8]| !files_with(&home, bytes).is_empty();
            assert!(probes.iter().all(|probe| held(probe)), "it is there before: {length}, {flushed}");

            for target in ["secret/noise", "secret/text"] {
                let plan = plan(&store, &path(target));
                assert!(plan.shared.is_empty() && !plan.chunks.is_empty());
                purge(&store, &plan, "a key", &act()).expect("purge");
            }
            for probe in &probes[..3] {
                assert_eq!(files_with(&home, probe), Vec::<PathBuf>::new(), "{length}, {flushed}");
            }
            assert!(held(probes[3]), "what is not purged stays");
            let tree = WorkingTree::open(&store, first).expect("open");
            assert_eq!(tree.read("kept").expect("read"), other);
            drop(tree);
            drop(store);
            let store = Store::open(&home).expect("open again");
            assert!(probes[..3].iter().all(|probe| !held(probe)), "nor after it was closed");
            let chunks = tombstones(&store).expect("tombstones").len() as u64;
            assert_clean(&store, chunks);
        }
    }
}

#[test]
fn a_purged_file_says_when_by_whom_and_why() {
    over_all(|place| {
        let store = place.store();
        let first = write(&store, None, &[(".env", b"KEY=hunter2"), ("plan.md", b"think")]);
        let second = write(&store, Some(first), &[("plan.md", b"act")]);
        let plan = plan(&store, &path(".env"));
        assert_eq!(plan.chunks, [ChunkId::of(b"KEY=hunter2")]);
        assert_eq!(plan.places.len(), 2, "both snapshots have it");
        let snapshots: Vec<_> = plan.places.iter().flat_map(|place| place.snapshots.clone()).collect();
        assert!(snapshots.contains(&first) && snapshots.contains(&second));
        assert!(tombstones(&store).expect("tombstones").is_empty(), "a plan changes nothing");
        let done = purge(&store, &plan, "a key", &act()).expect("purge");
        assert_eq!(done.chunks, 1);
        for snapshot in [first, second] {
            let tree = WorkingTree::open(&store, snapshot).expect("open");
            let error = tree.read(".env").expect_err("it is gone");
            assert!(matches!(error, Error::Purged { .. }), "{error:?}");
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.to_string().contains("purged on 2023-11-14 by ada: a key"), "{error}");
            assert!(tree.stat(".env").expect("stat").is_some(), "its name stays");
            assert!(tree.read("plan.md").is_ok());
        }
        assert_clean(&store, 1);
        let log = check_log(&store).expect("the log");
        assert_eq!(log.last().map(|operation| operation.draft.action.as_str()), Some("purge"));
    });
}

#[test]
fn repair_leaves_purged_content_alone() {
    over_all(|place| {
        let backend: Arc<dyn Inspect> = place.backend();
        let store = Store::new(Arc::clone(&backend), &StoreOptions::default());
        write(&store, None, &[("secret", b"hunter2"), ("kept", b"kept")]);
        purge(&store, &plan(&store, &path("secret")), "", &act()).expect("purge");
        let rows = |family| backend.rows(family, &[], None, usize::MAX).expect("rows").rows;
        let before = (rows(Family::Trees), rows(Family::Chunks), rows(Family::Quarantine));
        let repaired = repair(&store, &VerifyOptions::reading_data()).expect("repair");
        assert!(repaired.done.is_empty() && repaired.left.is_clean(), "{:?}", repaired.done);
        assert_eq!((rows(Family::Trees), rows(Family::Chunks), rows(Family::Quarantine)), before);
    });
}

#[test]
fn repair_drops_a_left_copy_of_purged_content() {
    over_both(|place| {
        let backend: Arc<dyn Inspect> = place.backend();
        let store = Store::new(Arc::clone(&backend), &StoreOptions::default());
        let snapshot = write(&store, None, &[("secret", b"hunter2"), ("kept", b"kept")]);
        let secret = ChunkId::of(b"hunter2").object();
        let stored = store.stored_many(&[secret]).expect("stored").remove(0).expect("it is there");
        purge(&store, &plan(&store, &path("secret")), "", &act()).expect("purge");
        let rows = || backend.rows(Family::Chunks, &[], None, usize::MAX).expect("rows").rows;
        let before = rows();
        let key = Bytes::copy_from_slice(&900_u64.to_be_bytes());
        backend.edit(vec![RowEdit { family: Family::Chunks, key, value: Some(stored) }]).expect("left");
        let repaired = repair(&store, &VerifyOptions::reading_data()).expect("repair");
        assert_eq!(repaired.done, [Repaired::Dropped { id: secret }]);
        assert!(repaired.left.is_clean(), "{:#?}", repaired.left);
        assert_eq!(rows(), before);
        let tree = WorkingTree::open(&store, snapshot).expect("open");
        assert!(matches!(tree.read("secret"), Err(Error::Purged { .. })));
        assert_eq!(tree.read("kept").expect("read"), b"kept");
    });
}

#[test]
fn what_other_contents_hold_stays_and_is_told() {
    let shared = Random::new(7).bytes(300_000);
    let longer = [&shared[..], &Random::new(8).bytes(200_000)].concat();
    over_all(|place| {
        let store = place.store();
        let first = write(&store, None, &[("secret", &shared), ("other/longer", &longer), ("copy", b"hunter2")]);
        let second = write(&store, Some(first), &[("again", b"hunter2")]);
        let some = plan(&store, &path("secret"));
        assert!(!some.shared.is_empty() && !some.chunks.is_empty(), "the last chunk is the shorter file's own");
        assert!(some.shared.iter().all(|shared| shared.place.path.to_string() == "other/longer"));
        let of = |plan: &PurgePlan| plan.shared.iter().map(|shared| shared.place.path.to_string()).collect::<Vec<_>>();
        assert_eq!(of(&plan(&store, &path("copy"))), ["again"]);
        assert!(plan(&store, &path("copy")).chunks.is_empty());

        purge(&store, &some, "", &act()).expect("purge");
        let tree = WorkingTree::open(&store, second).expect("open");
        assert_eq!(tree.read("other/longer").expect("it is whole"), longer);
        assert!(matches!(tree.read("secret"), Err(Error::Purged { .. })));
        drop(tree);

        let all = everywhere(&store, &path("secret"));
        assert!(all.shared.is_empty());
        assert_eq!(all.purged_before.len(), some.chunks.len());
        purge(&store, &all, "", &act()).expect("purge");
        let tree = WorkingTree::open(&store, second).expect("open");
        assert!(matches!(tree.read("other/longer"), Err(Error::Purged { .. })));
        assert_eq!(tree.read("copy").expect("read"), b"hunter2");
    });
}

#[test]
fn an_object_is_purged_wherever_it_is() {
    over_all(|place| {
        let store = place.store();
        let first = write(&store, None, &[("a", b"hunter2"), ("b/c", b"hunter2"), ("d", b"other")]);
        let plan = plan(&store, &PurgeTarget::Object(ChunkId::of(b"hunter2").object()));
        assert_eq!((plan.places.len(), plan.shared.len(), plan.chunks.len()), (2, 0, 1));
        purge(&store, &plan, "", &act()).expect("purge");
        let tree = WorkingTree::open(&store, first).expect("open");
        assert!(tree.read("a").is_err() && tree.read("b/c").is_err());
        assert_eq!(tree.read("d").expect("read"), b"other");
        drop(tree);
        let snapshot = PurgeTarget::Object(first.object());
        let error = plan_purge(&store, &snapshot, &PurgeOptions::default()).expect_err("no content");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let error = plan_purge(&store, &path("b"), &PurgeOptions::default()).expect_err("a directory");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    });
}

#[test]
fn content_is_purged_by_a_path_that_is_a_directory_elsewhere() {
    over_all(|place| {
        let store = place.store();
        let first = write(&store, None, &[("secret/kept", b"kept")]);
        let mut tree = WorkingTree::open(&store, first).expect("open");
        tree.remove_all("secret").expect("remove");
        tree.write("secret", b"hunter2").expect("write");
        let second = tree.commit(Commit::new(&name("head/main"), "a file")).expect("commit").snapshot;
        drop(tree);
        let plan = plan(&store, &path("secret"));
        assert_eq!((&plan.chunks[..], plan.places.len()), (&[ChunkId::of(b"hunter2")][..], 1));
        purge(&store, &plan, "a key", &act()).expect("purge");
        let tree = WorkingTree::open(&store, second).expect("open");
        assert!(matches!(tree.read("secret"), Err(Error::Purged { .. })));
        drop(tree);
        let tree = WorkingTree::open(&store, first).expect("open");
        assert_eq!(tree.read("secret/kept").expect("read"), b"kept");
    });
}

#[test]
fn purged_bytes_come_back_only_when_the_tombstone_is_taken_away() {
    over_all(|place| {
        let store = place.store();
        let first = write(&store, None, &[("secret", b"hunter2")]);
        purge(&store, &plan(&store, &path("secret")), "a key", &act()).expect("purge");
        let mut tree = WorkingTree::open(&store, first).expect("open");
        tree.write("elsewhere", b"hunter2").expect("a tree in memory takes it");
        let error = tree.commit(Commit::new(&name("head/main"), "again")).expect_err("it was purged");
        assert!(matches!(error, Error::Unwanted { .. }), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("remove its tombstone first"), "{error}");
        tree.remove("elsewhere").expect("remove");
        tree.write("fine", b"another").expect("write");
        tree.commit(Commit::new(&name("head/main"), "without it")).expect("commit");

        let chunk = ChunkId::of(b"hunter2").object();
        assert!(forget_tombstone(&store, chunk, &act()).expect("forget"));
        assert!(!forget_tombstone(&store, chunk, &act()).expect("there is none any more"));
        tree.write("elsewhere", b"hunter2").expect("write");
        tree.commit(Commit::new(&name("head/main"), "on purpose")).expect("commit");
        let old = WorkingTree::open(&store, first).expect("open");
        assert_eq!(old.read("secret").expect("it is back where it was, too"), b"hunter2");
        drop((old, tree));
        assert_clean(&store, 0);
    });
}

#[test]
fn a_purge_wants_the_store_for_itself_and_as_it_was_planned() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Place::Disk(&directory.path().join("store")).store();
    let first = write(&store, None, &[("secret", b"hunter2")]);
    let planned = plan(&store, &path("secret"));
    let session = store.session();
    let error = purge(&store, &planned, "", &act()).expect_err("a session is open");
    assert!(error.to_string().contains("in use"), "{error}");
    drop(session);
    write(&store, Some(first), &[("copy", b"hunter2")]);
    let error = purge(&store, &planned, "", &act()).expect_err("the store has changed");
    assert!(error.to_string().contains("plan it again"), "{error}");
    let tree = WorkingTree::open(&store, first).expect("open");
    assert_eq!(tree.read("secret").expect("nothing was purged"), b"hunter2");
    drop(tree);
    assert_clean(&store, 0);
}

#[test]
fn a_chunk_that_was_stored_twice_is_purged_wherever_it_lies() {
    for round in 0..6_u64 {
        let directory = tempfile::tempdir().expect("a directory");
        let home = directory.path().join("store");
        let store = Store::open(&home).expect("open");
        let mut random = Random::of(&[round]);
        let secret = random.bytes(1_500);
        write(&store, None, &[("kept", &random.bytes(3_000))]);
        // Each of them finds that nobody has the chunk yet.
        let barrier = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (store, secret, barrier) = (&store, &secret, &barrier);
                scope.spawn(move || {
                    let mut tree = WorkingTree::new(store);
                    tree.write("secret", secret).expect("write");
                    barrier.wait();
                    tree.commit(Commit::new(&name(format!("head/{number}")), "a step")).expect("commit");
                });
            }
        });
        let id = ObjectId::of(ObjectKind::Chunk, &secret);
        // Whatever the threads did: a row that nothing names, as a crash leaves it.
        let stored = store.stored_many(&[id]).expect("stored").remove(0).expect("it is there");
        drop(store);
        let rocks = Rocks::open(&home, &RocksOptions::default()).expect("open");
        let left = RowEdit {
            family: Family::Chunks,
            key: Bytes::copy_from_slice(&900_u64.to_be_bytes()),
            value: Some(stored),
        };
        rocks.edit(vec![left]).expect("left");
        drop(rocks);
        let store = Store::open(&home).expect("open");
        assert!(!files_with(&home, &secret[..60]).is_empty(), "it is there before");
        let plan = plan(&store, &path("secret"));
        assert_eq!(plan.chunks.len(), 1);
        purge(&store, &plan, "a key", &act()).expect("purge");
        assert_eq!(files_with(&home, &secret[..60]), Vec::<PathBuf>::new(), "round {round}");
        drop(store);
        let store = Store::open(&home).expect("open again");
        assert_eq!(files_with(&home, &secret[..60]), Vec::<PathBuf>::new(), "round {round}, after it was closed");
        assert_clean(&store, 1);
    }
}

#[test]
fn a_purge_takes_the_copy_that_an_older_one_left() {
    let directory = tempfile::tempdir().expect("a directory");
    let home = directory.path().join("store");
    let store = Store::open(&home).expect("open");
    let secret = Random::of(&[5]).bytes(1_500);
    write(&store, None, &[("secret", &secret)]);
    let stored =
        store.stored_many(&[ObjectId::of(ObjectKind::Chunk, &secret)]).expect("stored").remove(0).expect("there");
    purge(&store, &plan(&store, &path("secret")), "a key", &act()).expect("purge");
    drop(store);
    let rocks = Rocks::open(&home, &RocksOptions::default()).expect("open");
    let left =
        RowEdit { family: Family::Chunks, key: Bytes::copy_from_slice(&900_u64.to_be_bytes()), value: Some(stored) };
    rocks.edit(vec![left]).expect("left");
    drop(rocks);
    let store = Store::open(&home).expect("open");
    assert!(!files_with(&home, &secret[..60]).is_empty(), "it is there before");
    let plan = plan(&store, &path("secret"));
    assert_eq!((plan.chunks.len(), plan.purged_before.len()), (0, 1));
    purge(&store, &plan, "again", &act()).expect("purge");
    assert_eq!(files_with(&home, &secret[..60]), Vec::<PathBuf>::new());
}
