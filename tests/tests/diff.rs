//! The difference of two trees against the difference of two plain maps.

use std::collections::{BTreeMap, BTreeSet};

use amalgam_engine::object::{Device, EntryKind, Node};
use amalgam_engine::work::RenameMode;
use amalgam_engine::{
    Change, Commit, DiffOptions, LinkGroup, MetadataChange, RefName, SnapshotId, Store, Time, TreePath, What,
    WorkingTree, diff, diff_roots, diff_state, diff_with_renames,
};
use amalgam_tests::model::{Fill, Model, Op, Raw, STATE_KEYS, Seen, cases, commit, contents, op, ops, perform};
use proptest::prelude::*;

/// All that a diff may look at, by path.
type Plain = BTreeMap<TreePath, PlainEntry>;

#[derive(Clone, Debug, PartialEq)]
struct PlainEntry {
    seen: Seen,
    device: Device,
    link: Option<LinkGroup>,
}

fn plain(store: &Store, snapshot: SnapshotId) -> Plain {
    let tree = WorkingTree::open(store, snapshot).expect("open");
    let seen = contents(&tree).expect("walk").paths.into_iter();
    seen.map(|(path, seen)| {
        let entry = tree.stat(path.as_bytes()).expect("stat").and_then(|stat| stat.entry);
        let device = match entry.as_ref().map(|entry| &entry.node) {
            Some(Node::CharDevice(device) | Node::BlockDevice(device)) => *device,
            _ => Device::default(),
        };
        // How many names a file has is not a property of an entry.
        let seen = Seen { links: 1, ..seen };
        (path, PlainEntry { seen, device, link: entry.and_then(|entry| entry.link()) })
    })
    .collect()
}

fn plain_metadata(before: &PlainEntry, after: &PlainEntry, times: bool) -> MetadataChange {
    MetadataChange {
        mode: before.seen.mode != after.seen.mode,
        mtime: times && before.seen.mtime != after.seen.mtime,
        owner: before.seen.owner != after.seen.owner,
        xattrs: before.seen.xattrs != after.seen.xattrs,
        link: before.link != after.link,
    }
}

/// The difference by looking at every path.
fn plain_diff(before: &Plain, after: &Plain, times: bool) -> Vec<(TreePath, What, MetadataChange)> {
    let paths: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let compare = |path: &TreePath| {
        let (before, after) = match (before.get(path), after.get(path)) {
            (Some(before), Some(after)) => (before, after),
            (None, _) => return Some((What::Added, MetadataChange::default())),
            (_, None) => return Some((What::Removed, MetadataChange::default())),
        };
        let metadata = plain_metadata(before, after, times);
        if before.seen.kind != after.seen.kind {
            return Some((What::KindChanged, metadata));
        }
        if before.seen.bytes != after.seen.bytes || before.device != after.device {
            return Some((What::Modified, metadata));
        }
        metadata.any().then_some((What::Metadata, metadata))
    };
    paths.into_iter().filter_map(|path| compare(path).map(|(what, metadata)| (path.clone(), what, metadata))).collect()
}

fn collect(store: &Store, before: SnapshotId, after: SnapshotId, times: bool) -> Vec<Change> {
    let changes = diff(store, before, after, DiffOptions { times, ..DiffOptions::default() }).expect("diff");
    changes.map(|change| change.expect("change")).collect()
}

fn renames(store: &Store, before: SnapshotId, after: SnapshotId, times: bool) -> Vec<Change> {
    let root = |snapshot| Some(store.snapshot(snapshot).expect("snapshot").root);
    diff_with_renames(store, root(before), root(after), DiffOptions { times, ..DiffOptions::default() }).expect("diff")
}

/// Does to the one map what the changes say; what is not in them must be the same already.
fn apply(before: &Plain, after: &Plain, changes: &[Change]) -> Plain {
    let mut result = before.clone();
    let mut moved = Vec::new();
    for change in changes {
        if let What::Renamed { from } = &change.what {
            for path in before.keys().filter(|path| path.below(from).is_some()) {
                let entry = result.remove(path).unwrap_or_else(|| panic!("{path} went to two places"));
                moved.push((renamed(path, from, &change.path), entry));
            }
        }
        if change.what == What::Removed {
            assert!(result.remove(&change.path).is_some(), "{} was gone already", change.path);
        }
    }
    for (path, entry) in moved {
        assert!(result.insert(path.clone(), entry).is_none(), "{path} came twice");
    }
    for change in changes.iter().filter(|change| change.what != What::Removed) {
        let new = result.insert(change.path.clone(), after[&change.path].clone()).is_none();
        assert_eq!(new, change.what == What::Added, "{change:?}");
    }
    result
}

fn renamed(path: &TreePath, from: &TreePath, to: &TreePath) -> TreePath {
    match path.below(from).expect("it was found below") {
        [] => to.clone(),
        rest => TreePath::new([to.as_bytes(), b"/", rest].concat()).expect("a short path"),
    }
}

fn timeless(mut plain: Plain) -> Plain {
    plain.values_mut().for_each(|entry| entry.seen.mtime = Time::EPOCH);
    plain
}

/// Checks every kind of diff of two snapshots.
fn check(store: &Store, before: SnapshotId, after: SnapshotId) {
    let (plain_before, plain_after) = (plain(store, before), plain(store, after));
    for times in [false, true] {
        let changes = collect(store, before, after, times);
        let short: Vec<_> = changes.iter().map(|c| (c.path.clone(), c.what.clone(), c.metadata)).collect();
        assert_eq!(short, plain_diff(&plain_before, &plain_after, times), "times: {times}");
        for change in &changes {
            assert_eq!(change.before.is_some(), plain_before.contains_key(&change.path));
            assert_eq!(change.after.is_some(), plain_after.contains_key(&change.path));
        }
        let changes = renames(store, before, after, times);
        assert!(changes.is_sorted_by(|a, b| a.path < b.path), "sorted and without doubles: {:?}", words(&changes));
        let applied = apply(&plain_before, &plain_after, &changes);
        if times {
            assert_eq!(applied, plain_after);
        } else {
            assert_eq!(timeless(applied), timeless(plain_after.clone()));
        }
    }
    check_states(store, before, after);
}

fn check_states(store: &Store, before: SnapshotId, after: SnapshotId) {
    let root = |snapshot| store.root(store.snapshot(snapshot).expect("snapshot").root).expect("root");
    let changes = diff_state(store, &root(before), &root(after)).expect("diff");
    let changes: Vec<_> = changes.map(|change| change.expect("change")).collect();
    let value = |snapshot, key: &str| WorkingTree::open(store, snapshot).expect("open").state(key).expect("state");
    let mut keys = STATE_KEYS;
    keys.sort_unstable();
    let expected = keys.into_iter().map(|key| (key.to_owned(), value(before, key), value(after, key)));
    let expected: Vec<_> = expected.filter(|(_, before, after)| before != after).collect();
    let changes: Vec<_> = changes.into_iter().map(|change| (change.key, change.before, change.after)).collect();
    assert_eq!(changes, expected);
}

/// Edits that make and move things about more than they refuse.
fn moving() -> impl Strategy<Value = Op> {
    let name = || {
        let names = vec!["a", "b", "c", "a/a", "a/b", "b/a", "b/b", "c/a", "a/b/a", "b/a/b", "c/a/b"];
        prop::sample::select(names).prop_map(Raw::from)
    };
    prop_oneof![
        3 => (name(), 0_u64..4).prop_map(|(path, seed)| Op::Write { path, fill: Fill { seed, length: 7 } }),
        3 => name().prop_map(|path| Op::CreateDirectories { path }),
        4 => (name(), name()).prop_map(|(from, to)| Op::Rename { from, to, mode: RenameMode::Replace }),
        1 => (name(), name()).prop_map(|(from, to)| Op::Rename { from, to, mode: RenameMode::Exchange }),
        1 => name().prop_map(|path| Op::RemoveAll { path }),
        3 => op(),
    ]
    .boxed()
}

fn perform_all(tree: &mut WorkingTree, ops: &[Op]) {
    for op in ops {
        // What is refused changes nothing, on both sides.
        perform(tree, op).ok();
    }
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn a_diff_finds_what_differs_and_nothing_else(
        first in ops(moving(), 0..40), second in ops(moving(), 0..20), third in ops(moving(), 0..40)
    ) {
        let store = Store::in_memory();
        let mut tree = WorkingTree::new(&store);
        perform_all(&mut tree, &first);
        let before = commit(&mut tree).expect("commit");
        perform_all(&mut tree, &second);
        let after = commit(&mut tree).expect("commit");
        let mut unrelated = WorkingTree::new(&store);
        perform_all(&mut unrelated, &third);
        let other = commit(&mut unrelated).expect("commit");
        check(&store, before, after);
        check(&store, after, before);
        check(&store, after, other);
        prop_assert!(collect(&store, after, after, true).is_empty());
    }

    #[test]
    fn a_diff_against_nothing_lists_everything(first in ops(moving(), 0..40)) {
        let store = Store::in_memory();
        let mut tree = WorkingTree::new(&store);
        perform_all(&mut tree, &first);
        let snapshot = commit(&mut tree).expect("commit");
        let root = store.snapshot(snapshot).expect("snapshot").root;
        let paths = |before, after| {
            let changes = diff_roots(&store, before, after, DiffOptions::default()).expect("diff");
            changes.map(|change| change.expect("change")).map(|change| (change.path, change.what)).collect::<Vec<_>>()
        };
        let all = plain(&store, snapshot).into_keys().filter(|path| !path.is_root());
        let (added, removed): (Vec<_>, Vec<_>) = all.map(|path| ((path.clone(), What::Added), (path, What::Removed))).unzip();
        prop_assert_eq!(paths(None, Some(root)), added);
        prop_assert_eq!(paths(Some(root), None), removed);
        prop_assert_eq!(paths(None, None), vec![]);
    }
}

/// Two commits of one tree and a store to look at them.
struct Pair {
    store: Store,
    before: SnapshotId,
    after: SnapshotId,
}

fn pair(prepare: impl FnOnce(&mut WorkingTree), edit: impl FnOnce(&mut WorkingTree)) -> Pair {
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    prepare(&mut tree);
    let before = commit(&mut tree).expect("commit");
    tree.set_now(Time(9));
    edit(&mut tree);
    let after = commit(&mut tree).expect("commit");
    check(&store, before, after);
    Pair { store, before, after }
}

fn words(changes: &[Change]) -> Vec<String> {
    changes
        .iter()
        .map(|change| match &change.what {
            What::Renamed { from } => format!("{from} -> {}", change.path),
            what => format!("{what:?} {}", change.path),
        })
        .collect()
}

impl Pair {
    fn renames(&self) -> Vec<String> {
        words(&renames(&self.store, self.before, self.after, false))
    }
}

fn write(tree: &mut WorkingTree, path: &str, text: &str) {
    if let Some((parent, _)) = path.rsplit_once('/') {
        tree.create_directories(parent).expect("mkdir");
    }
    tree.write(path, text.as_bytes()).expect("write");
}

fn rename(tree: &mut WorkingTree, from: &str, to: &str) {
    tree.rename(from, to, RenameMode::Replace).expect("rename");
}

#[test]
fn a_moved_file_is_a_rename() {
    let pair = pair(
        |tree| {
            write(tree, "a", "one");
            write(tree, "d/x", "two");
        },
        |tree| {
            rename(tree, "a", "b");
            rename(tree, "d/x", "x");
            tree.set_mode("b", 0o600).expect("chmod");
        },
    );
    assert_eq!(pair.renames(), ["a -> b", "d/x -> x"]);
    let changes = renames(&pair.store, pair.before, pair.after, false);
    assert_eq!(changes[0].metadata, MetadataChange { mode: true, ..MetadataChange::default() });
}

#[test]
fn a_moved_directory_of_a_thousand_files_is_one_change() {
    let pair = pair(
        |tree| (0..1_000).for_each(|number| write(tree, &format!("old/{}/{number}", number % 10), &number.to_string())),
        |tree| rename(tree, "old", "new"),
    );
    assert_eq!(pair.renames(), ["old -> new"]);
    assert_eq!(collect(&pair.store, pair.before, pair.after, false).len(), 2 * 1_011);
}

#[test]
fn what_moved_into_a_new_directory_is_a_rename() {
    let pair = pair(
        |tree| {
            write(tree, "a", "one");
            write(tree, "d/x", "two");
        },
        |tree| {
            tree.create_directory("new", 0o755).expect("mkdir");
            rename(tree, "a", "new/a");
            rename(tree, "d", "new/d");
        },
    );
    assert_eq!(pair.renames(), ["Added new", "a -> new/a", "d -> new/d"]);
}

#[test]
fn what_moved_out_of_a_removed_directory_is_a_rename() {
    let pair = pair(
        |tree| {
            write(tree, "gone/a", "one");
            write(tree, "gone/d/x", "two");
            write(tree, "gone/z", "three");
        },
        |tree| {
            rename(tree, "gone/a", "a");
            rename(tree, "gone/d", "d");
            tree.remove_all("gone").expect("remove");
        },
    );
    assert_eq!(pair.renames(), ["gone/a -> a", "gone/d -> d", "Removed gone", "Removed gone/z"]);
}

#[test]
fn swapped_files_are_two_modifications() {
    let pair = pair(
        |tree| {
            write(tree, "a", "one");
            write(tree, "b", "two");
        },
        |tree| tree.rename("a", "b", RenameMode::Exchange).expect("swap"),
    );
    assert_eq!(pair.renames(), ["Modified a", "Modified b"]);
}

#[test]
fn swapped_directories_rename_what_has_other_names() {
    let pair = pair(
        |tree| {
            write(tree, "a/x", "one");
            write(tree, "b/y", "two");
        },
        |tree| tree.rename("a", "b", RenameMode::Exchange).expect("swap"),
    );
    assert_eq!(pair.renames(), ["b/y -> a/y", "a/x -> b/x"]);
}

#[test]
fn a_partner_with_the_same_name_is_preferred() {
    let pair = pair(
        |tree| ["d/x", "d/y"].into_iter().for_each(|path| write(tree, path, "same")),
        |tree| {
            tree.create_directory("e", 0o755).expect("mkdir");
            rename(tree, "d/x", "e/y");
            rename(tree, "d/y", "e/x");
        },
    );
    assert_eq!(pair.renames(), ["Added e", "d/x -> e/x", "d/y -> e/y"]);
}

#[test]
fn a_directory_that_became_a_file_gives_up_its_contents_once() {
    let pair = pair(
        |tree| {
            write(tree, "d/kept", "one");
            write(tree, "d/lost", "two");
        },
        |tree| {
            rename(tree, "d/kept", "kept");
            tree.remove_all("d").expect("remove");
            write(tree, "d", "a file");
        },
    );
    assert_eq!(pair.renames(), ["KindChanged d", "Removed d/lost", "d/kept -> kept"]);
}

#[test]
fn nothing_moves_to_two_places() {
    let pair = pair(
        |tree| write(tree, "old/part/x", "one"),
        |tree| {
            write(tree, "copy/x", "one");
            tree.create_directory("new", 0o755).expect("mkdir");
            rename(tree, "old", "new/old");
        },
    );
    assert_eq!(
        pair.renames(),
        ["old/part -> copy", "Added new", "Added new/old", "Added new/old/part", "Added new/old/part/x", "Removed old"]
    );
}

#[test]
fn times_below_a_moved_directory_are_seen_when_asked_for() {
    let pair = pair(
        |tree| write(tree, "old/d/x", "one"),
        |tree| {
            rename(tree, "old", "new");
            tree.set_mtime("new/d/x", Time(77)).expect("touch");
        },
    );
    assert_eq!(pair.renames(), ["old -> new"]);
    let timed = renames(&pair.store, pair.before, pair.after, true);
    assert_eq!(
        words(&timed),
        ["Metadata (root)", "Added new", "Added new/d", "old/d/x -> new/d/x", "Removed old", "Removed old/d"]
    );
}

#[test]
fn trees_that_differ_in_times_only_are_equal() {
    let touch = |tree: &mut WorkingTree| {
        let paths: Vec<_> = contents(tree).expect("walk").paths.into_keys().collect();
        for path in paths {
            tree.set_mtime(path.as_bytes(), Time(-5)).expect("touch");
        }
    };
    let prepare = |tree: &mut WorkingTree| {
        (0..300).for_each(|number| write(tree, &format!("d/{}/{number}", number % 3), "same"));
    };
    let pair = pair(prepare, touch);
    assert!(collect(&pair.store, pair.before, pair.after, false).is_empty());
    assert!(pair.renames().is_empty());
    let timed = collect(&pair.store, pair.before, pair.after, true);
    assert_eq!(timed.len(), 305);
    assert!(timed.iter().all(|change| change.what == What::Metadata && change.metadata.mtime));
}

#[test]
fn the_root_directory_itself_can_differ() {
    let pair = pair(|_| {}, |tree| tree.set_mode("", 0o700).expect("chmod"));
    assert_eq!(words(&collect(&pair.store, pair.before, pair.after, false)), ["Metadata (root)"]);
}

#[test]
fn changes_come_in_the_order_of_paths() {
    let pair =
        pair(|_| {}, |tree| ["a/b", "a-b", "a/b-c", "a.b/c", "B"].into_iter().for_each(|path| write(tree, path, "x")));
    let added: Vec<_> = collect(&pair.store, pair.before, pair.after, false);
    let paths: Vec<_> = added.iter().map(|change| change.path.to_string()).collect();
    assert_eq!(paths, ["B", "a", "a/b", "a/b-c", "a-b", "a.b", "a.b/c"]);
    assert!(added.iter().all(|change| change.after.as_ref().is_some_and(|entry| entry.kind() != EntryKind::Conflict)));
}

#[test]
fn the_model_and_the_tree_tell_the_same_difference() {
    // The plain maps above are read from the store; this ties them to the model once.
    let store = Store::in_memory();
    let (mut tree, mut model) = (WorkingTree::new(&store), Model::default());
    for op in [
        Op::Write { path: Raw::from("a"), fill: Fill { seed: 1, length: 70_000 } },
        Op::CreateDirectories { path: Raw::from("d/e") },
        Op::Symlink { path: Raw::from("d/s"), target: Raw::from("../a") },
    ] {
        assert_eq!(perform(&mut tree, &op), model.perform(&op));
    }
    let snapshot = commit(&mut tree).expect("commit");
    let seen: BTreeMap<_, _> = plain(&store, snapshot).into_iter().map(|(path, entry)| (path, entry.seen)).collect();
    assert_eq!(seen, model.contents().paths);
}

proptest! {
    #![proptest_config(cases(60))]

    /// Directories of many nodes, whose borders move as names come and go.
    #[test]
    fn wide_directories_are_compared_name_by_name(
        before in prop::collection::vec((0_u32..4_000, 1_u32..1_500, 1_u32..5), 0..5),
        edits in prop::collection::vec((0_u32..4_000, 1_u32..80, 0_u8..3), 0..12),
    ) {
        let store = Store::in_memory();
        let mut tree = WorkingTree::new(&store);
        let name = |number: u32| format!("f{number:04}");
        let mut old: BTreeMap<u32, u8> = BTreeMap::new();
        for (start, length, stride) in before {
            old.extend((start..start + length).step_by(stride as usize).map(|number| (number, 0)));
        }
        for number in old.keys() {
            tree.write(name(*number), &[0]).expect("write");
            tree.set_state(&name(*number), "0").expect("set");
        }
        let before = commit(&mut tree).expect("commit");
        let mut new = old.clone();
        for (start, length, value) in edits {
            for number in start..start + length {
                if value == 0 && new.remove(&number).is_some() {
                    tree.remove(name(number)).expect("remove");
                    tree.remove_state(&name(number)).expect("remove");
                } else if value > 0 {
                    tree.write(name(number), &[value]).expect("write");
                    tree.set_state(&name(number), &value.to_string()).expect("set");
                    new.insert(number, value);
                }
            }
        }
        let after = commit(&mut tree).expect("commit");
        let numbers: BTreeSet<_> = old.keys().chain(new.keys()).copied().collect();
        let what = |number: &u32| match (old.get(number), new.get(number)) {
            (None, _) => Some(What::Added),
            (_, None) => Some(What::Removed),
            (before, after) => (before != after).then_some(What::Modified),
        };
        let expected: Vec<_> = numbers.iter().filter_map(|number| Some((name(*number), what(number)?))).collect();
        let changes = collect(&store, before, after, false);
        let changes: Vec<_> = changes.into_iter().map(|change| (change.path.to_string(), change.what)).collect();
        prop_assert_eq!(changes, expected);
        let root = |snapshot| store.root(store.snapshot(snapshot).expect("snapshot").root).expect("root");
        let states = diff_state(&store, &root(before), &root(after)).expect("diff");
        let states: Vec<_> = states.map(|change| change.expect("change").key).collect();
        let expected: Vec<_> = numbers.iter().filter(|number| what(number).is_some()).map(|number| name(*number)).collect();
        prop_assert_eq!(states, expected);
    }
}

#[test]
fn entries_called_git_are_left_out_when_asked() {
    let store = Store::in_memory();
    let commit = |name: &str, files: &[(&str, &str)]| {
        let mut tree = WorkingTree::new(&store);
        for (path, text) in files {
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            tree.create_directories(parent).expect("directories");
            tree.write(path, text.as_bytes()).expect("write");
        }
        let name = RefName::new(name).expect("a name");
        tree.commit(Commit::new(&name, "files")).expect("commit").snapshot
    };
    let before = commit(
        "head/before",
        &[(".git/HEAD", "1"), ("a", "1"), ("sub/.git/HEAD", "1"), ("gone/x", "x"), ("gone/.git/x", "y")],
    );
    let after = commit(
        "head/after",
        &[(".git/HEAD", "2"), (".git/new", "2"), ("a", "2"), ("sub/.git/HEAD", "2"), ("made/.git/x", "1")],
    );
    let options = DiffOptions { without_git: true, ..DiffOptions::default() };
    let changes = diff(&store, before, after, options).expect("diff").map(|change| change.expect("a change"));
    let found: Vec<_> = changes.map(|change| change.path.to_string()).collect();
    assert_eq!(found, ["a", "gone", "gone/x", "made"]);
    let root = |snapshot| Some(store.snapshot(snapshot).expect("snapshot").root);
    let renames = diff_with_renames(&store, root(before), root(after), options).expect("diff");
    let found: Vec<_> = renames.iter().map(|change| change.path.to_string()).collect();
    assert_eq!(found, ["a", "gone", "gone/x", "made"]);
}
