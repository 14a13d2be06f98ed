//! Resolving, remembering and replaying.

use amalgam_conflicts::{Choice, NotResolved, resolution_file, resolution_of};
use amalgam_engine::conflict::{Exchange, conflicts, forget, remember, remembered, replay, replay_all};
use amalgam_engine::object::{Conflict, Settled};
use amalgam_engine::{OperationContext, RootId, Time};

use crate::kit::{KINDS, World, all_kinds};

const NOW: Time = Time(4_000_000_000_000);

fn resolve(world: &World, root: RootId, name: &str, choice: Choice) -> Result<RootId, NotResolved> {
    let mut exchange = Exchange::new(&world.store, root, &[]).expect("begun");
    let conflict = world.conflict(root, name);
    let entry = resolution_of(&world.store, exchange.session(), &conflict, choice, NOW)?;
    exchange.set(&world.path(name), entry.as_ref()).expect("set");
    Ok(exchange.finish().expect("put together").1)
}

#[test]
fn every_way_of_resolving_leaves_a_tree_without_that_conflict() {
    let world = World::new();
    let (tree, placed) = world.tree(&all_kinds());
    for (name, terms) in KINDS {
        let ways = [Choice::Ours, Choice::Theirs, Choice::Base, Choice::Union];
        for choice in ways.into_iter().chain((0..terms.len()).map(Choice::Term)) {
            let done = match resolve(&world, tree, name, choice) {
                Ok(done) => done,
                Err(NotResolved::NoText) if choice == Choice::Union => continue,
                Err(other) => panic!("{name} {choice:?}: {other}"),
            };
            let left = conflicts(&world.store, done).expect("walked");
            assert_eq!(left.len(), placed.len() - 1, "{name} {choice:?}");
            assert!(left.iter().all(|placed| placed.path != world.path(name)));
        }
        assert!(matches!(resolve(&world, tree, name, Choice::Term(9)), Err(NotResolved::NoTerm { .. })));
    }
    let done = resolve(&world, tree, "text", Choice::Union).expect("resolved");
    assert_eq!(world.read(done, "text"), b"ours\ntheirs\n");
    let done = resolve(&world, tree, "removed", Choice::Ours).expect("resolved");
    assert_eq!(world.kind(done, "removed"), None);
    let done = resolve(&world, tree, "directories", Choice::Theirs).expect("resolved");
    assert_eq!(world.read(done, "directories/file"), b"theirs");
}

#[test]
fn a_resolution_is_remembered_and_replayed_for_the_same_conflict() {
    let world = World::new();
    let (tree, _) = world.tree(&all_kinds());
    let act = OperationContext::new("ada", NOW);
    let store = &world.store;
    for (name, _) in KINDS {
        let conflict = world.conflict(tree, name);
        assert_eq!(replay(store, &conflict).expect("read"), None);
        let done = resolve(&world, tree, name, Choice::Theirs).expect("resolved");
        let entry = world.entry(done, name);
        let path = world.path(name);
        let first = remember(store, &conflict, &path, entry.as_ref(), done, &act).expect("remembered");
        assert!(first.is_some());
        assert!(remember(store, &conflict, &path, entry.as_ref(), done, &act).expect("remembered").is_none());
        let found = replay(store, &conflict).expect("read").expect("known");
        // Replayed into a tree, it is the resolution; replayed once more, nothing changes.
        let replayed = |root: RootId| {
            let mut exchange = Exchange::new(store, root, &[]).expect("begun");
            exchange.set(&path, found.as_ref()).expect("set");
            exchange.finish().expect("put together").1
        };
        let once = replayed(tree);
        assert!(crate::same(store, once, done) || name == "directories", "{name}");
        assert_eq!(replayed(once), once);
        // The same with the sides exchanged.
        let mut terms = conflict.terms().to_vec();
        terms.reverse();
        let Ok(Settled::Conflicted(turned)) = Conflict::settle(terms) else { panic!("they disagree") };
        assert_eq!(replay(store, &turned).expect("read").expect("known"), found);
    }
    assert_eq!(remembered(store, None, 100).expect("listed").len(), KINDS.len());
    let placed = conflicts(store, tree).expect("walked");
    let all = replay_all(store, tree, &placed).expect("replayed");
    assert!(all.left.is_empty() && all.paths.len() == KINDS.len());
    assert_eq!(conflicts(store, all.root).expect("walked"), []);
    assert_eq!(replay_all(store, all.root, &[]).expect("replayed").root, all.root);
    let conflict = world.conflict(tree, "text");
    assert!(forget(store, conflict.bare(), &act).expect("forgotten").is_some());
    assert!(forget(store, conflict.bare(), &act).expect("nothing to forget").is_none());
    assert_eq!(replay(store, &conflict).expect("read"), None);
}

#[test]
fn a_file_of_ones_own_gets_the_attributes_of_the_first_version() {
    let world = World::new();
    let (tree, _) = world.tree_of_picks(&[vec![13, 2, 3]]);
    let conflict = world.conflict(tree, "a0");
    let session = world.store.session();
    let entry = resolution_file(&session, &conflict, b"mine", NOW).expect("put");
    assert_eq!((entry.mode, entry.mtime), (0o755, NOW));
}
