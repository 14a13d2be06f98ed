//! A disk that is full at any write: a clear error, nothing moved, earlier snapshots readable, and all is well once there is
//! room again.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use amalgam_engine::backend::{Fault, FaultPlan, Inspect, Memory, Rocks, RocksOptions};
use amalgam_engine::work::FileSegments;
use amalgam_engine::{Commit, ErrorKind, Expect, SnapshotId, Store, StoreOptions, VerifyOptions, WorkingTree, verify};
use amalgam_gc::{CollectOptions, Stage, collect};
use amalgam_tests::harness::small_disk::{fill_disk, on_a_small_disk};
use amalgam_tests::harness::{Random, check_log, name, read_files, seed};

const DISK_MIB: usize = 48;

/// What was acknowledged: each snapshot with all its files.
type Acknowledged = Vec<(SnapshotId, BTreeMap<String, Vec<u8>>)>;

fn check_all(store: &Store, acknowledged: &Acknowledged) {
    for (number, (snapshot, files)) in acknowledged.iter().enumerate() {
        let tree = WorkingTree::open(store, *snapshot).expect("an acknowledged snapshot is there");
        assert!(read_files(&tree).expect("it can be read") == *files, "commit {number} has other files");
    }
}

/// Commits until there is no room, and returns how the end was told. `step_bytes` decides which write is the one that fails.
fn fill(store: &Store, random: &mut Random, step_bytes: usize, acknowledged: &mut Acknowledged) -> WorkingTree {
    let head = name("head/main");
    let mut tree = match acknowledged.last() {
        Some((snapshot, _)) => WorkingTree::open(store, *snapshot).expect("open"),
        None => WorkingTree::new(store),
    };
    for number in 0.. {
        assert!(number < 3_000, "{DISK_MIB} MiB took {number} commits of {step_bytes} bytes");
        tree.write(format!("f{}", acknowledged.len() % 5), &random.bytes(step_bytes)).expect("memory has room");
        let before = store.read_ref(&head).expect("references can be read");
        let mut commit = Commit::new(&head, "more");
        if number % 3 == 0 {
            commit = commit.buffered();
        }
        match tree.commit(commit) {
            Ok(done) => acknowledged.push((done.snapshot, read_files(&tree).expect("files"))),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error:?}");
                let words = error.to_string();
                assert!(words.contains("no space left") && words.contains("free some space"), "{words}");
                assert_eq!(store.read_ref(&head).expect("references can be read"), before, "a failed commit moved it");
                return tree;
            }
        }
    }
    unreachable!("the loop ends with a full disk")
}

#[test]
fn a_full_disk_is_told_and_survived() {
    let Some(disk) = on_a_small_disk("a_full_disk_is_told_and_survived", DISK_MIB) else { return };
    let seed = seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    // Small commits fill the log, middle ones the buffers and their flushes, large ones the imports.
    for step_bytes in [40_000, 900_000, 17 << 20] {
        let (path, ballast) = (disk.join("store"), disk.join("ballast"));
        let mut acknowledged = Acknowledged::new();
        let mut fulls = 0;
        let mut store = Store::open(&path).expect("an empty disk has room");
        for ballast_mib in [26, 16] {
            // To open again, a store needs as much room as its log takes.
            fs::write(&ballast, vec![1_u8; ballast_mib << 20]).expect("the ballast fits");
            let tree = fill(&store, &mut random, step_bytes, &mut acknowledged);
            fulls += 1;
            check_all(&store, &acknowledged);
            let expected = read_files(&tree).expect("an uncommitted tree can still be read");
            drop((tree, store));
            if let Err(error) = Store::open(&path) {
                assert_eq!(error.kind(), ErrorKind::Full, "a store that needs room to open says so: {error:?}");
            }
            fs::remove_file(&ballast).expect("remove");
            store = Store::open(&path).expect("with room it opens");
            check_all(&store, &acknowledged);
            let log = check_log(&store).expect("the log can be read");
            assert!(log.len() >= acknowledged.len(), "an acknowledged operation is not in the log");
            // A commit that failed at its fsync may be there all the same; then it is there whole.
            let tip =
                log.last().and_then(|operation| operation.changes[0].after.clone()).and_then(|value| value.target);
            if let Some(tip) = tip.filter(|_| log.len() > acknowledged.len()) {
                let tip = SnapshotId::from_bytes(tip.hash);
                let found = read_files(&WorkingTree::open(&store, tip).expect("open")).expect("it is whole");
                assert!(found == expected, "a commit that was not acknowledged is there by half");
                acknowledged.push((tip, found));
            }
        }
        println!("commits of {step_bytes} bytes: full {fulls} times, {} acknowledged", acknowledged.len());
        assert!(acknowledged.len() >= usize::from(step_bytes < 10 << 20), "nothing was committed before it was full");
        drop(store);
        fs::remove_dir_all(&path).expect("remove");
    }
    // After all that the disk takes commits again.
    let store = Store::open(disk.join("store")).expect("open");
    let mut tree = WorkingTree::new(&store);
    tree.write("file", b"at last").expect("write");
    tree.commit(Commit::new(&name("head/main"), "room")).expect("there is room");
}

#[test]
fn commits_work_again_once_there_is_room() {
    let Some(disk) = on_a_small_disk("commits_work_again_once_there_is_room", DISK_MIB) else { return };
    let mut random = Random::new(5);
    let (path, ballast) = (disk.join("store"), disk.join("ballast"));
    let mut acknowledged = Acknowledged::new();
    let store = Store::open(&path).expect("open");
    fs::write(&ballast, vec![1_u8; 32 << 20]).expect("the ballast fits");
    let tree = fill(&store, &mut random, 300_000, &mut acknowledged);
    drop((tree, store));
    fs::remove_file(&ballast).expect("remove");
    let store = Store::open(&path).expect("open");
    let before = acknowledged.len();
    let target = store.read_ref(&name("head/main")).expect("read").and_then(|value| value.target).expect("a snapshot");
    let mut tree = WorkingTree::open(&store, SnapshotId::from_bytes(target.hash)).expect("open");
    for number in 0..10 {
        tree.write("later", &random.bytes(1_000 * (number + 1))).expect("write");
        let done = tree.commit(Commit::new(&name("head/main"), "later")).expect("there is room");
        acknowledged.push((done.snapshot, read_files(&tree).expect("files")));
    }
    drop((tree, store));
    check_all(&Store::open(&path).expect("open"), &acknowledged);
    assert_eq!(acknowledged.len(), before + 10);
}

#[test]
fn segments_on_a_full_disk_leave_the_tree_as_it_was() {
    let Some(disk) = on_a_small_disk("segments_on_a_full_disk_leave_the_tree_as_it_was", DISK_MIB) else { return };
    let store = Store::in_memory();
    let segments = Arc::new(FileSegments::create(&disk.join("segments")).expect("an empty disk has room"));
    let mut tree = WorkingTree::new(&store).with_segments(segments);
    let mut random = Random::new(6);
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut fulls = 0;
    for number in 0..200 {
        let path = format!("f{}", number % 7);
        let bytes = random.bytes(700_000);
        let written = if number % 2 == 0 || !model.contains_key(&path) {
            tree.write(&path, &bytes).map(|()| bytes)
        } else {
            tree.append(&path, &bytes).map(|_| [&model[&path][..], &bytes].concat())
        };
        match written {
            Ok(content) => drop(model.insert(path, content)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error:?}");
                fulls += 1;
                if fulls == 3 {
                    break;
                }
            }
        }
    }
    assert_eq!(fulls, 3, "the disk was never full");
    assert!(read_files(&tree).expect("what was written can be read") == model, "a failed write changed a file");
    let done = tree.commit(Commit::new(&name("head/main"), "all")).expect("the store lies elsewhere");
    let again = WorkingTree::open(&store, done.snapshot).expect("open");
    assert!(read_files(&again).expect("files") == model);
    // What no tree uses any more is given back.
    drop((tree, again));
    let segments = FileSegments::create(&disk.join("segments")).expect("again");
    let mut tree = WorkingTree::new(&store).with_segments(Arc::new(segments));
    tree.write("file", &random.bytes(20 << 20)).expect("there is room again");
}

fn bulk_tree(store: &Store) -> WorkingTree {
    let mut random = Random::new(11);
    let mut tree = WorkingTree::new(store);
    tree.create_directories("deep/er").expect("mkdir");
    for number in 0..3 {
        tree.write(format!("deep/er/bulk{number}"), &random.bytes(9 << 20)).expect("write");
    }
    for number in 0..400 {
        tree.write(format!("deep/{number}"), &random.bytes(50_000)).expect("write");
    }
    tree.link("deep/7", "deep/er/seven").expect("link");
    tree.set_state("k", "[1,2]").expect("state");
    tree
}

fn fail_at_every_write(inner: impl Fn() -> Arc<dyn Inspect>, wrap: impl Fn(Arc<FaultPlan>) -> Arc<dyn Inspect>) {
    let head = name("head/main");
    let reference = Store::new(inner(), &StoreOptions::default());
    let mut tree = bulk_tree(&reference);
    let expected_files = read_files(&tree).expect("files");
    let expected = tree.commit(Commit::new(&head, "bulk")).expect("commit").snapshot;
    drop((tree, reference));
    let mut failed = 0;
    for writes in 0.. {
        let plan = Arc::new(FaultPlan::default());
        let store = Store::new(wrap(Arc::clone(&plan)), &StoreOptions { cache_bytes: 0, ..StoreOptions::default() });
        let mut tree = bulk_tree(&store);
        plan.full_after_writes(writes);
        let first = tree.commit(Commit::new(&head, "bulk"));
        plan.heal();
        let done = match first {
            Ok(done) => {
                assert_eq!(plan.hits(), 0, "a write failed and the commit says nothing");
                done
            }
            Err(error) => {
                failed += 1;
                assert_eq!(error.kind(), ErrorKind::Full, "{error:?}");
                assert_eq!(store.read_ref(&head).expect("read"), None, "a failed commit moved its reference");
                assert_eq!(store.list_operations(0, 10).expect("log"), [], "a failed commit is in the log");
                assert!(!tree.is_clean(), "a failed commit left a clean tree");
                tree.commit(Commit::new(&head, "bulk")).expect("there is room again")
            }
        };
        assert_eq!(done.snapshot, expected, "the retry after {writes} writes made something else");
        let again = WorkingTree::open(&store, done.snapshot).expect("open");
        assert!(read_files(&again).expect("the retry put everything") == expected_files);
        assert_eq!(again.state("k").expect("state").as_deref(), Some("[1,2]"));
        if plan.hits() == 0 {
            println!("{failed} writes failed, one after the other");
            break;
        }
    }
    assert!(failed >= 3, "a bulk commit is at least two writes ahead and one at its end");
}

#[test]
fn a_failure_at_any_write_of_a_bulk_commit_can_be_retried() {
    fail_at_every_write(|| Arc::new(Memory::default()), |plan| Arc::new(Fault::new(Memory::default(), plan)));
    let directory = tempfile::tempdir().expect("a directory");
    let open = |path: &Path| Rocks::open(path, &RocksOptions::default()).expect("open");
    let next = std::cell::Cell::new(0);
    let fresh = || {
        next.set(next.get() + 1);
        directory.path().join(next.get().to_string())
    };
    fail_at_every_write(|| Arc::new(open(&fresh())), |plan| Arc::new(Fault::new(open(&fresh()), plan)));
}

/// A tree that stays and some that nothing leads to any more.
fn with_garbage(store: &Store, rounds: u64) -> Acknowledged {
    let mut acknowledged = Acknowledged::new();
    let (kept, dropped) = (name("head/kept"), name("head/dropped"));
    let mut at = None;
    for round in 0..rounds {
        let mut tree = WorkingTree::new(store);
        for file in 0..200 {
            tree.write(format!("f{file}"), &Random::of(&[round, file]).bytes(400)).expect("write");
        }
        if round == 0 {
            let done = tree.commit(Commit::new(&kept, "kept")).expect("commit");
            acknowledged.push((done.snapshot, read_files(&tree).expect("files")));
        } else {
            let expect = at.map_or(Expect::Absent, Expect::At);
            at = Some(tree.commit(Commit::new(&dropped, "dropped").expecting(expect)).expect("commit").snapshot);
        }
    }
    let mut last = WorkingTree::new(store);
    last.write("small", b"what is left").expect("write");
    let expect = at.map_or(Expect::Absent, Expect::At);
    let done = last.commit(Commit::new(&dropped, "dropped").expecting(expect)).expect("commit");
    acknowledged.push((done.snapshot, read_files(&last).expect("files")));
    acknowledged
}

fn assert_clean(store: &Store) -> u64 {
    let options = VerifyOptions { read_data: true, ..VerifyOptions::default() };
    let report = verify(store, &options, &|_| ControlFlow::Continue(())).expect("a verification");
    assert!(report.is_clean(), "{report:?}");
    report.unreachable
}

/// Whichever of a sweep's writes is the first that fails: what went is gone, what stays is whole, and the next collection does the rest.
#[test]
fn a_sweep_that_meets_a_full_disk_at_any_write_loses_nothing() {
    let (plan, mut hit_in) = (Arc::new(FaultPlan::default()), BTreeMap::new());
    let thin = |_: SnapshotId, _: &amalgam_engine::object::Snapshot| false;
    for writes in [0, 1, 2, 5, 11, 23, 40] {
        let backend: Arc<dyn Inspect> = Arc::new(Fault::new(Memory::default(), Arc::clone(&plan)));
        let store = Store::new(backend, &StoreOptions { cache_bytes: 0, ..StoreOptions::default() });
        let acknowledged = with_garbage(&store, 6);
        let options = CollectOptions { retention: &thin, sweep_batch_rows: 32, ..CollectOptions::default() };
        let mut stage = Stage::Mark;
        let mut armed = false;
        let done = collect(&store, &options, &mut |at| {
            stage = at.stage;
            if at.stage == Stage::Sweep && !std::mem::replace(&mut armed, true) {
                plan.full_after_writes(writes);
            }
            ControlFlow::Continue(())
        });
        let error = done.expect_err("the disk is full");
        assert_eq!(error.kind(), ErrorKind::Full, "{error:?}");
        *hit_in.entry(stage).or_insert(0) += 1;
        check_all(&store, &acknowledged);
        plan.heal();
        assert_clean(&store);
        collect(&store, &options, &mut |_| ControlFlow::Continue(())).expect("with room it ends");
        check_all(&store, &acknowledged);
        assert_eq!(assert_clean(&store), 0, "all that was dead went");
    }
    println!("{hit_in:?}");
    assert!(hit_in.get(&Stage::Sweep) > Some(&3), "it was to be the sweep: {hit_in:?}");
}

/// The same on a real disk, which somebody else fills in the middle of the sweep.
#[test]
fn a_disk_that_others_fill_during_a_sweep_loses_nothing() {
    let Some(disk) = on_a_small_disk("a_disk_that_others_fill_during_a_sweep_loses_nothing", 96) else { return };
    let (path, ballast) = (disk.join("store"), disk.join("ballast"));
    let thin = |_: SnapshotId, _: &amalgam_engine::object::Snapshot| false;
    let options = CollectOptions { retention: &thin, sweep_batch_rows: 32, ..CollectOptions::default() };
    let acknowledged = {
        let store = Store::open(&path).expect("an empty disk has room");
        let acknowledged = with_garbage(&store, 60);
        let (mut steps, mut stage) = (0, None);
        let done = collect(&store, &options, &mut |at| {
            steps += u64::from(at.stage == Stage::Sweep);
            stage = Some(at.stage);
            if steps == 20 && !ballast.exists() {
                fill_disk(&ballast);
            }
            ControlFlow::Continue(())
        });
        println!("{:?} in {stage:?}", done.as_ref().map(|done| done.freed.total()));
        if let Err(error) = done {
            assert_eq!(error.kind(), ErrorKind::Full, "{error:?}");
        }
        check_all(&store, &acknowledged);
        acknowledged
    };
    assert!(ballast.exists(), "the sweep was long enough");
    fs::remove_file(&ballast).expect("remove");
    let store = Store::open(&path).expect("with room it opens");
    check_all(&store, &acknowledged);
    collect(&store, &options, &mut |_| ControlFlow::Continue(())).expect("with room it ends");
    check_all(&store, &acknowledged);
    assert_eq!(assert_clean(&store), 0, "all that was dead went");
}
