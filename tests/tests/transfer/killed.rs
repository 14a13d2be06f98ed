//! Receivers that are killed, and a disk that is full.

use std::process::Command;
use std::sync::Arc;

use amalgam_engine::backend::{Fault, FaultPlan, Memory};
use amalgam_engine::{Commit, ErrorKind, Store, StoreOptions, WorkingTree};
use amalgam_tests::harness::lives::{assert_sound, live};
use amalgam_tests::harness::receiving::receive_kill_rounds;
use amalgam_tests::harness::{Random, name, seed};
use amalgam_transfer::Have;

use super::kit::{refs, send_all, take};

const ROUNDS: u64 = 12;

#[test]
fn a_killed_receiver_shows_nothing_and_is_resumed() {
    let seed = seed();
    println!("seed {seed}");
    let summary = receive_kill_rounds(&|| Command::new(env!("CARGO_BIN_EXE_receiver")), ROUNDS, seed);
    println!("{summary:?}");
    assert!(summary.unfinished > 0, "no kill came in the middle: {summary:?}");
}

#[test]
fn a_full_disk_is_told_and_the_store_goes_on() {
    let from = Store::in_memory();
    live(&from, &mut Random::new(41), 6).expect("a life");
    let mut tree = WorkingTree::new(&from);
    for number in 0..40 {
        tree.write(format!("large{number}"), &Random::new(number).bytes(1 << 20)).expect("write");
    }
    tree.commit(Commit::new(&name("workspace/large"), "large")).expect("commit");
    let (stream, _) = send_all(&from, &Have::default());
    let mut fulls = 0;
    for writes in 0.. {
        let plan = Arc::new(FaultPlan::default());
        let to = Store::new(Arc::new(Fault::new(Memory::default(), Arc::clone(&plan))), &StoreOptions::default());
        plan.full_after_writes(writes);
        let first = take(&to, &stream);
        plan.heal();
        let Err(error) = first else {
            assert_eq!(plan.hits(), 0, "a write failed and nothing was said");
            break;
        };
        fulls += 1;
        assert_eq!(error.kind(), Some(ErrorKind::Full), "{error:?}");
        assert!(refs(&to).is_empty(), "nothing shows");
        assert_sound(&to);
        let again = take(&to, &stream).expect("there is room again");
        assert!(writes == 0 || again.objects_new < again.objects, "what had arrived is skipped");
        assert_eq!(refs(&from), refs(&to));
    }
    println!("full at {fulls} writes");
    assert!(fulls >= 3);
}
