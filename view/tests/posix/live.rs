//! What a workspace does that an ordinary file system does not: commits while it is written to, and goes elsewhere while it is
//! in use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use amalgam_engine::backend::{Fault, FaultPlan, Memory};
use amalgam_engine::workspace::Change;
use amalgam_engine::{OperationContext, Store, StoreOptions, Time, TreePath, WorkingTree};
use amalgam_view::{Caller, Ino, Invalidation, ROOT, RenameMode, SetAttributes, TimeSet, TreeEdit, Upload, View};

use crate::kit::{ENOENT, Kit, errno, main_workspace, options};

#[test]
fn a_file_whose_bytes_differ_becomes_another_inode_and_the_old_one_lives_on() {
    let kit = Kit::new();
    kit.directory("d");
    let (same, differs) = (kit.file("d/same", b"same"), kit.file("d/differs", b"then"));
    let directory = kit.ino("d");
    let then = kit.commit();
    kit.write(differs, 0, b"now!");
    let added = kit.file("d/added", b"added");
    kit.unlink("d/same").expect("unlink");
    kit.file("d/same", b"other");
    let now_same = kit.ino("d/same");
    let later = kit.commit();
    // Back.
    let (before, restored) = kit.view.restore(then, Some(later)).expect("go");
    assert!(restored.changed >= 3, "{restored:?}");
    assert_eq!(before.read("d/differs").expect("read"), b"now!");
    assert_eq!(kit.ino("d"), directory, "a directory keeps its number");
    assert_eq!(kit.read_path("d/differs"), b"then");
    assert_ne!(kit.ino("d/differs"), differs);
    assert_eq!(kit.read(differs), b"now!", "whoever holds the old file goes on with it");
    kit.write(differs, 4, b"?");
    assert_eq!(kit.read(differs), b"now!?");
    assert_eq!(kit.read_path("d/differs"), b"then", "and disturbs nobody");
    assert_eq!(kit.look("d/added"), None);
    assert_eq!(kit.read(added), b"added");
    assert_eq!(kit.read(now_same), b"other");
    assert!(![same, now_same].contains(&kit.ino("d/same")) || kit.ino("d/same") == same);
    // What comes next stands on the state that it went to, and is there after a kill.
    kit.write(kit.ino("d/differs"), 0, b"T");
    let everything = kit.everything();
    let kit = kit.kill_and_reopen();
    assert_eq!(kit.everything(), everything);
    assert!(kit.recovered.restored);
    assert_eq!(kit.view.head(), Some(later), "the next commit follows the head");
}

#[test]
fn going_to_the_same_bytes_keeps_the_inode() {
    let kit = Kit::new();
    let (one, other) = (kit.file("one", b"bytes"), kit.file("other", b"x"));
    let then = kit.commit();
    kit.write(other, 0, b"y");
    let later = kit.commit();
    kit.view.restore(then, Some(later)).expect("go");
    assert_eq!(kit.ino("one"), one, "nothing of it changed");
    kit.write(one, 0, b"BYTES");
    assert_eq!(kit.read_path("one"), b"BYTES", "and it is still the file of that name");
}

#[test]
fn what_was_changed_meanwhile_is_not_left_behind_unasked() {
    let kit = Kit::new();
    let file = kit.file("file", b"then");
    let then = kit.commit();
    kit.write(file, 0, b"now!");
    let later = kit.commit();
    for name in ["new", "file"] {
        let captured = kit.captured();
        match kit.look(name) {
            Some(_) => kit.write(file, 0, b"N"),
            None => drop(kit.file(name, b"")),
        }
        let gone = kit.view.restore_if_unchanged(captured, then, Some(later)).expect("asked");
        assert!(gone.is_none(), "something was changed");
    }
    assert_eq!(kit.read_path("file"), b"Now!");
    let captured = kit.captured();
    kit.read_path("file");
    let gone = kit.view.restore_if_unchanged(captured, then, Some(later)).expect("asked");
    assert!(gone.is_some(), "reading is no change");
    assert_eq!(kit.read_path("file"), b"then");
}

#[test]
fn an_uncommitted_file_with_the_restored_bytes_stays_for_whoever_has_it_open() {
    let kit = Kit::new();
    let (log, other) = (kit.file("log", b"first "), kit.file("other", b"then"));
    let head = kit.commit();
    kit.write(log, 6, b"second ");
    kit.write(other, 0, b"now!");
    // The uncommitted log, and the other file as it was.
    let captured = kit.captured();
    let mut wanted = kit.view.fork();
    wanted.write("other", b"then").expect("written");
    let act = OperationContext::new("test", Time::EPOCH);
    let recorded = kit.workspaces.record_working(&main_workspace(), &wanted, &Change::new("wanted"), &act, "test");
    let wanted = recorded.expect("recorded");
    kit.view.restore_captured(captured, wanted, Some(head)).expect("go");
    assert_eq!(kit.read_path("other"), b"then");
    assert_ne!(kit.ino("other"), other);
    assert_eq!(kit.ino("log"), log, "its bytes are the same");
    kit.write(log, 13, b"third");
    assert_eq!(kit.read_path("log"), b"first second third");
    // A capture of an earlier version says nothing about the present one.
    let captured = kit.captured();
    kit.write(log, 18, b"!");
    kit.view.restore_captured(captured, wanted, Some(head)).expect("go");
    assert_eq!(kit.read_path("log"), b"first second ");
    assert_eq!(kit.read(log), b"first second third!", "whoever holds the old file goes on with it");
    let everything = kit.everything();
    assert_eq!(kit.kill_and_reopen().everything(), everything);
}

#[test]
fn entries_taken_from_a_snapshot_leave_everything_else_to_its_writers() {
    let kit = Kit::new();
    kit.directory("d");
    let (log, kept) = (kit.file("log", b"first "), kit.file("d/kept", b"kept"));
    let gone = kit.file("d/gone", b"gone");
    let directory = kit.ino("d");
    let head = kit.commit();
    kit.unlink("d/gone").expect("unlink");
    kit.file("d/new", b"new");
    kit.write(kept, 0, b"KEPT");
    kit.write(log, 6, b"second ");
    let paths = ["d", "d/gone", "d/kept", "d/new"].map(|path| TreePath::new(path).expect("a path"));
    let edit = TreeEdit::TakeEntries { snapshot: head, head: None, paths: paths.to_vec() };
    let plan = |mut tree: WorkingTree, _: &[&mut Upload]| {
        edit.apply(&mut tree)?;
        Ok::<_, amalgam_view::Error>((vec![edit.clone()], ()))
    };
    kit.view.edit_group(&mut [], plan).expect("taken");
    assert_eq!(kit.read_path("d/gone"), b"gone");
    assert_eq!(kit.read_path("d/kept"), b"kept");
    assert_eq!(kit.look("d/new"), None);
    assert_eq!(kit.ino("d"), directory, "a directory keeps its number");
    assert_eq!(kit.ino("log"), log, "and so does what was not taken");
    kit.write(log, 13, b"third");
    assert_eq!(kit.read_path("log"), b"first second third");
    assert_eq!(kit.read(gone), b"gone");
    let everything = kit.everything();
    assert_eq!(kit.kill_and_reopen().everything(), everything, "the journal repeats it");
}

#[test]
fn a_hard_link_that_goes_leaves_the_file_to_its_other_names() {
    let kit = Kit::new();
    let ino = kit.file("a", b"one");
    let then = kit.commit();
    kit.link(ino, "b");
    let later = kit.commit();
    kit.view.restore(then, Some(later)).expect("go");
    assert_eq!(kit.look("b"), None);
    assert_eq!(kit.ino("a"), ino, "its bytes are the same");
    kit.write(ino, 0, b"ONE");
    assert_eq!(kit.read_path("a"), b"ONE", "whoever holds it writes to the file of that name");
    // And forward again: linked.
    let head = kit.commit();
    kit.view.restore(later, Some(head)).expect("go");
    assert_eq!(kit.ino("a"), kit.ino("b"));
    kit.write(kit.ino("b"), 0, b"TWO");
    assert_eq!(kit.read_path("a"), b"TWO");
}

#[test]
fn a_file_whose_other_name_gets_another_file_stays_for_whoever_has_it_open() {
    let kit = Kit::new();
    kit.link(kit.file("a", b"one"), "b");
    let linked = kit.commit();
    kit.unlink("a").expect("unlink");
    kit.file("a", b"other");
    let apart = kit.commit();
    kit.view.restore(linked, Some(apart)).expect("go");
    let ino = kit.ino("b");
    assert_eq!(kit.ino("a"), ino);
    let head = kit.commit();
    kit.view.restore(apart, Some(head)).expect("go");
    assert_eq!(kit.read_path("a"), b"other");
    assert_ne!(kit.ino("a"), ino);
    assert_eq!(kit.ino("b"), ino, "its bytes are the same");
    kit.write(ino, 0, b"ONE");
    assert_eq!((kit.read_path("a"), kit.read_path("b")), (b"other".to_vec(), b"ONE".to_vec()));
}

fn edit(kit: &Kit, edits: Vec<TreeEdit>) {
    let plan = |mut tree: WorkingTree, _: &[&mut Upload]| {
        edits.iter().try_for_each(|edit| edit.apply(&mut tree))?;
        Ok::<_, amalgam_view::Error>((edits, ()))
    };
    kit.view.edit_group(&mut [], plan).expect("edited");
}

fn path(text: &str) -> TreePath {
    TreePath::new(text).expect("a path")
}

#[test]
fn a_hard_link_that_a_group_removes_leaves_the_file_to_its_other_names() {
    for is_cached in [true, false] {
        let kit = Kit::new();
        kit.directory("d");
        kit.link(kit.file("a", b"one"), "d/b");
        kit.commit();
        let kit = kit.close_and_reopen();
        let ino = kit.ino("a");
        if is_cached {
            assert_eq!(kit.ino("d/b"), ino);
        }
        edit(&kit, vec![TreeEdit::Remove { path: path("a") }]);
        assert_eq!(kit.look("a"), None);
        assert_eq!(kit.attributes(ino).links, 1);
        kit.write(ino, 0, b"ONE");
        assert_eq!(kit.read_path("d/b"), b"ONE", "whoever holds it writes to the file of that name");
        assert_eq!(kit.ino("d/b"), ino);
        // All names in one group: nothing is left of it but what is held.
        kit.link(ino, "c");
        edit(&kit, vec![TreeEdit::Remove { path: path("d/b") }, TreeEdit::Remove { path: path("c") }]);
        kit.write(ino, 0, b"two");
        assert_eq!((kit.look("c"), kit.look("d/b"), kit.read(ino)), (None, None, b"two".to_vec()));
    }
}

#[test]
fn a_hard_link_whose_name_a_group_gives_to_another_file_is_no_part_of_that_file() {
    let kit = Kit::new();
    let ino = kit.file("a", b"one");
    kit.link(ino, "b");
    edit(&kit, vec![TreeEdit::Remove { path: path("a") }, TreeEdit::Create { path: path("a"), mode: 0o644 }]);
    assert_eq!((kit.read_path("a"), kit.read_path("b")), (Vec::new(), b"one".to_vec()));
    assert_ne!(kit.ino("a"), ino);
    assert_eq!(kit.ino("b"), ino);
    kit.link(ino, "c");
    let again = [TreeEdit::Remove { path: path("c") }, TreeEdit::Create { path: path("c"), mode: 0o644 }];
    edit(&kit, [TreeEdit::Remove { path: path("b") }].into_iter().chain(again).collect());
    kit.write(ino, 0, b"ONE");
    assert_eq!((kit.read_path("c"), kit.read(ino)), (Vec::new(), b"ONE".to_vec()));
}

#[test]
fn a_group_that_writes_through_a_hard_link_is_seen_through_the_others() {
    let kit = Kit::new();
    kit.link(kit.file("a", b"one"), "b");
    kit.commit();
    let kit = kit.close_and_reopen();
    let b = kit.ino("b");
    assert_eq!(kit.attributes(b).size, 3);
    let told = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&told);
    kit.view.watch(Arc::new(move |notice| hears.lock().expect("no panic").push(notice)));
    let write = TreeEdit::Write { path: path("a"), offset: 0, data: b"longer".to_vec().into() };
    edit(&kit, vec![TreeEdit::Truncate { path: path("a"), size: 0 }, write]);
    assert_eq!(kit.attributes(b).size, 6);
    assert!(told.lock().expect("no panic").contains(&Invalidation::Contents(b)));
    assert_eq!((kit.ino("a"), kit.read(b)), (b, b"longer".to_vec()));
}

#[test]
fn a_directory_that_is_gone_is_empty_for_whoever_is_in_it() {
    let kit = Kit::new();
    kit.file("f", b"x");
    let then = kit.commit();
    let directory = kit.directory("d");
    kit.directory("d/e");
    let inside = kit.file("d/e/inside", b"inside");
    let later = kit.commit();
    kit.view.restore(then, Some(later)).expect("go");
    assert_eq!(kit.look("d"), None);
    assert_eq!(errno(kit.view.lookup(&kit.caller, directory, b"e")), ENOENT);
    assert_eq!(errno(kit.view.create(&kit.caller, directory, b"new", 0o644)), ENOENT);
    assert_eq!(kit.read(inside), b"inside");
    kit.view.forget([(inside, u64::MAX), (directory, u64::MAX)]);
    kit.view.restore(later, Some(later)).expect("go");
    assert_eq!(kit.read_path("d/e/inside"), b"inside");
}

#[test]
fn a_file_that_loses_a_name_with_its_directory_goes_on_under_its_others() {
    let kit = Kit::new();
    let ino = kit.file("z", b"one");
    let then = kit.commit();
    kit.directory("d");
    kit.directory("d/e");
    for name in ["d/b", "d/e/c"] {
        kit.link(ino, name);
    }
    let (inside, deep) = (kit.file("d/inside", b"x"), kit.file("d/e/deep", b"y"));
    let later = kit.commit();
    kit.view.restore(then, Some(later)).expect("go");
    assert_eq!(kit.everything().into_keys().collect::<Vec<_>>(), ["z"]);
    assert_eq!(kit.ino("z"), ino);
    kit.write(ino, 0, b"ONE");
    assert_eq!(kit.read_path("z"), b"ONE", "whoever holds it writes to the file of that name");
    assert_eq!((kit.read(inside), kit.read(deep)), (b"x".to_vec(), b"y".to_vec()));
}

#[test]
fn a_restore_replaces_the_files_of_a_directory_that_was_moved_to_the_name_of_another() {
    for is_edited in [false, true] {
        let kit = Kit::new();
        for name in ["a", "b"] {
            kit.directory(name);
            kit.file(&format!("{name}/file"), format!("of {name}").as_bytes());
            kit.file(&format!("{name}/only-{name}"), b"only");
        }
        let head = kit.commit();
        let everything = kit.everything();
        for path in ["b/file", "b/only-b"] {
            kit.unlink(path).expect("unlink");
        }
        kit.rmdir("b").expect("rmdir");
        kit.rename("a", "b", RenameMode::Replace).expect("rename");
        if is_edited {
            kit.file("b/new", b"new");
        }
        let (directory, file, only) = (kit.ino("b"), kit.ino("b/file"), kit.ino("b/only-a"));
        assert_eq!(kit.look("b/only-b"), None, "whoever asks may remember that");
        let told = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&told);
        kit.view.watch(Arc::new(move |notice| hears.lock().expect("no panic").push(notice)));
        kit.view.restore(head, Some(head)).expect("go");
        for wanted in ["file", "only-a", "only-b"] {
            let is_told = |notice: &Invalidation| {
                matches!(notice, Invalidation::Entry { parent, name }
                    if *parent == directory && name.as_bytes() == wanted.as_bytes())
            };
            assert!(told.lock().expect("no panic").iter().any(is_told), "{wanted}");
        }
        assert_ne!(kit.ino("b/file"), file);
        assert_eq!(kit.look("b/only-a"), None);
        assert_eq!((kit.read(file), kit.read(only)), (b"of a".to_vec(), b"only".to_vec()));
        kit.write(file, 0, b"OF A");
        assert_eq!(kit.everything(), everything, "whoever holds the old files disturbs nobody");
        kit.file("b/only-a", b"new");
        assert_eq!(kit.read_path("b/only-a"), b"new");
    }
}

#[test]
fn names_of_what_stays_are_not_told_of() {
    let kit = Kit::new();
    let directory = kit.directory("d");
    let (same, differs) = (kit.file("d/same", b"same"), kit.file("d/differs", b"then"));
    let then = kit.commit();
    kit.write(differs, 0, b"now!");
    for ino in [directory, same] {
        let set = SetAttributes { mtime: Some(TimeSet::At(Time(5))), ..SetAttributes::default() };
        kit.view.set_attributes(&kit.caller, ino, &set).expect("touched");
    }
    let later = kit.commit();
    let told = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&told);
    kit.view.watch(Arc::new(move |notice| hears.lock().expect("no panic").push(notice)));
    kit.view.restore(then, Some(later)).expect("go");
    let told = told.lock().expect("no panic");
    let name = |notice| match notice {
        &Invalidation::Entry { parent, ref name } => Some((parent, name.as_bytes())),
        _ => None,
    };
    let names: Vec<_> = told.iter().filter_map(name).collect();
    assert!(names.iter().all(|name| *name == (directory, b"differs".as_slice())), "{told:?}");
    assert!(!names.is_empty());
    for notice in [Invalidation::Contents(directory), Invalidation::Attributes(same)] {
        assert!(told.contains(&notice), "{notice:?} of {told:?}");
    }
}

#[test]
fn a_store_that_fails_on_the_way_elsewhere_leaves_everything_where_it_was() {
    let plan = Arc::new(FaultPlan::default());
    let backend = Fault::new(Memory::default(), Arc::clone(&plan));
    let store = Store::new(Arc::new(backend), &StoreOptions { cache_bytes: 0, ..StoreOptions::default() });
    let scratch = tempfile::tempdir().expect("a directory");
    let kit = Kit::at(&store, scratch.path(), options());
    kit.directory("stays");
    let ino = kit.file("stays/f", b"then");
    let then = kit.commit();
    kit.write(ino, 0, b"now!");
    kit.directory("goes");
    let inside = kit.file("goes/inside", b"inside");
    kit.link(inside, "goes/linked");
    let later = kit.commit();
    let kit = kit.close_and_reopen();
    let before = kit.everything();
    let (held, numbers) = (kit.ino("goes/inside"), kit.view.inodes());
    let mut refused = 0;
    loop {
        plan.fail_after_reads(refused);
        let gone = kit.view.restore(then, Some(later));
        plan.heal();
        if gone.is_ok() {
            break;
        }
        refused += 1;
        assert_eq!((kit.everything(), kit.view.inodes()), (before.clone(), numbers), "after {refused} reads");
        assert_eq!(kit.ino("goes/inside"), held);
    }
    assert!(refused > 3, "{refused} reads");
    assert_eq!(kit.read_path("stays/f"), b"then");
    assert_eq!(kit.read(held), b"inside");
    let kit = kit.kill_and_reopen();
    assert_eq!(kit.read_path("stays/f"), b"then");
}

#[test]
fn a_view_of_a_snapshot_shows_it_and_refuses_changes() {
    let kit = Kit::new();
    let ino = kit.file("f", b"then");
    let then = kit.commit();
    kit.write(ino, 0, b"now!");
    kit.commit();
    let shown = View::of_snapshot(kit.workspaces.store(), then, options()).expect("open");
    let caller = Caller::owner(0, 0);
    let found = shown.lookup(&caller, ROOT, b"f").expect("look").ino;
    assert_eq!(shown.read(found, 0, 100).expect("read"), b"then"[..]);
    assert!(shown.is_read_only());
    const EROFS: i32 = 30;
    assert_eq!(errno(shown.write(&caller, found, 0, b"x")), EROFS);
    assert_eq!(errno(shown.create(&caller, ROOT, b"g", 0o644)), EROFS);
    assert_eq!(errno(shown.unlink(&caller, ROOT, b"f")), EROFS);
    assert_eq!(errno(shown.set_attributes(&caller, found, &Default::default())), EROFS);
    shown.sync().expect("nothing to do");
    shown.close().expect("nothing to do");
}

#[test]
fn a_commit_while_others_write_is_one_moment_and_loses_nothing() {
    let kit = Kit::new();
    let writers: Vec<Ino> = (0..2).map(|number| kit.file(&format!("w{number}"), b"")).collect();
    let end = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let threads: Vec<_> = writers
            .iter()
            .map(|ino| {
                let (kit, end) = (&kit, &end);
                scope.spawn(move || {
                    let mut count = 0_u64;
                    while !end.load(Ordering::Relaxed) {
                        kit.write(*ino, count * 8, &count.to_le_bytes());
                        count += 1;
                        // Many commits are wanted, not long files.
                        std::thread::sleep(std::time::Duration::from_micros(100));
                    }
                    count
                })
            })
            .collect();
        for _ in 0..30 {
            let snapshot = kit.commit();
            let tree = WorkingTree::open(kit.workspaces.store(), snapshot).expect("open");
            for number in 0..2 {
                // Whole numbers in their order: a state that was.
                let bytes = tree.read(format!("w{number}")).expect("read");
                for (at, piece) in bytes.chunks(8).enumerate() {
                    assert_eq!(piece, (at as u64).to_le_bytes());
                }
            }
        }
        end.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
    });
    let sizes = |kit: &Kit| writers.iter().map(|ino| kit.attributes(*ino).size / 8).collect::<Vec<_>>();
    assert_eq!(sizes(&kit), written);
    let everything = kit.everything();
    assert_eq!(kit.kill_and_reopen().everything(), everything, "and all of it is there after a kill");
}

#[test]
fn two_files_that_are_kept_equal_by_renames_are_equal_in_every_snapshot() {
    let rounds: u64 = std::env::var("AMALGAM_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(300);
    let kit = Kit::new();
    kit.file("a", b"0");
    kit.file("b", b"0");
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (kit, end) = (&kit, &end);
        let writer = scope.spawn(move || {
            let mut count = 0_u64;
            while !end.load(Ordering::Relaxed) {
                count += 1;
                // First b, then a: so a is never newer, and one step behind at most.
                for name in ["b", "a"] {
                    let new = kit.file("new", count.to_string().as_bytes());
                    kit.rename("new", name, RenameMode::Replace).expect("rename");
                    kit.view.forget([(new, u64::MAX)]);
                }
            }
            count
        });
        let mut last = 0;
        for round in 0..rounds {
            let tree = if round % 3 == 0 {
                WorkingTree::open(kit.workspaces.store(), kit.commit()).expect("open")
            } else {
                kit.view.fork()
            };
            let number = |name: &str| -> u64 {
                let bytes = tree.read(name).expect("read");
                String::from_utf8(bytes).expect("text").parse().expect("a whole number")
            };
            let (a, b) = (number("a"), number("b"));
            assert!(b == a || b == a + 1, "round {round}: a is {a}, b is {b}");
            assert!(a >= last, "round {round}: {a} after {last}");
            last = a;
        }
        end.store(true, Ordering::Relaxed);
        assert!(writer.join().expect("no panic") > 0);
    });
}
