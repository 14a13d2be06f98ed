//! Collections: what goes, what stays, and what happens when others work meanwhile or something is not as it should be.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use amalgam_engine::backend::{Durability, Family, Inspect, Memory, RowEdit, StoredObject, Transaction};
use amalgam_engine::object::{
    Conflict, Directories, DirectoryItem, Node, SequenceNode, Settled, Snapshot, outgoing, refers,
};
use amalgam_engine::reference::{OperationDraft, RefValue};
use amalgam_engine::{
    Commit, DiffOptions, Entry, Error, ErrorKind, History, Name, ObjectId, ObjectKind, RefMove, SnapshotId, Store,
    StoreOptions, SweepScope, Tallies, Time, Tombstone, VerifyOptions, WorkingTree, diff, verify,
};
use amalgam_gc::{CollectOptions, CollectReport, RateLimit, Stage, collect};
use amalgam_tests::harness::collection::{World, kill_collections};
use amalgam_tests::harness::{CloudPlace, Place, Random, name, over_all, over_both, read_files, seed};
use bytes::Bytes;

fn run(store: &Store) -> CollectReport {
    collect(store, &CollectOptions::default(), &mut |_| ControlFlow::Continue(())).expect("a collection")
}

fn without_cache(backend: Arc<dyn Inspect>) -> Store {
    Store::new(backend, &StoreOptions { cache_bytes: 0, ..StoreOptions::default() })
}

fn assert_clean(store: &Store) -> amalgam_engine::VerifyReport {
    let options = VerifyOptions { read_data: true, ..VerifyOptions::default() };
    let report = verify(store, &options, &|_| ControlFlow::Continue(())).expect("a verification");
    assert!(report.is_clean(), "{report:?}");
    report
}

/// A commit of some files that differ from those of every other number in half of them.
fn commit(store: &Store, reference: &str, number: u64) -> SnapshotId {
    let mut tree = match store.read_ref(&name(reference)).expect("read").and_then(|value| value.target) {
        Some(target) => WorkingTree::open(store, SnapshotId::from_bytes(target.hash)).expect("open"),
        None => WorkingTree::new(store),
    };
    tree.create_directories("deep/er").expect("mkdir");
    for file in 0..20 {
        let version = if file % 2 == 0 { 0 } else { number };
        tree.write(format!("deep/{file}"), &Random::of(&[file, version]).bytes(600)).expect("write");
    }
    tree.write("deep/er/rope", &Random::of(&[number]).bytes(200_000)).expect("write");
    tree.commit(Commit::new(&name(reference), number.to_string())).expect("commit").snapshot
}

fn remove_ref(store: &Store, reference: &str) {
    let value = store.read_ref(&name(reference)).expect("read").expect("it is there");
    let target = value.target.expect("a snapshot");
    let refs = RefMove {
        expect: vec![(name(reference), Some(value))],
        set: vec![(name(reference), None)],
        operation: OperationDraft::default(),
        durability: Durability::Buffered,
    };
    store.session().commit(target, refs).expect("remove");
}

/// A tree with one of everything that can refer to something.
fn everything(store: &Store) -> WorkingTree {
    let mut tree = WorkingTree::new(store);
    tree.create_directories("a/b/c").expect("mkdir");
    for number in 0..600_u32 {
        tree.write(format!("a/{number}"), format!("content {number}").as_bytes()).expect("write");
    }
    tree.write("a/rope", &Random::new(1).bytes(3 << 20)).expect("write");
    tree.write("a/holes", &[&vec![0; 300_000][..], b"end"].concat()).expect("write");
    tree.link("a/7", "a/b/seven").expect("link");
    tree.symlink("a/b/link", b"../7").expect("symlink");
    for key in 0..300_u32 {
        tree.set_state(format!("key{key}").as_str(), &key.to_string()).expect("state");
    }
    tree.set_xattr("a/8", b"user.large", &[7; 2_000]).expect("attributes");
    tree.commit(Commit::new(&name("head/first"), "first")).expect("commit");
    tree
}

fn assert_agree(id: ObjectId, canonical: &Bytes) {
    let mut thorough = outgoing(id.kind, canonical).expect("valid").strong;
    let mut quick = Vec::new();
    refers(id.kind, canonical, &mut |kind, hash| quick.push(ObjectId { kind, hash: *hash })).expect("valid");
    thorough.sort();
    quick.sort();
    assert_eq!(quick, thorough, "{id}");
}

/// The quick reader of references says what the thorough one says, of every object of a store that has one of everything.
#[test]
fn both_readers_of_references_agree() {
    let backend: Arc<dyn Inspect> = Arc::new(Memory::default());
    let store = without_cache(Arc::clone(&backend));
    let tree = everything(&store);
    let mut kinds = BTreeSet::new();
    for row in backend.scan(None, usize::MAX).expect("rows") {
        if row.id.kind != ObjectKind::Snapshot {
            assert_agree(row.id, &store.canonical(row.id).expect("it is there"));
        }
        kinds.insert(row.id.kind);
    }
    assert_eq!(kinds, BTreeSet::from(ObjectKind::ALL), "one of every kind was looked at");
    let done = WorkingTree::open(&store, tree_head(&store)).expect("open");
    let stored = |path: &str| done.stat(path).expect("stat").and_then(|stat| stat.entry);
    let terms = vec![stored("a/8"), stored("a/rope"), stored("a/b")];
    assert!(terms.iter().all(Option::is_some));
    let Settled::Conflicted(conflict) = Conflict::settle(terms).expect("terms") else { panic!("they differ") };
    let entry = Entry::new(Node::Conflict(Arc::new(conflict)), 0, Time::EPOCH);
    let item = DirectoryItem { name: Name::new(b"conflict").expect("a name"), entry };
    let node = Bytes::from(SequenceNode::<Directories>::Leaf(vec![item]).encode());
    let id = ObjectId::of(ObjectKind::Directory, &node);
    assert_agree(id, &node);
    assert_eq!(
        outgoing(id.kind, &node).expect("valid").strong.len(),
        4,
        "a chunk, its attributes, a rope, a directory"
    );
    drop(tree);
}

fn tree_head(store: &Store) -> SnapshotId {
    let target = store.read_ref(&name("head/first")).expect("read").and_then(|value| value.target);
    SnapshotId::from_bytes(target.expect("a snapshot").hash)
}

#[test]
fn what_nothing_leads_to_goes_and_all_else_stays() {
    over_all(|place| {
        let backend = place.backend();
        let store = without_cache(Arc::clone(&backend));
        for number in 0..10 {
            commit(&store, "head/kept", number);
            commit(&store, "head/dropped", 100 + number);
        }
        let before = assert_clean(&store);
        assert_eq!(before.unreachable, 0);
        assert_eq!(run(&store).freed, Tallies::default(), "{place:?}: all is in use");
        remove_ref(&store, "head/dropped");
        let dead = assert_clean(&store);
        assert!(dead.unreachable > 100);
        let dry = CollectOptions { dry_run: true, ..CollectOptions::default() };
        let dry = collect(&store, &dry, &mut |_| ControlFlow::Continue(())).expect("a dry run");
        assert_eq!((dry.dead.total().objects, dry.dead.total().bytes), (dead.unreachable, dead.unreachable_bytes));
        assert_eq!(assert_clean(&store).unreachable, dead.unreachable, "{place:?}: a dry run takes nothing");
        let done = run(&store);
        assert_eq!(done.freed, dry.dead, "{place:?}");
        assert_eq!(done.alive, dry.alive);
        let after = assert_clean(&store);
        assert_eq!((after.unreachable, after.orphans), (0, 0), "{place:?}: {done:?}");
        assert_eq!(after.objects, done.alive.total().objects);
        assert_eq!(run(&store).freed, Tallies::default(), "{place:?}: there is nothing left to take");
        let tip = store.read_ref(&name("head/kept")).expect("read").and_then(|value| value.target).expect("a snapshot");
        let history = History::of(&store);
        let all = history.range(SnapshotId::from_bytes(tip.hash), &[]).expect("history");
        assert_eq!(all.len(), 10);
        for snapshot in all {
            read_files(&WorkingTree::open(&store, snapshot).expect("open"))
                .expect("every tree of the history is whole");
        }
    });
}

#[test]
fn a_thinned_snapshot_keeps_its_record_and_loses_its_tree() {
    over_all(|place| {
        let store = without_cache(place.backend());
        let all: Vec<_> = (0..12).map(|number| commit(&store, "head/main", number)).collect();
        let pinned = store.pin(all[3]);
        let refs = RefMove {
            expect: vec![(name("label/five"), None)],
            set: vec![(name("label/five"), Some(RefValue::to(all[5])))],
            ..RefMove::default()
        };
        store.session().commit(all[5], refs).expect("label");
        let retention = |_: SnapshotId, snapshot: &Snapshot| snapshot.message == "8";
        let options = CollectOptions { retention: &retention, ..CollectOptions::default() };
        let done = collect(&store, &options, &mut |_| ControlFlow::Continue(())).expect("a collection");
        let history = History::of(&store);
        let kept: Vec<_> = (0..12).filter(|at| !history.is_thinned(all[*at]).expect("its record is there")).collect();
        assert_eq!(kept, [3, 5, 8, 11], "{place:?}: a pin, a label, the retention's and the head");
        assert_eq!(done.mark.thinned, 8);
        assert_eq!(history.range(all[11], &[]).expect("history").len(), 12, "the history is whole");
        assert_eq!(assert_clean(&store).thinned, 8);
        for at in kept {
            read_files(&WorkingTree::open(&store, all[at]).expect("open")).expect("a kept tree is whole");
        }
        let error = WorkingTree::open(&store, all[4]).err().expect("its tree is gone");
        assert!(matches!(error, Error::Missing { .. }), "{error:?}");
        drop(pinned);
        collect(&store, &options, &mut |_| ControlFlow::Continue(())).expect("a collection");
        assert!(history.is_thinned(all[3]).expect("its record is there"), "nothing pins it any more");
        let changes = diff(&store, all[8], all[11], DiffOptions::default()).expect("diff");
        assert!(changes.collect::<Result<Vec<_>, _>>().expect("both trees are there").len() > 5);
    });
}

/// Objects from outside may come in any order: those that refer before those they refer to.
#[test]
fn what_was_written_before_what_it_refers_to_is_followed_all_the_same() {
    over_all(|place| {
        let made: Arc<dyn Inspect> = Arc::new(Memory::default());
        let source = without_cache(Arc::clone(&made));
        drop(everything(&source));
        let tip = source.read_ref(&name("head/first")).expect("read").expect("a head");
        let rows = made.scan(None, usize::MAX).expect("rows");
        for (order, seed) in [("inverted", 0), ("mixed", 1), ("mixed", 2)] {
            let backend: Arc<dyn Inspect> = match place {
                Place::Memory => Arc::new(Memory::default()),
                Place::Disk(path) => Place::Disk(&path.with_extension(format!("{order}{seed}"))).backend(),
                Place::Cloud(_) => match CloudPlace::new() {
                    Some(place) => Place::Cloud(&place).backend(),
                    None => return,
                },
            };
            let mut objects: Vec<_> = rows.clone();
            objects.sort_by_key(|row| match order {
                "inverted" => u64::MAX - row.number,
                _ => Random::of(&[seed, row.number]).number(),
            });
            for some in objects.chunks(50) {
                let object =
                    |id: ObjectId| StoredObject { id, bytes: made.get(id).expect("get").expect("it is there") };
                backend.put_ahead(some.iter().map(|row| object(row.id)).collect()).expect("put");
            }
            let transaction = Transaction {
                expect: vec![(name("head/first"), None)],
                set: vec![(name("head/first"), Some(tip.clone()))],
                operation: Some(OperationDraft::default()),
                ..Transaction::default()
            };
            backend.transact(transaction).expect("a reference");
            let store = without_cache(backend);
            for sweep_batch_rows in [1, 2_048] {
                let options = CollectOptions { sweep_batch_rows, ..CollectOptions::default() };
                let done = collect(&store, &options, &mut |_| ControlFlow::Continue(())).expect("a collection");
                assert_eq!(done.dead, Tallies::default(), "{place:?} {order}: marking itself finds everything");
                assert_eq!(done.freed, Tallies::default(), "{place:?} {order}");
                assert!(done.mark.walked > 10, "{place:?} {order}: {:?}", done.mark);
            }
            assert_clean(&store);
        }
    });
}

/// With hardly any memory more is kept, and nothing is lost.
#[test]
fn little_memory_keeps_more_and_loses_nothing() {
    let store = without_cache(Arc::new(Memory::default()));
    for number in 0..300 {
        commit(&store, "head/kept", number);
        commit(&store, "head/dropped", 1_000 + number);
    }
    remove_ref(&store, "head/dropped");
    let options = CollectOptions { memory_bytes: 1, ..CollectOptions::default() };
    let small = collect(&store, &options, &mut |_| ControlFlow::Continue(())).expect("a collection");
    let report = assert_clean(&store);
    println!("with {} bytes of marks {} dead objects stayed", small.mark.memory_bytes, report.unreachable);
    run(&store);
    let left = assert_clean(&store).unreachable;
    assert!(left * 1_000 < small.freed.total().objects, "{left} stayed for good");
}

/// What hangs on an object that cannot be read would look dead.
#[test]
fn a_damaged_store_is_left_alone() {
    over_both(|place| {
        let backend = place.backend();
        let store = without_cache(Arc::clone(&backend));
        let old = commit(&store, "head/main", 1);
        commit(&store, "head/main", 2);
        commit(&store, "head/dropped", 3);
        remove_ref(&store, "head/dropped");
        let root = store.snapshot(old).expect("there").root.object();
        let row = backend.look_up(&[root]).expect("look up")[0].expect("there");
        let objects = || backend.scan(None, usize::MAX).expect("rows").len();
        let before = objects();
        let key = Bytes::copy_from_slice(&row.number.to_be_bytes());
        let bytes = backend.get(root).expect("get").expect("there");
        let mut damaged = bytes.to_vec();
        *damaged.last_mut().expect("not empty") ^= 1;
        for value in [Some(Bytes::from(damaged)), None] {
            backend.edit(vec![RowEdit { family: Family::Trees, key: key.clone(), value }]).expect("damage");
            let error = collect(&store, &CollectOptions::default(), &mut |_| ControlFlow::Continue(()));
            let error = error.expect_err("a tree cannot be read");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{place:?}: {error:?}");
            assert_eq!(objects(), before, "{place:?}: something went");
        }
        backend.edit(vec![RowEdit { family: Family::Trees, key, value: Some(bytes) }]).expect("mend");
        assert!(run(&store).freed.total().objects > 5, "{place:?}");
        assert_clean(&store);
    });
}

#[test]
fn a_collection_can_be_paced_ended_and_refused() {
    over_all(|place| {
        let store = place.store();
        for number in 0..6 {
            commit(&store, "head/kept", number);
            commit(&store, "head/dropped", 100 + number);
        }
        remove_ref(&store, "head/dropped");
        for wanted in [Stage::Mark, Stage::Survey, Stage::Sweep] {
            let done =
                collect(&store, &CollectOptions { sweep_batch_rows: 16, ..CollectOptions::default() }, &mut |at| {
                    if at.stage == wanted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
            assert_eq!(done.expect("a collection").ended_in, Some(wanted), "{place:?}");
            assert_clean(&store);
        }
        let waited = AtomicU64::new(0);
        let sleep = |time: Duration| {
            waited.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
        };
        let rate_limit = RateLimit { objects_per_second: 1_000, bytes_per_second: 1_000_000, sleep: &sleep };
        let options = CollectOptions { rate_limit: Some(rate_limit), ..CollectOptions::default() };
        let mut refused = None;
        let done = collect(&store, &options, &mut |_| {
            refused.get_or_insert_with(|| store.begin_sweep().err().map(|error| error.kind()));
            ControlFlow::Continue(())
        });
        let done = done.expect("a collection");
        assert_eq!(refused, Some(Some(ErrorKind::Invalid)), "{place:?}: two at once");
        assert!(done.ended_in.is_none() && done.freed.total().objects > 20, "{place:?}: {done:?}");
        let rows = done.alive.total().objects + done.dead.total().objects;
        assert!(waited.into_inner() >= rows * 3_000, "{place:?}: three readings of {rows} rows at 1,000 a second");
        assert_eq!(assert_clean(&store).unreachable, 0);
        drop(store.begin_sweep().expect("one after the other"));
    });
}

/// Everything that a store is used for, between the steps of collections.
#[test]
fn what_was_promised_holds_beside_collections() {
    let seed = seed();
    println!("seed {seed}");
    let mut deleted = 0;
    for round in 0..200 {
        let backend: Arc<dyn Inspect> = Arc::new(Memory::default());
        let (store, reader) = (Store::new(Arc::clone(&backend), &StoreOptions::default()), without_cache(backend));
        let mut world = World::new(&store, seed.wrapping_add(round));
        for _ in 0..4 {
            world.live(10).expect("events");
            world.collect().unwrap_or_else(|error| panic!("round {round}: {error}"));
            world.check(&reader).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        world.settle().expect("the last one");
        world.check(&reader).expect("nothing is lost");
        deleted += world.figures().deleted;
    }
    println!("{deleted} objects went");
    assert!(deleted > 5_000, "there was little to collect");
}

#[test]
fn what_was_promised_holds_beside_collections_on_disk() {
    let seed = seed();
    println!("seed {seed}");
    let directory = tempfile::tempdir().expect("a directory");
    let place = Place::Disk(directory.path());
    let backend = place.backend();
    let (store, reader) = (Store::new(Arc::clone(&backend), &StoreOptions::default()), without_cache(backend));
    let mut world = World::new(&store, seed);
    for round in 0..60 {
        world.live(20).expect("events");
        world.collect().unwrap_or_else(|error| panic!("round {round}: {error}"));
        if round % 5 == 0 {
            world.check(&reader).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
    }
    world.settle().expect("the last one");
    world.check(&reader).expect("nothing is lost");
    println!("{:?}", world.figures());
    assert!(world.figures().deleted > 500 && world.figures().thinned > 0);
}

#[test]
fn a_collection_that_is_killed_leaves_a_whole_store() {
    let seed = seed();
    println!("seed {seed}");
    let collector = || std::process::Command::new(env!("CARGO_BIN_EXE_collector"));
    let hits = kill_collections(&collector, 16, seed);
    println!("killed in {hits:?}");
    assert!(hits.len() > 1, "all kills came in one stage: {hits:?}");
}

/// What an operation within the scope held stays, what was forgotten does not, and references that are left out are counted only.
#[test]
fn operations_of_the_scope_are_roots_and_what_is_left_out_is_not_deleted() {
    over_all(|place| {
        let store = &without_cache(place.backend());
        let first = commit(store, "head/one", 1);
        commit(store, "head/two", 2);
        remove_ref(store, "head/one");
        let all = SweepScope { undoable_after: Some(0), ..SweepScope::default() };
        let with = |scope: &SweepScope, dry_run: bool| {
            let options = CollectOptions { scope: Some(scope), dry_run, ..CollectOptions::default() };
            collect(store, &options, &mut |_| ControlFlow::Continue(()))
        };
        assert_eq!(with(&all, false).expect("a collection").freed.total().objects, 0);
        assert!(WorkingTree::open(store, first).expect("open").read("deep/er/rope").is_ok());

        let without = SweepScope { without: BTreeSet::from([name("head/two")]), ..SweepScope::default() };
        let would = with(&without, true).expect("a dry run");
        assert_eq!(would.alive.total().objects, 0, "nothing else holds anything");
        let refused = with(&without, false).expect_err("it would leave a reference to nothing");
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(with(&SweepScope::default(), false).expect("a collection").freed.total().objects > 10);
        assert_eq!(assert_clean(store).unreachable, 0, "{place:?}");
    });
}

#[test]
fn tombstones_that_are_received_while_space_is_reclaimed_do_not_end_the_collection() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path().join("store")).expect("a store");
    commit(&store, "head/stays", 1);
    for number in 2..6 {
        commit(&store, "head/goes", number);
    }
    remove_ref(&store, "head/goes");
    let chunk = ObjectId::of(ObjectKind::Chunk, b"purged by the sender");
    let mut is_received = false;
    let done = collect(&store, &CollectOptions::default(), &mut |progress| {
        if progress.stage == Stage::Reclaim && !is_received {
            let session = store.session();
            session.bury(chunk, Tombstone::default()).expect("buried");
            session.write_tombstones().expect("written");
            is_received = true;
        }
        ControlFlow::Continue(())
    });
    let reclaimed = done.expect("a collection").reclaimed.expect("on disk");
    assert!(is_received && reclaimed.finished && reclaimed.rows > 0, "{reclaimed:?}");
    assert!(store.tombstone(chunk).expect("looked up").is_some());
    assert_clean(&store);
}
