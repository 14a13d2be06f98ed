//! What edits of a face mean.

use amalgam_conflicts::{
    Caption, MovedConflict, RenderedTree, StillConflicted, Style, render_text, terms, without_draft,
};
use amalgam_engine::conflict::conflicts;
use amalgam_engine::object::Node;
use amalgam_engine::work::RenameMode;
use amalgam_engine::{EntryKind, RootId, Time};
use proptest::prelude::*;

use crate::kit::{World, all_kinds};

fn again(world: &World, root: RootId) -> RenderedTree {
    let placed = conflicts(&world.store, root).expect("walked");
    RenderedTree::new(&world.store, root, &placed, Style::Markers).expect("faced")
}

#[test]
fn an_edit_without_markers_resolves() {
    let world = World::new();
    let (_, faced) = world.faced(&all_kinds());
    for name in ["text", "added", "binary", "file-directory"] {
        let found = world.edited(faced.rendered, |tree| tree.write(name, b"decided\n").expect("written"));
        let back = world.back(found, &faced);
        assert_eq!(back.resolved.len(), 1, "{name}");
        assert_eq!(world.read(back.root, name), b"decided\n");
        assert_eq!(back.conflicts.len(), all_kinds().len() - 1);
    }
}

#[test]
fn an_edit_of_a_file_that_another_side_removed_changes_that_version_and_keeps_the_conflict() {
    let world = World::new();
    let (_, faced) = world.faced(&all_kinds());
    let found = world.edited(faced.rendered, |tree| tree.write("removed", b"edited\n").expect("written"));
    let back = world.back(found, &faced);
    assert_eq!(back.still, [StillConflicted { path: world.path("removed"), regions: 0 }]);
    assert!(back.resolved.is_empty());
    assert_eq!(again(&world, back.root).rendered, found, "the edit is shown");
    let conflict = world.conflict(back.root, "removed");
    assert_eq!(conflict.terms()[0], None, "the removal is still a version");
    // As it was before both, it says that neither counts.
    let found = world.edited(faced.rendered, |tree| tree.write("removed", b"base\n").expect("written"));
    assert_eq!(world.back(found, &faced).resolved.len(), 1);
}

#[test]
fn an_edit_that_leaves_markers_is_a_draft_beside_the_versions() {
    let world = World::new();
    let (tree, faced) = world.faced(&all_kinds());
    let mut text = world.read(faced.rendered, "text");
    text.extend_from_slice(b"and more\n");
    let found = world.edited(faced.rendered, |tree| tree.write("text", &text).expect("written"));
    let back = world.back(found, &faced);
    assert_eq!(back.still, [StillConflicted { path: world.path("text"), regions: 1 }]);
    assert!(back.resolved.is_empty());
    let conflict = world.conflict(back.root, "text");
    let words: Vec<_> = terms(&world.store, &conflict).expect("terms").into_iter().map(|term| term.word).collect();
    assert_eq!(words, ["draft", "draft-base", "ours", "base", "theirs"]);
    assert_eq!(without_draft(&world.store, &conflict).expect("read"), world.conflict(tree, "text"));
    // It is shown as it was left, and goes on from there.
    let second = again(&world, back.root);
    assert_eq!(second.rendered, found);
    assert_eq!(world.back(second.rendered, &second).root, back.root);
    // Taken back, it is the conflict that it was.
    let original = world.read(faced.rendered, "text");
    let found = world.edited(second.rendered, |tree| tree.write("text", &original).expect("written"));
    assert_eq!(world.conflict(world.back(found, &second).root, "text"), world.conflict(tree, "text"));
    // And without markers it is resolved.
    let found = world.edited(second.rendered, |tree| tree.write("text", b"done\n").expect("written"));
    let back = world.back(found, &second);
    assert_eq!(world.read(back.root, "text"), b"done\n");
    assert_eq!(back.resolved.len(), 1);
}

#[test]
fn times_say_nothing_and_a_mode_is_that_of_the_version_shown() {
    let world = World::new();
    let (tree, faced) = world.faced(&all_kinds());
    let found = world.edited(faced.rendered, |tree| {
        tree.set_mtime("text", Time(9)).expect("set");
        tree.set_mtime("directories/file", Time(9)).expect("set");
    });
    let back = world.back(found, &faced);
    assert_eq!(world.conflict(back.root, "text"), world.conflict(tree, "text"));
    assert_eq!(world.conflict(back.root, "directories"), world.conflict(tree, "directories"));
    let found = world.edited(faced.rendered, |tree| tree.set_mode("text", 0o700).expect("set"));
    let back = world.back(found, &faced);
    let conflict = world.conflict(back.root, "text");
    assert_eq!(conflict.terms()[0].as_ref().map(|entry| entry.mode), Some(0o700));
    assert_eq!(conflict.terms()[1..], world.conflict(tree, "text").terms()[1..]);
    assert_eq!(world.entry(again(&world, back.root).rendered, "text").map(|entry| entry.mode), Some(0o700));
}

#[test]
fn an_edit_inside_a_directory_changes_that_version_and_keeps_the_conflict() {
    let world = World::new();
    let (tree, faced) = world.faced(&all_kinds());
    let found = world.edited(faced.rendered, |tree| tree.write("directories/new", b"kept").expect("written"));
    let back = world.back(found, &faced);
    assert!(back.resolved.is_empty());
    let (before, after) = (world.conflict(tree, "directories"), world.conflict(back.root, "directories"));
    assert_eq!(before.terms()[1..], after.terms()[1..]);
    assert_ne!(before.terms()[0], after.terms()[0]);
    assert_eq!(world.read(again(&world, back.root).rendered, "directories/new"), b"kept");
}

#[test]
fn what_is_removed_is_resolved_as_gone() {
    let world = World::new();
    let (_, faced) = world.faced(&all_kinds());
    let found = world.edited(faced.rendered, |tree| tree.remove("text").expect("removed"));
    let back = world.back(found, &faced);
    assert_eq!(world.kind(back.root, "text"), None);
    assert!(back.resolved.len() == 1 && back.resolved[0].entry.is_none());
}

#[test]
fn a_conflict_follows_its_file_to_another_name() {
    let world = World::new();
    let (tree, faced) = world.faced(&all_kinds());
    let found =
        world.edited(faced.rendered, |tree| tree.rename("text", "sub/moved", RenameMode::Replace).expect("renamed"));
    let back = world.back(found, &faced);
    assert_eq!(back.moved, [MovedConflict { from: world.path("text"), to: world.path("sub/moved") }]);
    assert_eq!(world.conflict(back.root, "sub/moved"), world.conflict(tree, "text"));
    assert_eq!(world.kind(back.root, "text"), None);
}

#[test]
fn a_second_name_for_a_marker_file_leaves_the_conflict() {
    let world = World::new();
    let (tree, faced) = world.faced(&all_kinds());
    let found = world.edited(faced.rendered, |tree| tree.link("text", "copy").expect("linked"));
    let back = world.back(found, &faced);
    assert_eq!(world.conflict(back.root, "text"), world.conflict(tree, "text"));
    assert_eq!(world.read(back.root, "copy"), world.read(faced.rendered, "text"));
    assert_eq!(world.entry(back.root, "copy").and_then(|entry| entry.link()), None);
}

/// An edit of lines.
#[derive(Clone, Debug)]
enum Edit {
    Remove(usize),
    Insert(usize, &'static str),
    Double(usize),
    Join(usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    let line = prop::sample::select(vec!["mine", "=======", "<<<<<<< HEAD", ">>>>>>> x [amalgam 00000000 1/1]", ""]);
    prop_oneof![
        any::<usize>().prop_map(Edit::Remove),
        (any::<usize>(), line).prop_map(|(at, line)| Edit::Insert(at, line)),
        any::<usize>().prop_map(Edit::Double),
        any::<usize>().prop_map(Edit::Join),
    ]
}

fn apply(text: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    for edit in edits {
        let count = lines.len().max(1);
        match edit {
            Edit::Remove(at) if !lines.is_empty() => drop(lines.remove(at % count)),
            Edit::Insert(at, line) => lines.insert(at % (lines.len() + 1), format!("{line}\n").into_bytes()),
            Edit::Double(at) if !lines.is_empty() => lines.insert(at % count, lines[at % count].clone()),
            Edit::Join(at) if !lines.is_empty() => drop(lines[at % count].pop()),
            _ => {}
        }
    }
    lines.concat()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn no_edit_of_a_marker_file_loses_a_byte(rounds in prop::collection::vec(prop::collection::vec(edit(), 0..6), 1..4)) {
        let world = World::new();
        let (tree, mut faced) = world.faced(&all_kinds());
        let versions = world.conflict(tree, "text").terms().to_vec();
        for edits in rounds {
            let text = apply(&world.read(faced.rendered, "text"), &edits);
            let found = world.edited(faced.rendered, |tree| tree.write("text", &text).expect("written"));
            let back = world.back(found, &faced);
            match world.kind(back.root, "text") {
                Some(EntryKind::File) => {
                    prop_assert_eq!(world.read(back.root, "text"), text);
                    break;
                }
                Some(EntryKind::Conflict) => {
                    let conflict = world.conflict(back.root, "text");
                    for version in &versions {
                        prop_assert!(conflict.terms().contains(version));
                    }
                    // What is shown is what was written, to the byte.
                    faced = again(&world, back.root);
                    prop_assert_eq!(world.read(faced.rendered, "text"), text);
                    prop_assert_eq!(world.back(faced.rendered, &faced).root, back.root);
                    prop_assert!(render_text(&world.store, &conflict, &Caption::default()).expect("read").is_some());
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
        prop_assert!(matches!(world.entry(tree, "text").map(|entry| entry.node), Some(Node::Conflict(_))));
    }
}
