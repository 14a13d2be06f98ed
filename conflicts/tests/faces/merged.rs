//! From a merge to a resolution, and merged again on the way.

use amalgam_conflicts::{RenderedTree, Style};
use amalgam_engine::conflict::{conflicts, remember, replay_all};
use amalgam_engine::merge::{MergeOptions, NoContents, merge_trees};
use amalgam_engine::{OperationContext, RootId, Time, WorkingTree};

use crate::kit::World;

fn merged(world: &World, base: RootId, ours: RootId, theirs: RootId) -> RootId {
    let done = merge_trees(&world.store, Some(base), ours, theirs, &NoContents, &MergeOptions::default());
    let session = world.store.session();
    let root = done.expect("merged").tree.freeze().write(&session).expect("written");
    session.write_all_ahead().expect("written");
    root
}

#[test]
fn a_conflict_of_a_merge_is_carried_merged_again_and_resolved_by_whoever_resolves_it() {
    let world = World::new();
    let mut tree = WorkingTree::new(&world.store);
    tree.write("file", b"a\nb\nc\n").expect("written");
    tree.write("other", b"quiet\n").expect("written");
    let session = world.store.session();
    let base = tree.freeze().write(&session).expect("written");
    session.write_all_ahead().expect("written");
    let ours = world.edited(base, |tree| tree.write("file", b"x\nb\nc\n").expect("written"));
    let theirs = world.edited(base, |tree| tree.write("file", b"y\nb\nc\n").expect("written"));
    let clash = merged(&world, base, ours, theirs);
    let placed = conflicts(&world.store, clash).expect("walked");
    assert_eq!(placed.len(), 1);
    // Somebody else goes on from theirs, and is merged as well: the conflict is the same.
    let third = world.edited(theirs, |tree| tree.write("other", b"louder\n").expect("written"));
    let carried = merged(&world, theirs, clash, third);
    assert_eq!(world.conflict(carried, "file"), world.conflict(clash, "file"));
    assert_eq!(world.read(carried, "other"), b"louder\n");
    // One resolves it in a directory, another carries it on: the resolution wins when they meet.
    let faced = RenderedTree::new(&world.store, clash, &placed, Style::Markers).expect("faced");
    assert!(world.read(faced.rendered, "file").starts_with(b"<<<<<<< ours [amalgam "));
    let edited = world.edited(faced.rendered, |tree| tree.write("file", b"z\nb\nc\n").expect("written"));
    let resolved = world.back(edited, &faced).root;
    assert_eq!(conflicts(&world.store, resolved).expect("walked"), []);
    let met = merged(&world, clash, carried, resolved);
    assert_eq!(world.read(met, "file"), b"z\nb\nc\n");
    assert_eq!(world.read(met, "other"), b"louder\n");
    // Remembered, the same merge once more needs nobody.
    let act = OperationContext::new("ada", Time(1));
    let entry = world.entry(resolved, "file");
    remember(&world.store, &placed[0].conflict, &placed[0].path, entry.as_ref(), resolved, &act).expect("remembered");
    let again = merged(&world, base, theirs, ours);
    let placed = conflicts(&world.store, again).expect("walked");
    let done = replay_all(&world.store, again, &placed).expect("replayed");
    assert!(done.left.is_empty());
    assert_eq!(world.read(done.root, "file"), b"z\nb\nc\n");
}
