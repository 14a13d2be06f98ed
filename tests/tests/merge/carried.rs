//! Trees that have conflicts: merged again, verified, collected, sent, written out.

use std::ops::ControlFlow;

use amalgam_engine::merge::{ConflictKind, MergeOptions};
use amalgam_engine::object::{Content, Node, Owner, Xattr};
use amalgam_engine::purge::{PurgeOptions, PurgeTarget, plan_purge, purge};
use amalgam_engine::{Commit, DiffOptions, NoContents, RootId, Store, TreePath, WorkingTree, diff_roots, merge_trees};
use amalgam_tests::model::write_root;

use crate::kit::{self, clean, merge, merged, options, tree};

fn path(path: &str) -> TreePath {
    TreePath::new(path).expect("a path")
}

/// Merges and stores.
fn root_of(store: &Store, base: RootId, ours: RootId, theirs: RootId) -> RootId {
    let outcome = merge_trees(store, Some(base), ours, theirs, &NoContents, &options()).expect("merged");
    write_root(&outcome.tree).expect("stored")
}

fn shown(store: &Store, root: RootId) -> String {
    kit::text(&WorkingTree::open_root(store, root).expect("open"))
}

#[test]
fn a_conflict_is_carried_on_and_goes_when_one_side_resolves_it() {
    let store = Store::in_memory();
    let [base, ours, theirs] = ["a=1 b=1", "a=2 b=1", "a=3 b=1"].map(|text| tree(&store, text));
    let conflicted = root_of(&store, base, ours, theirs);
    assert_eq!(shown(&store, conflicted), "a<2|1|3> b=1");
    // Something else changes beside it.
    let elsewhere = {
        let mut tree = WorkingTree::open_root(&store, conflicted).expect("open");
        tree.write("b", b"2").expect("written");
        write_root(&tree).expect("stored")
    };
    let resolved = {
        let mut tree = WorkingTree::open_root(&store, conflicted).expect("open");
        tree.remove("a").expect("removed");
        tree.write("a", b"23").expect("written");
        write_root(&tree).expect("stored")
    };
    assert_eq!(shown(&store, root_of(&store, conflicted, elsewhere, resolved)), "a=23 b=2");
    assert_eq!(shown(&store, root_of(&store, conflicted, resolved, elsewhere)), "a=23 b=2");
}

#[test]
fn terms_add_up() {
    let store = Store::in_memory();
    let [base, ours, theirs, third] = ["a=1", "a=2", "a=3", "a=4"].map(|text| tree(&store, text));
    let conflicted = root_of(&store, base, ours, theirs);
    // A third version: three terms more, less what cancels.
    assert_eq!(shown(&store, root_of(&store, base, conflicted, third)), "a<2|1|3|1|4>");
    // One of the sides goes on: its term is exchanged.
    let further = tree(&store, "a=5");
    assert_eq!(shown(&store, root_of(&store, theirs, conflicted, further)), "a<2|1|5>");
    // One side takes its change back: the other is left.
    assert_eq!(shown(&store, root_of(&store, theirs, conflicted, base)), "a=2");
    // The same merge on both sides is no new conflict.
    let again = merge_trees(&store, Some(base), conflicted, conflicted, &NoContents, &options()).expect("merged");
    assert!(again.conflicts.is_empty());
    let came = merged(&store, [base, conflicted, third], &NoContents).expect("merged");
    assert_eq!(came.conflicts[0].kind, ConflictKind::Carried);
}

#[test]
fn what_is_left_of_a_conflict_may_merge_after_all() {
    let store = Store::in_memory();
    let [base, ours, theirs, further] = ["a=1", "a=2", "a=3", "a=5"].map(|text| tree(&store, text));
    let conflicted = root_of(&store, base, ours, theirs);
    let came = merged(&store, [theirs, conflicted, further], &kit::BothAfterEachOther).expect("merged");
    assert_eq!((came.text.as_str(), came.conflicts.len()), ("a=25", 0));
}

#[test]
fn a_clash_of_kinds_resolves_to_the_directory_or_to_the_file() {
    let store = Store::in_memory();
    let [base, ours, theirs] = ["k=1", "k=1 a=1", "k=1 a/b=2 a/c~a/b"].map(|text| tree(&store, text));
    let conflicted = root_of(&store, base, ours, theirs);
    assert_eq!(shown(&store, conflicted), "a<1|-|(b=2 c=2)> k=1");
    // Our file is taken back: the directory is left, with all it holds.
    assert_eq!(shown(&store, root_of(&store, ours, conflicted, base)), "a/b=2 a/c=2 k=1");
    assert_eq!(shown(&store, root_of(&store, theirs, conflicted, base)), "a=1 k=1");
    kit::assert_sound(&store);
}

#[test]
fn conflicts_with_terms_of_every_kind_are_verified_collected_sent_and_compared() {
    let store = Store::in_memory();
    let base = tree(&store, "f=f1 g=g1 s->x d/x=x1 p| k=1");
    let ours = tree(&store, "f=f2 g=g2 s->y d=d2 p=p2 k=1 n=n2");
    let theirs = tree(&store, "f=f3 s->z d/x=x3 d/y=y3 p->q k=1 n/deep/er=e3");
    let mut outcome = merge_trees(&store, Some(base), ours, theirs, &NoContents, &options()).expect("merged");
    let text = "d<d2|(x=x1)|(x=x3 y=y3)> f<f2|f1|f3> g<g2|g1|-> k=1 n<n2|-|(deep/er=e3)> p<p2|||->q> s<->y|->x|->z>";
    assert_eq!(kit::text(&outcome.tree), text);
    let name = amalgam_engine::RefName::new("workspace/conflicted").expect("a name");
    let done = outcome.tree.commit(Commit::new(&name, "conflicted")).expect("committed");
    let root = store.snapshot(done.snapshot).expect("a snapshot").root;
    drop(outcome);

    // Only the name holds it now: what terms reach stays.
    let old = amalgam_engine::RefName::new("test/root").expect("a name");
    let now = store.read_ref(&old).expect("read");
    let refs =
        amalgam_engine::RefMove { expect: vec![(old.clone(), now)], set: vec![(old, None)], ..Default::default() };
    let session = store.session();
    session.commit(root, refs).expect("forgotten");
    amalgam_gc::collect(&store, &amalgam_gc::CollectOptions::default(), &mut |_| ControlFlow::Continue(()))
        .expect("collected");
    kit::assert_sound(&store);
    assert_eq!(shown(&store, root), text);
    // Another store gets all of it.
    let (mut stream, other) = (Vec::new(), Store::in_memory());
    let selection = amalgam_transfer::Selection::everything(&store).expect("everything");
    let (sending, progress) = (amalgam_transfer::SendOptions::default(), amalgam_transfer::Progress::default());
    amalgam_transfer::send(&store, &selection, &sending, &mut stream, &progress).expect("sent");
    let act = amalgam_engine::OperationContext::new("bob", amalgam_engine::Time(9));
    let receiving = amalgam_transfer::ReceiveOptions::default();
    amalgam_transfer::receive(&other, &stream[..], &receiving, &act, &progress).expect("received");
    kit::assert_sound(&other);
    assert_eq!(shown(&other, root), text);
    let differences = diff_roots(&store, None, Some(root), DiffOptions::default()).expect("compared");
    assert_eq!(differences.map(|change| change.expect("a change").path).collect::<Vec<_>>().len(), 7);
}

#[test]
fn what_only_a_term_holds_can_be_purged() {
    let store = Store::in_memory();
    let [base, ours, theirs] = ["a=old k=1", "a=mine k=1", "a=secret k=1"].map(|text| tree(&store, text));
    let content = {
        let their_tree = WorkingTree::open_root(&store, theirs).expect("open");
        let entry = their_tree.stat("a").expect("stat").and_then(|stat| stat.entry).expect("stored");
        let Node::File { content: Content::Chunk(chunk), .. } = entry.node else { panic!("{entry:?}") };
        chunk
    };
    let mut outcome = merge_trees(&store, Some(base), ours, theirs, &NoContents, &options()).expect("merged");
    let name = amalgam_engine::RefName::new("workspace/conflicted").expect("a name");
    outcome.tree.commit(Commit::new(&name, "conflicted")).expect("committed");
    let target = PurgeTarget::Object(content.into());
    let plan = plan_purge(&store, &target, &PurgeOptions { everywhere: true }).expect("planned");
    drop(outcome);
    purge(&store, &plan, "it is a secret", &amalgam_engine::OperationContext::new("ada", amalgam_engine::Time(9)))
        .expect("purged");
    kit::assert_sound(&store);
    assert!(matches!(store.chunk(content, 6), Err(amalgam_engine::Error::Purged { .. })));
}

#[test]
fn state_values_are_merged_key_by_key() {
    let store = Store::in_memory();
    let with = |values: &[(&str, &str)]| {
        let mut tree = WorkingTree::new(&store);
        for (key, value) in values {
            tree.set_state(key, value).expect("set");
        }
        write_root(&tree).expect("stored")
    };
    let base = with(&[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")]);
    let ours = with(&[("a", "2"), ("b", "1"), ("c", "2"), ("d", "{\"x\": 1}")]);
    let theirs = with(&[("a", "1"), ("b", "2"), ("c", "3"), ("d", "{\"x\":1}"), ("e", "9")]);
    let outcome = merge_trees(&store, Some(base), ours, theirs, &NoContents, &options()).expect("merged");
    let get = |key: &str| outcome.tree.state(key).expect("state");
    assert_eq!(["a", "b", "c", "e"].map(get), ["2", "2", "2", "9"].map(|value| Some(value.to_owned())));
    let [conflict] = &outcome.conflicts[..] else { panic!("{:?}", outcome.conflicts) };
    assert_eq!(conflict.kind, ConflictKind::State { key: "c".to_owned(), theirs: Some("3".to_owned()) });
}

#[test]
fn attributes_are_merged_each_for_itself() {
    let store = Store::in_memory();
    let made = |edit: &dyn Fn(&mut WorkingTree)| {
        let mut made = WorkingTree::open_root(&store, tree(&store, "a=1 d/x=1")).expect("open");
        edit(&mut made);
        write_root(&made).expect("stored")
    };
    let base = made(&|_| {});
    let ours = made(&|tree| {
        tree.set_xattr("a", b"user.ours", b"1").expect("set");
        tree.set_owner("a", Some(Owner { uid: 7, gid: 7 })).expect("set");
        tree.set_mode("d", 0o700).expect("set");
        tree.set_mode("", 0o711).expect("set");
    });
    let theirs = made(&|tree| {
        tree.write("a", b"2").expect("written");
        tree.set_xattr("a", b"user.theirs", b"2").expect("set");
        tree.set_xattr("d", b"user.theirs", b"3").expect("set");
        tree.set_xattr("", b"user.root", b"4").expect("set");
    });
    for (ours, theirs) in [(ours, theirs), (theirs, ours)] {
        let outcome = merge_trees(&store, Some(base), ours, theirs, &NoContents, &options()).expect("merged");
        assert!(outcome.conflicts.is_empty());
        let tree = outcome.tree;
        let names = |path: &str| -> Vec<Vec<u8>> {
            tree.xattrs(path).expect("attributes").into_iter().map(|Xattr { name, .. }| name.to_vec()).collect()
        };
        assert_eq!(names("a"), [b"user.ours".to_vec(), b"user.theirs".to_vec()]);
        assert_eq!((names("d"), names("")), (vec![b"user.theirs".to_vec()], vec![b"user.root".to_vec()]));
        let stat = |path: &str| tree.stat(path).expect("stat").expect("there");
        assert_eq!((stat("a").owner, stat("d").mode, stat("").mode), (Some(Owner { uid: 7, gid: 7 }), 0o700, 0o711));
        assert_eq!(tree.read("a").expect("read"), b"2");
    }
}

#[test]
fn of_an_attribute_that_both_set_ours_stays_and_theirs_is_told() {
    let store = Store::in_memory();
    let made = |number: u32| {
        let mut made = WorkingTree::open_root(&store, tree(&store, "a=1 d/x=1")).expect("open");
        for path in ["a", "d"] {
            made.set_owner(path, Some(Owner { uid: number, gid: 7 })).expect("set");
            made.set_xattr(path, b"user.both", number.to_string().as_bytes()).expect("set");
        }
        write_root(&made).expect("stored")
    };
    let base = tree(&store, "a=1 d/x=1");
    for (ours, theirs) in [(1, 2), (2, 1)] {
        let (our_root, their_root) = (made(ours), made(theirs));
        let outcome = merge_trees(&store, Some(base), our_root, their_root, &NoContents, &options()).expect("merged");
        let told =
            outcome.conflicts.iter().map(|one| format!("{} {} {}", one.path, one.kind.word(), one.kind.detail()));
        let told: Vec<_> = told.collect();
        let expected = ["a", "d"].map(|path| {
            let owner = format!("{path} attribute owner, theirs {theirs}:7");
            [owner, format!("{path} attribute user.both, theirs {theirs}")]
        });
        assert_eq!(told, expected.concat());
        assert!(outcome.conflicts.iter().all(|one| !one.is_entry));
        for path in ["a", "d"] {
            let owner = outcome.tree.stat(path).expect("stat").expect("there").owner;
            assert_eq!(owner, Some(Owner { uid: ours, gid: 7 }));
            assert_eq!(outcome.tree.xattrs(path).expect("attributes")[0].value, ours.to_string());
        }
    }
    // What both set alike is nothing to tell of.
    let (ours, theirs) = (made(3), made(3));
    let outcome = merge_trees(&store, Some(base), ours, theirs, &NoContents, &options()).expect("merged");
    assert!(outcome.conflicts.is_empty());
}

#[test]
fn times_alone_are_no_change_and_only_changed_bytes_get_a_new_time() {
    let store = Store::in_memory();
    let base = tree(&store, "a=1 b=1 c=1 d=1");
    let edited = |edit: &dyn Fn(&mut WorkingTree)| {
        let mut tree = WorkingTree::open_root(&store, base).expect("open");
        tree.set_now(amalgam_engine::Time(50));
        edit(&mut tree);
        write_root(&tree).expect("stored")
    };
    let ours = edited(&|tree| {
        tree.set_mtime("a", amalgam_engine::Time(60)).expect("set");
        tree.write("b", b"2").expect("written");
    });
    let theirs = edited(&|tree| {
        tree.remove("a").expect("removed");
        tree.write("c", b"3").expect("written");
        tree.set_mode("d", 0o600).expect("set");
        tree.set_mtime("b", amalgam_engine::Time(70)).expect("set");
    });
    let outcome = merge_trees(&store, Some(base), ours, theirs, &NoContents, &options()).expect("merged");
    assert!(outcome.conflicts.is_empty(), "{:?}", outcome.conflicts);
    let time = |path: &str| outcome.tree.stat(path).expect("stat").map(|stat| stat.mtime.0);
    assert_eq!(["a", "b", "c", "d"].map(time), [None, Some(50), Some(1_000), Some(1)]);
}

#[test]
fn a_unit_is_merged_as_a_whole() {
    let store = Store::in_memory();
    let units = vec![vec![path("lock"), path("conf")]];
    let options = MergeOptions { units, ..options() };
    let run = |texts: [&str; 3]| {
        let [base, ours, theirs] = texts.map(|text| tree(&store, text));
        let outcome = merge_trees(&store, Some(base), ours, theirs, &NoContents, &options).expect("merged");
        let came = kit::Came {
            text: kit::text(&outcome.tree),
            tree: outcome.tree,
            conflicts: outcome.conflicts,
            report: outcome.report,
        };
        (came.text.clone(), came.conflict_text())
    };
    // One side alone changed it.
    let (text, conflicts) = run(["lock=1 conf/a=1 x=1", "lock=2 conf/a=2 x=1", "lock=1 conf/a=1 x=2"]);
    assert_eq!((text.as_str(), conflicts.as_str()), ("conf/a=2 lock=2 x=2", ""));
    // Each changed another part: together they are one conflict, although each part would merge.
    let (text, conflicts) = run(["lock=1 conf/a=1 x=1", "lock=2 conf/a=1 x=1", "lock=1 conf/a=2 conf/b=1 x=2"]);
    assert_eq!(text, "conf/a<1|-|2> conf/b=1 lock<2|-|1> x=2");
    assert_eq!(conflicts, "unit conf/a conf/b lock");
    // Both did the same.
    let (text, conflicts) = run(["lock=1 conf/a=1", "lock=2 conf/a=1", "lock=2 conf/a=1"]);
    assert_eq!((text.as_str(), conflicts.as_str()), ("conf/a=1 lock=2", ""));
}

#[test]
fn a_path_of_several_units_has_each_version_once() {
    let store = Store::in_memory();
    let [base, ours, theirs] = ["lock=1 conf/a=1", "lock=2 conf/a=1", "lock=1 conf/a=2"].map(|text| tree(&store, text));
    let both = vec![path("lock"), path("conf")];
    for units in [vec![both.clone(), both.clone()], vec![both, vec![path("conf/a"), path("lock")]]] {
        let options = MergeOptions { units, ..options() };
        let outcome = merge_trees(&store, Some(base), ours, theirs, &NoContents, &options).expect("merged");
        assert_eq!(kit::text(&outcome.tree), "conf/a<1|-|2> lock<2|-|1>");
        let kinds: Vec<_> = outcome.conflicts.iter().map(|one| one.kind.clone()).collect();
        assert_eq!(kinds, [ConflictKind::Unit(0)]);
    }
}

#[test]
fn trees_with_nothing_in_common_are_merged_as_additions() {
    let store = Store::in_memory();
    let [ours, theirs] = ["a=1 b=1", "b=2 c=1"].map(|text| tree(&store, text));
    let outcome = merge_trees(&store, None, ours, theirs, &NoContents, &options()).expect("merged");
    assert_eq!(kit::text(&outcome.tree), "a=1 b<1|-|2> c=1");
}

#[test]
fn a_large_unchanged_directory_is_never_opened() {
    clean("a=1 d/x=1", "a=2 d/x=1", "a=1 b=1 d/x=1", "a=2 b=1 d/x=1");
    let came = merge("a=1", "a=1", "a=1");
    assert_eq!(came.report.changed, 0);
}
