//! Through a view: a conflict is a file with markers, and what is written there takes its place.

use std::sync::Arc;

use amalgam_conflicts::{Caption, RenderCache};
use amalgam_engine::object::Owner;
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, RootId, SnapshotId, Time, WorkingTree};
use amalgam_view::{Access, Caller, CommitRequest, ConflictFiles, Kind, ROOT, View, ViewOptions};

use crate::kit::{World, all_kinds};

const NOW: Time = Time(5_000_000_000_000);

fn options() -> ViewOptions {
    let stage = Arc::new(RenderCache::default());
    ViewOptions {
        show_conflict: Some(Arc::new(move |store, path, conflict| {
            stage.render(store, path, conflict, &|path, _| Caption::of(path))
        })),
        ..ViewOptions::new(Owner { uid: 0, gid: 0 }, || NOW)
    }
}

/// A workspace whose head is this tree.
fn committed(world: &World, tree: RootId) -> (Workspaces, WorkspaceName, SnapshotId) {
    let (workspaces, name) = (Workspaces::of(&world.store), WorkspaceName::new("w").expect("a name"));
    let act = OperationContext::new("ada", NOW);
    workspaces.create(&name, &NewWorkspace::default(), &act).expect("made");
    let mut first = WorkingTree::open_root(&world.store, tree).expect("opened");
    let done = workspaces.commit(&name, &mut first, &Change::new("conflicts"), &act).expect("committed");
    (workspaces, name, done.snapshot)
}

#[test]
fn a_view_shows_markers_and_a_write_takes_the_conflicts_place() {
    let world = World::new();
    let (tree, faced) = world.faced(&all_kinds());
    let (workspaces, name, head) = committed(&world, tree);
    let act = OperationContext::new("ada", NOW);
    let journal = tempfile::tempdir().expect("a place");
    let opened = WorkingTree::open(&world.store, head).expect("opened");
    let (view, _) = View::open(opened, journal.path(), options()).expect("a view");
    let caller = Caller::owner(0, 0);
    let find = |name: &str| view.lookup(&caller, ROOT, name.as_bytes()).expect("found");
    let text = find("text");
    let shown = world.read(faced.rendered, "text");
    assert_eq!((text.kind, text.size, text.mode), (Kind::File, shown.len() as u64, 0o644));
    assert_eq!(view.read(text.ino, 0, 1 << 20).expect("read"), shown);
    // Reading changes nothing.
    assert!(view.is_clean());
    view.open_file_truncating(&caller, text.ino, Access::WRITE).expect("cut");
    view.write(&caller, text.ino, 0, b"decided\n").expect("written");
    // A write somewhere in the middle leaves what is around it.
    let added = find("added");
    view.write(&caller, added.ino, added.size, b"more\n").expect("written");
    let committed = view.commit(&workspaces, &name, &Change::new("edited"), &act, "commit").expect("committed");
    let root = world.store.snapshot(committed.snapshot).expect("read").root;
    assert_eq!(world.read(root, "text"), b"decided\n");
    assert!(world.read(root, "added").ends_with(b"]\nmore\n"));
    // Read back against the face, what has markers left is a conflict again.
    let back = world.back(root, &faced);
    assert_eq!((back.resolved.len(), back.still.len()), (1, 1));
    assert_eq!(back.conflicts.len(), all_kinds().len() - 1);
}

#[test]
fn a_commit_folds_what_was_read_back_and_leaves_what_changed_since() {
    let world = World::new();
    let (tree, faced) = world.faced(&all_kinds());
    let (workspaces, name, head) = committed(&world, tree);
    let act = OperationContext::new("ada", NOW);
    let journal = tempfile::tempdir().expect("a place");
    let opened = WorkingTree::open(&world.store, head).expect("opened");
    let (view, _) = View::open(opened, journal.path(), options()).expect("a view");
    let caller = Caller::owner(0, 0);
    let text = view.lookup(&caller, ROOT, b"text").expect("found");
    let added = view.lookup(&caller, ROOT, b"added").expect("found");
    // Both are touched and left with all their markers.
    for file in [text, added] {
        view.write(&caller, file.ino, file.size, b"more\n").expect("written");
    }
    let seen = view.fork();
    let session = world.store.session();
    let found = seen.freeze().write(&session).expect("written");
    session.write_all_ahead().expect("written");
    let back = world.back(found, &faced);
    let paths: Vec<_> = back.still.iter().map(|still| still.path.clone()).collect();
    assert_eq!(paths.len(), 2);
    // One is decided after it was looked at.
    view.open_file_truncating(&caller, text.ino, Access::WRITE).expect("cut");
    view.write(&caller, text.ino, 0, b"decided\n").expect("written");
    let conflict_files = ConflictFiles { seen, root: back.root, paths };
    let change = Change::new("edited");
    let (workspaces, name, change, act) = (&workspaces, &name, &change, &act);
    let request =
        CommitRequest { workspaces, name, change, act, action: "commit", conflict_files: Some(&conflict_files) };
    let done = view.commit_request(&request).expect("committed");
    let root = world.store.snapshot(done.snapshot).expect("read").root;
    assert_eq!(world.read(root, "text"), b"decided\n");
    let left = amalgam_engine::conflict::conflicts(&world.store, root).expect("found");
    assert_eq!(left.len(), all_kinds().len() - 1, "all but the one that was decided");
    // Whoever has the file open sees the same bytes as before, and goes on with it.
    let shown = view.read(added.ino, 0, 1 << 20).expect("read");
    assert!(shown.ends_with(b"]\nmore\n"));
    assert!(view.is_clean());
    view.write(&caller, added.ino, shown.len() as u64, b"again\n").expect("written");
    assert!(view.read(added.ino, 0, 1 << 20).expect("read").ends_with(b"]\nmore\nagain\n"));
}
