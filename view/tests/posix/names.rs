//! Names that come, go and move.

use std::sync::Arc;

use amalgam_engine::backend::{Fault, FaultPlan, Memory};
use amalgam_engine::{Store, StoreOptions};
use amalgam_view::{ROOT, RenameMode};

use crate::kit::{EEXIST, EINVAL, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, Kit, errno, options};

#[test]
fn a_file_without_a_name_goes_on_for_whoever_holds_it() {
    let kit = Kit::new();
    let ino = kit.file("a", b"before");
    kit.unlink("a").expect("unlink");
    assert_eq!(kit.look("a"), None);
    assert_eq!(kit.attributes(ino).links, 0);
    kit.write(ino, 6, b" and after");
    assert_eq!(kit.read(ino), b"before and after");
    // Another file of that name is another file.
    let other = kit.file("a", b"other");
    assert_ne!(other, ino);
    assert_eq!((kit.read(ino), kit.read(other)), (b"before and after".to_vec(), b"other".to_vec()));
    // A commit knows nothing of it, and does not end it.
    let snapshot = kit.commit();
    kit.write(ino, 0, b"B");
    assert_eq!(kit.read(ino), b"Before and after");
    let stored = amalgam_engine::WorkingTree::open(kit.workspaces.store(), snapshot).expect("open");
    assert_eq!(stored.read("a").expect("read"), b"other");
    kit.view.forget([(ino, 1)]);
    assert!(kit.view.attributes(ino).is_err(), "nobody holds it any more");
}

#[test]
fn a_removed_directory_is_empty_and_takes_nothing() {
    let kit = Kit::new();
    let ino = kit.directory("d");
    kit.rmdir("d").expect("rmdir");
    assert_eq!(kit.attributes(ino).links, 0);
    assert_eq!(errno(kit.view.create(&kit.caller, ino, b"f", 0o644)), ENOENT);
    assert_eq!(errno(kit.view.lookup(&kit.caller, ino, b"f")), ENOENT);
    let mut names = 0;
    kit.view
        .read_directory(&kit.caller, ino, 0, |_| {
            names += 1;
            true
        })
        .expect("list");
    assert_eq!(names, 0);
}

#[test]
fn hard_links_are_one_file_under_all_their_names() {
    let kit = Kit::new();
    kit.directory("d");
    let ino = kit.file("a", b"one");
    assert_eq!(kit.link(ino, "d/b").links, 2);
    assert_eq!(kit.ino("d/b"), ino);
    kit.write(kit.ino("d/b"), 3, b" two");
    assert_eq!(kit.read_path("a"), b"one two");
    // The name it was first seen under goes; the file stays.
    kit.unlink("a").expect("unlink");
    assert_eq!(kit.attributes(ino).links, 1);
    kit.write(ino, 0, b"ONE");
    assert_eq!(kit.read_path("d/b"), b"ONE two");
    // The other one moves, with its directory and by itself.
    kit.rename("d", "e", RenameMode::Replace).expect("rename");
    kit.rename("e/b", "c", RenameMode::Replace).expect("rename");
    assert_eq!((kit.ino("c"), kit.read_path("c")), (ino, b"ONE two".to_vec()));
    kit.link(ino, "c2");
    // Renaming one name over another of the same file does nothing, as POSIX has it.
    kit.rename("c", "c2", RenameMode::Replace).expect("rename");
    assert_eq!((kit.ino("c"), kit.ino("c2"), kit.attributes(ino).links), (ino, ino, 2));
    // Something else over one name leaves the other.
    kit.file("x", b"x");
    kit.rename("x", "c", RenameMode::Replace).expect("rename");
    assert_eq!((kit.read_path("c"), kit.read_path("c2")), (b"x".to_vec(), b"ONE two".to_vec()));
    assert_eq!(kit.attributes(ino).links, 1);
    kit.unlink("c2").expect("unlink");
    assert_eq!((kit.attributes(ino).links, kit.read(ino)), (0, b"ONE two".to_vec()));
}

#[test]
fn hard_links_are_known_as_one_after_a_commit_and_a_remount() {
    let kit = Kit::new();
    kit.link(kit.file("a", b"one"), "b");
    kit.commit();
    let kit = kit.close_and_reopen();
    assert_eq!(kit.ino("a"), kit.ino("b"));
    assert_eq!(kit.look("b").expect("it is there").links, 2);
    kit.write(kit.ino("b"), 0, b"ONE");
    assert_eq!(kit.read_path("a"), b"ONE");
    let kit = kit.kill_and_reopen();
    assert_eq!(kit.read_path("a"), b"ONE");
    assert_eq!(kit.ino("a"), kit.ino("b"));
}

/// A tree with one of each, to try one rename on.
fn house() -> Kit {
    let kit = Kit::new();
    for directory in ["full", "empty", "other", "other/below"] {
        kit.directory(directory);
    }
    kit.file("file", b"file");
    kit.file("file2", b"file2");
    kit.file("full/inside", b"inside");
    kit.file("other/below/deep", b"deep");
    kit
}

#[test]
fn a_rename_does_what_posix_says_or_nothing() {
    use RenameMode::{Exchange, NoReplace, Replace};
    let cases: &[(&str, &str, RenameMode, Option<i32>)] = &[
        ("file", "new", Replace, None),
        ("file", "file2", Replace, None),
        ("file", "empty", Replace, Some(EISDIR)),
        ("full", "file", Replace, Some(ENOTDIR)),
        ("full", "empty", Replace, None),
        ("empty", "full", Replace, Some(ENOTEMPTY)),
        ("full", "full/within", Replace, Some(EINVAL)),
        ("other", "other/below/within", Replace, Some(EINVAL)),
        ("other/below", "moved", Replace, None),
        ("none", "new", Replace, Some(ENOENT)),
        ("file", "file", Replace, None),
        ("file", "new", NoReplace, None),
        ("file", "file2", NoReplace, Some(EEXIST)),
        ("full", "empty", NoReplace, Some(EEXIST)),
        ("file", "file2", Exchange, None),
        ("file", "full", Exchange, None),
        ("full", "other", Exchange, None),
        ("file", "none", Exchange, Some(ENOENT)),
        ("other", "other/below", Exchange, Some(EINVAL)),
        ("other/below", "other", Exchange, Some(EINVAL)),
    ];
    for (from, to, mode, refused) in cases {
        let kit = house();
        let before = kit.everything();
        let (one, other) = (kit.look(from), kit.look(to));
        let done = kit.rename(from, to, *mode).map_err(|error| error.errno());
        assert_eq!(done.err(), *refused, "{from} -> {to} {mode:?}");
        if refused.is_some() {
            assert_eq!(kit.everything(), before, "{from} -> {to} {mode:?}: a refused rename changes nothing");
        } else if from != to {
            assert_eq!(kit.look(to).map(|found| found.ino), one.map(|one| one.ino), "{from} -> {to}");
            let left = kit.look(from).map(|found| found.ino);
            let expected = if *mode == Exchange { other.map(|other| other.ino) } else { None };
            assert_eq!(left, expected, "{from} -> {to}");
        }
        // And the same after a kill.
        let after = kit.everything();
        assert_eq!(kit.kill_and_reopen().everything(), after, "{from} -> {to} {mode:?}");
    }
}

#[test]
fn what_is_below_a_moved_directory_keeps_its_numbers() {
    let kit = house();
    let (below, deep) = (kit.ino("other/below"), kit.ino("other/below/deep"));
    kit.rename("other", "full/other", RenameMode::Replace).expect("rename");
    assert_eq!((kit.ino("full/other/below"), kit.ino("full/other/below/deep")), (below, deep));
    kit.write(deep, 0, b"DEEP");
    assert_eq!(kit.read_path("full/other/below/deep"), b"DEEP");
    kit.rename("full", "empty", RenameMode::Exchange).expect("exchange");
    assert_eq!(kit.ino("empty/other/below/deep"), deep);
    assert_eq!(kit.read(deep), b"DEEP");
}

#[test]
fn a_file_that_was_renamed_over_goes_on_for_whoever_holds_it() {
    let kit = Kit::new();
    let (old, new) = (kit.file("a", b"old"), kit.file("b", b"new"));
    kit.rename("b", "a", RenameMode::Replace).expect("rename");
    assert_eq!(kit.ino("a"), new);
    kit.write(old, 3, b"er");
    assert_eq!((kit.read(old), kit.read(new)), (b"older".to_vec(), b"new".to_vec()));
    assert_eq!(kit.attributes(old).links, 0);
}

#[test]
fn names_that_no_tree_can_hold_are_refused() {
    let kit = Kit::new();
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
        assert_eq!(errno(kit.view.create(&kit.caller, ROOT, name, 0o644)), EINVAL, "{name:?}");
    }
    assert_eq!(errno(kit.view.create(&kit.caller, ROOT, &[b'x'; 256], 0o644)), 36, "too long");
    kit.view.create(&kit.caller, ROOT, &[b'x'; 255], 0o644).expect("255 bytes are a name");
    assert_eq!(errno(kit.view.create(&kit.caller, kit.file("f", b""), b"below", 0o644)), ENOTDIR);
    assert_eq!(errno(kit.unlink("none")), ENOENT);
    assert_eq!(errno(kit.rmdir("f")), ENOTDIR);
    kit.directory("d");
    assert_eq!(errno(kit.unlink("d")), EISDIR);
    kit.file("d/f", b"");
    assert_eq!(errno(kit.rmdir("d")), ENOTEMPTY);
}

#[test]
fn the_directories_in_a_directory_are_counted_as_links() {
    let kit = Kit::new();
    let (a, b) = (kit.directory("a"), kit.directory("b"));
    let links = || (kit.attributes(a).links, kit.attributes(b).links);
    assert_eq!(links(), (2, 2));
    kit.directory("a/one");
    kit.directory("a/two");
    kit.file("a/file", b"");
    assert_eq!(links(), (4, 2));
    kit.rename("a/one", "b/one", RenameMode::Replace).expect("rename");
    assert_eq!(links(), (3, 3));
    kit.rename("b/one", "a/two", RenameMode::Replace).expect("one empty directory over another");
    assert_eq!(links(), (3, 2));
    kit.file("b/file", b"");
    kit.rename("a/two", "b/file", RenameMode::Exchange).expect("exchange");
    assert_eq!(links(), (2, 3));
    kit.rmdir("b/file").expect("rmdir");
    assert_eq!(links(), (2, 2));
}

#[test]
fn a_store_that_fails_while_a_name_goes_leaves_the_file_its_names() {
    let plan = Arc::new(FaultPlan::default());
    let backend = Fault::new(Memory::default(), Arc::clone(&plan));
    let store = Store::new(Arc::new(backend), &StoreOptions { cache_bytes: 0, ..StoreOptions::default() });
    let scratch = tempfile::tempdir().expect("a directory");
    let mut kit = Kit::at(&store, scratch.path(), options());
    kit.directory("d");
    kit.directory("d/e");
    let ino = kit.file("a", b"one");
    kit.link(ino, "d/e/b");
    kit.commit();
    let mut refused = 0;
    loop {
        // Nothing is known of its other name.
        kit = kit.close_and_reopen();
        let (held, inodes) = (kit.ino("a"), kit.view.inodes());
        plan.fail_after_reads(refused);
        let done = kit.view.unlink(&kit.caller, ROOT, b"a");
        plan.heal();
        assert_eq!(kit.read(held), b"one", "after {refused} reads");
        if done.is_ok() {
            break;
        }
        refused += 1;
        assert_eq!((kit.ino("a"), kit.view.inodes()), (held, inodes), "after {refused} reads");
        kit.write(held, 0, b"one");
        assert_eq!(kit.read_path("d/e/b"), b"one");
        kit.commit();
    }
    assert!(refused > 0, "some of it was read");
    assert_eq!(kit.look("a"), None);
    let held = kit.ino("d/e/b");
    assert_eq!(kit.attributes(held).links, 1);
}
