//! The write path's half of collection: a mark-and-sweep collector runs in a loop while others fork, commit, re-create what
//! was just deleted, and delete references. Nothing that a reference or a pin reaches may ever go.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use amalgam_engine::backend::Transaction;
use amalgam_engine::backend::{Inspect, StoredObject};
use amalgam_engine::object::outgoing;
use amalgam_engine::reference::OperationDraft;
use amalgam_engine::{
    ChunkId, Commit, Error, Expect, ObjectId, ObjectKind, RefMove, Result, SnapshotId, Store, StoreOptions, Swept,
    WorkingTree,
};
use amalgam_tests::harness::{Random, all_refs, name, over_all, read_files, seed};
use bytes::Bytes;

const WORKERS: u64 = 4;
const REFS: u64 = 6;
const CONTENTS: u64 = 24;
const STRESS: Duration = Duration::from_secs(4);
/// The time limit on a machine so busy that the collector and the workers get little done.
const STRESS_MAX: Duration = Duration::from_secs(120);

/// Everything reachable from the roots. A root that is gone already was pinned too late; whoever pinned it is told.
fn mark(store: &Store, roots: Vec<ObjectId>, marked: &mut HashSet<ObjectId>) -> Result<()> {
    let mut open = roots;
    while let Some(id) = open.pop() {
        if !marked.insert(id) {
            continue;
        }
        match store.canonical(id) {
            Ok(bytes) => open.extend(outgoing(id.kind, &bytes).expect("a stored object is valid").strong),
            Err(Error::Missing { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// One collection; returns how many objects went.
fn collect(store: &Store) -> Result<u64> {
    let mut round = store.begin_sweep()?;
    let mut marked = HashSet::new();
    loop {
        let new: Vec<_> = round.roots()?.into_iter().filter(|root| !marked.contains(root)).collect();
        if new.is_empty() {
            break;
        }
        mark(store, new, &mut marked)?;
    }
    loop {
        let swept = round.sweep(&|id| marked.contains(&id))?;
        match swept {
            Swept::Done { objects } => return Ok(objects),
            Swept::Unmarked(roots) => mark(store, roots, &mut marked)?,
            Swept::Some { .. } => unreachable!("a whole sweep goes to its end"),
        }
    }
}

/// One of a few contents, so that what one worker deletes another makes again. One in four is a rope.
fn content(number: u64) -> Vec<u8> {
    let length = if number.is_multiple_of(4) { 90_000 } else { 300 };
    Random::of(&[number]).bytes(length)
}

/// Opens what a reference holds, or held a moment ago: then it may be gone, but never by half.
fn open(store: &Store, reference: u64) -> Result<Option<WorkingTree>> {
    let value = store.read_ref(&name(format!("head/{reference}")))?;
    let Some(target) = value.and_then(|value| value.target) else {
        return Ok(None);
    };
    std::thread::yield_now();
    match WorkingTree::open(store, SnapshotId::from_bytes(target.hash)) {
        Ok(tree) => Ok(Some(tree)),
        Err(Error::Missing { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn edit(tree: &mut WorkingTree, random: &mut Random) -> Result<()> {
    for _ in 0..1 + random.below(4) {
        let directory = format!("d{}", random.below(3));
        tree.create_directories(&directory)?;
        let path = format!("{directory}/f{}", random.below(8));
        if random.one_in(4) && tree.exists(&path)? {
            tree.remove(&path)?;
        } else {
            tree.write(&path, &content(random.below(CONTENTS)))?;
        }
    }
    Ok(())
}

/// Commits to any reference, wherever that stands. Losing the race for it is part of the game.
fn commit(store: &Store, tree: &mut WorkingTree, random: &mut Random) -> Result<bool> {
    let name = name(format!("head/{}", random.below(REFS)));
    let standing = store.read_ref(&name)?.and_then(|value| value.target);
    let expect = standing.map_or(Expect::Absent, |target| Expect::At(SnapshotId::from_bytes(target.hash)));
    match tree.commit(Commit::new(&name, "again").buffered().expecting(expect)) {
        Ok(_) => Ok(true),
        Err(Error::Stale { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn delete_ref(store: &Store, random: &mut Random) -> Result<()> {
    let name = name(format!("head/{}", random.below(REFS)));
    let Some(value) = store.read_ref(&name)? else {
        return Ok(());
    };
    let target = value.target.expect("these references hold snapshots");
    let operation = OperationDraft { action: "delete".to_owned(), ..OperationDraft::default() };
    let refs =
        RefMove { expect: vec![(name.clone(), Some(value))], set: vec![(name, None)], operation, ..RefMove::default() };
    match store.session().commit(target, refs) {
        Ok(_) | Err(Error::Stale { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

#[derive(Default)]
struct Counts {
    commits: AtomicU64,
    reads: AtomicU64,
    deleted: AtomicU64,
    collections: AtomicU64,
}

impl Counts {
    /// Returns whether the collector and the workers did enough beside each other to find a fault.
    fn are_enough(&self) -> bool {
        let [commits, reads, deleted, collections] =
            [&self.commits, &self.reads, &self.deleted, &self.collections].map(|count| count.load(Ordering::Relaxed));
        deleted > 100 && collections > 3 && commits > 100 && reads > 3
    }
}

/// A tree that is held, and what it must still hold later: its references may be gone by then.
type HeldTree = (WorkingTree, BTreeMap<String, Vec<u8>>);

fn work(store: &Store, mut random: Random, counts: &Counts, stop: &AtomicBool) -> Result<()> {
    let mut held: Vec<HeldTree> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match random.below(10) {
            0..4 => {
                if let Some(mut tree) = open(store, random.below(REFS))? {
                    edit(&mut tree, &mut random)?;
                    counts.commits.fetch_add(u64::from(commit(store, &mut tree, &mut random)?), Ordering::Relaxed);
                }
            }
            4 => {
                let mut tree = WorkingTree::new(store);
                edit(&mut tree, &mut random)?;
                counts.commits.fetch_add(u64::from(commit(store, &mut tree, &mut random)?), Ordering::Relaxed);
            }
            5..7 => delete_ref(store, &mut random)?,
            7 => {
                if let Some(mut tree) = open(store, random.below(REFS))? {
                    if random.one_in(2) {
                        edit(&mut tree, &mut random)?;
                    }
                    let files = read_files(&tree)?;
                    held.push((tree, files));
                }
            }
            8 => {
                if let Some((tree, _)) = held.last() {
                    let mut fork = tree.fork();
                    edit(&mut fork, &mut random)?;
                    counts.commits.fetch_add(u64::from(commit(store, &mut fork, &mut random)?), Ordering::Relaxed);
                }
            }
            _ => {
                if held.len() > 3 {
                    let at = random.below(held.len() as u64) as usize;
                    let (tree, files) = held.swap_remove(at);
                    assert!(read_files(&tree)? == files, "a tree that is held changed");
                    counts.reads.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
    Ok(())
}

fn stress(backend: Arc<dyn Inspect>, seed: u64, cache_bytes: u64) {
    let reading = Arc::clone(&backend);
    let store = Store::new(backend, &StoreOptions { cache_bytes, ..StoreOptions::default() });
    let counts = Counts::default();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (store, counts, stop) = (&store, &counts, &stop);
                scope.spawn(move || {
                    let result = work(store, Random::of(&[seed, worker]), counts, stop);
                    stop.store(true, Ordering::Relaxed);
                    result
                })
            })
            .collect();
        let begin = Instant::now();
        // On a busy machine it takes longer until enough has been done beside the collector.
        let is_over = || begin.elapsed() > if counts.are_enough() { STRESS } else { STRESS_MAX };
        while !is_over() && !stop.load(Ordering::Relaxed) {
            let deleted = collect(&store).expect("a collection does not fail");
            counts.deleted.fetch_add(deleted, Ordering::Relaxed);
            counts.collections.fetch_add(1, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().expect("no panic").expect("nothing that is held or referred to goes");
        }
    });
    // A cache answers for objects that are gone.
    let store = Store::new(reading, &StoreOptions { cache_bytes: 0, ..StoreOptions::default() });
    for (name, value) in all_refs(&store).expect("references") {
        let target = value.target.expect("these references hold snapshots");
        let tree = WorkingTree::open(&store, SnapshotId::from_bytes(target.hash));
        let read = tree.and_then(|tree| read_files(&tree));
        assert!(read.is_ok(), "{name} cannot be read any more: {}", read.expect_err("it is not ok"));
    }
    let Counts { commits, reads, deleted, collections } = counts;
    let [commits, reads, deleted, collections] = [commits, reads, deleted, collections].map(AtomicU64::into_inner);
    println!("{collections} collections took {deleted} objects beside {commits} commits and {reads} held trees");
    assert!(deleted > 100 && collections > 3, "the collector had nothing to do");
    assert!(commits > 100 && reads > 3, "nobody worked beside the collector");
}

#[test]
fn what_is_referred_to_or_pinned_survives_collections() {
    let seed = seed();
    println!("seed {seed}");
    for cache_bytes in [0, 64 << 20] {
        over_all(|place| stress(place.backend(), seed, cache_bytes));
    }
}

/// A tree that was collected cannot be opened any more, although the cache remembers it: a commit made from it would refer
/// to what is gone.
#[test]
fn what_was_collected_cannot_be_opened() {
    over_all(|place| {
        let store = place.store();
        let mut random = Random::new(3);
        let mut tree = WorkingTree::new(&store);
        edit(&mut tree, &mut random).expect("edit");
        let done = tree.commit(Commit::new(&name("head/0"), "first")).expect("commit");
        let root = store.snapshot(done.snapshot).expect("it was just made").root;
        while store.read_ref(&name("head/0")).expect("read").is_some() {
            delete_ref(&store, &mut random).expect("delete");
        }
        collect(&store).expect("a collection");
        read_files(&tree).expect("a tree that is held is there");
        let pin = store.pin(root);
        drop(tree);
        assert_eq!(collect(&store).expect("a collection"), 0, "{place:?}: the pin holds it");
        read_files(&WorkingTree::open_root(&store, root).expect("it is there")).expect("all of it");
        drop(pin);
        assert!(collect(&store).expect("a collection") > 2, "{place:?}: now nothing holds it");
        for opened in [WorkingTree::open(&store, done.snapshot), WorkingTree::open_root(&store, root)] {
            let error = opened.err().expect("it was collected");
            assert!(matches!(error, Error::Missing { .. }), "{place:?}: {error:?}");
        }
    });
}

fn chunk(text: &str) -> StoredObject {
    // A chunk is kept behind a codec byte; 0 is raw.
    let bytes = [&[0], text.as_bytes()].concat();
    StoredObject { id: ChunkId::of(text.as_bytes()).object(), bytes: bytes.into() }
}

fn any_object(text: &str) -> StoredObject {
    StoredObject { id: ObjectId::of(ObjectKind::Root, text.as_bytes()), bytes: Bytes::copy_from_slice(text.as_bytes()) }
}

/// An object that was put, met by a session of the epoch after, and put again by whoever did not see it: it never gets older.
#[test]
fn what_is_written_later_is_not_older() {
    over_all(|place| {
        let backend = place.backend();
        for object in [chunk("x"), any_object("y")] {
            let id = object.id;
            backend.put_ahead(vec![object.clone()]).expect("put");
            let epoch = backend.advance_epoch().expect("a new epoch");
            assert_eq!(backend.contains_many(&[id], epoch).expect("contains"), [true]);
            assert_eq!(
                backend.delete(&[id], epoch).expect("delete").deleted(),
                [false],
                "{place:?}: {id} was met in epoch {epoch}"
            );
            backend.put_ahead(vec![object.clone()]).expect("put");
            assert_eq!(
                backend.delete(&[id], epoch).expect("delete").deleted(),
                [false],
                "{place:?}: {id} was put in epoch {epoch}"
            );
            let transaction = Transaction { objects: vec![object], ..Default::default() };
            backend.transact(transaction).expect("put");
            assert_eq!(
                backend.delete(&[id], epoch).expect("delete").deleted(),
                [false],
                "{place:?}: {id} was put in epoch {epoch}"
            );
            assert!(backend.get(id).expect("get").is_some());
            assert_eq!(
                backend.delete(&[id], epoch + 1).expect("delete").deleted(),
                [true],
                "{place:?}: nobody needs {id} any more"
            );
            assert!(backend.get(id).expect("get").is_none());
        }
    });
}

/// Some hundred nanoseconds for each unit: the two come first in turn, whatever the machine.
fn linger(units: u64) {
    (0..units * 100).for_each(|_| std::hint::spin_loop());
}

/// A session puts an object at the moment in which a sweep deletes the old one of the same content.
#[test]
fn a_put_beside_a_delete_wins() {
    const ROUNDS: u64 = 1_500;
    over_all(|place| {
        let backend = place.backend();
        let barrier = Barrier::new(2);
        let (mut went, mut lost) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let object = chunk(&round.to_string());
                    barrier.wait();
                    linger(round % 80);
                    backend.put_ahead(vec![object]).expect("put");
                    barrier.wait();
                }
            });
            for round in 0..ROUNDS {
                let object = chunk(&round.to_string());
                let id = object.id;
                backend.put_ahead(vec![object]).expect("put");
                let epoch = backend.advance_epoch().expect("a new epoch");
                barrier.wait();
                linger(40);
                went += u64::from(backend.delete(&[id], epoch).expect("delete").deleted()[0]);
                barrier.wait();
                lost += u64::from(backend.get(id).expect("get").is_none());
            }
        });
        println!("{place:?}: {went} of {ROUNDS} deletes came first");
        assert_eq!(lost, 0, "{place:?}: puts were deleted as older than they are");
        assert!(went > 0 && went < ROUNDS, "put and delete did not meet");
    });
}
