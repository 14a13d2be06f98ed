//! Through a view: a conflict is a file with markers, and what is written there takes its place.

use std::sync::Arc;

use amalgam_conflicts::Stage;
use amalgam_engine::object::Owner;
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{Act, Time, WorkingTree};
use amalgam_view::{Access, Caller, Kind, ROOT, View, ViewOptions};

use crate::kit::{World, all_kinds};

const NOW: Time = Time(5_000_000_000_000);

fn options() -> ViewOptions {
    let stage = Arc::new(Stage::default());
    ViewOptions {
        conflicts: Some(Arc::new(move |store, conflict| stage.show(store, conflict))),
        ..ViewOptions::new(Owner { uid: 0, gid: 0 }, || NOW)
    }
}

#[test]
fn a_view_shows_markers_and_a_write_takes_the_conflicts_place() {
    let world = World::new();
    let (tree, faced) = world.faced(&all_kinds());
    let (workspaces, name) = (Workspaces::of(&world.store), WorkspaceName::new("w").expect("a name"));
    let act = Act::new("ada", NOW);
    workspaces.create(&name, &NewWorkspace::default(), &act).expect("made");
    let mut first = WorkingTree::open_root(&world.store, tree).expect("opened");
    let head = workspaces.commit(&name, &mut first, &Change::new("conflicts"), &act).expect("committed").snapshot;
    let journal = tempfile::tempdir().expect("a place");
    let opened = WorkingTree::open(&world.store, head).expect("opened");
    let (view, _) = View::open(opened, journal.path(), options()).expect("a view");
    let caller = Caller::owner(0, 0);
    let find = |name: &str| view.lookup(&caller, ROOT, name.as_bytes()).expect("found");
    let text = find("text");
    let shown = world.read(faced.face, "text");
    assert_eq!((text.kind, text.size, text.mode), (Kind::File, shown.len() as u64, 0o644));
    assert_eq!(view.read(text.ino, 0, 1 << 20).expect("read"), shown);
    // Reading changes nothing.
    assert!(view.is_clean());
    view.open_file(&caller, text.ino, Access::WRITE, true).expect("cut");
    view.write(&caller, text.ino, 0, b"decided\n", false).expect("written");
    // A write somewhere in the middle leaves what is around it.
    let added = find("added");
    view.write(&caller, added.ino, added.size, b"more\n", false).expect("written");
    let committed = view.commit(&workspaces, &name, &Change::new("edited"), &act, "commit").expect("committed");
    let root = world.store.snapshot(committed.snapshot).expect("read").root;
    assert_eq!(world.read(root, "text"), b"decided\n");
    assert!(world.read(root, "added").ends_with(b"]\nmore\n"));
    // Read back against the face, what has markers left is a conflict again.
    let back = world.back(root, &faced);
    assert_eq!((back.resolved.len(), back.still.len()), (1, 1));
    assert_eq!(back.conflicts.len(), all_kinds().len() - 1);
}
