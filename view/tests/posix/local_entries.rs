//! What a view shows and its tree does not have.

use std::collections::BTreeMap;

use amalgam_engine::{DiffOptions, TreePath, diff_roots};
use amalgam_view::{Kind, LocalEntry, ROOT, RenameMode, SetAttributes, XattrSet};

use super::kit::{EBUSY, EEXIST, EINVAL, Kit, errno};

fn path(text: &str) -> TreePath {
    TreePath::new(text).expect("a path")
}

fn link(text: &str) -> (TreePath, LocalEntry) {
    (path(text), LocalEntry::Link("/host/place".into()))
}

/// Two directories, one of which has something where a path is kept out, and a file.
fn placed() -> Kit {
    let kit = Kit::new();
    kit.directory("target");
    kit.file("target/old", b"old");
    kit.directory("web");
    kit.directory("web/src");
    kit.file("a", b"a");
    kit.commit();
    kit.view.set_local_entries(BTreeMap::from([link("target"), link("web/modules")])).expect("placed");
    kit
}

#[test]
fn what_is_placed_is_shown_and_covers_what_the_tree_has() {
    let kit = placed();
    let found = kit.look("target").expect("it is shown");
    assert_eq!((found.kind, found.mode, found.size), (Kind::Symlink, 0o777, 11));
    assert_eq!(kit.view.read_link(found.ino).expect("a link"), b"/host/place");
    assert_eq!(kit.view.attributes(found.ino).expect("known"), found);
    assert_eq!(kit.look("target").expect("again"), found, "the same again");
    assert_eq!(kit.list(""), ["a", "target", "web"]);
    assert_eq!(kit.list("web"), ["modules", "src"]);
    assert_eq!(errno(kit.view.lookup(&kit.caller, found.ino, b"old")), super::kit::ENOTDIR);
    // In pieces, each name by itself.
    let (mut names, mut at) = (Vec::new(), 0);
    loop {
        let mut one = None;
        let listed = kit.view.read_directory_plus(&kit.caller, ROOT, at, |listed| {
            if one.is_some() {
                return false;
            }
            one = Some((String::from_utf8_lossy(listed.name).into_owned(), listed.cookie));
            true
        });
        listed.expect("listed");
        let Some((name, cookie)) = one else { break };
        names.push(name);
        at = cookie;
    }
    assert_eq!(names, [".", "..", "a", "target", "web"]);
    kit.view.set_local_entries(BTreeMap::new()).expect("taken away");
    assert_eq!(kit.read_path("target/old"), b"old");
    assert!(kit.look("web/modules").is_none());
}

#[test]
fn no_snapshot_and_no_journal_has_what_is_placed() {
    let kit = placed();
    assert!(kit.view.is_clean(), "showing something is no change");
    let before = kit.view.head();
    kit.file("b", b"b");
    let commit = kit.commit();
    let store = kit.workspaces.store();
    let root = |snapshot| Some(store.snapshot(snapshot).expect("a snapshot").root);
    let changes = diff_roots(store, root(before.expect("committed")), root(commit), DiffOptions::default());
    let changed: Vec<_> = changes.expect("a diff").map(|change| change.expect("read").path.to_string()).collect();
    assert_eq!(changed, ["b"]);
    kit.file("c", b"c");
    // A new life does not know of it, and has everything else.
    let kit = kit.kill_and_reopen();
    assert_eq!(kit.read_path("target/old"), b"old");
    assert_eq!(kit.list("web"), ["src"]);
    assert_eq!(kit.list(""), ["a", "b", "c", "target", "web"]);
}

#[test]
fn what_is_placed_is_neither_moved_nor_changed_nor_removed() {
    let kit = placed();
    let everything = kit.everything();
    let (view, caller) = (&kit.view, &kit.caller);
    let web = kit.ino("web");
    assert_eq!(errno(view.create(caller, ROOT, b"target", 0o644)), EEXIST);
    assert_eq!(errno(view.create_directory(caller, web, b"modules", 0o755)), EEXIST);
    assert_eq!(errno(view.create_symlink(caller, web, b"modules", b"x")), EEXIST);
    assert_eq!(errno(view.link(caller, kit.ino("a"), web, b"modules")), EEXIST);
    assert_eq!(errno(view.link(caller, kit.ino("target"), web, b"other")), EBUSY);
    assert_eq!(errno(kit.unlink("target")), EBUSY);
    assert_eq!(errno(kit.unlink("web/modules")), EBUSY);
    assert_eq!(errno(kit.rmdir("target")), EBUSY);
    assert_eq!(errno(kit.rmdir("web")), EBUSY, "a directory above");
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        assert_eq!(errno(kit.rename("a", "target", mode)), EBUSY);
        assert_eq!(errno(kit.rename("web/src", "web/modules", mode)), EBUSY);
        assert_eq!(errno(kit.rename("web/src", "web", mode)), EBUSY);
    }
    for mode in [RenameMode::Replace, RenameMode::NoReplace] {
        assert_eq!(errno(kit.rename("target", "elsewhere", mode)), EBUSY);
        assert_eq!(errno(kit.rename("web", "elsewhere", mode)), EBUSY, "a directory above");
    }
    let ino = kit.ino("target");
    assert_eq!(errno(view.write(caller, ino, 0, b"x")), EBUSY);
    for set in [
        SetAttributes { mode: Some(0o700), ..SetAttributes::default() },
        SetAttributes { size: Some(0), ..SetAttributes::default() },
    ] {
        assert_eq!(errno(view.set_attributes(caller, ino, &set)), EBUSY);
    }
    assert_eq!(errno(view.set_xattr(caller, ino, b"user.x", b"x", XattrSet::Either)), EBUSY);
    assert!(view.xattr_names(ino).expect("none").is_empty());
    assert_eq!(kit.everything(), everything);
    assert!(view.is_clean());
}

#[test]
fn going_elsewhere_leaves_what_is_placed_and_what_the_tree_has_there() {
    let kit = placed();
    let first = kit.view.head().expect("committed");
    let ino = kit.ino("web/modules");
    kit.file("b", b"b");
    let second = kit.commit();
    kit.view.restore(first, Some(second)).expect("goes");
    assert_eq!(kit.ino("web/modules"), ino, "it is the same as before");
    // To a state without its directory, and with a file where it would be.
    kit.view.set_local_entries(BTreeMap::new()).expect("taken away");
    kit.unlink("target/old").expect("removed");
    kit.rmdir("target").expect("removed");
    kit.file("target", b"file");
    kit.rmdir("web/src").expect("removed");
    kit.rmdir("web").expect("removed");
    let without = kit.commit();
    kit.view.restore(first, Some(first)).expect("goes");
    kit.view.set_local_entries(BTreeMap::from([link("target"), link("web/modules")])).expect("placed");
    kit.ino("web/modules");
    kit.view.restore(without, Some(without)).expect("goes");
    assert_eq!(kit.list(""), ["a", "target"]);
    assert_eq!(kit.look("target").expect("shown").kind, Kind::Symlink);
    // Its directory may come back by any way.
    kit.directory("other");
    kit.rename("other", "web", RenameMode::Replace).expect("nothing is in the way");
    assert_eq!(kit.list("web"), ["modules"]);
    kit.view.restore(first, Some(first)).expect("goes");
    assert_eq!(kit.list("web"), ["modules", "src"]);
    kit.view.set_local_entries(BTreeMap::new()).expect("taken away");
    assert_eq!(kit.read_path("target/old"), b"old");
}

#[test]
fn a_directory_that_is_placed_is_empty_and_takes_nothing() {
    let kit = placed();
    kit.view.set_local_entries(BTreeMap::from([(path("target"), LocalEntry::Directory)])).expect("placed");
    assert_eq!(kit.look("target").expect("shown").kind, Kind::Directory);
    assert!(kit.list("target").is_empty());
    assert!(kit.look("target/old").is_none());
    let ino = kit.ino("target");
    assert_eq!(errno(kit.view.create(&kit.caller, ino, b"new", 0o644)), EBUSY);
    assert_eq!(errno(kit.rename("a", "target/a", RenameMode::Replace)), EBUSY);
    assert_eq!(errno(kit.rmdir("target")), EBUSY);
    assert!(kit.view.is_clean());
}

#[test]
fn whoever_holds_what_is_covered_goes_on_with_it() {
    let kit = placed();
    kit.view.set_local_entries(BTreeMap::new()).expect("taken away");
    let held = kit.ino("target/old");
    kit.view.set_local_entries(BTreeMap::from([link("target")])).expect("placed");
    assert_eq!(kit.read(held), b"old");
    kit.write(held, 0, b"new");
    assert!(kit.view.is_clean(), "what is written to it is in no snapshot");
    kit.view.set_local_entries(BTreeMap::new()).expect("taken away");
    assert_eq!(kit.read_path("target/old"), b"old");
}

#[test]
fn only_directories_can_be_covered_and_their_place_must_be_there() {
    let kit = placed();
    for (wrong, why) in [
        ("", "everything"),
        ("a", "there is a file"),
        ("nowhere/x", "make it first"),
        ("a/x", "make it first"),
        ("target/old", "there is a file"),
    ] {
        let error = kit.view.ensure_local_possible(&path(wrong)).expect_err(wrong);
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(error.errno(), EINVAL);
    }
    for good in ["target", "new", "web/src", "web/new"] {
        kit.view.ensure_local_possible(&path(good)).expect(good);
    }
    for wrong in [vec![link("web"), link("web/src")], vec![link("")]] {
        assert_eq!(errno(kit.view.set_local_entries(BTreeMap::from_iter(wrong))), EINVAL);
    }
    assert_eq!(kit.view.local_entries().len(), 2, "what was refused changed nothing");
}
