//! A log of operations that is shortened: what of it stays, who is told, and that nothing else is lost with it.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use amalgam_engine::backend::{Durability, Fault, FaultPlan, Memory, Transaction};
use amalgam_engine::reference::{OperationDraft, RefName, RefValue, RequestId};
use amalgam_engine::workspace::{Change, NewWorkspace};
use amalgam_engine::{
    Error, ErrorKind, LivedTime, OperationContext, OperationCursor, PastRefs, Store, StoreOptions, SweepScope, Time,
    VerifyOptions, WorkspaceName, Workspaces, operation, verify,
};
use amalgam_gc::retention::Span;
use amalgam_gc::{CollectOptions, CollectReport, LogRetention, Stage, collect, first_kept_operation};
use amalgam_tests::harness::{Place, all_refs, over_all};

fn at(number: u64) -> OperationContext {
    OperationContext::new("ada", Time::from_seconds(number as i64 * 3_600, 0)).buffered()
}

fn main_name() -> WorkspaceName {
    WorkspaceName::new("main").expect("a valid name")
}

/// One commit an hour, so many operations in all.
fn with_operations(store: &Store, operations: u64) -> Workspaces {
    let workspaces = Workspaces::of(store);
    workspaces.create(&main_name(), &NewWorkspace::default(), &at(1)).expect("create");
    for number in 2..=operations {
        let mut tree = workspaces.open(&main_name()).expect("open");
        tree.write("n", number.to_string().as_bytes()).expect("write");
        let act = at(number).as_request(RequestId::new(format!("r{number}")).expect("an id"));
        workspaces.commit(&main_name(), &mut tree, &Change::new("x"), &act).expect("commit");
    }
    workspaces
}

fn trim(store: &Store, from: u64) -> CollectReport {
    let options = CollectOptions { log_from: from, ..CollectOptions::default() };
    collect(store, &options, &mut |_| ControlFlow::Continue(())).expect("a collection")
}

fn assert_trimmed<T: std::fmt::Debug>(result: Result<T, Error>, wanted: u64, begins: u64) {
    match result {
        Err(error @ Error::Trimmed { operation, first, since }) => {
            assert_eq!((operation, first, since), (wanted, begins, at(begins).time));
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.to_string().contains(&format!("reaches back to operation {begins} of 1970-01-0")), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

fn assert_clean(store: &Store) -> amalgam_engine::VerifyReport {
    let report = verify(store, &VerifyOptions::default(), &|_| ControlFlow::Continue(())).expect("a verification");
    assert!(report.is_clean(), "{report:?}");
    report
}

#[test]
fn a_shortened_log_goes_on_counting_and_says_how_far_back_it_reaches() {
    over_all(|place| {
        let check = |store: &Store| {
            assert_eq!((store.first_operation().expect("first"), store.last_operation().expect("last")), (21, 30));
            let listed = store.list_operations(20, 100).expect("what is left");
            assert_eq!(listed.iter().map(|found| found.sequence).collect::<Vec<_>>(), (21..=30).collect::<Vec<_>>());
            assert_trimmed(store.list_operations(19, 1), 20, 21);
            assert_trimmed(operation::operation(store, 5), 5, 21);
            assert_trimmed(OperationCursor::after(store, 0).read(), 1, 21);
            assert_eq!(OperationCursor::at_beginning(store).expect("begin").read().expect("read").len(), 10);
            assert_trimmed(PastRefs::at(store, 19), 20, 21);
            let past = PastRefs::at(store, 20).expect("the oldest state that is known");
            let head = past.read_ref(&main_name().reference()).expect("it was there").target;
            assert_eq!(head, listed[0].changes[0].before.as_ref().and_then(|value| value.target));
            assert_eq!(assert_clean(store).operations, 10);
        };
        {
            let store = place.store();
            with_operations(&store, 30);
            let before = all_refs(&store).expect("references");
            assert_eq!(trim(&store, 21).operations, 20, "{place:?}");
            assert_eq!(trim(&store, 21).operations, 0, "{place:?}: once");
            assert_eq!(all_refs(&store).expect("references"), before);
            check(&store);
            if !matches!(place, Place::Disk(_)) {
                return;
            }
        }
        let store = place.store();
        check(&store);
        let workspaces = Workspaces::of(&store);
        let mut tree = workspaces.open(&main_name()).expect("open");
        tree.write("n", b"again").expect("write");
        workspaces.commit(&main_name(), &mut tree, &Change::new("x"), &at(31)).expect("commit");
        assert_eq!(store.last_operation().expect("last"), 31, "numbers never restart");
    });
}

#[test]
fn the_newest_operation_and_what_the_scope_counts_stay_in_the_log() {
    over_all(|place| {
        let store = place.store();
        with_operations(&store, 12);
        let scope = SweepScope { undoable_after: Some(6), ..SweepScope::default() };
        let counted = |dry_run| {
            let options =
                CollectOptions { scope: Some(&scope), log_from: u64::MAX, dry_run, ..CollectOptions::default() };
            collect(&store, &options, &mut |_| ControlFlow::Continue(())).expect("a collection").operations
        };
        assert_eq!((counted(true), store.first_operation().expect("first")), (6, 1), "{place:?}: a dry run");
        assert_eq!((counted(false), store.first_operation().expect("first")), (6, 7), "{place:?}");
        assert_eq!(trim(&store, u64::MAX).operations, 5);
        assert_eq!((store.first_operation().expect("first"), store.last_operation().expect("last")), (12, 12));
        assert_clean(&store);
    });
}

#[test]
fn undo_reaches_back_to_where_the_log_begins() {
    over_all(|place| {
        let store = place.store();
        let workspaces = with_operations(&store, 10);
        // The trees that an undo needs are those of the history; only the log is short.
        trim(&store, 8);
        let undo = |number| workspaces.undo(&main_name(), &at(number));
        for number in 0..3 {
            undo(11 + number).expect("it is in the log");
        }
        let read = || workspaces.open(&main_name()).expect("open").read("n").expect("read");
        assert_eq!(read(), b"7", "{place:?}");
        let error = undo(14).expect_err("the one before is not");
        assert!(error.to_string().contains("reaches back to operation 8 of 1970-01-0"), "{error}");
        assert_eq!(read(), b"7", "{place:?}: nothing moved");
        workspaces.redo(&main_name(), &at(15)).expect("it is in the log");
        assert_eq!(read(), b"8", "{place:?}");
        let idle = WorkspaceName::new("idle").expect("a name");
        workspaces.create(&idle, &NewWorkspace::default(), &at(16)).expect("create");
        workspaces.delete(&idle, &at(17)).expect("delete");
        workspaces
            .create(&WorkspaceName::new("last").expect("a name"), &NewWorkspace::default(), &at(18))
            .expect("create");
        trim(&store, u64::MAX);
        let error = workspaces.undo(&main_name(), &at(19)).expect_err("all of it went");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        // When it was deleted nobody knows any more: before the oldest operation that is left.
        assert!(workspaces.deleted_before(at(18).time, &LivedTime::default()).expect("deleted").is_empty());
        assert_eq!(workspaces.deleted_before(at(19).time, &LivedTime::default()).expect("deleted").len(), 1);
        assert_clean(&store);
    });
}

#[test]
fn requests_go_with_their_operations() {
    over_all(|place| {
        let store = place.store();
        let workspaces = with_operations(&store, 10);
        trim(&store, 6);
        let request = |number: u64| RequestId::new(format!("r{number}")).expect("an id");
        assert!(store.find_request(&request(5)).expect("look").is_none(), "{place:?}");
        assert_eq!(store.find_request(&request(6)).expect("look").expect("it is left").sequence, 6);
        let retry = |number: u64| {
            let mut tree = workspaces.open(&main_name()).expect("open");
            tree.write("n", b"retried").expect("write");
            let act = at(11).as_request(request(number));
            workspaces.commit(&main_name(), &mut tree, &Change::new("x"), &act).expect("commit")
        };
        assert_eq!(retry(7).operation, Some(7), "{place:?}: it was done");
        assert_eq!(retry(3).operation, Some(11), "{place:?}: nobody knows that it was done");
        assert_eq!(retry(3).operation, Some(11), "{place:?}: and is known from then on");
        trim(&store, 8);
        assert_eq!(store.find_request(&request(3)).expect("look").expect("the newer one").sequence, 11);
        assert_clean(&store);
    });
}

#[test]
fn shortening_can_be_ended_and_a_failure_in_it_loses_nothing() {
    let plan = Arc::new(FaultPlan::default());
    let store = Store::new(Arc::new(Fault::new(Memory::default(), Arc::clone(&plan))), &StoreOptions::default());
    with_operations(&store, 2_500);
    let options = CollectOptions { log_from: 2_400, ..CollectOptions::default() };
    let ended = collect(&store, &options, &mut |at| match at.stage {
        Stage::Trim => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    let ended = ended.expect("a collection");
    assert_eq!((ended.ended_in, ended.operations), (Some(Stage::Trim), 1_000));
    assert_eq!(store.first_operation().expect("first"), 1_001);
    let failed = collect(&store, &options, &mut |at| {
        if at.stage == Stage::Trim {
            plan.full_after_writes(0);
        }
        ControlFlow::Continue(())
    });
    assert_eq!(failed.expect_err("the disk is full").kind(), ErrorKind::Full);
    assert_eq!(store.first_operation().expect("first"), 2_001);
    plan.heal();
    assert_clean(&store);
    assert_eq!(trim(&store, 2_400).operations, 399);
}

fn move_one(store: &dyn amalgam_engine::backend::Inspect, name: &RefName, number: u64) {
    let before = store.read_ref(name).expect("read");
    let transaction = Transaction {
        expect: vec![(name.clone(), before)],
        set: vec![(name.clone(), Some(RefValue::noting(number.to_be_bytes().to_vec())))],
        operation: Some(OperationDraft {
            action: "count".to_owned(),
            request: Some(RequestId::new(number.to_be_bytes()).expect("an id")),
            ..OperationDraft::default()
        }),
        durability: Durability::Buffered,
        ..Transaction::default()
    };
    store.transact(transaction).expect("a transaction");
}

/// Whoever reads while the log is shortened gets all that he asked for, or is told that some of it is gone.
#[test]
fn readers_beside_a_shortening_miss_nothing_unnoticed() {
    over_all(|place| {
        let backend = place.backend();
        let counter = RefName::new("counter").expect("a name");
        (1..=4_000).for_each(|number| move_one(&*backend, &counter, number));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut whole, mut told) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    let after = backend.first_operation().expect("first") - 1;
                    match backend.list_operations(after, 50) {
                        Ok(page) => {
                            let numbers: Vec<_> = page.iter().map(|found| found.sequence).collect();
                            assert_eq!(numbers, (after + 1..=after + 50).collect::<Vec<_>>());
                            whole += 1;
                        }
                        Err(Error::Trimmed { operation, .. }) => {
                            assert_eq!(operation, after + 1);
                            told += 1;
                        }
                        Err(error) => panic!("{error}"),
                    }
                    let request = RequestId::new((after + 1).to_be_bytes()).expect("an id");
                    let found = backend.find_request(&request).expect("a look at a request that goes");
                    assert!(found.is_none_or(|found| found.sequence == after + 1));
                }
                (whole, told)
            });
            while backend.trim_operations(3_900, 7).expect("shorter") < 3_900 {}
            stop.store(true, Ordering::Relaxed);
            let (whole, told) = reader.join().expect("no panic");
            assert!(whole + told > 0);
        });
        assert_eq!(backend.first_operation().expect("first"), 3_900, "{place:?}");
    });
}

fn disk_bytes(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).expect("a directory").flatten();
    entries
        .map(|entry| match entry.metadata().expect("metadata") {
            metadata if metadata.is_dir() => disk_bytes(&entry.path()),
            metadata => metadata.len(),
        })
        .sum()
}

#[test]
fn the_room_of_a_shortened_log_comes_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = Place::Disk(directory.path());
    let counter = RefName::new("counter").expect("a name");
    {
        let backend = place.backend();
        (1..=60_000).for_each(|number| move_one(&*backend, &counter, number));
    }
    let before = disk_bytes(directory.path());
    trim(&place.store(), 59_001);
    let after = disk_bytes(directory.path());
    assert!(after * 5 < before, "{before} bytes before, {after} after");
    let store = place.store();
    assert_eq!(store.list_operations(59_000, 2_000).expect("the rest").len(), 1_000);
    assert_eq!(assert_clean(&store).operations, 1_000);
}

#[test]
fn a_rule_keeps_the_young_and_at_most_so_many_and_all_within_the_grace_time() {
    let store = Store::in_memory();
    with_operations(&store, 100);
    let now = at(100).time;
    let begins = |keep: &str, most: u64, kept_after: u64| {
        let rule = LogRetention { keep: keep.parse::<Span>().expect("a span"), operations_max: most };
        first_kept_operation(&store, &rule, now, kept_after, &LivedTime::default()).expect("a number")
    };
    for (keep, most, kept_after, expected) in [
        ("forever", 1_000, 100, 1),
        ("forever", 30, 100, 71),
        ("10h", 1_000, 100, 90),
        ("10h", 5, 100, 96),
        ("10h", 30, 100, 90),
        ("none", 1_000, 100, 100),
        ("none", 0, 100, 101),
        ("10h", 5, 60, 61),
        ("forever", 0, 0, 1),
    ] {
        assert_eq!(begins(keep, most, kept_after), expected, "{keep}, {most}, after {kept_after}");
    }
    trim(&store, 95);
    assert_eq!(begins("forever", 1_000, 100), 95);
}
