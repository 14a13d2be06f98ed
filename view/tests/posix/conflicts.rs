//! Conflicts that a file stands for: whatever changes of it puts that file in the conflict's place, or nothing.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use amalgam_engine::conflict::Exchange;
use amalgam_engine::object::{Conflict, Entry, Node, Settled};
use amalgam_engine::workspace::{Change, NewWorkspace, Workspaces};
use amalgam_engine::{OperationContext, RootId, Store, Time, TreePath, WorkingTree};
use amalgam_view::{SetAttributes, ViewOptions, XattrSet};

use crate::kit::{ENOSPC, Kit, Small, main_workspace, now, options};

fn written(store: &Store, tree: &WorkingTree) -> RootId {
    let session = store.session();
    let root = tree.freeze().write(&session).expect("written");
    session.write_all_ahead().expect("written");
    root
}

/// A workspace with a conflict at `c`, and what shows it as a file with these bytes.
fn conflicted(store: &Store, shown: &[u8]) -> ViewOptions {
    let mut parts = WorkingTree::new(store);
    for (name, bytes) in [("ours", &b"1"[..]), ("base", b"2"), ("theirs", b"3"), ("shown", shown)] {
        parts.write(name, bytes).expect("written");
    }
    let root = written(store, &parts);
    let parts = WorkingTree::open_root(store, root).expect("opened");
    let part = |name: &str| parts.stat(name).expect("read").and_then(|stat| stat.entry);
    let terms = ["ours", "base", "theirs"].map(part).to_vec();
    let Ok(Settled::Conflicted(conflict)) = Conflict::settle(terms) else { panic!("they disagree") };
    let mut exchange = Exchange::new(store, root, &[]).expect("begun");
    let entry = Entry::new(Node::Conflict(Arc::new(conflict)), 0, Time::EPOCH);
    exchange.set(&TreePath::new("c").expect("a path"), Some(&entry)).expect("set");
    let root = exchange.finish().expect("put together").1;
    let (workspaces, name, act) = (Workspaces::of(store), main_workspace(), OperationContext::new("test", now()));
    workspaces.create(&name, &NewWorkspace::default(), &act).expect("made");
    let mut tree = WorkingTree::open_root(store, root).expect("opened");
    workspaces.commit(&name, &mut tree, &Change::new("a conflict"), &act).expect("committed");
    let shown = part("shown");
    ViewOptions { show_conflict: Some(Arc::new(move |_, _, _| Ok(shown.clone()))), ..options() }
}

fn is_conflict(kit: &Kit) -> bool {
    let stat = kit.view.fork().stat("c").expect("read").expect("there");
    matches!(stat.entry, Some(Entry { node: Node::Conflict(_), .. }))
}

#[test]
fn an_empty_file_that_stands_for_a_conflict_can_be_changed() {
    let store = Store::in_memory();
    let options = conflicted(&store, b"");
    let scratch = tempfile::tempdir().expect("a directory");
    let mode = |kit: &Kit| {
        let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        kit.view.set_attributes(&kit.caller, kit.ino("c"), &set).expect("chmod");
    };
    let xattr = |kit: &Kit| {
        kit.view.set_xattr(&kit.caller, kit.ino("c"), b"user.a", b"1", XattrSet::Either).expect("set");
    };
    let bytes = |kit: &Kit| kit.write(kit.ino("c"), 0, b"decided");
    let changes: [&dyn Fn(&Kit); 3] = [&mode, &xattr, &bytes];
    for (number, (change, after)) in changes.into_iter().zip([&b""[..], b"", b"decided"]).enumerate() {
        let at = scratch.path().join(number.to_string());
        let kit = Kit::at(&store, &at, options.clone());
        assert!(is_conflict(&kit));
        change(&kit);
        assert!(!is_conflict(&kit));
        assert_eq!(kit.read_path("c"), after);
        let before = kit.attributes(kit.ino("c"));
        let again = Kit::at(&store, &at, options.clone());
        assert_eq!(again.read_path("c"), after, "and after a kill");
        assert_eq!(again.attributes(again.ino("c")).mode, before.mode);
    }
}

/// Leaves so many bytes on a file system.
fn fill(at: &Path, left: u64) {
    let filled = at.join("ballast");
    let room = rustix::fs::statvfs(at).expect("its room");
    fs::write(filled, vec![0; (room.f_bavail * room.f_frsize - left) as usize]).expect("filled");
}

#[test]
fn a_conflict_stays_when_there_is_no_room_for_the_file_in_its_place() {
    let Some(small) = Small::new(1 << 20) else {
        return amalgam_test_support::skip("root", "a small file system cannot be mounted here");
    };
    let store = Store::in_memory();
    let options = conflicted(&store, &[b'x'; 300_000]);
    let at = small.path().join("journal");
    let kit = Kit::at(&store, &at, options.clone());
    // Room for names, not for the bytes; then for the file, but not for what is written to it.
    for (left, more) in [(8 << 10, 1), (400_000, 200_000)] {
        fill(small.path(), left);
        let ino = kit.ino("c");
        let refused = kit.view.write(&kit.caller, ino, 0, &vec![b'y'; more]).expect_err("no room");
        assert_eq!(refused.errno(), ENOSPC, "{refused}");
        assert!(is_conflict(&kit), "with room for {left} bytes");
        assert_eq!(kit.read(ino), [b'x'; 300_000]);
        assert!(kit.view.is_clean());
        assert!(is_conflict(&Kit::at(&store, &small.path().join("again"), options.clone())));
        fs::remove_file(small.path().join("ballast")).expect("make room");
    }
    kit.write(kit.ino("c"), 0, b"y");
    assert!(!is_conflict(&kit));
    assert_eq!(kit.read_path("c")[..2], *b"yx");
    drop(kit);
    let kit = Kit::at(&store, &at, options);
    assert_eq!(kit.read_path("c")[..2], *b"yx", "and after a kill");
    assert_eq!(kit.recovered.cut_bytes, 0);
}
