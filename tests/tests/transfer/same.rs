//! What arrives is what was sent.

use std::collections::BTreeSet;

use amalgam_engine::backend::Family;
use amalgam_engine::workspace::{Change, LabelName, Labels, NewWorkspace};
use amalgam_engine::{
    Commit, ErrorKind, History, ObjectId, OperationContext, SnapshotId, Store, StoreOptions, Time, WorkingTree,
    WorkspaceName, Workspaces,
};
use amalgam_tests::harness::lives::{assert_sound, contents, live};
use amalgam_tests::harness::{Place, Random, check_log, name, over_all, seed};
use amalgam_transfer::{Have, Names, Progress, ReceiveOptions, Selection, SendOptions, have, send};

use super::kit::{by, refs, send_all, sent_refs, take, take_by};

/// Every file of every snapshot that a name holds, and all history behind it, is the same.
fn assert_same(one: &Store, other: &Store) {
    assert_eq!(sent_refs(one), refs(other));
    for value in sent_refs(one).values() {
        for id in value.roots() {
            let id = SnapshotId::from_bytes(id.hash);
            let files = |store| contents(&WorkingTree::open(store, id).expect("open")).expect("files");
            assert!(files(one) == files(other), "{id} has other files");
            let log = |store| History::of(store).range(id, &[]).expect("a range").into_iter().collect::<BTreeSet<_>>();
            assert_eq!(log(one), log(other), "{id} has another history");
        }
    }
}

#[test]
fn random_histories_arrive_with_the_same_ids() {
    let seed = seed();
    println!("seed {seed}");
    for round in 0..6 {
        let mut random = Random::of(&[seed, round]);
        let from = Store::in_memory();
        live(&from, &mut random, 30).expect("a life");
        over_all(|place| {
            let to = place.store();
            let (stream, sent) = send_all(&from, &Have::default());
            let received = take(&to, &stream).expect("receive");
            assert_eq!((received.objects, received.objects_new), (sent.objects, sent.objects));
            assert_eq!(received.bytes, sent.bytes);
            assert_same(&from, &to);
            assert_sound(&to);
            check_log(&to).expect("the log fits the names");
        });
    }
}

#[test]
fn the_difference_is_as_good_as_everything() {
    let seed = seed();
    println!("seed {seed}");
    for round in 0..6 {
        let mut random = Random::of(&[seed, round]);
        let from = Store::in_memory();
        let (step_by_step, at_once) = (Store::in_memory(), Store::in_memory());
        let mut lengths = Vec::new();
        for _ in 0..6 {
            live(&from, &mut random, 8).expect("a life");
            let (stream, _) = send_all(&from, &have(&step_by_step).expect("have"));
            lengths.push(stream.len());
            let (whole, _) = send_all(&from, &Have::default());
            assert!(stream.len() <= whole.len(), "{} against {}", stream.len(), whole.len());
            let options = ReceiveOptions { replace: true, ..ReceiveOptions::default() };
            take_by(&step_by_step, &stream, &options).expect("receive");
            assert_sound(&step_by_step);
        }
        let (stream, _) = send_all(&from, &Have::default());
        take(&at_once, &stream).expect("receive");
        assert_sound(&at_once);
        println!("differences {lengths:?}, everything {}", stream.len());
        for (reference, value) in sent_refs(&from) {
            assert_eq!(step_by_step.read_ref(&reference).expect("read"), Some(value.clone()));
            assert_eq!(at_once.read_ref(&reference).expect("read"), Some(value));
        }
    }
}

#[test]
fn a_small_change_of_a_large_tree_is_a_short_stream() {
    let from = Store::in_memory();
    let main = name("workspace/main");
    let mut random = Random::new(3);
    let mut tree = WorkingTree::new(&from);
    for directory in 0..60 {
        tree.create_directories(format!("{directory}/below")).expect("mkdir");
        for file in 0..40 {
            tree.write(format!("{directory}/below/{file}"), &random.bytes(500)).expect("write");
        }
    }
    tree.write("large", &random.bytes(8 << 20)).expect("write");
    tree.commit(Commit::new(&main, "all")).expect("commit");
    let to = Store::in_memory();
    let (everything, _) = send_all(&from, &Have::default());
    take(&to, &everything).expect("receive");

    for change in 0..3 {
        match change {
            0 => tree.write("7/below/7", b"changed").expect("write"),
            1 => tree.write_at("large", 4 << 20, b"in the middle").expect("write"),
            _ => tree.rename("9", "moved", amalgam_engine::work::RenameMode::Replace).expect("a whole directory moves"),
        }
        tree.commit(Commit::new(&main, "a change")).expect("commit");
        let (difference, sent) = send_all(&from, &have(&to).expect("have"));
        println!("change {change}: {} bytes, {} objects, of {}", difference.len(), sent.objects, everything.len());
        assert!(difference.len() < 80_000, "{} bytes", difference.len());
        let received = take(&to, &difference).expect("receive");
        assert_eq!(received.objects_new, sent.objects, "nothing was sent that was there");
        assert_same(&from, &to);
        assert_sound(&to);
    }
}

#[test]
fn what_is_there_is_skipped_and_a_second_time_changes_nothing() {
    over_all(|place| {
        let from = Store::in_memory();
        live(&from, &mut Random::new(5), 20).expect("a life");
        let to = place.store();
        let (stream, sent) = send_all(&from, &Have::default());
        take(&to, &stream).expect("receive");
        let operations = to.last_operation().expect("last");
        let again = take(&to, &stream).expect("receive again");
        assert_eq!((again.objects, again.objects_new), (sent.objects, 0));
        assert!(again.names.is_empty());
        assert_eq!(to.last_operation().expect("last"), operations, "nothing moved, so nothing is recorded");
        let nothing = send_all(&from, &have(&to).expect("have")).1;
        assert_eq!((nothing.objects, nothing.snapshots), (0, 0));
    });
}

#[test]
fn a_snapshot_alone_arrives_without_a_name_and_is_kept_by_its_pins() {
    let from = Store::in_memory();
    let made = live(&from, &mut Random::new(6), 12).expect("a life");
    let (to, mut stream) = (Store::in_memory(), Vec::new());
    let selection = Selection::snapshots(&from, &made[5..6]).expect("a selection");
    send(&from, &selection, &SendOptions::default(), &mut stream, &Progress::default()).expect("send");
    let received =
        take_by(&to, &stream, &ReceiveOptions { names: Names::None, ..ReceiveOptions::default() }).expect("receive");
    assert_eq!(received.tips, made[5..6]);
    assert!(!received.pins.is_empty());
    assert!(refs(&to).is_empty());
    let files = |store| contents(&WorkingTree::open(store, made[5]).expect("open")).expect("files");
    assert_eq!(files(&from), files(&to));
}

#[test]
fn names_can_be_filed_under_a_word() {
    let from = Store::in_memory();
    live(&from, &mut Random::new(8), 12).expect("a life");
    let to = Store::in_memory();
    live(&to, &mut Random::new(9), 12).expect("another life");
    let before = refs(&to);
    let (stream, _) = send_all(&from, &have(&to).expect("have"));
    let options = ReceiveOptions { names: Names::Under("origin".to_owned()), ..ReceiveOptions::default() };
    take_by(&to, &stream, &options).expect("receive");
    let after = refs(&to);
    assert!(before.iter().all(|(name, value)| after.get(name) == Some(value)), "what was here is as it was");
    let origin = Workspaces::of(&to).get(&WorkspaceName::new("origin/main").expect("a name")).expect("a workspace");
    assert_eq!(origin.head, Workspaces::of(&from).get(&WorkspaceName::new("main").expect("a name")).expect("get").head);
    assert_sound(&to);
}

#[test]
fn a_name_moves_forward_only_unless_told_otherwise() {
    let (from, to) = (Store::in_memory(), Store::in_memory());
    let main = name("workspace/main");
    let mut tree = WorkingTree::new(&from);
    tree.write("file", b"one").expect("write");
    let first = tree.commit(Commit::new(&main, "one")).expect("commit").snapshot;
    take(&to, &send_all(&from, &Have::default()).0).expect("receive");
    tree.write("file", b"two").expect("write");
    let second = tree.commit(Commit::new(&main, "two")).expect("commit").snapshot;
    assert_ne!(first, second);
    take(&to, &send_all(&from, &have(&to).expect("have")).0).expect("it moves forward");

    let mut apart = WorkingTree::open(&to, first).expect("open");
    apart.write("file", b"another two").expect("write");
    let other = Store::in_memory();
    let mut tree = WorkingTree::new(&other);
    tree.write("file", b"foreign").expect("write");
    tree.commit(Commit::new(&main, "foreign")).expect("commit");
    let stream = send_all(&other, &Have::default()).0;
    let before = refs(&to);
    let error = take(&to, &stream).expect_err("it is no older state");
    assert_eq!(error.kind(), Some(ErrorKind::Stale));
    assert!(error.to_string().contains("workspace/main"), "{error}");
    assert_eq!(refs(&to), before);
    take_by(&to, &stream, &ReceiveOptions { replace: true, ..ReceiveOptions::default() }).expect("replace");
    assert_eq!(refs(&to), refs(&other));
}

#[test]
fn a_thinned_snapshot_arrives_as_a_record() {
    let directory = tempfile::tempdir().expect("a directory");
    let backend = Place::Disk(&directory.path().join("from")).backend();
    let from = Store::new(std::sync::Arc::clone(&backend), &StoreOptions::default());
    let main = name("workspace/main");
    let mut tree = WorkingTree::new(&from);
    let mut made = Vec::new();
    for number in 0..3 {
        tree.write("file", &Random::new(number).bytes(3_000)).expect("write");
        made.push(tree.commit(Commit::new(&main, "a step")).expect("commit").snapshot);
    }
    let root = from.snapshot(made[1]).expect("a snapshot").root.object();
    drop((tree, from));
    // What retention does: the tree goes, the record stays.
    let row = amalgam_engine::backend::RowEdit {
        family: Family::Index,
        key: bytes::Bytes::copy_from_slice(&root.hash),
        value: None,
    };
    backend.edit(vec![row]).expect("edit");
    let from = Store::new(backend, &StoreOptions::default());
    let (stream, sent) = send_all(&from, &Have::default());
    assert_eq!((sent.snapshots, sent.thinned), (2, 1));
    let to = Store::in_memory();
    take(&to, &stream).expect("receive");
    assert!(History::of(&to).is_thinned(made[1]).expect("its record is there"));
    assert_eq!(History::of(&to).range(made[2], &[]).expect("a range").len(), 3);
    assert_sound(&to);
}

#[test]
fn chunks_arrive_in_the_form_they_are_stored_in() {
    let from = Store::in_memory();
    let mut tree = WorkingTree::new(&from);
    tree.write("text", "pressed well ".repeat(3_000).as_bytes()).expect("write");
    tree.write("noise", &Random::new(1).bytes(30_000)).expect("write");
    tree.commit(Commit::new(&name("workspace/main"), "both")).expect("commit");
    let to = Store::in_memory();
    take(&to, &send_all(&from, &Have::default()).0).expect("receive");
    let ids: Vec<ObjectId> = ["pressed well ".repeat(3_000).into_bytes(), Random::new(1).bytes(30_000)]
        .iter()
        .map(|bytes| ObjectId::of(amalgam_engine::ObjectKind::Chunk, bytes))
        .collect();
    let (one, other) = (from.stored_many(&ids).expect("stored"), to.stored_many(&ids).expect("stored"));
    assert!(one.iter().all(Option::is_some));
    assert_eq!(one, other);
    assert!(one[0].as_ref().is_some_and(|stored| stored.len() < 5_000), "the text is pressed");
}

#[test]
fn a_label_on_something_old_brings_its_tree_along() {
    let (from, to) = (Store::in_memory(), Store::in_memory());
    let made = live(&from, &mut Random::new(12), 15).expect("a life");
    // The receiver has the newest snapshot and records of what came before it, without trees.
    let newest = *made.last().expect("a life has snapshots");
    let mut stream = Vec::new();
    let selection = Selection::snapshots(&from, &[newest]).expect("select");
    send(&from, &selection, &SendOptions::default(), &mut stream, &Progress::default()).expect("send");
    let kept =
        take_by(&to, &stream, &ReceiveOptions { names: Names::None, ..ReceiveOptions::default() }).expect("receive");
    let old = LabelName::new("old").expect("a name");
    Labels::of(&from).set(&old, Some(made[0]), &by()).expect("label");
    let selection = Selection::named(&from, |name| name.as_str() == "label/old").expect("select");
    let (options, mut stream) = (SendOptions { had: vec![newest], verify: true }, Vec::new());
    send(&from, &selection, &options, &mut stream, &Progress::default()).expect("send");
    take(&to, &stream).expect("receive");
    let files = |store| contents(&WorkingTree::open(store, made[0]).expect("open")).expect("files");
    assert_eq!(files(&from), files(&to));
    drop(kept);
}

#[test]
fn a_transfer_can_be_ended() {
    let from = Store::in_memory();
    live(&from, &mut Random::new(14), 10).expect("a life");
    let progress = Progress::default();
    progress.cancel();
    let selection = Selection::everything(&from).expect("select");
    let ended = send(&from, &selection, &SendOptions::default(), Vec::new(), &progress).expect_err("it was ended");
    assert_eq!(ended.kind(), None);
    let (stream, _) = send_all(&from, &Have::default());
    let to = Store::in_memory();
    let ended =
        amalgam_transfer::receive(&to, &stream[..], &ReceiveOptions::default(), &by(), &progress).expect_err("ended");
    assert_eq!(ended.kind(), None);
    assert!(refs(&to).is_empty());
}

#[test]
fn what_a_store_has_goes_through_text() {
    let store = Store::in_memory();
    let workspaces = Workspaces::of(&store);
    let (main, act) = (WorkspaceName::new("main").expect("a name"), OperationContext::new("ada", Time(1)));
    workspaces.create(&main, &NewWorkspace::default(), &act).expect("create");
    let mut tree = workspaces.open(&main).expect("open");
    tree.write("file", b"text").expect("write");
    let done = workspaces.commit(&main, &mut tree, &Change::new("one"), &act).expect("commit");
    let had = have(&store).expect("have");
    assert_eq!(had.snapshots, [done.snapshot]);
    assert_eq!(Have::decode(&had.encode()).expect("its own text"), had);
    for text in ["", "amalgam have 2\n", "amalgam have 1\nzz\n"] {
        assert!(Have::decode(text).is_err(), "{text:?}");
    }
}

#[test]
fn purged_content_arrives_as_a_tombstone_where_that_is_welcome() {
    use amalgam_engine::purge::{PurgeOptions, PurgeTarget, plan_purge, purge, tombstones};
    use amalgam_engine::{ChunkId, Error as EngineError, TreePath};

    let from = Store::in_memory();
    let mut tree = WorkingTree::new(&from);
    tree.write("secret", b"hunter2").expect("write");
    tree.write("kept", b"kept").expect("write");
    let done = tree.commit(Commit::new(&name("workspace/main"), "one")).expect("commit");
    drop(tree);
    let target = PurgeTarget::Path(TreePath::new("secret").expect("a path"));
    let plan = plan_purge(&from, &target, &PurgeOptions::default()).expect("a plan");
    purge(&from, &plan, "a key", &by()).expect("purge");
    let (stream, _) = send_all(&from, &Have::default());

    let to = Store::in_memory();
    let error = take(&to, &stream).expect_err("nobody said that tombstones are welcome");
    assert!(error.to_string().contains("tombstones are welcome"), "{error}");
    assert!(refs(&to).is_empty() && tombstones(&to).expect("tombstones").is_empty());
    let welcome = ReceiveOptions { tombstones: true, ..ReceiveOptions::default() };
    take_by(&to, &stream, &welcome).expect("receive");
    assert_eq!(tombstones(&to).expect("tombstones"), tombstones(&from).expect("tombstones"));
    let tree = WorkingTree::open(&to, done.snapshot).expect("open");
    assert!(matches!(tree.read("secret"), Err(EngineError::Purged { .. })));
    assert_eq!(tree.read("kept").expect("read"), b"kept");
    assert_sound(&to);

    // Who has the bytes keeps them.
    let has = Store::in_memory();
    let mut tree = WorkingTree::new(&has);
    tree.write("mine", b"hunter2").expect("write");
    tree.commit(Commit::new(&name("workspace/mine"), "mine")).expect("commit");
    take_by(&has, &stream, &welcome).expect("receive");
    assert_eq!(has.tombstone(ChunkId::of(b"hunter2").object()).expect("look"), None);
    assert_eq!(tree.read("mine").expect("read"), b"hunter2");
}
