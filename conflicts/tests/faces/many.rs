//! Conflicts of more than two sides: all of them shown, none lost by an edit, drafts carried through further merges.

use std::sync::Arc;

use amalgam_conflicts::{Caption, Choice, RenderedTree, Style, resolution_of, terms};
use amalgam_engine::conflict::{Exchange, PlacedConflict, conflicts};
use amalgam_engine::merge::NoContents;
use amalgam_engine::object::{Conflict, Entry, Node, Settled};
use amalgam_engine::{MergeOptions, RootId, Time, TreePath, WorkingTree};
use proptest::prelude::*;

use crate::kit::World;

const PATH: &str = "file";

/// A tree with one conflict of these texts, added and removed in turn.
fn clash(world: &World, texts: &[Option<&str>]) -> RootId {
    let mut tree = WorkingTree::new(&world.store);
    tree.set_now(Time(1));
    for (at, text) in texts.iter().enumerate() {
        text.iter().for_each(|text| tree.write(format!("part{at}"), text.as_bytes()).expect("written"));
    }
    let session = world.store.session();
    let root = tree.freeze().write(&session).expect("written");
    session.write_all_ahead().expect("written");
    let part = |at: usize| world.entry(root, &format!("part{at}"));
    let parts = (0..texts.len()).map(|at| texts[at].and_then(|_| part(at))).collect();
    let Ok(Settled::Conflicted(conflict)) = Conflict::settle(parts) else { panic!("they disagree") };
    let mut exchange = Exchange::new(&world.store, root, &[]).expect("begun");
    (0..texts.len()).for_each(|at| exchange.set(&world.path(&format!("part{at}")), None).expect("set"));
    let entry = Entry::new(Node::Conflict(Arc::new(conflict)), 0, Time::EPOCH);
    exchange.set(&world.path(PATH), Some(&entry)).expect("set");
    let (tree, root) = exchange.finish().expect("put together");
    // Kept for as long as the store: nothing is collected here.
    drop(tree);
    root
}

fn placed(world: &World, root: RootId) -> Vec<PlacedConflict> {
    conflicts(&world.store, root).expect("walked")
}

fn named(world: &World, root: RootId, names: &[&str]) -> RenderedTree {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let captions = |path: &TreePath, _: &Conflict| Caption { names: names.clone(), ..Caption::of(path) };
    RenderedTree::captioned(&world.store, root, &placed(world, root), Style::Markers, &captions).expect("faced")
}

fn text(world: &World, root: RootId) -> String {
    String::from_utf8(world.read(root, PATH)).expect("text")
}

const FIVE: [Option<&str>; 9] = [
    Some("top\nA\nend\n"),
    Some("top\n0\nend\n"),
    Some("top\nB\nend\n"),
    Some("top\n0\nend\n"),
    Some("top\nC\nend\n"),
    Some("top\n0\nend\n"),
    Some("top\nD\nend\n"),
    Some("top\n0\nend\n"),
    Some("top\nE\nend\n"),
];

#[test]
fn five_sides_are_shown_with_their_names_and_read_back_whatever_the_names() {
    let world = World::new();
    for count in [3, 5, 7, 9] {
        let tree = clash(&world, &FIVE[..count]);
        let names = ["main", "b", "c", "d", "e"];
        let faced = named(&world, tree, &names);
        let shown = text(&world, faced.rendered);
        for (name, line) in names.iter().zip(["A", "B", "C", "D", "E"]).take(count / 2 + 1) {
            assert!(shown.contains(&format!(" {name} (")) && shown.contains(&format!("\n{line}\n")), "{shown}");
        }
        assert_eq!(world.back(faced.rendered, &faced).root, tree);
        // Names are not part of it: known by others, it is the same conflict.
        let other = named(&world, tree, &["x", "y"]);
        assert_ne!(other.rendered, faced.rendered);
        let back = world.back(faced.rendered, &other);
        assert_eq!((back.root, back.still.len(), back.resolved.len()), (tree, 0, 0));
    }
}

#[test]
fn an_edit_elsewhere_in_the_file_keeps_every_side_and_only_the_region_resolves() {
    let world = World::new();
    let tree = clash(&world, &FIVE);
    let faced = named(&world, tree, &[]);
    let edited = text(&world, faced.rendered).replace("end\n", "end\nmore\n");
    let found = world.edited(faced.rendered, |tree| tree.write(PATH, edited.as_bytes()).expect("written"));
    let back = world.back(found, &faced);
    assert_eq!((back.still.len(), back.resolved.len()), (1, 0));
    let conflict = world.conflict(back.root, PATH);
    let words: Vec<_> = terms(&world.store, &conflict).expect("terms").into_iter().map(|term| term.word).collect();
    let expected =
        ["draft", "draft-base", "ours", "base", "side-2", "base-2", "side-3", "base-3", "side-4", "base-4", "theirs"];
    assert_eq!(words, expected);
    let second = named(&world, back.root, &[]);
    assert_eq!(second.rendered, found, "the draft is shown as it was left");
    let found = world.edited(second.rendered, |tree| tree.write(PATH, b"top\nall\nend\nmore\n").expect("written"));
    let back = world.back(found, &second);
    assert_eq!((back.conflicts.len(), back.resolved.len()), (0, 1));
}

#[test]
fn a_draft_is_carried_through_a_further_merge_with_markers_of_all_sides() {
    let world = World::new();
    let two = clash(&world, &FIVE[..3]);
    let faced = named(&world, two, &["main", "b"]);
    let edited = text(&world, faced.rendered).replace("end\n", "end\nmore\n");
    let found = world.edited(faced.rendered, |tree| tree.write(PATH, edited.as_bytes()).expect("written"));
    let draft = world.back(found, &faced).root;
    // What comes of one more side: the draft, less the base, plus theirs.
    let mut tree = WorkingTree::new(&world.store);
    tree.write(PATH, b"top\n0\nend\n").expect("written");
    let session = world.store.session();
    let base = tree.freeze().write(&session).expect("written");
    session.write_all_ahead().expect("written");
    let theirs = world.edited(base, |tree| tree.write(PATH, b"top\nC\nend\n").expect("written"));
    let outcome =
        amalgam_engine::merge_trees(&world.store, Some(base), draft, theirs, &NoContents, &MergeOptions::default());
    let session = world.store.session();
    let merged = outcome.expect("merged").tree.freeze().write(&session).expect("written");
    session.write_all_ahead().expect("written");
    let third = named(&world, merged, &["", "main", "b", "c"]);
    let shown = text(&world, third.rendered);
    for part in ["main (ours)", "b (side-2)", "c (theirs)", "\nA\n", "\nB\n", "\nC\n", "end\nmore\n"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert_eq!(shown.matches("<<<<<<<").count(), 1, "{shown}");
    assert_eq!(world.back(third.rendered, &third).root, merged);
}

#[test]
fn the_lines_of_all_sides_can_be_kept() {
    let world = World::new();
    let tree = clash(&world, &FIVE);
    let exchange = Exchange::new(&world.store, tree, &[]).expect("begun");
    let entry = resolution_of(&world.store, exchange.session(), &world.conflict(tree, PATH), Choice::Union, Time(2));
    let entry = entry.expect("resolved");
    let mut exchange = exchange;
    exchange.set(&world.path(PATH), entry.as_ref()).expect("set");
    let (_tree, root) = exchange.finish().expect("put together");
    assert_eq!(text(&world, root), "top\nA\nB\nC\nD\nE\nend\n");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// Every line that a side has and the base has not is in the file, and the untouched file is the same conflict.
    #[test]
    fn no_line_of_any_side_is_hidden(sides in prop::collection::vec(prop::collection::vec(0..9_u8, 0..8), 2..7)) {
        let base: String = (0..6).map(|line| format!("line {line}\n")).collect();
        let texts: Vec<String> = sides.iter().enumerate().map(|(at, lines)| {
            lines.iter().map(|line| match line {
                0..6 => format!("line {line}\n"),
                line => format!("line {line} of {at}\n"),
            }).collect()
        }).collect();
        let mut parts = vec![Some(texts[0].as_str())];
        texts[1..].iter().for_each(|text| parts.extend([Some(base.as_str()), Some(text.as_str())]));
        prop_assume!(texts.iter().all(|text| *text != base));
        let world = World::new();
        let tree = clash(&world, &parts);
        let faced = named(&world, tree, &[]);
        let shown = text(&world, faced.rendered);
        for line in texts.iter().flat_map(|text| text.lines()).filter(|line| line.contains(" of ")) {
            prop_assert!(shown.lines().any(|there| there == line), "{line} in {shown}");
        }
        prop_assert_eq!(world.back(faced.rendered, &faced).root, tree);
    }
}
