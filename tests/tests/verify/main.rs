//! Verification finds every damage and says where it shows; repair loses nothing else. Damage is planted in the rows, over both
//! backends.

mod house;
mod rules;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use amalgam_engine::backend::{Family, Fault, FaultPlan, Memory, RowEdit};
use amalgam_engine::verify::{Damage, Record, Repaired, VerifyOptions};
use amalgam_engine::{ChunkId, Commit, ObjectId, ObjectKind, RequestId, WorkingTree, repair, verify};
use amalgam_tests::harness::{Place, Random, check_log, name, over_both};
use bytes::Bytes;

use house::{
    House, Plant, Rows, affects, all_rows, check, plant_tree, problem_of, put, quiet, set_rows, store_over, take,
};

#[test]
fn a_sound_store_is_clean() {
    over_both(|place| {
        let house = House::new(place.backend());
        for options in [VerifyOptions::default(), VerifyOptions::reading_data()] {
            let report = verify(&store_over(&house.backend), &options, &quiet).expect("a report");
            assert!(report.is_clean(), "{place:?}: {report:#?}");
            assert_eq!((report.refs, report.operations, report.unreachable, report.orphans), (2, 2, 0, 0));
            let indexed = house.sound.keys().filter(|(family, _)| *family == Family::Index).count();
            assert_eq!(report.objects, indexed as u64);
        }
        let data = check(&house.backend).bytes;
        let content: usize = house.main_files.values().chain(house.other_files.values()).map(Vec::len).sum();
        assert!(data > content as u64 - 100, "{place:?}: all contents are hashed");
        let done = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
        assert_eq!(done.done, [], "{place:?}: nothing to do");
        assert_eq!(all_rows(&*house.backend), house.sound, "{place:?}: a repair of a sound store changes no row");
    });
}

/// Every kind of object and every sort of damage: found, named, and repaired without losing anything else.
#[test]
fn damage_is_found_named_and_repaired() {
    over_both(|place| {
        let house = House::new(place.backend());
        let twins = house.targets(house.other, 2);
        let mut found = 0;
        for ((sort, id, path), (_, twin, _)) in house.targets(house.main, 1).into_iter().zip(twins) {
            for planted in Plant::ALL {
                let here = format!("{place:?}, {sort}, {planted:?}");
                house.plant(&planted, id, twin);
                let report = check(&house.backend);
                let problem = problem_of(&report, id);
                assert!(planted.explains(&problem.damage, sort == "snapshot"), "{here}: {problem:?}");
                assert!(affects(problem, house.main, path), "{here}: {problem:#?}");
                assert_eq!(problem.parents.is_empty(), sort == "snapshot", "{here}: {problem:#?}");
                let others = if planted == Plant::Swap { 2 } else { 1 };
                assert_eq!(report.problems.len(), others, "{here}: {report:#?}");
                found += 1;
                repaired(&house, planted, id, path, &here);
                house.restore();
            }
        }
        assert_eq!(found, 11 * Plant::ALL.len());
        assert!(check(&house.backend).is_clean());
    });
}

fn repaired(house: &House, planted: Plant, id: ObjectId, path: &str, here: &str) {
    let done = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
    assert!(!done.found.problems.is_empty(), "{here}");
    let all_main: BTreeSet<_> = house.main_files.keys().cloned().collect();
    let all_other: BTreeSet<_> = house.other_files.keys().cloned().collect();
    let main = house.readable(house.main, &house.main_files);
    assert_eq!(house.readable(house.other, &house.other_files), all_other, "{here}: the other snapshot is whole");
    if planted.heals() {
        assert!(done.left.is_clean(), "{here}: {:#?}", done.left);
        assert_eq!(main, all_main, "{here}: all can be read again");
        assert!(done.done.contains(&Repaired::Found { id }), "{here}: {:?}", done.done);
    } else {
        let lost = problem_of(&done.left, id);
        assert!(matches!(lost.damage, Damage::Missing | Damage::Dangling), "{here}: {lost:?}");
        assert!(affects(lost, house.main, path), "{here}: {lost:#?}");
        assert_eq!((done.left.problems.len(), done.left.records.len()), (1, 0), "{here}: {:#?}", done.left);
        let reads_on = all_main.iter().filter(|file| !(path.is_empty() || file.starts_with(path)));
        assert!(reads_on.clone().all(|file| main.contains(file)), "{here}: an unaffected path was lost");
        if id.kind == ObjectKind::Directory && house.stored(id)[2] != 0x08 {
            assert!(main.iter().any(|file| file.starts_with("wide/")), "{here}: the other leaves can be read");
        }
        let taken =
            done.done.iter().any(|step| matches!(step, Repaired::Quarantined { id: taken, .. } if *taken == id));
        assert_eq!(taken, planted != Plant::AllGone, "{here}: {:?}", done.done);
        if matches!(planted, Plant::Flip | Plant::Cut) {
            let key = [&[0][..], &id.hash].concat();
            let page = house.backend.rows(Family::Quarantine, &key, None, 1).expect("rows");
            let (kept, value) = &page.rows[0];
            assert_eq!((&kept[..], value[0]), (&key[..], id.kind as u8), "{here}: the bytes are kept");
        }
    }
    let before = all_rows(&*house.backend);
    let again = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
    assert_eq!(again.done, [], "{here}: the second repair has nothing to do");
    assert_eq!(all_rows(&*house.backend), before, "{here}: and changes nothing");
}

#[test]
fn what_was_lost_heals_when_it_is_put_again() {
    over_both(|place| {
        let house = House::new(place.backend());
        let (_, id, _) = house.targets(house.main, 1)[0];
        house.plant(&Plant::Flip, id, id);
        repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
        assert!(!check(&house.backend).is_clean());
        let store = store_over(&house.backend);
        let mut tree = WorkingTree::new(&store);
        tree.write("again", b"small 1").expect("write");
        tree.commit(Commit::new(&name("head/again"), "again")).expect("commit");
        drop(tree);
        assert!(check(&house.backend).is_clean(), "{place:?}");
        assert_eq!(house.readable(house.main, &house.main_files).len(), house.main_files.len());
    });
}

#[test]
fn without_reading_data_chunks_are_looked_up_only() {
    over_both(|place| {
        let house = House::new(place.backend());
        let (_, id, path) = house.targets(house.main, 1)[0];
        let structure = || verify(&store_over(&house.backend), &VerifyOptions::default(), &quiet).expect("a report");
        house.plant(&Plant::Flip, id, id);
        assert!(structure().is_clean(), "{place:?}: their bytes are not read");
        assert!(!check(&house.backend).is_clean());
        house.restore();
        house.plant(&Plant::IndexGone, id, id);
        let report = structure();
        assert_eq!(problem_of(&report, id).damage, Damage::Missing);
        assert!(affects(problem_of(&report, id), house.main, path), "{place:?}: {report:#?}");
    });
}

#[test]
fn damaged_records_are_found_and_made_anew_from_the_log() {
    over_both(|place| {
        let house = House::new(place.backend());
        let log = |number: u64| number.to_be_bytes();
        let row = |family, key: &[u8]| house.sound[&(family, Bytes::copy_from_slice(key))].clone();
        let head = b"head/main";
        let mut other_value = row(Family::Refs, b"head/other");
        other_value = Bytes::from([&log(1)[..], &other_value[8..]].concat());
        let reference = Record::Reference("head/main".to_owned());
        let index_key = house.main.as_bytes();
        let cases: Vec<(&str, Vec<RowEdit>, Record, bool)> = vec![
            ("a reference of no form", vec![put(Family::Refs, head, &b"?"[..])], reference.clone(), true),
            ("a reference that is gone", vec![take(Family::Refs, head)], reference.clone(), true),
            ("a reference to another", vec![put(Family::Refs, head, other_value)], reference, true),
            (
                "a reference nobody made",
                vec![put(Family::Refs, b"head/new", row(Family::Refs, head))],
                Record::Reference("head/new".to_owned()),
                true,
            ),
            ("a request that is gone", vec![take(Family::Requests, head)], Record::Request(head.to_vec()), true),
            (
                "a request for another",
                vec![put(Family::Requests, head, log(2).to_vec())],
                Record::Request(head.to_vec()),
                true,
            ),
            (
                "an index row of no form",
                vec![put(Family::Index, index_key, vec![9, 9])],
                Record::Index(index_key.to_vec()),
                true,
            ),
            (
                "an operation of no form",
                vec![put(Family::Operations, &log(1), &b"\xff"[..])],
                Record::Operation(1),
                false,
            ),
            ("an operation that is gone", vec![take(Family::Operations, &log(1))], Record::Operation(1), false),
            ("the newest operation", vec![take(Family::Operations, &log(2))], Record::Operation(2), false),
        ];
        for (what, edits, record, whole) in cases {
            house.backend.edit(edits).expect("plant");
            let report = check(&house.backend);
            assert!(report.records.iter().any(|problem| problem.record == record), "{place:?}, {what}: {report:#?}");
            assert!(report.records.len() <= 2, "{place:?}, {what}: {report:#?}");
            let done = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
            assert!(done.left.is_clean(), "{place:?}, {what}: {:#?}", done.left);
            let store = store_over(&house.backend);
            let operations = check_log(&store).expect("the log is whole");
            assert_eq!(operations.len(), 2, "{place:?}, {what}");
            for family in [Family::Refs, Family::Requests, Family::Index] {
                let of = |rows: &Rows| -> Rows {
                    rows.iter().filter(|((of, _), _)| *of == family).map(|(k, v)| (k.clone(), v.clone())).collect()
                };
                assert!(of(&all_rows(&*house.backend)) == of(&house.sound), "{place:?}, {what}: {family:?}");
            }
            let lost = operations.iter().any(|operation| operation.draft.action == "lost");
            assert_eq!(lost, !whole, "{place:?}, {what}");
            let again = repair(&store, &VerifyOptions::default()).expect("repair");
            assert_eq!(again.done, [], "{place:?}, {what}");
            house.restore();
        }
    });
}

/// Rows that no row of the index names.
#[test]
fn loose_rows_are_dropped_named_or_kept_aside() {
    over_both(|place| {
        let house = House::new(place.backend());
        let twin = house.stored(ChunkId::of(b"small 1").object());
        let plant = |at: u64, family, bytes: Bytes| put(family, &(1_000_000 + at).to_be_bytes(), bytes);
        let fresh = Bytes::from_static(b"\0nobody knows");
        house
            .backend
            .edit(vec![
                plant(0, Family::Chunks, twin),
                plant(1, Family::Chunks, fresh),
                plant(2, Family::Trees, Bytes::from_static(b"no object")),
            ])
            .expect("plant");
        let report = check(&house.backend);
        assert!(report.is_clean(), "{place:?}: they do no harm");
        assert_eq!((report.orphans, report.unreachable), (3, 0));
        let done = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
        let expected = [
            Repaired::Dropped { id: ChunkId::of(b"small 1").object() },
            Repaired::Found { id: ChunkId::of(b"nobody knows").object() },
            Repaired::QuarantinedRow { family: Family::Trees, number: 1_000_002 },
        ];
        assert_eq!(done.done, expected, "{place:?}");
        assert_eq!((done.left.orphans, done.left.unreachable, done.left.quarantined), (0, 1, 1));
        assert!(done.left.is_clean());
    });
}

#[test]
fn history_may_be_thinned() {
    over_both(|place| {
        let backend = place.backend();
        let store = store_over(&backend);
        let mut tree = WorkingTree::new(&store);
        let mut snapshots = Vec::new();
        for turn in 0..4 {
            tree.write("file", format!("turn {turn}").as_bytes()).expect("write");
            snapshots.push(tree.commit(Commit::new(&name("head/main"), "turn")).expect("commit").snapshot);
        }
        let root = store.snapshot(snapshots[2]).expect("there").root;
        drop(tree);
        let report = check(&backend);
        assert!(report.is_clean() && report.unreachable == 0, "{place:?}: history is looked at too: {report:#?}");
        let tree_of_first = store.snapshot(snapshots[0]).expect("there").root;
        backend
            .edit(vec![take(Family::Index, root.as_bytes()), take(Family::Index, snapshots[1].as_bytes())])
            .expect("gone");
        let report = check(&backend);
        assert!(report.is_clean(), "{place:?}: {report:#?}");
        assert_eq!((report.thinned, report.absent), (1, 1), "{place:?}");
        assert!(report.unreachable > 0, "{place:?}: nothing leads to {tree_of_first} any more");
    });
}

/// A repair that is killed between two of its steps is finished by the next one.
#[test]
fn a_repair_that_ends_early_is_finished_by_the_next_one() {
    let plan = Arc::new(FaultPlan::default());
    let house = House::new(Arc::new(Fault::new(Memory::default(), Arc::clone(&plan))));
    let targets = house.targets(house.main, 1);
    let twins = house.targets(house.other, 2);
    for ((at, planted), (_, twin, _)) in [Plant::Flip, Plant::Swap, Plant::RowGone, Plant::IndexGone, Plant::KindWrong]
        .into_iter()
        .enumerate()
        .zip(&twins)
    {
        house.plant(&planted, targets[at].1, *twin);
    }
    house
        .backend
        .edit(vec![take(Family::Refs, b"head/main"), take(Family::Operations, &1_u64.to_be_bytes())])
        .expect("plant");
    let damaged = all_rows(&*house.backend);
    let whole = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
    assert!(whole.done.len() >= 6, "{:?}", whole.done);
    let wanted = all_rows(&*house.backend);
    for steps in 0..whole.done.len() {
        set_rows(&*house.backend, &damaged);
        plan.full_after_writes(i64::try_from(steps).expect("few"));
        repair(&store_over(&house.backend), &VerifyOptions::default()).expect_err("it is ended");
        plan.heal();
        let rest = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
        assert_eq!(rest.done.len(), whole.done.len() - steps, "after {steps} steps: {:?}", rest.done);
        let differ: Vec<_> =
            wanted.iter().filter(|(key, value)| all_rows(&*house.backend).get(*key) != Some(*value)).collect();
        assert!(differ.is_empty(), "after {steps} steps: {differ:?}");
        assert_eq!(rest.left.problems.len(), whole.left.problems.len());
    }
}

#[test]
fn it_tells_how_far_it_is_and_can_be_ended() {
    let house = House::new(Place::Memory.backend());
    let store = store_over(&house.backend);
    let last = std::sync::Mutex::new((0, 0, 0, 0));
    let report = verify(&store, &VerifyOptions::reading_data(), &|now| {
        let mut last = last.lock().expect("no panic");
        *last = (now.objects.max(last.0), now.objects_total, now.bytes.max(last.2), now.bytes_total);
        ControlFlow::Continue(())
    });
    let (objects, objects_total, bytes, bytes_total) = *last.lock().expect("no panic");
    assert_eq!((objects, bytes), (objects_total, bytes_total));
    assert_eq!(objects, report.expect("a report").objects);
    let ended = verify(&store, &VerifyOptions::reading_data(), &|_| ControlFlow::Break(())).expect("a report");
    assert!(!ended.finished && !ended.is_clean(), "{ended:?}");
}

#[test]
fn writers_do_no_harm_to_a_verification() {
    over_both(|place| {
        let backend = place.backend();
        let store = store_over(&backend);
        let mut tree = WorkingTree::new(&store);
        plant_tree(&mut tree, 3);
        tree.commit(Commit::new(&name("head/main"), "first")).expect("commit");
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0.. {
                    tree.write(format!("wide/more {turn}"), format!("turn {turn}").as_bytes()).expect("write");
                    let mut commit = Commit::new(&name("head/main"), "turn").buffered();
                    commit.request = Some(RequestId::new(format!("turn {turn}")).expect("an id"));
                    tree.commit(commit).expect("commit");
                    if ended.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                }
            });
            for _ in 0..10 {
                let report = verify(&store, &VerifyOptions::reading_data(), &quiet).expect("a report");
                assert!(report.is_clean(), "{place:?}: {report:#?}");
            }
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let operations = check_log(&store).expect("a log").len();
        assert!(operations > 10, "{place:?}: {operations} commits beside ten verifications");
    });
}

#[test]
fn a_store_in_use_is_not_repaired() {
    let house = House::new(Place::Memory.backend());
    let store = store_over(&house.backend);
    let session = store.session();
    repair(&store, &VerifyOptions::default()).expect_err("a session is open");
    drop(session);
    let pin = store.pin(house.main);
    repair(&store, &VerifyOptions::default()).expect_err("a pin is held");
    drop(pin);
    repair(&store, &VerifyOptions::default()).expect("nobody uses it");
}

/// One byte of the database's own files: it is the database that sees it.
#[test]
fn what_the_database_cannot_read_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = Place::Disk(directory.path());
    let noise: Vec<_> = (0..5).map(|seed| Random::new(seed).bytes(50_000)).collect();
    let store = place.store();
    let mut tree = WorkingTree::new(&store);
    for (number, noise) in noise.iter().enumerate() {
        tree.write(format!("noise {number}"), noise).expect("write");
    }
    let snapshot = tree.commit(Commit::new(&name("head/main"), "noise")).expect("commit").snapshot;
    drop((tree, store));
    // Opening a store looks at the last rows of a family, so it is the first of them that is hit.
    let mut hit = None;
    for file in std::fs::read_dir(directory.path().join("db")).expect("list") {
        let path = file.expect("entry").path();
        let mut bytes = std::fs::read(&path).expect("read");
        let begins = |at: &usize| noise.iter().position(|noise| bytes[*at..].starts_with(&noise[..64]));
        let first = (0..bytes.len()).find(|at| begins(at).is_some());
        if let Some(at) = first.filter(|_| path.extension().is_some_and(|suffix| suffix == "sst")) {
            assert!(hit.is_none(), "the chunks lie in one file");
            hit = begins(&at);
            bytes[at + 30] ^= 4;
            std::fs::write(&path, bytes).expect("write");
        }
    }
    let hit = hit.expect("the chunks lie in a file");
    let backend = place.backend();
    let id = ChunkId::of(&noise[hit]).object();
    let report = check(&backend);
    assert!(matches!(problem_of(&report, id).damage, Damage::Unreadable { .. }), "{report:#?}");
    assert!(affects(problem_of(&report, id), snapshot, &format!("noise {hit}")), "{report:#?}");
    assert_eq!((report.problems.len(), report.records.len()), (1, 0), "what lies behind it is read: {report:#?}");
    let done = repair(&store_over(&backend), &VerifyOptions::default()).expect("repair");
    assert_eq!(problem_of(&done.left, id).damage, Damage::Missing);
    assert_eq!(done.left.problems.len(), 1);
    let store = store_over(&backend);
    let tree = WorkingTree::open(&store, snapshot).expect("open");
    for (number, noise) in noise.iter().enumerate() {
        let read = tree.read(format!("noise {number}"));
        assert_eq!(read.ok().as_ref(), (number != hit).then_some(noise), "noise {number}");
    }
}

/// More than one thread reads at a time, and each family is more than one part.
#[test]
fn large_stores_are_read_in_parts() {
    over_both(|place| {
        let backend = place.backend();
        let store = store_over(&backend);
        let mut tree = WorkingTree::new(&store);
        tree.write("noise", &Random::new(5).bytes(14 << 20)).expect("write");
        for number in 0..2_000 {
            tree.write(format!("file {number}"), format!("{number}").as_bytes()).expect("write");
        }
        tree.commit(Commit::new(&name("head/main"), "much")).expect("commit");
        drop((tree, store));
        let report = check(&backend);
        assert!(report.is_clean(), "{place:?}: {report:#?}");
        assert!(report.bytes > 14 << 20, "{place:?}");
        let sound = all_rows(&*backend);
        let chunks = sound.iter().filter(|((family, _), _)| *family == Family::Chunks);
        let gone: Vec<_> = chunks.step_by(97).map(|((family, key), _)| take(*family, key)).collect();
        let count = gone.len();
        backend.edit(gone).expect("plant");
        let report = check(&backend);
        assert_eq!(report.problems.len(), count, "{place:?}");
        assert!(report.problems.iter().all(|problem| problem.damage == Damage::Missing && !problem.places.is_empty()));
    });
}

/// What is listed has a limit; what is not listed is counted.
#[test]
fn places_are_listed_up_to_a_limit_and_counted_beyond() {
    over_both(|place| {
        let backend = place.backend();
        let store = store_over(&backend);
        let mut tree = WorkingTree::new(&store);
        for number in 0..50 {
            tree.create_directories(format!("in {number}")).expect("mkdir");
            tree.write(format!("in {number}/same"), b"the same").expect("write");
            tree.write(format!("in {number}/own"), format!("{number}").as_bytes()).expect("write");
        }
        tree.commit(Commit::new(&name("head/main"), "first")).expect("commit");
        tree.write("more", b"more").expect("write");
        tree.commit(Commit::new(&name("head/main"), "second")).expect("commit");
        drop((tree, store));
        let id = ChunkId::of(b"the same").object();
        backend.edit(vec![take(Family::Index, &id.hash)]).expect("plant");
        let options = VerifyOptions { listed_max: 10, ..VerifyOptions::default() };
        let report = verify(&store_over(&backend), &options, &quiet).expect("a report");
        let problem = problem_of(&report, id);
        assert_eq!((problem.places.len(), problem.places_more), (10, 90), "{place:?}: 50 paths in two snapshots");
        assert_eq!((problem.parents.len(), problem.parents_more), (10, 40), "{place:?}: 50 directories");
    });
}
