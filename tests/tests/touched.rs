//! The marks beside snapshots, of the paths that they changed: what is asked with them is answered as without them, whatever the
//! history; damaged and wrong ones are found and dropped.

#![allow(clippy::print_stderr, reason = "a failure is repeated by its seed")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use amalgam_engine::backend::{Family, Inspect, Memory, RowEdit};
use amalgam_engine::history::{History, PathChange};
use amalgam_engine::verify::{Record, Repaired};
use amalgam_engine::work::RenameMode;
use amalgam_engine::{
    Commit, Entry, Expect, Result, SnapshotId, Store, StoreOptions, Swept, Time, TreePath, VerifyOptions, VerifyReport,
    WorkingTree, repair, verify,
};
use amalgam_tests::harness::{Random, name, over_both, seed};
use bytes::Bytes;

const PATHS: [&str; 14] =
    ["a", "b", "c", "a/a", "a/b", "b/a", "b/c", "a/b/a", "a/b/b", "b/a/a", "a/b/a/a", "many", "many/7", "nowhere/at"];
const WITH_MARKS: u8 = 0xff;

/// Where a record's canonical bytes begin, as `docs/FORMAT.md` has it.
fn canonical_start(row: &[u8]) -> usize {
    match row[0] {
        WITH_MARKS => 11 + 4 * usize::from(u16::from_le_bytes([row[1], row[2]])),
        _ => 0,
    }
}

/// A record with other marks, which are as they would have been written.
fn with_marks(id: SnapshotId, row: &[u8], marks: &[u32]) -> Vec<u8> {
    let bytes: Vec<u8> = marks.iter().flat_map(|mark| mark.to_le_bytes()).collect();
    let mut key = [0; 32];
    key[..17].copy_from_slice(b"amalgam/1/touched");
    let check = blake3::keyed_hash(&key, &[id.as_bytes(), &bytes[..]].concat());
    let count = u16::try_from(marks.len()).expect("a few").to_le_bytes();
    [&[WITH_MARKS][..], &count, &check.as_bytes()[..8], &bytes, &row[canonical_start(row)..]].concat()
}

fn rows(backend: &dyn Inspect, family: Family) -> Vec<(Bytes, Bytes)> {
    backend.rows(family, &[], None, usize::MAX).expect("rows").rows
}

/// A copy of a store without any marks.
fn without_marks(backend: &dyn Inspect) -> Store {
    let copy = Memory::default();
    for family in Family::ALL {
        let rows = rows(backend, family).into_iter().map(|(key, value)| {
            let start = if family == Family::Snapshots { canonical_start(&value) } else { 0 };
            RowEdit { family, key, value: Some(value.slice(start..)) }
        });
        copy.edit(rows.collect()).expect("copied");
    }
    Store::new(Arc::new(copy), &StoreOptions::default())
}

fn edit(random: &mut Random, tree: &mut WorkingTree) {
    let path = |random: &mut Random| PATHS[random.below(11) as usize];
    let (first, second) = (path(random), path(random));
    let number = random.below(1_000);
    // What cannot be done in this tree is not done.
    let _refused: Result<()> = match random.below(16) {
        0..=4 => tree.write(first, format!("first\n{number}\nlast\n").as_bytes()),
        5 | 6 => tree.create_directories(first),
        7 => tree.remove_all(first),
        8 | 9 => tree.rename(first, second, RenameMode::Replace),
        10 => tree.rename(first, second, RenameMode::Exchange),
        11 => tree.link(first, second),
        12 => tree.set_mode(first, 0o700 + (number % 8) as u32),
        13 => tree.set_mtime(first, Time(number as i64)),
        14 => tree.set_state("key", &number.to_string()),
        _ if random.one_in(6) => (0..300).try_for_each(|file| {
            tree.create_directories("many")?;
            tree.write(format!("many/{file}"), format!("{number}").as_bytes())
        }),
        _ => tree.symlink(first, format!("{number}")),
    };
}

fn edits(random: &mut Random, tree: &mut WorkingTree) {
    for _ in 0..random.below(4) {
        edit(random, tree);
    }
}

/// A history of all the ways in which a snapshot can come about.
fn make_history(random: &mut Random, store: &Store, length: usize) -> Vec<SnapshotId> {
    let mut ids: Vec<SnapshotId> = Vec::new();
    let mut tree = WorkingTree::new(store);
    for number in 0..length {
        let pick = |random: &mut Random| ids[ids.len() - 1 - random.below(ids.len().min(6) as u64) as usize];
        let mut other_parents = Vec::new();
        if !ids.is_empty() {
            match random.below(8) {
                // Another branch.
                0 | 1 => tree = WorkingTree::open(store, pick(random)).expect("open"),
                // The tree of one snapshot on top of another.
                2 => {
                    tree = WorkingTree::open(store, pick(random)).expect("open");
                    tree.rebase(Some(pick(random)));
                }
                3 => other_parents.extend(Some(pick(random)).filter(|other| Some(*other) != tree.base())),
                _ => {}
            }
        }
        edits(random, &mut tree);
        if random.one_in(8) {
            // Written before, and not committed by it.
            let session = store.session();
            tree.freeze().write(&session).expect("written");
            edits(random, &mut tree);
        }
        let reference = name(format!("head/{number}"));
        let mut commit = Commit::new(&reference, "c").buffered().expecting(Expect::Absent);
        commit = commit.by("a", Time(number as i64));
        commit.other_parents = other_parents;
        let frozen = tree.freeze();
        if random.one_in(4) {
            edits(random, &mut tree);
        }
        let landed = frozen.commit(commit).expect("commit");
        ids.push(landed.done.snapshot);
        tree.settle(landed).expect("settled");
    }
    ids
}

type Told = BTreeMap<(SnapshotId, TreePath), (PathChange, Option<Entry>)>;

fn versions(history: &History, head: SnapshotId, path: &TreePath, follow: bool) -> Told {
    let mut told = Told::new();
    for version in history.versions(head, path, follow).expect("versions") {
        let version = version.expect("read");
        let before = told.insert((version.id, version.path), (version.change, version.entry));
        assert!(before.is_none(), "a version is told once");
    }
    told
}

fn compare(with: &Store, without: &Store, heads: &[SnapshotId], seed: u64) -> usize {
    let (with, without) = (History::of(with), History::of(without));
    let mut told = 0;
    for head in heads {
        for path in PATHS.iter().map(|path| TreePath::new(path).expect("a path")).chain([TreePath::root()]) {
            for follow in [false, true] {
                let ours = versions(&with, *head, &path, follow);
                assert_eq!(ours, versions(&without, *head, &path, follow), "seed {seed}, {path} of {head}");
                told += ours.len();
            }
            let runs = |history: &History| history.blame(*head, &path).map(|blame| blame.runs).ok();
            assert_eq!(runs(&with), runs(&without), "seed {seed}, {path} of {head}");
        }
    }
    told
}

fn check(backend: &Arc<dyn Inspect>) -> VerifyReport {
    let store = Store::new(Arc::clone(backend), &StoreOptions::default());
    verify(&store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(())).expect("a report")
}

fn heads(random: &mut Random, ids: &[SnapshotId]) -> Vec<SnapshotId> {
    let some = (0..3).map(|_| ids[random.below(ids.len() as u64) as usize]);
    some.chain(ids.last().copied()).collect()
}

/// Drops the trees of some snapshots, as retention will; records stay.
fn thin(random: &mut Random, store: &Store, ids: &[SnapshotId], one_in: u64) {
    let history = History::of(store);
    let root = |id: &SnapshotId| store.snapshot(*id).expect("there").root.object();
    let is_there = |id: &&SnapshotId| !history.is_thinned(**id).expect("told");
    let dead: BTreeSet<_> = ids.iter().filter(|_| random.one_in(one_in)).filter(is_there).map(root).collect();
    let mut round = store.begin_sweep().expect("begin");
    let swept = round.sweep(&|id| !dead.contains(&id)).expect("sweep");
    assert_eq!(swept, Swept::Done { objects: dead.len() as u64 });
}

#[test]
fn what_is_asked_with_marks_is_answered_as_without() {
    let (mut told, mut marked, mut all) = (0, 0, 0);
    for round in 0..24 {
        let seed = seed() ^ round;
        eprintln!("AMALGAM_SEED={seed}");
        let mut random = Random::new(seed);
        let backend: Arc<dyn Inspect> = Arc::new(Memory::default());
        let store = Store::new(Arc::clone(&backend), &StoreOptions::default());
        let ids = make_history(&mut random, &store, 60);
        let records = rows(&*backend, Family::Snapshots);
        all += records.len();
        marked += records.iter().filter(|(_, row)| row[0] == WITH_MARKS).count();
        assert!(check(&backend).is_clean(), "seed {seed}: no marks leave out anything");
        let heads = heads(&mut random, &ids);
        told += compare(&store, &without_marks(&*backend), &heads, seed);
        for one_in in [8, 3] {
            thin(&mut random, &store, &ids[..ids.len() - 1], one_in);
            told += compare(&store, &without_marks(&*backend), &heads, seed);
        }
        // Some records altogether.
        for id in &ids[..ids.len() - 1] {
            if random.one_in(12) && !heads.contains(id) {
                let key = Bytes::copy_from_slice(id.as_bytes());
                backend.edit(vec![RowEdit { family: Family::Index, key, value: None }]).expect("gone");
            }
        }
        let store = Store::new(Arc::clone(&backend), &StoreOptions::default());
        told += compare(&store, &without_marks(&*backend), &heads, seed);
    }
    assert!(told > 10_000, "there is something to tell: {told}");
    assert!(marked * 10 > all * 8, "nearly all have marks: {marked} of {all}");
}

/// A history longer than a leap, so that lines meet in the middle of one.
#[test]
fn long_histories_are_leapt_over() {
    let backend: Arc<dyn Inspect> = Arc::new(Memory::default());
    let store = Store::new(Arc::clone(&backend), &StoreOptions::default());
    let mut random = Random::new(5);
    let mut tree = WorkingTree::new(&store);
    let mut ids: Vec<SnapshotId> = Vec::new();
    for number in 0..700_usize {
        let path = if number % 150 == 0 { "a".to_owned() } else { format!("other{}", number % 7) };
        tree.write(path, number.to_string().as_bytes()).expect("write");
        let mut commit = Commit::new(&name(format!("head/{number}")), "c").buffered().expecting(Expect::Absent);
        if number > 300 && number % 50 == 0 {
            commit.other_parents = vec![ids[number - 40 - random.below(200) as usize]];
        }
        ids.push(tree.commit(commit).expect("commit").snapshot);
    }
    let head = ids[699];
    let path = TreePath::new("a").expect("a path");
    let found: Vec<_> = versions(&History::of(&store), head, &path, true).into_keys().map(|(id, _)| id).collect();
    let expected: BTreeSet<_> = (0..700).step_by(150).map(|number| ids[number]).collect();
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected);
    drop(tree);
    for one_in in [2, 2, 2] {
        thin(&mut random, &store, &ids[1..699], one_in);
        compare(&store, &without_marks(&*backend), &[head, ids[0]], 5);
    }
}

/// A merge whose first parent is gone altogether is compared with the other one, of which its marks say nothing.
#[test]
fn marks_say_nothing_of_another_parent() {
    let backend: Arc<dyn Inspect> = Arc::new(Memory::default());
    let store = Store::new(Arc::clone(&backend), &StoreOptions::default());
    let commit = |tree: &mut WorkingTree, number: i64, other_parents: Vec<SnapshotId>| {
        let mut commit = Commit::new(&name(format!("head/{number}")), "c").expecting(Expect::Absent);
        commit.other_parents = other_parents;
        tree.commit(commit).expect("commit").snapshot
    };
    let mut tree = WorkingTree::new(&store);
    tree.write("a", b"1").expect("write");
    let first = commit(&mut tree, 0, Vec::new());
    let mut other = tree.fork();
    tree.write("a", b"2").expect("write");
    let ours = commit(&mut tree, 1, Vec::new());
    other.write("b", b"1").expect("write");
    let theirs = commit(&mut other, 2, Vec::new());
    tree.write("b", b"1").expect("write");
    let merged = commit(&mut tree, 3, vec![theirs]);
    let path = TreePath::new("a").expect("a path");
    let found = || {
        let history = History::of(&Store::new(Arc::clone(&backend), &StoreOptions::default()));
        versions(&history, merged, &path, false).into_keys().map(|(id, _)| id).collect::<BTreeSet<_>>()
    };
    assert_eq!(found(), BTreeSet::from([ours, first]));
    let key = Bytes::copy_from_slice(ours.as_bytes());
    backend.edit(vec![RowEdit { family: Family::Index, key, value: None }]).expect("gone");
    assert_eq!(found(), BTreeSet::from([merged, first]));
}

/// A commit of a file and one of a change to it; the record of the second, and its key.
fn marked(backend: &Arc<dyn Inspect>) -> ([SnapshotId; 2], Bytes, Bytes) {
    let store = Store::new(Arc::clone(backend), &StoreOptions::default());
    let mut tree = WorkingTree::new(&store);
    let head = name("head/main");
    tree.create_directories("a/b").expect("mkdir");
    tree.write("a/b/a", b"1").expect("write");
    tree.write("c", b"1").expect("write");
    let first = tree.commit(Commit::new(&head, "c")).expect("commit").snapshot;
    tree.write("a/b/a", b"2").expect("write");
    let second = tree.commit(Commit::new(&head, "c")).expect("commit").snapshot;
    let (key, row) = rows(&**backend, Family::Snapshots).pop().expect("a record");
    assert_eq!(row[0], WITH_MARKS);
    ([first, second], key, row)
}

fn plant(backend: &dyn Inspect, key: &Bytes, row: Vec<u8>) {
    let edit = RowEdit { family: Family::Snapshots, key: key.clone(), value: Some(row.into()) };
    backend.edit(vec![edit]).expect("planted");
}

#[test]
fn marks_that_are_damaged_or_wrong_are_found_and_dropped() {
    over_both(|place| {
        let backend = place.backend();
        let ([first, second], key, row) = marked(&backend);
        assert!(check(&backend).is_clean());
        let start = canonical_start(&row);
        let expected: Vec<_> = [second, first].into();
        let path = TreePath::new("a/b/a").expect("a path");
        let found = || -> Result<Vec<SnapshotId>> {
            let history = History::of(&Store::new(Arc::clone(&backend), &StoreOptions::default()));
            history.versions(second, &path, true)?.map(|version| version.map(|version| version.id)).collect()
        };
        let records = |report: &VerifyReport| -> Vec<Record> {
            report.records.iter().map(|problem| problem.record.clone()).collect()
        };
        for at in 0..start {
            let mut damaged = row.to_vec();
            damaged[at] ^= 0x40;
            plant(&*backend, &key, damaged);
            let report = check(&backend);
            assert!(!report.is_clean(), "byte {at}");
            match found() {
                Ok(found) => {
                    assert_eq!(found, expected, "byte {at}: damaged marks are not believed");
                    assert_eq!(records(&report), [Record::ChangedPaths(second)], "byte {at}");
                    assert!(report.problems.is_empty(), "byte {at}: the snapshot is as it was");
                }
                Err(_) => assert_eq!(report.problems[0].id, second.object(), "byte {at}"),
            }
        }
        // Those of another snapshot, of nothing, and of some other path: each as somebody would have written it.
        let others = [with_marks(first, &row, &[1]), with_marks(second, &row, &[]), with_marks(second, &row, &[1, 2])];
        for (number, other) in others.into_iter().enumerate() {
            plant(&*backend, &key, other);
            assert_eq!(records(&check(&backend)), [Record::ChangedPaths(second)], "{number}");
            let store = Store::new(Arc::clone(&backend), &StoreOptions::default());
            let done = repair(&store, &VerifyOptions::default()).expect("repaired");
            let dropped = Repaired::Record { record: Record::ChangedPaths(second), remedy: "dropped" };
            assert_eq!(done.done, [dropped], "{number}");
            assert!(done.left.is_clean(), "{number}: {:#?}", done.left);
            assert_eq!(found().expect("versions"), expected, "{number}");
            let left = rows(&*backend, Family::Snapshots).pop().expect("a record").1;
            assert_eq!(left, row.slice(start..), "{number}: what is left is the snapshot");
        }
        // Marks too many are no flaw.
        let marks = row[11..start].chunks(4).map(|mark| u32::from_le_bytes(mark.try_into().expect("four")));
        let mut more: Vec<u32> = marks.chain([7]).collect();
        more.sort_unstable();
        plant(&*backend, &key, with_marks(second, &row, &more));
        assert!(check(&backend).is_clean());
        assert_eq!(found().expect("versions"), expected);
    });
}

#[test]
fn marks_go_with_their_snapshot() {
    over_both(|place| {
        let backend = place.backend();
        let ([_, second], ..) = marked(&backend);
        let store = Store::new(Arc::clone(&backend), &StoreOptions::default());
        let mut round = store.begin_sweep().expect("begin");
        let swept = round.sweep(&|id| id != second.object()).expect("sweep");
        assert_eq!(swept, Swept::Done { objects: 1 });
        assert!(round.reclaim(&mut |_| ControlFlow::Continue(())).expect("reclaim").finished);
        let left = rows(&*backend, Family::Snapshots);
        assert!(left.len() == 1 && left[0].1[0] != WITH_MARKS, "only the first is left, which has none");
        assert!(backend.get(second.object()).expect("read").is_none());
    });
}
