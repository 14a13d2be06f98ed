//! Where a journal begins: behind what is on disk, and never behind more.

use std::fs::File;
use std::sync::Arc;

use amalgam_engine::backend::{Fault, FaultPlan, Memory};
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, RequestId, SnapshotId, Store, StoreOptions, WorkingTree};

use crate::kit::{Kit, main_workspace, now, options};

fn commit_buffered(kit: &Kit) -> SnapshotId {
    let workspaces = Workspaces::of(kit.view.fork().store());
    let act = OperationContext::new("somebody", now()).buffered();
    kit.view.commit(&workspaces, &main_workspace(), &Change::new("buffered"), &act, "commit").expect("commit").snapshot
}

#[test]
fn after_buffered_commits_a_recovery_follows_the_last_one_and_has_what_came_after() {
    let kit = Kit::new();
    let file = kit.file("a", b"one");
    let mut last = commit_buffered(&kit);
    for round in 0..3 {
        kit.write(file, 0, format!("round {round}").as_bytes());
        last = commit_buffered(&kit);
    }
    kit.write(file, 0, b"after");
    let kit = kit.kill_and_reopen();
    assert_eq!(kit.view.head(), Some(last), "the next commit follows the last one");
    assert_eq!(kit.read_path("a"), b"after 2");
    let next = kit.commit();
    let store = kit.view.fork().store().clone();
    assert_eq!(store.snapshot(next).expect("the snapshot").parents, [last]);
    assert_eq!(WorkingTree::open(&store, next).expect("its tree").read("a").expect("read"), b"after 2");
}

/// Takes bytes away from the end of a file of the journal, as a power cut may.
fn cut(kit: &Kit, number: u64, bytes: u64) {
    let path = kit.journal().join(format!("{number}.journal"));
    let file = File::options().write(true).open(path).expect("a file of the journal");
    let length = file.metadata().expect("its length").len();
    file.set_len(length.checked_sub(bytes).expect("a file that is longer")).expect("cut");
}

#[test]
fn a_commit_that_the_journal_lost_the_word_of_is_what_the_next_one_follows() {
    let kit = Kit::new();
    let file = kit.file("a", b"one");
    kit.write(file, 0, b"two");
    let last = commit_buffered(&kit);
    // The disk has the store's log, and neither the last edit nor what the journal says of the commit.
    cut(&kit, 0, 3);
    std::fs::remove_file(kit.journal().join("1.journal")).expect("removed");
    let kit = kit.kill_and_reopen();
    assert_eq!(kit.view.head(), Some(last));
    assert_eq!(kit.read_path("a"), b"two");
    assert!(kit.view.is_clean());
    kit.file("b", b"more");
    let next = kit.commit();
    assert_eq!(kit.view.fork().store().snapshot(next).expect("the snapshot").parents, [last]);
    let kit = kit.kill_and_reopen();
    assert_eq!((kit.read_path("a"), kit.read_path("b")), (b"two".to_vec(), b"more".to_vec()));
}

#[test]
fn edits_behind_a_commit_are_done_on_it_whatever_the_journal_lost_before_it() {
    let kit = Kit::new();
    let file = kit.file("a", b"one");
    commit_buffered(&kit);
    kit.write(file, 0, b"two");
    let last = commit_buffered(&kit);
    kit.file("b", b"later");
    cut(&kit, 1, 3);
    let kit = kit.kill_and_reopen();
    assert_eq!(kit.view.head(), Some(last));
    assert_eq!((kit.read_path("a"), kit.read_path("b")), (b"two".to_vec(), b"later".to_vec()));
    assert!(!kit.view.is_clean());
}

#[test]
fn files_behind_one_that_is_lost_are_no_part_of_a_journal_again() {
    let kit = Kit::new();
    commit_buffered(&kit);
    commit_buffered(&kit);
    kit.file("a", b"behind a gap");
    std::fs::remove_file(kit.journal().join("1.journal")).expect("removed");
    let kit = kit.kill_and_reopen();
    assert_eq!(kit.look("a"), None);
    // A file of this life could come to an end where the lost one had, and then it would be read behind that.
    assert!(!kit.journal().join("2.journal").exists());
}

#[test]
fn a_commit_from_another_journal_moves_nothing() {
    let kit = Kit::new();
    kit.file("a", b"one");
    let first = commit_buffered(&kit);
    let other = tempfile::tempdir().expect("a directory");
    let beside = Kit::at(kit.workspaces.store(), &other.path().join("journal"), options());
    beside.file("mine", b"not committed");
    kit.file("b", b"two");
    kit.file("c", b"three");
    commit_buffered(&kit);
    let beside = beside.kill_and_reopen();
    assert_eq!(beside.view.head(), Some(first));
    assert_eq!(beside.read_path("mine"), b"not committed");
    assert_eq!(beside.look("b"), None);
}

#[test]
fn a_long_row_of_buffered_commits_leaves_a_short_journal() {
    let kit = Kit::new();
    let file = kit.file("a", b"");
    for round in 0..150_u64 {
        kit.write(file, round * 3, b"abc");
        commit_buffered(&kit);
    }
    let files = std::fs::read_dir(kit.journal()).expect("list").count();
    assert!(files < 80, "{files} files");
    let kit = kit.kill_and_reopen();
    assert_eq!(kit.read_path("a"), b"abc".repeat(150));
}

#[test]
fn a_commit_that_is_on_disk_leaves_nothing_to_do_again() {
    let kit = Kit::new();
    kit.file("a", b"one");
    kit.commit();
    let kit = kit.kill_and_reopen();
    assert_eq!(kit.recovered.edits, 0);
    assert!(kit.view.is_clean());
}

#[test]
fn a_commit_that_is_asked_for_again_takes_nothing_that_was_written_since() {
    let kit = Kit::new();
    let file = kit.file("a", b"one");
    let workspaces = Workspaces::of(kit.view.fork().store());
    let act = OperationContext::new("somebody", now()).as_request(RequestId::new("twice").expect("an id"));
    let commit =
        || kit.view.commit(&workspaces, &main_workspace(), &Change::new("once"), &act, "commit").expect("commit");
    let first = commit();
    kit.write(file, 0, b"two");
    assert_eq!(commit().snapshot, first.snapshot);
    assert_eq!(kit.read(file), b"two");
    let kit = kit.kill_and_reopen();
    assert_eq!(kit.read_path("a"), b"two");
    assert!(!kit.view.is_clean());
}

#[test]
fn a_restore_of_a_snapshot_that_the_store_lost_ends_the_journal_and_the_rest_is_kept() {
    let kit = Kit::new();
    let workspaces = Workspaces::of(kit.view.fork().store());
    let act = OperationContext::new("somebody", now());
    let other = WorkspaceName::new("other").expect("a name");
    workspaces.create(&other, &NewWorkspace::default(), &act).expect("made");
    let mut tree = workspaces.open(&other).expect("a tree");
    tree.write("theirs", b"far away").expect("written");
    let there = workspaces.commit(&other, &mut tree, &Change::new("there"), &act).expect("committed").snapshot;
    kit.file("mine", b"not committed");
    kit.view.restore(there, None).expect("gone there");
    kit.file("behind", b"made on what is there");
    // A store that has lost the snapshot, as with the power: what is done without that step would be another tree.
    let lost = Store::in_memory();
    let after = Kit::at(&lost, kit.journal(), options());
    assert_eq!(after.read_path("mine"), b"not committed", "what came before it is there");
    assert_eq!((after.look("theirs"), after.look("behind")), (None, None));
    let recovered = &after.recovered;
    assert!(recovered.kept.is_some() && recovered.warning().is_some(), "{recovered:?}");
    // Until the next commit a store that has it gives everything.
    let kit = kit.kill_and_reopen();
    assert_eq!(kit.read_path("theirs"), b"far away");
    assert_eq!(kit.read_path("behind"), b"made on what is there");
}

#[test]
fn a_commit_of_nothing_puts_the_one_before_it_on_disk_first() {
    let plan = Arc::new(FaultPlan::default());
    let backend = Fault::new(Memory::default(), Arc::clone(&plan));
    let store = Store::new(Arc::new(backend), &StoreOptions::default());
    let scratch = tempfile::tempdir().expect("a directory");
    let kit = Kit::at(&store, scratch.path(), options());
    kit.file("a", b"one");
    let last = commit_buffered(&kit);
    let base = || std::fs::read(scratch.path().join("base")).expect("the base");
    let before = base();
    plan.full_after_writes(0);
    let act = OperationContext::new("somebody", now());
    let commit = || kit.view.commit(&kit.workspaces, &main_workspace(), &Change::new("nothing"), &act, "commit");
    assert!(commit().is_err(), "the store cannot be put on disk");
    assert_eq!(base(), before, "so nothing rests on it");
    plan.heal();
    assert_eq!(commit().expect("committed").snapshot, last);
    assert_ne!(base(), before);
}
