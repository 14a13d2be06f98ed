//! Random operations on a working tree and on the plain model: same answers, same contents, same roots.

use amalgam_engine::work::FileSegments;
use amalgam_engine::{Store, Time, WorkingTree};
use amalgam_tests::model::{
    Fill, Model, Op, Raw, commit, contents, edit_unlinked, fixed_root, link_classes, op, ops, perform, write_root,
};
use proptest::prelude::*;
use std::sync::Arc;

/// As `PROPTEST_CASES` says, else so many.
fn cases(few: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(few);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// What happens after a batch of operations.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Nothing,
    /// Commit, and go on in the same tree.
    Commit,
    /// Commit, and go on in a tree opened from the snapshot.
    Reopen,
    /// Go on in a fork; the origin must not change any more.
    GoOnInFork,
    /// Leave a fork behind that must not change any more.
    LeaveFork,
    /// Take a freeze that is written at the end, whatever comes between.
    Freeze,
    /// Write what is there now, without the tree knowing.
    WriteRoot,
    /// Write what is there now in a session that is given up.
    GiveUp,
}

fn moment() -> impl Strategy<Value = Moment> {
    prop_oneof![
        1 => Just(Moment::Nothing),
        3 => Just(Moment::Commit),
        2 => Just(Moment::Reopen),
        1 => Just(Moment::GoOnInFork),
        1 => Just(Moment::LeaveFork),
        2 => Just(Moment::Freeze),
        1 => Just(Moment::WriteRoot),
        1 => Just(Moment::GiveUp),
    ]
}

fn story() -> impl Strategy<Value = Vec<(Vec<Op>, Moment)>> {
    prop::collection::vec((ops(op(), 1..25), moment()), 1..8)
}

/// The same operation on both; the same answer.
fn step(tree: &mut WorkingTree, model: &mut Model, op: &Op) {
    let before = matches!(op, Op::Rename { .. }).then(|| model.clone());
    let (ours, theirs) = (perform(tree, op), model.perform(op));
    assert_eq!(ours, theirs, "{op:?}");
    if let (Some(before), Err(_)) = (before, theirs) {
        assert_eq!(*model, before, "a refused operation changes nothing");
    }
}

fn check(tree: &WorkingTree, model: &Model) {
    let (ours, theirs) = (contents(tree).expect("walk"), model.contents());
    for (path, seen) in &theirs.paths {
        assert_eq!(ours.paths.get(path), Some(seen), "{path}");
    }
    assert_eq!(ours, theirs);
}

fn check_snapshot(store: &Store, snapshot: amalgam_engine::SnapshotId, model: &Model) -> WorkingTree {
    let tree = WorkingTree::open(store, snapshot).expect("open");
    check(&tree, model);
    assert_eq!(link_classes(&tree).expect("walk"), model.link_classes());
    tree
}

fn tell(store: &Store, story: &[(Vec<Op>, Moment)], start: WorkingTree) {
    let (mut tree, mut model) = (start, Model::default());
    let mut left = Vec::new();
    let mut frozen = Vec::new();
    for (ops, moment) in story {
        ops.iter().for_each(|op| step(&mut tree, &mut model, op));
        check(&tree, &model);
        match moment {
            Moment::Nothing => {}
            Moment::Commit => {
                let snapshot = commit(&mut tree).expect("commit");
                assert!(tree.is_clean());
                assert_eq!(tree.base(), Some(snapshot));
                check(&tree, &model);
                check_snapshot(store, snapshot, &model);
            }
            Moment::Reopen => {
                let snapshot = commit(&mut tree).expect("commit");
                tree = check_snapshot(store, snapshot, &model);
                // The model's clock goes on; a tree that was just opened has its own.
                let now = Op::SetNow { now: Time(3) };
                step(&mut tree, &mut model, &now);
            }
            Moment::GoOnInFork => {
                let fork = tree.fork();
                left.push((std::mem::replace(&mut tree, fork), model.clone()));
            }
            Moment::LeaveFork => left.push((tree.fork(), model.clone())),
            Moment::Freeze => frozen.push((tree.freeze(), model.clone())),
            Moment::WriteRoot => {
                let root = write_root(&tree).expect("write");
                check(&WorkingTree::open_root(store, root).expect("open"), &model);
            }
            Moment::GiveUp => {
                let session = store.session();
                tree.freeze().write(&session).expect("write");
            }
        }
    }
    for (frozen, model) in frozen {
        let session = store.session();
        let root = frozen.write(&session).expect("write");
        session.commit(root, amalgam_engine::RefMove::default()).expect("commit");
        check(&WorkingTree::open_root(store, root).expect("open"), &model);
    }
    left.push((tree, model));
    for (mut tree, mut model) in left {
        check(&tree, &model);
        let probe = Op::Write { path: Raw::from("probe"), fill: Fill { seed: 9, length: 70_000 } };
        step(&mut tree, &mut model, &probe);
        let snapshot = commit(&mut tree).expect("commit");
        check_snapshot(store, snapshot, &model);
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn behaves_as_the_model_in_memory(story in story()) {
        let store = Store::in_memory();
        tell(&store, &story, WorkingTree::new(&store));
    }
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn behaves_as_the_model_on_disk(story in story()) {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(directory.path().join("store")).expect("open");
        let log = FileSegments::create(&directory.path().join("segments")).expect("segments");
        tell(&store, &story, WorkingTree::new(&store).with_segments(Arc::new(log)));
        let last = store.read_ref(&amalgam_engine::reference::RefName::new("test/snapshot").expect("name"));
        let last = last.expect("read").and_then(|value| value.target).expect("the story ends with a commit");
        let last = amalgam_engine::SnapshotId::from_bytes(last.hash);
        let before = contents(&WorkingTree::open(&store, last).expect("open")).expect("walk");
        drop(store);
        let store = Store::open(directory.path().join("store")).expect("reopen");
        assert_eq!(contents(&WorkingTree::open(&store, last).expect("open")).expect("walk"), before);
    }
}

proptest! {
    #![proptest_config(cases(200))]

    /// Whatever the way to a tree, its root is that of the same tree built in the order of paths. Hard links only since the
    /// last commit: a group keeps the id of the name it was first seen at.
    #[test]
    fn a_root_follows_from_the_contents_alone(
        before in prop::collection::vec(ops(edit_unlinked(), 1..25), 0..4),
        last in ops(op(), 0..30),
    ) {
        let store = Store::in_memory();
        let (mut tree, mut model) = (WorkingTree::new(&store), Model::default());
        for ops in &before {
            ops.iter().for_each(|op| step(&mut tree, &mut model, op));
            commit(&mut tree).expect("commit");
        }
        last.iter().for_each(|op| step(&mut tree, &mut model, op));
        let other_store = Store::in_memory();
        let rebuilt = model.build(&other_store).expect("build");
        check(&rebuilt, &model);
        prop_assert_eq!(write_root(&tree).expect("write"), write_root(&rebuilt).expect("write"));
        // And with other times: the same but for them.
        let fixed = fixed_root(&tree).expect("write");
        model.fix_times();
        let rebuilt = model.build(&other_store).expect("build");
        prop_assert_eq!(fixed, write_root(&rebuilt).expect("write"));
        let bare = |tree: &WorkingTree| {
            let root = write_root(tree).expect("write");
            tree.store().root(root).expect("root").bare()
        };
        prop_assert_eq!(bare(&tree), bare(&rebuilt));
    }
}
