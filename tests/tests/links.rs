//! Hard links: several names, one file, through edits, commits, moves and removals.
//!
//! After every step the tree is committed and the rules of a stored tree are checked: an entry has a group exactly when the
//! map of links lists its path under that group, a group has two names or more, and all its names have equal entries.

use std::collections::{BTreeMap, BTreeSet};

use amalgam_engine::object::{Entry, EntryKind};
use amalgam_engine::work::{RenameMode, Special};
use amalgam_engine::workspace::{Taken, with_paths_of};
use amalgam_engine::{LinkGroup, LinksId, ObjectId, RootId, SnapshotId, Store, Time, TreePath, WorkingTree};
use amalgam_tests::model::{Fill, Model, Op, Raw, cases, commit, contents, link_classes, op, ops, perform};
use proptest::prelude::*;
use prost::Message;

/// A node of the map of links, read with nothing of the engine's.
#[derive(Message)]
struct LinksNode {
    #[prost(uint32, tag = "1")]
    level: u32,
    #[prost(message, repeated, tag = "2")]
    members: Vec<Member>,
    #[prost(message, repeated, tag = "3")]
    children: Vec<Child>,
}

#[derive(Message)]
struct Member {
    #[prost(bytes = "vec", tag = "1")]
    group: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    path: Vec<u8>,
}

#[derive(Message)]
struct Child {
    #[prost(bytes = "vec", tag = "3")]
    id: Vec<u8>,
    #[prost(uint64, tag = "4")]
    count: u64,
}

type Groups = BTreeMap<LinkGroup, BTreeSet<TreePath>>;

fn hash(bytes: &[u8]) -> [u8; 32] {
    bytes.try_into().expect("32 bytes")
}

fn listed_groups(store: &Store, top: Option<LinksId>) -> Groups {
    let mut groups = Groups::new();
    let mut open: Vec<ObjectId> = top.into_iter().map(ObjectId::from).collect();
    while let Some(id) = open.pop() {
        let bytes = store.canonical(id).expect("a node of the links");
        let node = LinksNode::decode(&bytes[2..]).expect("a node of the links");
        assert_eq!(node.level == 0, node.children.is_empty());
        for member in node.members {
            let path = TreePath::new(&member.path).expect("a path");
            groups.entry(LinkGroup::from_bytes(hash(&member.group))).or_default().insert(path);
        }
        open.extend(node.children.iter().map(|child| LinksId::from_bytes(hash(&child.id)).object()));
    }
    groups
}

/// Checks a stored tree and returns its groups.
fn check_stored(store: &Store, snapshot: SnapshotId) -> Groups {
    let tree = WorkingTree::open(store, snapshot).expect("open");
    let root = store.root(store.snapshot(snapshot).expect("snapshot").root).expect("root");
    let listed = listed_groups(store, root.links);
    let mut entries: BTreeMap<LinkGroup, BTreeMap<TreePath, Entry>> = BTreeMap::new();
    for path in contents(&tree).expect("walk").paths.into_keys() {
        let stat = tree.stat(path.as_bytes()).expect("stat").expect("there");
        if let Some((entry, group)) = stat.entry.and_then(|entry| Some((entry.clone(), entry.link()?))) {
            assert_eq!(stat.links, listed.get(&group).map_or(0, BTreeSet::len) as u64, "{path}");
            entries.entry(group).or_default().insert(path, entry);
        }
    }
    for (group, members) in &entries {
        assert!(members.len() > 1, "{group} has one name: {members:?}");
        let first = members.values().next().expect("a group has members");
        assert!(members.values().all(|entry| entry == first), "{group}: {members:?}");
    }
    let found: Groups = entries.into_iter().map(|(group, members)| (group, members.into_keys().collect())).collect();
    assert_eq!(found, listed);
    assert_eq!(root.directory.linked(), listed.values().map(BTreeSet::len).sum::<usize>() as u64);
    assert_eq!(root.links.is_none(), listed.is_empty());
    listed
}

/// `write a 7`, `link a b`, `mv a b`, `swap a b`, `rm a`, `rmall d`, `mkdir d`, `symlink a`, `fifo a`, `chmod a`, `touch a`.
fn parse(line: &str) -> Op {
    let words: Vec<_> = line.split(' ').collect();
    let word = |index: usize| Raw::from(words[index]);
    match words[0] {
        "write" => Op::Write { path: word(1), fill: Fill { seed: words[2].parse().expect("a seed"), length: 100_000 } },
        "link" => Op::Link { existing: word(1), new: word(2) },
        "mv" => Op::Rename { from: word(1), to: word(2), mode: RenameMode::Replace },
        "swap" => Op::Rename { from: word(1), to: word(2), mode: RenameMode::Exchange },
        "rm" => Op::Remove { path: word(1) },
        "rmall" => Op::RemoveAll { path: word(1) },
        "mkdir" => Op::CreateDirectory { path: word(1), mode: 0o755 },
        "symlink" => Op::Symlink { path: word(1), target: Raw::from("target") },
        "fifo" => Op::CreateSpecial { path: word(1), special: Special::Fifo, mode: 0o600 },
        "chmod" => Op::SetMode { path: word(1), mode: 0o4711 },
        "touch" => Op::SetMtime { path: word(1), mtime: Time(-77) },
        other => panic!("no such step: {other}"),
    }
}

/// How often the tree itself is committed; what is checked is committed from a fork otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Commits {
    Never,
    AfterEach,
    /// Goes on in a tree opened from the snapshot.
    AfterEachReopened,
    AfterEverySecond,
}

/// Does the steps, with commits at different moments, and returns the groups at the end of each way.
fn check(script: &str) -> Vec<Groups> {
    let ways = [Commits::Never, Commits::AfterEach, Commits::AfterEachReopened, Commits::AfterEverySecond];
    let steps: Vec<_> = script.split(';').map(str::trim).map(|line| (line, parse(line))).collect();
    ways.into_iter().map(|commits| run(&steps, commits)).collect()
}

fn run(steps: &[(&str, Op)], commits: Commits) -> Groups {
    let store = Store::in_memory();
    let (mut tree, mut model) = (WorkingTree::new(&store), Model::default());
    let mut groups = Groups::new();
    for (done, (line, op)) in steps.iter().enumerate() {
        assert_eq!(perform(&mut tree, op), model.perform(op), "{commits:?}: {line}");
        assert_eq!(contents(&tree).expect("walk"), model.contents(), "{commits:?}: {line}");
        let own = match commits {
            Commits::Never => false,
            Commits::AfterEach | Commits::AfterEachReopened => true,
            Commits::AfterEverySecond => done % 2 == 1,
        };
        let snapshot = if own { commit(&mut tree) } else { commit(&mut tree.fork()) }.expect("commit");
        groups = check_stored(&store, snapshot);
        let stored = WorkingTree::open(&store, snapshot).expect("open");
        assert_eq!(contents(&stored).expect("walk"), model.contents(), "{commits:?}: {line}, stored");
        assert_eq!(link_classes(&stored).expect("walk"), model.link_classes(), "{commits:?}: {line}");
        if commits == Commits::AfterEachReopened {
            tree = stored;
        }
    }
    groups
}

/// The names of each group, as text.
fn names(groups: &Groups) -> Vec<Vec<String>> {
    groups.values().map(|members| members.iter().map(TreePath::to_string).collect()).collect()
}

#[test]
fn what_is_written_through_one_name_is_seen_through_all() {
    check("write a 1; mkdir d; link a d/b; link d/b c; write c 2; chmod a; touch d/b; rm a; write d/b 3");
}

#[test]
fn a_file_left_with_one_name_is_an_ordinary_file_again() {
    for groups in check("write a 1; link a b; link b c; rm a; rm c; write b 2") {
        assert!(groups.is_empty());
    }
    for groups in check("write a 1; link a b; rm b; rm a") {
        assert!(groups.is_empty());
    }
}

#[test]
fn a_directory_moves_with_the_links_below_it() {
    for groups in check("mkdir d; mkdir d/e; write d/e/a 1; link d/e/a b; mv d f; write b 2; mkdir g; mv f g/h; rm b") {
        assert!(groups.is_empty());
    }
    for groups in check("mkdir d; write d/a 1; link d/a d/b; mv d e; write e/a 2; mkdir d; write d/a 3; link d/a d/b") {
        assert_eq!(groups.len(), 2, "two files, though the second has the names the first had");
    }
}

#[test]
fn a_new_group_does_not_take_the_id_of_one_that_moved_away() {
    for groups in check("write a 1; link a b; mv a c; mv b d; write a 2; link a b; write c 3; write b 4") {
        assert_eq!(groups.len(), 2);
        let mut members = names(&groups);
        members.sort();
        assert_eq!(members, [["a", "b"], ["c", "d"]]);
    }
}

#[test]
fn an_id_is_free_again_when_its_group_is_gone() {
    let mut ids = BTreeSet::new();
    for groups in check("write a 1; link a b; rm b; rm a; write a 2; link a c") {
        ids.extend(groups.into_keys());
    }
    assert_eq!(ids.len(), 1, "the same names give the same id on every way");
}

#[test]
fn names_replace_one_another() {
    check("write a 1; link a b; write c 2; link c d; mv a c; write d 3; mv d b; rm b");
    check("write a 1; link a b; write c 2; mv c a; write b 3");
    check("write a 1; link a b; symlink s; link s t; mv s a; mv t b");
}

#[test]
fn renaming_one_name_onto_another_of_the_same_file_does_nothing() {
    for groups in check("write a 1; link a b; mv a b; swap a b; write b 2") {
        assert_eq!(names(&groups), [["a", "b"]]);
    }
}

#[test]
fn names_and_directories_are_exchanged() {
    check("write a 1; link a b; write c 2; link c d; swap a c; write d 3; swap a b");
    check("mkdir d; mkdir e; write d/a 1; link d/a e/b; swap d e; write d/b 2; swap d/b e/a; rm e/a");
    check("mkdir d; write d/a 1; link d/a b; write c 2; swap d c; write c/a 3; rmall c");
}

#[test]
fn a_file_is_exchanged_with_a_directory_that_holds_its_other_name() {
    for groups in check("mkdir d; write a 1; link a d/b; swap a d; write a/b 2") {
        assert_eq!(names(&groups), [["a/b", "d"]]);
    }
    check("mkdir d; write a 1; link a d/b; swap d a; swap d a; write a 3");
}

#[test]
fn a_directory_is_removed_with_the_links_below_it() {
    for groups in
        check("mkdir d; mkdir d/e; write a 1; link a d/b; link a d/e/c; write z 5; link z d/z; rmall d; write a 2")
    {
        assert!(groups.is_empty());
    }
    check("mkdir d; write d/a 1; link d/a d/b; link d/a c; rmall d; link c d");
}

#[test]
fn symlinks_and_fifos_have_several_names_too() {
    for groups in check("symlink s; link s t; fifo p; link p q; touch t; chmod q; mv s u; rm p") {
        assert_eq!(names(&groups), [["t", "u"]]);
    }
}

#[test]
fn directories_have_one_name() {
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.create_directory("d", 0o755).expect("mkdir");
    assert!(matches!(tree.link("d", "e"), Err(amalgam_engine::Error::IsADirectory { .. })));
    assert!(matches!(tree.link("", "e"), Err(amalgam_engine::Error::IsADirectory { .. })));
    assert_eq!(tree.stat("d").expect("stat").map(|stat| (stat.kind, stat.links)), Some((EntryKind::Directory, 1)));
}

#[test]
fn a_group_of_thousands_is_rewritten_as_one() {
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.create_directory("d", 0o755).expect("mkdir");
    tree.write("d/0000", b"before").expect("write");
    for number in 1..2_000 {
        tree.link("d/0000", format!("d/{number:04}")).expect("link");
    }
    let first = commit(&mut tree).expect("commit");
    assert_eq!(check_stored(&store, first).len(), 1);
    tree.write("d/1234", b"after").expect("write");
    tree.remove("d/0000").expect("remove");
    let second = commit(&mut tree).expect("commit");
    let groups = check_stored(&store, second);
    assert_eq!(groups.values().map(BTreeSet::len).collect::<Vec<_>>(), [1_999]);
    assert_eq!(tree.read("d/0001").expect("read"), b"after");
    assert!(check_stored(&store, first).keys().eq(groups.keys()), "the group keeps its id");
}

#[test]
fn names_that_are_restored_together_are_one_file_again() {
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.set_now(Time(10));
    for directory in ["d", "e"] {
        tree.create_directory(directory, 0o755).expect("mkdir");
    }
    tree.write("d/a", b"old").expect("write");
    for name in ["d/b", "d/c", "e/d"] {
        tree.link("d/a", name).expect("link");
    }
    let root_of = |snapshot: SnapshotId| store.snapshot(snapshot).expect("a snapshot").root;
    let old = root_of(commit(&mut tree).expect("commit"));
    // As editors and builds do it: one name is another file now, one is gone.
    tree.set_now(Time(20));
    tree.remove("d/a").expect("remove");
    tree.write("d/a", b"new").expect("write");
    tree.remove("e/d").expect("remove");
    let new = root_of(commit(&mut tree).expect("commit"));

    let taken = |tree: RootId, paths: &[&str], times: Taken| {
        let paths: Vec<_> = paths.iter().map(|path| TreePath::new(*path).expect("a path")).collect();
        let mut made = with_paths_of(&store, tree, old, &paths, times).expect("taken");
        let groups = check_stored(&store, commit(&mut made).expect("commit"));
        let time = |path: &str| made.stat(path).expect("stat").map(|found| found.mtime.0);
        (names(&groups), [time("d"), time("d/a"), time("d/b")])
    };
    let joined = |names: &[&str]| vec![names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()];
    let (groups, times) = taken(new, &["d"], Taken::At(Time(30)));
    assert_eq!(groups, joined(&["d/a", "d/b", "d/c"]), "the name that is not restored stays away");
    assert_eq!(times, [Some(30), Some(30), Some(30)], "a name of the file got other bytes");
    let (groups, times) = taken(new, &["d"], Taken::AsItWas);
    assert_eq!(groups, joined(&["d/a", "d/b", "d/c"]));
    assert_eq!(times, [Some(10), Some(10), Some(10)]);
    let (groups, _) = taken(new, &["d/a", "d/b", "e"], Taken::AsItWas);
    assert_eq!(groups, joined(&["d/a", "d/b", "d/c", "e/d"]), "what did not change is linked with what comes back");
    let (groups, times) = taken(new, &["d/a"], Taken::AsItWas);
    assert_eq!((groups, times), (joined(&["d/b", "d/c"]), [Some(20), Some(10), Some(10)]), "restored alone");

    // Everything is gone, or all of it has other bytes.
    tree.remove_all("d").expect("remove");
    let gone = root_of(commit(&mut tree).expect("commit"));
    assert_eq!(taken(gone, &["d", "e/d"], Taken::AsItWas).0, joined(&["d/a", "d/b", "d/c", "e/d"]));
    let mut edited = WorkingTree::open_root(&store, old).expect("open");
    edited.write("d/b", b"other bytes").expect("write");
    let edited = root_of(commit(&mut edited).expect("commit"));
    assert_eq!(taken(edited, &["d/a", "d/b", "d/c"], Taken::At(Time(30))).0, joined(&["d/a", "d/b", "d/c"]));
}

/// Mostly links and what moves them about.
fn linking() -> impl Strategy<Value = Op> {
    let name =
        || prop::sample::select(vec!["a", "b", "d", "e", "d/a", "d/b", "e/a", "d/e", "d/e/a"]).prop_map(Raw::from);
    let mode = prop::sample::select(vec![RenameMode::Replace, RenameMode::Exchange, RenameMode::NoReplace]);
    prop_oneof![
        4 => (name(), name()).prop_map(|(existing, new)| Op::Link { existing, new }),
        4 => (name(), name(), mode).prop_map(|(from, to, mode)| Op::Rename { from, to, mode }),
        2 => (name(), 1_u64..4).prop_map(|(path, seed)| Op::Write { path, fill: Fill { seed, length: 10 } }),
        2 => name().prop_map(|path| Op::CreateDirectory { path, mode: 0o755 }),
        1 => name().prop_map(|path| Op::Remove { path }),
        1 => name().prop_map(|path| Op::RemoveAll { path }),
        1 => op(),
    ]
    .boxed()
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn stored_groups_are_whole_after_any_edits(rounds in prop::collection::vec(ops(linking(), 1..12), 1..8)) {
        let store = Store::in_memory();
        let (mut tree, mut model) = (WorkingTree::new(&store), Model::default());
        for ops in &rounds {
            for op in ops {
                prop_assert_eq!(perform(&mut tree, op), model.perform(op), "{:?}", op);
            }
            let snapshot = commit(&mut tree).expect("commit");
            check_stored(&store, snapshot);
            prop_assert_eq!(contents(&tree).expect("walk"), model.contents());
            prop_assert_eq!(link_classes(&tree).expect("walk"), model.link_classes());
        }
    }
}
