//! Random operations on a working tree and on the plain model: same answers, same contents, same roots.

use amalgam_engine::work::FileSegments;
use amalgam_engine::{Store, Time, WorkingTree};
use amalgam_tests::model::{
    Fill, Model, Op, Raw, cases, commit, contents, edit_unlinked, fixed_root, link_classes, op, ops, perform,
    write_root,
};
use proptest::prelude::*;
use std::sync::Arc;

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
    #![proptest_config(cases(2_000))]

    #[test]
    fn behaves_as_the_model_in_memory(story in story()) {
        let store = Store::in_memory();
        tell(&store, &story, WorkingTree::new(&store));
    }
}

proptest! {
    #![proptest_config(cases(20))]

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
    #![proptest_config(cases(1_500))]

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

/// Edits of which each has paths of its own, so that they may come in any order.
fn independent_edit(index: usize, kind: u8) -> Op {
    let file = Raw(format!("d{}/f{index}", index % 7).into_bytes());
    let new = Raw(format!("d{}/n{index}", index % 5).into_bytes());
    match kind {
        0 => Op::Write { path: new, fill: Fill { seed: index as u64, length: 100 } },
        1 => Op::WriteAt { path: file, offset: 10, fill: Fill { seed: 5, length: 90_000 } },
        2 => Op::Remove { path: file },
        3 => Op::Rename { from: file, to: new, mode: amalgam_engine::work::RenameMode::Replace },
        4 => Op::Link { existing: file, new },
        5 => Op::SetMode { path: file, mode: 0o4711 },
        6 => Op::SetXattr { path: file, name: Raw::from("user.x"), value: Fill { seed: 1, length: 1_500 } },
        7 => Op::SetState { key: format!("k{index}"), json: index.to_string() },
        8 => Op::CreateDirectory { path: new, mode: 0o700 },
        _ => Op::Truncate { path: file, size: 70_000 },
    }
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn the_order_of_edits_does_not_matter(
        (edits, shuffled) in prop::collection::vec(0_u8..10, 1..200)
            .prop_map(|kinds| kinds.into_iter().enumerate().collect::<Vec<_>>())
            .prop_flat_map(|edits| (Just(edits.clone()), Just(edits).prop_shuffle())),
        commit_at in 0_usize..200,
    ) {
        let store = Store::in_memory();
        let mut tree = WorkingTree::new(&store);
        for directory in 0..7 {
            tree.create_directory(format!("d{directory}"), 0o755).expect("mkdir");
        }
        for index in 0..200 {
            tree.write(format!("d{}/f{index}", index % 7), format!("file {index}").as_bytes()).expect("write");
        }
        commit(&mut tree).expect("commit");
        let mut other = tree.fork();
        for (index, kind) in &edits {
            perform(&mut tree, &independent_edit(*index, *kind)).expect("an edit of its own paths");
        }
        let linked = edits.iter().any(|(_, kind)| *kind == 4);
        for (done, (index, kind)) in shuffled.iter().enumerate() {
            perform(&mut other, &independent_edit(*index, *kind)).expect("an edit of its own paths");
            // A commit between changes nothing either, but for the ids of groups first seen in it.
            if done == commit_at && !linked {
                commit(&mut other).expect("commit");
            }
        }
        prop_assert_eq!(write_root(&tree).expect("write"), write_root(&other).expect("write"));
    }
}

/// A change of many names of one wide directory: every `stride`th of a range comes, goes or changes.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    start: u32,
    length: u32,
    stride: u32,
    what: u8,
}

const WIDE: u32 = 3_000;

fn sweep() -> impl Strategy<Value = Sweep> {
    let length = prop_oneof![3 => 1_u32..4, 2 => 1_u32..200, 1 => 1_u32..WIDE];
    let stride = prop_oneof![3 => Just(1_u32), 1 => 2_u32..40];
    (0..WIDE, length, stride, 0_u8..3).prop_map(|(start, length, stride, what)| Sweep { start, length, stride, what })
}

/// Applies it to the tree and to a plain map of what it holds: names of files, their links, and state values alike.
fn apply_sweep(tree: &mut WorkingTree, there: &mut std::collections::BTreeMap<u32, u8>, sweep: Sweep, round: u8) {
    let numbers = (sweep.start..(sweep.start + sweep.length).min(WIDE)).step_by(sweep.stride as usize);
    for number in numbers {
        let (file, link, key) = (format!("f{number:05}"), format!("l{number:05}"), format!("k{number:05}"));
        if sweep.what == 0 {
            if there.remove(&number).is_some() {
                tree.remove(&file).expect("remove");
                tree.remove(&link).expect("remove");
                assert!(tree.remove_state(&key).expect("remove"));
            }
            continue;
        }
        tree.write(&file, &[round]).expect("write");
        tree.set_state(&key, &round.to_string()).expect("set");
        if there.insert(number, round).is_none() {
            tree.link(&file, &link).expect("link");
        }
    }
}

proptest! {
    #![proptest_config(cases(80))]

    #[test]
    fn wide_directories_links_and_states_follow_from_their_contents(
        rounds in prop::collection::vec(prop::collection::vec(sweep(), 1..6), 1..6)
    ) {
        let store = Store::in_memory();
        let mut tree = WorkingTree::new(&store);
        let mut there = std::collections::BTreeMap::new();
        for (round, sweeps) in rounds.iter().enumerate() {
            sweeps.iter().for_each(|sweep| apply_sweep(&mut tree, &mut there, *sweep, round as u8));
            commit(&mut tree).expect("commit");
        }
        let other_store = Store::in_memory();
        let mut rebuilt = WorkingTree::new(&other_store);
        for (number, round) in &there {
            rebuilt.write(format!("f{number:05}"), &[*round]).expect("write");
            rebuilt.link(format!("f{number:05}"), format!("l{number:05}")).expect("link");
            rebuilt.set_state(&format!("k{number:05}"), &round.to_string()).expect("set");
        }
        prop_assert_eq!(write_root(&tree).expect("write"), write_root(&rebuilt).expect("write"));
        let names: Vec<_> = tree.list("").expect("list").map(|listed| listed.expect("read").1.links).collect();
        prop_assert_eq!(names, vec![2; 2 * there.len()]);
    }
}
