//! The small promises of `docs/SEMANTICS.md` that no random test states in one place, a test for each.

use std::collections::BTreeSet;

use amalgam_engine::object::{EntryKind, Owner};
use amalgam_engine::reference::{RefName, RefValue, RequestId};
use amalgam_engine::work::{FileSegments, RenameMode, Special};
use amalgam_engine::{
    Commit, DEPTH_MAX, DiffOptions, Error, ErrorKind, Expect, NAME_BYTES_MAX, Store, Time, TreePath, WorkingTree, diff,
};
use amalgam_tests::model::{Refusal, commit, contents, write_root};

fn head() -> RefName {
    RefName::new("head/main").expect("a name")
}

/// A tree with a file `f`, a directory `d` with a file `d/x`, an empty directory `e`, a symlink `s` and a FIFO `p`.
fn sample() -> WorkingTree {
    let mut tree = WorkingTree::new(&Store::in_memory());
    tree.write("f", b"bytes").expect("write");
    tree.create_directories("d").expect("mkdir");
    tree.write("d/x", b"more").expect("write");
    tree.create_directory("e", 0o755).expect("mkdir");
    tree.symlink("s", "f").expect("symlink");
    tree.create_special("p", Special::Fifo, 0o600).expect("mkfifo");
    tree
}

/// An edit is refused this way, in a tree under edit and in a stored one, and changes nothing.
#[track_caller]
fn refused<T>(refusal: Refusal, edit: impl Fn(&mut WorkingTree) -> Result<T, Error>) {
    let mut stored = sample();
    commit(&mut stored).expect("commit");
    for mut tree in [sample(), stored] {
        let before = contents(&tree).expect("walk");
        match edit(&mut tree) {
            Ok(_) => panic!("it was done"),
            Err(error) => assert_eq!(Refusal::of(&error), Some(refusal), "{error}"),
        }
        assert_eq!(contents(&tree).expect("walk"), before);
    }
}

fn mtime(tree: &WorkingTree, path: &str) -> Time {
    tree.stat(path).expect("stat").expect("there").mtime
}

#[test]
fn paths_are_relative_and_plain() {
    for path in ["/f", "f/", "d//x", "..", ".", "d/../f", "d/./x", "f\0"] {
        refused(Refusal::Name, |tree| tree.write(path, b""));
        refused(Refusal::Name, |tree| tree.rename("f", path, RenameMode::Replace));
        refused(Refusal::Name, |tree| tree.stat(path));
    }
}

#[test]
fn names_are_bytes_of_any_encoding() {
    let mut tree = sample();
    let name = b"\xff\xfe \n\x01";
    tree.write(name, b"odd").expect("write");
    commit(&mut tree).expect("commit");
    assert_eq!(tree.read(name).expect("read"), b"odd");
    let listed: BTreeSet<_> =
        tree.list("").expect("list").map(|one| one.expect("read").0.as_bytes().to_vec()).collect();
    assert!(listed.contains(&name[..]));
}

#[test]
fn names_have_up_to_255_bytes() {
    let mut tree = sample();
    let longest = "x".repeat(NAME_BYTES_MAX);
    tree.write(&longest, b"").expect("write");
    commit(&mut tree).expect("commit");
    assert!(tree.exists(&longest).expect("exists"));
    refused(Refusal::Name, |tree| tree.write(format!("{longest}x"), b""));
}

/// In a thread with little stack: the deepest path that is allowed, through edit, commit, diff, reopen, move, removal, drop.
#[test]
fn paths_have_up_to_2048_names_and_need_little_stack() {
    let deep = || {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(directory.path().join("store")).expect("open");
        let mut tree = WorkingTree::new(&store);
        let path = vec!["n"; DEPTH_MAX - 1].join("/");
        tree.create_directories(&path).expect("mkdir");
        drop(tree.fork());
        let mut uncommitted = WorkingTree::new(&store);
        uncommitted.create_directories(&path).expect("mkdir");
        drop(uncommitted);
        let empty = tree.commit(Commit::new(&head(), "directories")).expect("commit").snapshot;
        tree.write(format!("{path}/f"), b"deep").expect("write");
        tree.link(format!("{path}/f"), "link").expect("link");
        let full = tree.commit(Commit::new(&head(), "a file")).expect("commit").snapshot;
        assert!(matches!(tree.create_directory(format!("{path}/f/g"), 0o755), Err(Error::Name { .. })));
        let changes = diff(&store, empty, full, DiffOptions::default()).expect("diff").count();
        assert_eq!(changes, 2);
        let nothing = WorkingTree::new(&store).commit(Commit::new(&RefName::new("head/empty").expect("name"), ""));
        let nothing = nothing.expect("commit").snapshot;
        let changes =
            diff(&store, nothing, full, DiffOptions { times: true, ..DiffOptions::default() }).expect("diff").count();
        assert_eq!(changes, DEPTH_MAX + 1);
        drop(tree);
        let mut tree = WorkingTree::open(&store, full).expect("open");
        assert_eq!(tree.read("link").expect("read"), b"deep");
        tree.rename("n", "m", RenameMode::Replace).expect("rename");
        tree.write("link", b"changed").expect("write");
        assert_eq!(tree.read(format!("m{}/f", &path[1..])).expect("read"), b"changed");
        tree.commit(Commit::new(&head(), "moved")).expect("commit");
        tree.remove_all("m").expect("remove");
        tree.commit(Commit::new(&head(), "removed")).expect("commit");
        assert_eq!(tree.stat("link").expect("stat").expect("there").links, 1);
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(deep).expect("a thread").join().expect("no panic");
}

/// Otherwise such moves could make trees of any depth, which nothing could address and few stacks could hold.
#[test]
fn a_rename_that_would_make_a_path_too_deep_is_refused() {
    let half = vec!["n"; DEPTH_MAX / 2].join("/");
    for stored in [false, true] {
        let mut tree = sample();
        tree.create_directories(format!("e/{half}")).expect("mkdir");
        tree.create_directories(format!("{half}/x")).expect("mkdir");
        if stored {
            commit(&mut tree).expect("commit");
        }
        let before = write_root(&tree).expect("write");
        for mode in [RenameMode::Replace, RenameMode::NoReplace] {
            let error = tree.rename("e", format!("{half}/e"), mode).expect_err("too deep by one");
            assert_eq!(Refusal::of(&error), Some(Refusal::Name));
        }
        let deepest = format!("e/{half}");
        for (from, to) in [("n", &deepest[..]), (&deepest[..], "n")] {
            let error = tree.rename(from, to, RenameMode::Exchange).expect_err("too deep by one");
            assert_eq!(Refusal::of(&error), Some(Refusal::Name));
        }
        assert_eq!(write_root(&tree).expect("write"), before);
        tree.rename("e/n", format!("{half}/e"), RenameMode::Replace).expect("as deep as allowed");
        assert!(tree.exists(format!("{half}/e{}", &half[1..])).expect("exists"));
    }
}

#[test]
fn modes_are_permission_bits() {
    for mode in [0o10000, u32::MAX] {
        refused(Refusal::Invalid, |tree| tree.create("new", mode));
        refused(Refusal::Invalid, |tree| tree.create_directory("new", mode));
        refused(Refusal::Invalid, |tree| tree.create_special("new", Special::Socket, mode));
        refused(Refusal::Invalid, |tree| tree.set_mode("f", mode));
    }
    let mut tree = sample();
    tree.set_mode("f", 0o7777).expect("chmod");
    assert_eq!(tree.stat("f").expect("stat").expect("there").mode, 0o7777);
    refused(Refusal::WrongKind, |tree| tree.set_mode("s", 0o644));
}

#[test]
fn symlinks_are_never_followed() {
    for edit in [
        |tree: &mut WorkingTree| tree.write("s", b"x"),
        |tree: &mut WorkingTree| tree.write_at("s", 0, b"x"),
        |tree: &mut WorkingTree| tree.truncate("s", 0),
        |tree: &mut WorkingTree| tree.append("s", b"x").map(drop),
        |tree: &mut WorkingTree| tree.read("s").map(drop),
    ] {
        refused(Refusal::WrongKind, edit);
    }
    refused(Refusal::NotADirectory, |tree| tree.write("s/below", b""));
    let error = sample().write("s", b"x").expect_err("a symlink");
    assert_eq!(error.to_string(), "s: expected a file, found a symlink");
    assert_eq!(sample().read_link("s").expect("read"), &b"f"[..]);
    refused(Refusal::WrongKind, |tree| tree.read_link("f"));
}

#[test]
fn only_files_have_bytes() {
    refused(Refusal::IsADirectory, |tree| tree.write("d", b"x"));
    refused(Refusal::IsADirectory, |tree| tree.write("", b"x"));
    refused(Refusal::WrongKind, |tree| tree.write("p", b"x"));
    refused(Refusal::NotFound, |tree| tree.write_at("new", 0, b"x"));
    refused(Refusal::NotFound, |tree| tree.append("new", b"x"));
    refused(Refusal::TooLarge, |tree| tree.write_at("f", u64::MAX, b"x"));
    refused(Refusal::TooLarge, |tree| tree.truncate("f", 1 << 63));
}

#[test]
fn only_directories_have_names() {
    refused(Refusal::NotADirectory, |tree| tree.write("f/x", b""));
    refused(Refusal::NotADirectory, |tree| tree.create_directories("d/x/y"));
    refused(Refusal::NotADirectory, |tree| tree.list("f").map(drop));
    refused(Refusal::NotADirectory, |tree| tree.rename("d", "f/d", RenameMode::Replace));
    refused(Refusal::NotFound, |tree| tree.write("missing/x", b""));
    assert_eq!(sample().stat("f/x").expect("an answer"), None);
    assert!(!sample().exists("missing/x").expect("an answer"));
}

#[test]
fn what_is_there_is_not_made_again() {
    for path in ["f", "d", "s", ""] {
        refused(Refusal::Exists, |tree| tree.create(path, 0o644));
        refused(Refusal::Exists, |tree| tree.create_directory(path, 0o755));
        refused(Refusal::Exists, |tree| tree.symlink(path, "t"));
        refused(Refusal::Exists, |tree| tree.link("p", path));
    }
    sample().create_directories("d").expect("what is a directory already is enough");
}

#[test]
fn removal_fits_the_kind() {
    refused(Refusal::IsADirectory, |tree| tree.remove("e"));
    refused(Refusal::NotADirectory, |tree| tree.remove_directory("f"));
    refused(Refusal::NotEmpty, |tree| tree.remove_directory("d"));
    refused(Refusal::NotFound, |tree| tree.remove("missing"));
    refused(Refusal::NotFound, |tree| tree.remove_all("missing"));
    let mut tree = sample();
    tree.remove("d/x").expect("remove");
    tree.remove_directory("d").expect("an empty one");
    tree.remove_all("e").expect("whatever it is");
    assert!(!tree.exists("d").expect("ask") && !tree.exists("e").expect("ask"));
}

#[test]
fn the_root_stays() {
    refused(Refusal::Invalid, |tree| tree.remove_all(""));
    refused(Refusal::NotEmpty, |tree| tree.remove_directory(""));
    refused(Refusal::Invalid, |tree| tree.rename("", "r", RenameMode::Replace));
    refused(Refusal::Invalid, |tree| tree.rename("d", "", RenameMode::Exchange));
}

#[test]
fn a_rename_replaces_what_fits() {
    refused(Refusal::NotEmpty, |tree| tree.rename("e", "d", RenameMode::Replace));
    refused(Refusal::IsADirectory, |tree| tree.rename("f", "e", RenameMode::Replace));
    refused(Refusal::NotADirectory, |tree| tree.rename("d", "f", RenameMode::Replace));
    refused(Refusal::NotFound, |tree| tree.rename("missing", "f", RenameMode::Replace));
    let mut tree = sample();
    tree.rename("d", "e", RenameMode::Replace).expect("over an empty directory");
    assert_eq!(tree.read("e/x").expect("read"), b"more");
    tree.rename("f", "s", RenameMode::Replace).expect("over a symlink");
    assert_eq!(tree.read("s").expect("read"), b"bytes");
    tree.rename("s", "s", RenameMode::Replace).expect("onto itself");
    assert!(!tree.exists("d").expect("ask") && !tree.exists("f").expect("ask"));
}

#[test]
fn a_rename_without_replacing_refuses_what_is_there() {
    for to in ["d", "e", "s", "f"] {
        refused(Refusal::Exists, |tree| tree.rename("f", to, RenameMode::NoReplace));
    }
    sample().rename("f", "d/f", RenameMode::NoReplace).expect("to a free name");
}

#[test]
fn an_exchange_swaps_anything_that_is_there() {
    refused(Refusal::NotFound, |tree| tree.rename("f", "missing", RenameMode::Exchange));
    let mut tree = sample();
    tree.rename("f", "d", RenameMode::Exchange).expect("a file and a directory");
    assert_eq!(tree.read("f/x").expect("read"), b"more");
    assert_eq!(tree.read("d").expect("read"), b"bytes");
}

#[test]
fn a_directory_does_not_move_into_itself() {
    for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange] {
        let to = if mode == RenameMode::Exchange { "d/x" } else { "d/new" };
        refused(Refusal::IntoItself, |tree| tree.rename("d", to, mode));
    }
    refused(Refusal::IntoItself, |tree| tree.rename("d/x", "d", RenameMode::Exchange));
}

#[test]
fn renaming_between_two_names_of_one_file_does_nothing() {
    let mut tree = sample();
    tree.link("f", "d/g").expect("link");
    tree.set_now(Time(50));
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        let before = contents(&tree).expect("walk");
        tree.rename("f", "d/g", mode).expect("rename");
        assert_eq!(contents(&tree).expect("walk"), before, "{mode:?}");
    }
}

#[test]
fn a_directory_changes_when_its_names_do() {
    type Edit = fn(&mut WorkingTree) -> Result<(), Error>;
    let edits: [(Edit, &[&str]); 9] = [
        (|tree| tree.create("d/new", 0o644), &["d"]),
        (|tree| tree.create_directory("d/new", 0o755), &["d"]),
        (|tree| tree.symlink("d/new", "t"), &["d"]),
        (|tree| tree.link("f", "d/new"), &["d"]),
        (|tree| tree.remove("d/x"), &["d"]),
        (|tree| tree.rename("d/x", "e/x", RenameMode::Replace), &["d", "e"]),
        (|tree| tree.rename("d/x", "f", RenameMode::Exchange), &["d", ""]),
        (|tree| tree.write("d/x", b"only bytes"), &["d/x"]),
        (|tree| tree.remove_all("d"), &[""]),
    ];
    for (number, (edit, changed)) in edits.into_iter().enumerate() {
        let mut tree = sample();
        tree.set_now(Time(42));
        edit(&mut tree).expect("edit");
        for path in ["", "d", "e", "d/x", "f"] {
            let Some(stat) = tree.stat(path).expect("stat") else { continue };
            assert_eq!(stat.mtime == Time(42), changed.contains(&path), "edit {number}: {path}");
        }
    }
}

#[test]
fn attributes_do_not_change_the_time() {
    let mut tree = sample();
    tree.set_now(Time(42));
    tree.set_mode("f", 0o600).expect("chmod");
    tree.set_owner("f", Some(Owner { uid: 1, gid: 2 })).expect("chown");
    tree.set_xattr("f", b"user.a", b"1").expect("setxattr");
    tree.set_xattr("d", b"user.a", b"1").expect("setxattr");
    assert!(tree.remove_xattr("f", b"user.a").expect("removexattr"));
    assert_eq!((mtime(&tree, "f"), mtime(&tree, "d"), mtime(&tree, "")), (Time::EPOCH, Time::EPOCH, Time::EPOCH));
}

#[test]
fn a_rename_keeps_the_time_of_what_moves() {
    let mut tree = sample();
    tree.set_mtime("d", Time(7)).expect("touch");
    tree.set_now(Time(42));
    tree.rename("d", "moved", RenameMode::Replace).expect("rename");
    assert_eq!(mtime(&tree, "moved"), Time(7));
}

#[test]
fn times_reach_before_1970_and_to_the_nanosecond() {
    let mut tree = sample();
    for time in [Time(-1), Time(i64::MIN), Time(i64::MAX), Time::from_seconds(-1, 999_999_999)] {
        tree.set_mtime("f", time).expect("touch");
        tree.set_mtime("d", time).expect("touch");
        let snapshot = commit(&mut tree).expect("commit");
        let stored = WorkingTree::open(tree.store(), snapshot).expect("open");
        assert_eq!((mtime(&stored, "f"), mtime(&stored, "d")), (time, time));
    }
    assert_eq!(Time::from_seconds(-1, 999_999_999), Time(-1));
}

#[test]
fn empty_directories_are_kept() {
    let mut tree = sample();
    let snapshot = commit(&mut tree).expect("commit");
    let stored = WorkingTree::open(tree.store(), snapshot).expect("open");
    assert_eq!(stored.stat("e").expect("stat").map(|stat| stat.kind), Some(EntryKind::Directory));
    assert_eq!(stored.list("e").expect("list").count(), 0);
}

#[test]
fn a_write_past_the_end_leaves_zeros_between() {
    let mut tree = sample();
    tree.write_at("f", 8, b"end").expect("write");
    assert_eq!(tree.read("f").expect("read"), b"bytes\0\0\0end");
    tree.truncate("f", 2).expect("truncate");
    tree.truncate("f", 4).expect("truncate");
    assert_eq!(tree.read("f").expect("read"), b"by\0\0");
    assert_eq!(tree.append("f", b"!").expect("append"), 4);
    tree.punch_hole("f", 0..1).expect("punch");
    tree.punch_hole("f", 4..u64::MAX).expect("punch");
    assert_eq!(tree.read("f").expect("read"), b"\0y\0\0\0");
    tree.write_at("f", 100, b"").expect("write");
    assert_eq!(tree.stat("f").expect("stat").expect("there").size, 5, "no bytes, no growth");
}

#[test]
fn attributes_have_the_limits_of_linux() {
    refused(Refusal::Invalid, |tree| tree.set_xattr("f", b"", b"v"));
    refused(Refusal::Invalid, |tree| tree.set_xattr("f", &[b'n'; 256], b"v"));
    refused(Refusal::Invalid, |tree| tree.set_xattr("f", b"user.v", &[0; 65_537]));
    let mut tree = sample();
    for path in ["f", "d", "s", "p", ""] {
        tree.set_xattr(path, b"user.empty", b"").expect("setxattr");
        tree.set_xattr(path, b"user.large", &[7; 65_536]).expect("setxattr");
    }
    let snapshot = commit(&mut tree).expect("commit");
    let stored = WorkingTree::open(tree.store(), snapshot).expect("open");
    for path in ["f", "d", "s", "p", ""] {
        assert_eq!(stored.xattr(path, b"user.empty").expect("getxattr").as_deref(), Some(&b""[..]), "{path}");
        assert_eq!(stored.xattr(path, b"user.large").expect("getxattr").map(|value| value.len()), Some(65_536));
    }
    assert!(!tree.remove_xattr("f", b"user.none").expect("removexattr"));
}

#[test]
fn state_values_are_json_and_travel_with_the_tree() {
    for (key, json) in [("", "1"), ("k", ""), ("k", "{"), ("k", "'a'"), ("k", "NaN")] {
        refused(Refusal::Invalid, |tree| tree.set_state(key, json));
    }
    refused(Refusal::Invalid, |tree| tree.set_state(&"k".repeat(256), "1"));
    refused(Refusal::Invalid, |tree| tree.set_state("k", &format!("\"{}\"", "v".repeat(65_536))));
    let mut tree = sample();
    tree.set_state("plan", " {\"b\": 1, \"a\": 2} ").expect("set");
    let snapshot = commit(&mut tree).expect("commit");
    assert!(tree.remove_state("plan").expect("remove"));
    assert!(!tree.remove_state("plan").expect("remove"));
    assert_eq!(tree.state("plan").expect("get"), None);
    let stored = WorkingTree::open(tree.store(), snapshot).expect("open");
    assert_eq!(stored.state("plan").expect("get").as_deref(), Some(" {\"b\": 1, \"a\": 2} "), "as it was written");
}

#[test]
fn forks_know_nothing_of_each_other() {
    let mut tree = sample();
    let mut fork = tree.fork();
    fork.write("f", b"fork").expect("write");
    fork.set_state("k", "1").expect("set");
    tree.remove_all("d").expect("remove");
    assert_eq!(tree.read("f").expect("read"), b"bytes");
    assert_eq!(tree.state("k").expect("get"), None);
    assert_eq!(fork.read("d/x").expect("read"), b"more");
}

#[test]
fn a_restore_gives_up_what_was_not_committed() {
    let mut tree = sample();
    let snapshot = commit(&mut tree).expect("commit");
    let before = contents(&tree).expect("walk");
    tree.write("f", b"lost").expect("write");
    tree.rename("d", "lost", RenameMode::Replace).expect("rename");
    assert!(!tree.is_clean());
    tree.restore(snapshot).expect("restore");
    assert!(tree.is_clean());
    assert_eq!(contents(&tree).expect("walk"), before, "times included");
}

#[test]
fn a_stale_commit_changes_nothing_and_says_where_the_name_stands() {
    let mut tree = sample();
    let first = tree.commit(Commit::new(&head(), "first")).expect("commit").snapshot;
    let mut other = tree.fork();
    other.write("f", b"other").expect("write");
    let second = other.commit(Commit::new(&head(), "second")).expect("commit").snapshot;
    tree.write("f", b"ours").expect("write");
    let operations = tree.store().list_operations(0, 100).expect("log").len();
    let error = tree.commit(Commit::new(&head(), "third")).expect_err("the name moved");
    assert_eq!(error.kind(), ErrorKind::Stale);
    match &error {
        Error::Stale { moved } => assert_eq!(moved[..], [(head(), Some(RefValue::to(second)))]),
        other => panic!("{other}"),
    }
    assert_eq!(tree.store().read_ref(&head()).expect("read"), Some(RefValue::to(second)));
    assert_eq!(tree.store().list_operations(0, 100).expect("log").len(), operations);
    assert_eq!((tree.base(), tree.is_clean()), (Some(first), false));
    assert_eq!(tree.read("f").expect("read"), b"ours");
}

#[test]
fn a_commit_that_failed_is_retried_after_reading_again() {
    let mut tree = sample();
    tree.commit(Commit::new(&head(), "first")).expect("commit");
    let mut other = tree.fork();
    other.write("g", b"other").expect("write");
    let second = other.commit(Commit::new(&head(), "second")).expect("commit").snapshot;
    tree.write("f", &[b'o'; 100_000]).expect("write");
    tree.link("f", "d/f").expect("link");
    assert!(tree.commit(Commit::new(&head(), "stale")).is_err());
    let retry = Commit::new(&head(), "again").expecting(Expect::At(second));
    let third = tree.commit(retry).expect("commit").snapshot;
    assert_eq!(tree.store().read_ref(&head()).expect("read"), Some(RefValue::to(third)));
    let stored = WorkingTree::open(tree.store(), third).expect("open");
    assert_eq!(stored.read("d/f").expect("read"), [b'o'; 100_000]);
}

#[test]
fn a_name_that_should_be_new_is_not_moved() {
    let mut tree = sample();
    tree.commit(Commit::new(&head(), "first")).expect("commit");
    let mut stranger = WorkingTree::new(tree.store());
    assert!(matches!(stranger.commit(Commit::new(&head(), "by base")), Err(Error::Stale { .. })));
    let absent = Commit::new(&head(), "by word").expecting(Expect::Absent);
    assert!(matches!(tree.commit(absent), Err(Error::Stale { .. })));
}

#[test]
fn a_request_is_done_once() {
    let directory = tempfile::tempdir().expect("a directory");
    for store in [Store::in_memory(), Store::open(directory.path().join("store")).expect("open")] {
        let request = RequestId::new("request-1").expect("an id");
        let commit = || Commit { request: Some(request.clone()), ..Commit::new(&head(), "once") };
        let mut tree = WorkingTree::new(&store);
        tree.write("f", b"bytes").expect("write");
        let mut retry = tree.fork();
        let first = tree.commit(commit()).expect("commit");
        let second = retry.commit(commit()).expect("the retry");
        assert!(!first.replayed && second.replayed);
        assert_eq!((first.snapshot, first.operation), (second.snapshot, second.operation));
        assert_eq!(store.list_operations(0, 10).expect("log").len(), 1);
        assert_eq!((retry.base(), retry.is_clean()), (Some(first.snapshot), true));
        retry.write("f", b"later").expect("write");
        let replayed = retry.commit(commit()).expect("the same request with other contents");
        assert_eq!((replayed.snapshot, replayed.replayed), (first.snapshot, true));
        assert!(!retry.is_clean(), "what the request did not hold stays uncommitted");
    }
}

#[test]
fn a_commit_moves_the_base_and_records_its_parent() {
    let mut tree = sample();
    assert_eq!(tree.base(), None);
    let first = tree.commit(Commit::new(&head(), "first").by("ann", Time(1))).expect("commit").snapshot;
    assert_eq!((tree.base(), tree.is_clean()), (Some(first), true));
    let second = tree.commit(Commit::new(&head(), "nothing new")).expect("commit").snapshot;
    let (one, two) = (tree.store().snapshot(first).expect("read"), tree.store().snapshot(second).expect("read"));
    assert_eq!((one.root, &one.author[..], one.time), (two.root, "ann", Time(1)));
    assert_eq!((&one.parents[..], &two.parents[..]), (&[][..], &[first][..]));
}

#[test]
fn a_frozen_tree_is_the_tree_of_that_moment() {
    let mut tree = sample();
    let frozen = tree.freeze();
    let before = contents(&tree).expect("walk");
    tree.write("f", b"later").expect("write");
    tree.remove_all("d").expect("remove");
    let session = tree.store().session();
    let root = frozen.write(&session).expect("write");
    session.commit(root, amalgam_engine::RefMove::default()).expect("commit");
    assert_eq!(contents(&WorkingTree::open_root(tree.store(), root).expect("open")).expect("walk"), before);
    assert_eq!(tree.read("f").expect("read"), b"later");
}

#[test]
fn a_store_is_held_by_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path().join("store")).expect("open");
    let second = Store::open(directory.path().join("store")).map(drop).expect_err("it is open");
    assert_eq!(second.kind(), ErrorKind::Busy);
    drop(store);
    Store::open(directory.path().join("store")).expect("open again");
}

#[test]
fn segments_in_files_go_with_their_trees() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = std::sync::Arc::new(FileSegments::create(directory.path()).expect("segments"));
    let mut tree = WorkingTree::new(&Store::in_memory()).with_segments(log);
    tree.write("f", &[1; 100_000]).expect("write");
    tree.sync_segments().expect("sync");
    let files = || std::fs::read_dir(directory.path()).expect("read").count();
    assert_eq!(files(), 1);
    let fork = tree.fork();
    drop(tree);
    assert_eq!(fork.read("f").expect("read"), [1; 100_000]);
    drop(fork);
    assert_eq!(files(), 0);
}

#[test]
fn a_missing_path_is_an_absence_and_a_wrong_one_an_error() {
    let tree = sample();
    assert_eq!(tree.stat("missing").expect("an answer"), None);
    assert!(
        matches!(tree.read("missing"), Err(Error::NotFound { path }) if path == TreePath::new("missing").expect("valid"))
    );
    assert_eq!(tree.read("missing").expect_err("it is not there").kind(), ErrorKind::NotFound);
    assert_eq!(tree.read_at("f", 100, 5).expect("read"), b"", "behind the end there is nothing");
}

fn sources_below(directories: &[std::path::PathBuf]) -> Vec<std::path::PathBuf> {
    let mut open = directories.to_vec();
    let mut found = Vec::new();
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => open.push(path),
                false if path.extension().is_some_and(|extension| extension == "rs") => found.push(path),
                false => {}
            }
        }
    }
    found
}

/// Every test that the document names is there, and every test here is named.
#[test]
fn every_promise_names_its_test() {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let promises = std::fs::read_to_string(tests.join("../docs/SEMANTICS.md")).expect("the document");
    let named: BTreeSet<&str> =
        promises.split('`').skip(1).step_by(2).filter(|word| word.matches('_').count() > 1).collect();
    let mut there = BTreeSet::new();
    let suites = [
        "tests",
        "../engine/src",
        "../textdiff/src",
        "../cli/src",
        "../cli/tests",
        "../view/src",
        "../view/tests",
        "../fuse/src",
        "../fuse/tests",
        "../conflicts/tests",
        "../merge/tests",
        "../merge/src",
        "../gc/src",
        "../gc/tests",
        "../server/src",
        "../server/tests",
        "../exchange/tests",
        "../exchange/src",
        "../nfs/tests",
        "../nfs/src",
        "../materializer/src",
        "../policy/src",
        "../policy/tests",
        "../cloud/src",
        "../cloud/tests",
        "../gateway/src",
        "../gateway/tests",
        "../sandbox/src",
        "../agent/src",
    ]
    .map(|folder| tests.join(folder));
    for suite in sources_below(&suites) {
        let source = std::fs::read_to_string(&suite).expect("a suite").replace("#[tokio::test", "#[test]//");
        let suite = suite.file_stem().expect("a name").to_string_lossy().into_owned();
        let after_test = source.split("#[test]").skip(1);
        let name = |text: &str| {
            // Other attributes may stand between.
            let text = text.lines().map(str::trim_start).find(|line| {
                !["", "#[", "//"].iter().any(|start| line.starts_with(start) && (line.is_empty() || !start.is_empty()))
            })?;
            text.trim_start_matches("async ")
                .strip_prefix("fn ")
                .and_then(|text| text.split('(').next())
                .map(str::to_owned)
        };
        there.extend(after_test.filter_map(name).map(|name| (suite.clone(), name)));
    }
    for named in &named {
        assert!(there.iter().any(|(_, test)| test == named), "{named} is promised and not there");
    }
    for (suite, test) in there.iter().filter(|(suite, _)| *suite == "semantics") {
        assert!(
            named.contains(&test[..]) || test == "every_promise_names_its_test",
            "{suite}: {test} holds no promise"
        );
    }
}
