//! Handles: names of inodes that outlive the table and the view.

use amalgam_engine::Store;
use amalgam_view::{Handle, Ino, ROOT, RenameMode};

use crate::kit::{ESTALE, Kit, errno, options};

fn handle(kit: &Kit, directory: Ino, name: &str) -> Handle {
    let ino = kit.view.lookup(&kit.caller, directory, name.as_bytes()).expect("found").ino;
    kit.view.issue_handles(&[ino])[0].expect("issued")
}

fn kit() -> Kit {
    let kit = Kit::new();
    kit.view.keep_handles().expect("kept");
    kit
}

fn make(kit: &Kit, directory: Ino, name: &str) -> Ino {
    let ino = kit.view.create(&kit.caller, directory, name.as_bytes(), 0o644).expect("made").ino;
    kit.view.forget([(ino, 1)]);
    ino
}

#[test]
fn a_handle_is_the_same_each_time_and_the_roots_is_always_known() {
    let kit = kit();
    make(&kit, ROOT, "f");
    let first = handle(&kit, ROOT, "f");
    assert_eq!(handle(&kit, ROOT, "f"), first);
    assert_eq!(kit.view.resolve(first).expect("found"), first.ino);
    assert_eq!(kit.view.resolve(Handle::ROOT).expect("found"), ROOT);
    for wrong in [
        Handle { generation: first.generation ^ 1, ..first },
        Handle { ino: first.ino ^ 1, ..first },
        Handle { generation: 1, ..Handle::ROOT },
    ] {
        assert_eq!(errno(kit.view.resolve(wrong)), ESTALE);
    }
}

#[test]
fn a_file_of_several_names_keeps_its_handle_whichever_is_looked_up_first() {
    let mut kit = kit();
    let ino = kit.view.create(&kit.caller, ROOT, b"a", 0o644).expect("made").ino;
    kit.view.link(&kit.caller, ino, ROOT, b"b").expect("linked");
    kit.view.forget([(ino, 1)]);
    let known = handle(&kit, ROOT, "a");
    kit.view.link(&kit.caller, ino, ROOT, b"c").expect("linked");
    kit.view.forget([(ino, 1)]);
    for first in ["b", "c", "a"] {
        kit = kit.kill_and_reopen();
        assert_eq!(handle(&kit, ROOT, first), known, "by {first}");
        assert_eq!(kit.view.resolve(known).expect("found"), ino);
    }
    kit.view.unlink(&kit.caller, ROOT, b"a").expect("removed");
    kit = kit.kill_and_reopen();
    assert_eq!(kit.view.resolve(known).expect("by another name"), ino);
    assert_eq!(kit.view.attributes(ino).expect("there").links, 2);
}

#[test]
fn handles_follow_exchanges_and_moved_directories() {
    let mut kit = kit();
    let directory = kit.view.create_directory(&kit.caller, ROOT, b"d", 0o755).expect("made").ino;
    make(&kit, directory, "f");
    make(&kit, ROOT, "g");
    let (f, g, d) = (handle(&kit, directory, "f"), handle(&kit, ROOT, "g"), handle(&kit, ROOT, "d"));
    kit.view.rename(&kit.caller, (directory, b"f"), (ROOT, b"g"), RenameMode::Exchange).expect("exchanged");
    kit.view.rename(&kit.caller, (ROOT, b"d"), (ROOT, b"e"), RenameMode::Replace).expect("renamed");
    for close in [false, true] {
        kit = if close { kit.close_and_reopen() } else { kit.kill_and_reopen() };
        for known in [f, g, d] {
            assert_eq!(kit.view.resolve(known).expect("found"), known.ino);
        }
        let e = kit.view.lookup(&kit.caller, ROOT, b"e").expect("found").ino;
        assert_eq!((handle(&kit, ROOT, "g"), handle(&kit, e, "f"), handle(&kit, ROOT, "e")), (f, g, d));
    }
}

#[test]
fn what_is_removed_while_nobody_holds_it_is_stale_and_its_name_leads_to_another() {
    let kit = kit();
    let directory = kit.view.create_directory(&kit.caller, ROOT, b"d", 0o755).expect("made").ino;
    make(&kit, directory, "f");
    let (d, f) = (handle(&kit, ROOT, "d"), handle(&kit, directory, "f"));
    let kit = kit.kill_and_reopen();
    let directory = kit.view.lookup(&kit.caller, ROOT, b"d").expect("found").ino;
    kit.view.unlink(&kit.caller, directory, b"f").expect("removed");
    kit.view.remove_directory(&kit.caller, ROOT, b"d").expect("removed");
    kit.view.create_directory(&kit.caller, ROOT, b"d", 0o755).expect("made");
    assert_eq!(errno(kit.view.resolve(d)), ESTALE);
    let kit = kit.kill_and_reopen();
    assert_eq!(errno(kit.view.resolve(d)), ESTALE);
    assert_eq!(errno(kit.view.resolve(f)), ESTALE);
    assert_ne!(handle(&kit, ROOT, "d"), d);
}

#[test]
fn a_restored_file_at_the_old_name_of_a_renamed_one_leaves_that_one_its_handle() {
    for is_reopened in [false, true] {
        let mut kit = kit();
        make(&kit, ROOT, "a");
        let renamed = handle(&kit, ROOT, "a");
        kit.rename("a", "b", RenameMode::Replace).expect("renamed");
        make(&kit, ROOT, "a");
        let both = kit.commit();
        kit.unlink("a").expect("removed");
        let head = kit.commit();
        if is_reopened {
            kit = kit.kill_and_reopen();
        }
        kit.view.restore(both, Some(head)).expect("restored");
        assert_eq!(kit.view.resolve(renamed).expect("found"), renamed.ino);
        assert_eq!(handle(&kit, ROOT, "b"), renamed);
        assert_ne!(handle(&kit, ROOT, "a").ino, renamed.ino);
    }
}

#[test]
fn without_a_table_nothing_is_issued() {
    let scratch = tempfile::tempdir().expect("a directory");
    let kit = Kit::at(&Store::in_memory(), &scratch.path().join("journal"), options());
    let ino = make(&kit, ROOT, "f");
    kit.view.hold(ino);
    assert_eq!(kit.view.issue_handles(&[ino]), [None]);
    assert_eq!(errno(kit.view.resolve(Handle { ino, generation: 1 })), ESTALE);
    assert!(!scratch.path().join("journal/handles").exists());
}
