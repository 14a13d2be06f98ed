//! References under many threads: every history has one order, and a request is done once.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::collections::HashSet;
use std::sync::{Arc, Barrier};

use amalgam_engine::backend::{Inspect, Transaction};
use amalgam_engine::reference::{Operation, OperationDraft, RefValue, RequestId};
use amalgam_engine::{Commit, Store, StoreOptions, WorkingTree};
use amalgam_tests::harness::{Place, name, over_all, seed};
use amalgam_tests::linear::{HistoryOptions, check_history, record};

#[test]
fn references_are_linearizable() {
    let seed = seed();
    println!("seed {seed}");
    for registers in [2, 4] {
        over_all(|place| {
            let options = HistoryOptions { seed, threads: 16, calls: 250, registers };
            let calls = record(&*place.backend(), options);
            println!("{place:?}: {:?}", check_history(&calls, options));
        });
    }
}

/// Each thread would do something else.
fn request_transaction(request: u64, thread: u64) -> Transaction {
    let key = name(format!("register/{request}/{thread}"));
    let request = Some(RequestId::new(format!("request {request}")).expect("a valid id"));
    let value = RefValue::noting("set");
    Transaction {
        expect: vec![(key.clone(), None)],
        set: vec![(key, Some(value))],
        operation: Some(OperationDraft { actor: thread.to_string(), request, ..OperationDraft::default() }),
        ..Transaction::default()
    }
}

/// What each of the threads that raced with one request id got.
fn race(backend: &Arc<dyn Inspect>, request: u64) -> Vec<(Operation, bool)> {
    let barrier = Barrier::new(16);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16_u64)
            .map(|thread| {
                let (backend, barrier) = (backend, &barrier);
                scope.spawn(move || {
                    let transaction = request_transaction(request, thread);
                    barrier.wait();
                    backend.transact(transaction)
                })
            })
            .collect();
        let results =
            threads.into_iter().map(|thread| thread.join().expect("no panic").expect("one is done, others told"));
        results.map(|committed| (committed.operation.expect("it has a record"), committed.replayed)).collect()
    })
}

#[test]
fn a_request_raced_by_many_is_done_once_and_after_reopening_too() {
    const RACES: u64 = 60;
    over_all(|place| {
        let backend = place.backend();
        let mut winners = HashSet::new();
        let mut done = Vec::new();
        for request in 0..RACES {
            let results = race(&backend, request);
            assert_eq!(results.iter().filter(|(_, replayed)| !replayed).count(), 1, "{place:?}: one does it");
            assert!(results.iter().all(|(operation, _)| *operation == results[0].0), "{place:?}: all get one result");
            winners.insert(results[0].0.draft.actor.clone());
            assert_eq!(backend.last_operation().expect("last"), request + 1, "{place:?}: one operation each");
            done.push(results[0].0.clone());
        }
        assert!(winners.len() > 1, "the same thread was always first");
        let Place::Disk(_) = place else { return };
        drop(backend);
        let backend = place.backend();
        for (request, operation) in (0..RACES).zip(&done) {
            let results = race(&backend, request);
            assert!(results.iter().all(|(again, replayed)| again == operation && *replayed), "done before reopening");
        }
        assert_eq!(backend.list_operations(0, 1_000).expect("log"), done);
    });
}

/// A commit that is retried because its answer was lost, on the same tree or on one that was made again.
#[test]
fn a_retried_commit_is_the_first_one() {
    over_all(|place| {
        let head = name("head/main");
        let commit = || {
            let mut commit = Commit::new(&head, "once");
            commit.request = Some(RequestId::new("the same").expect("a valid id"));
            commit
        };
        let store = Store::new(place.backend(), &StoreOptions::default());
        let tree = || {
            let mut tree = WorkingTree::new(&store);
            tree.write("file", b"content").expect("write");
            tree
        };
        let mut first = tree();
        let done = first.commit(commit()).expect("commit");
        let mut again = tree();
        let replayed = again.commit(commit()).expect("a retry is no error");
        assert_eq!((replayed.snapshot, replayed.operation, replayed.replayed), (done.snapshot, done.operation, true));
        assert!(
            again.is_clean() && again.base() == Some(done.snapshot),
            "{place:?}: the retried tree is where the first is"
        );
        again.write("more", b"2").expect("write");
        again.commit(Commit::new(&head, "next")).expect("it goes on from there");
        let mut other = WorkingTree::new(&store);
        other.write("else", b"other content").expect("write");
        let replayed = other.commit(commit()).expect("the id decides");
        assert_eq!((replayed.snapshot, replayed.replayed), (done.snapshot, true));
        assert!(!other.is_clean(), "{place:?}: what was not committed is still to be committed");
        assert_eq!(store.list_operations(0, 10).expect("log").len(), 2);
    });
}
