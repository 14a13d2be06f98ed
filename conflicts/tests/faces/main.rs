//! Conflicts shown, read back and resolved: every kind, every style, random edits.

mod directory;
mod edits;
mod kit;
mod many;
mod merged;
mod mounted;
mod resolved;

use amalgam_conflicts::{KnownRendering, RenderedTree, Style, read_back};
use amalgam_engine::conflict::{conflicts, conflicts_after};
use amalgam_engine::{DiffOptions, EntryKind, Store, diff_roots};
use kit::{KINDS, STYLES, World, all_kinds};
use proptest::prelude::*;

#[test]
fn a_tree_without_conflicts_is_its_own_face() {
    let world = World::new();
    let faced = RenderedTree::new(&world.store, world.parts, &[], Style::Markers).expect("faced");
    assert_eq!((faced.tree, faced.rendered), (world.parts, world.parts));
    assert_eq!(world.back(world.parts, &faced).root, world.parts);
}

#[test]
fn a_face_has_no_conflict_and_reads_back_as_the_tree_it_is_of() {
    let world = World::new();
    for style in STYLES {
        let (tree, placed) = world.tree(&all_kinds());
        let faced = RenderedTree::new(&world.store, tree, &placed, style).expect("faced");
        assert_eq!(conflicts(&world.store, faced.rendered).expect("walked"), []);
        let back = world.back(faced.rendered, &faced);
        assert_eq!(back.root, tree, "{style:?}");
        assert_eq!(back.conflicts, placed);
        assert!(back.resolved.is_empty() && back.still.is_empty() && back.moved.is_empty());
    }
}

#[test]
fn the_conflicts_of_a_tree_follow_from_those_of_its_neighbour() {
    let world = World::new();
    let (one, first) = world.tree(&all_kinds());
    let (two, second) = world.tree(&all_kinds()[3..]);
    assert_eq!(conflicts(&world.store, one).expect("walked"), first);
    assert_eq!(conflicts_after(&world.store, one, &first, two).expect("compared"), second);
    assert_eq!(conflicts_after(&world.store, two, &second, one).expect("compared"), first);
}

#[test]
fn a_text_is_shown_with_markers_and_anything_else_by_a_version() {
    let world = World::new();
    let (tree, placed) = world.tree(&all_kinds());
    let faced = RenderedTree::new(&world.store, tree, &placed, Style::Markers).expect("faced");
    let kinds: Vec<_> = KINDS.iter().map(|(name, _)| world.kind(faced.rendered, name)).collect();
    let text = world.read(faced.rendered, "text");
    assert!(text.starts_with(b"<<<<<<< ours [amalgam ") && text.ends_with(b"1/1]\n"), "{text:?}");
    assert_eq!(world.read(faced.rendered, "binary"), b"\0ours");
    assert_eq!(world.read(faced.rendered, "removed"), b"theirs\n");
    assert_eq!(world.read(faced.rendered, "file-directory"), b"ours\n");
    assert_eq!(world.kind(faced.rendered, "directory-file"), Some(EntryKind::Directory));
    assert_eq!(world.kind(faced.rendered, "symlinks"), Some(EntryKind::Symlink));
    assert!(kinds.iter().all(Option::is_some), "{kinds:?}");
}

#[test]
fn a_side_that_is_gone_is_not_shown_where_that_side_was_asked_for() {
    let world = World::new();
    let (tree, placed) = world.tree(&all_kinds());
    let faced = RenderedTree::new(&world.store, tree, &placed, Style::Ours).expect("faced");
    assert_eq!(world.kind(faced.rendered, "removed"), None);
    assert_eq!(world.read(faced.rendered, "text"), b"ours\n");
    let faced = RenderedTree::new(&world.store, tree, &placed, Style::Base).expect("faced");
    assert_eq!(world.read(faced.rendered, "text"), b"base\n");
    assert_eq!(world.kind(faced.rendered, "added"), None);
}

#[test]
fn an_older_face_is_known_where_the_newer_was_not_written() {
    let world = World::new();
    let (old, placed) = world.tree(&all_kinds());
    let old_faced = RenderedTree::new(&world.store, old, &placed, Style::Markers).expect("faced");
    // The binary conflict was resolved by ours, which is what its face looks like.
    let (new, rest) = world.tree_with(&all_kinds()[2..], &[("binary", "binary-ours")]);
    let new_faced = RenderedTree::new(&world.store, new, &rest, Style::Markers).expect("faced");
    let written = [
        KnownRendering { rendered: &new_faced, is_written: true, paths: None },
        KnownRendering { rendered: &old_faced, is_written: false, paths: None },
    ];
    let back = read_back(&world.store, new_faced.rendered, &written).expect("read");
    assert_eq!(back.root, new);
    // Where it was not written, the older one counts.
    let elsewhere = [world.path("text")];
    let partly = [KnownRendering { paths: Some(&elsewhere), ..written[0] }, written[1]];
    let back = read_back(&world.store, old_faced.rendered, &partly).expect("read");
    assert_eq!(back.root, old);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_terms_read_back_as_they_were(picks in prop::collection::vec(prop::collection::vec(0..14_usize, 3..6), 1..6),
        style in 0..4_usize) {
        let world = World::new();
        let (tree, placed) = world.tree_of_picks(&picks);
        let faced = RenderedTree::new(&world.store, tree, &placed, STYLES[style]).expect("faced");
        prop_assert!(conflicts(&world.store, faced.rendered).expect("walked").is_empty());
        let back = world.back(faced.rendered, &faced);
        prop_assert_eq!(back.root, tree);
        let again = RenderedTree::new(&world.store, tree, &placed, STYLES[style]).expect("faced");
        prop_assert_eq!(again.rendered, faced.rendered);
    }
}

/// Whether two trees are the same but for times.
pub fn same(store: &Store, one: amalgam_engine::RootId, other: amalgam_engine::RootId) -> bool {
    diff_roots(store, Some(one), Some(other), DiffOptions::default()).expect("compared").next().is_none()
}
