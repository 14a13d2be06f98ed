//! Through real directories: checkout of the face, capture, reading back.

use std::fs;

use amalgam_conflicts::{RenderedTree, Style};
use amalgam_engine::Time;
use amalgam_materializer::{
    CaptureOptions, CheckoutOptions, HostDir, Index, KnownContents, Progress, Rules, Scope, Times, capture, checkout,
};
use proptest::prelude::*;

use crate::kit::{STYLES, World, all_kinds};

struct Place {
    directory: tempfile::TempDir,
    host: HostDir,
    index: Index,
}

impl Place {
    fn new(world: &World, faced: &RenderedTree) -> Self {
        let directory = tempfile::tempdir().expect("a place");
        let host = HostDir::open(directory.path()).expect("opened");
        let index = Index::new(host.identity());
        let progress = Progress::default();
        let job = CheckoutOptions {
            keep_git: false,
            rules: None,
            withholds: false,
            leave_git_file: false,
            paths: None,
            times: Times::Exact,
            source: None,
            pool: None,
            progress: &progress,
        };
        let done = checkout(&world.store, &host, &index, faced.rendered, &job).expect("written");
        assert_eq!(done.notices, []);
        Self { directory, host, index }
    }

    fn capture(&mut self, world: &World) -> amalgam_engine::RootId {
        let (progress, known, rules) = (Progress::default(), KnownContents::default(), Rules::new(&[]).expect("none"));
        let now = Time(i64::MAX);
        let job = CaptureOptions { rules: &rules, scope: Scope::All, known: &known, now, progress: &progress };
        capture(&world.store, &self.host, &mut self.index, &job).expect("captured").root
    }
}

#[test]
fn a_checkout_that_nobody_touched_gives_the_same_tree_back() {
    let world = World::new();
    for style in STYLES {
        let (tree, placed) = world.tree(&all_kinds());
        let faced = RenderedTree::new(&world.store, tree, &placed, style).expect("faced");
        let mut place = Place::new(&world, &faced);
        let found = place.capture(&world);
        assert_eq!(world.back(found, &faced).root, tree, "{style:?}");
    }
}

#[test]
fn editing_the_files_of_a_checkout_resolves_one_conflict_after_another() {
    let world = World::new();
    let (_, faced) = world.faced(&all_kinds());
    let mut place = Place::new(&world, &faced);
    let at = |name: &str| place.directory.path().join(name);
    fs::write(at("text"), b"decided\n").expect("written");
    let mut text = fs::read(at("added")).expect("read");
    text.push(b'x');
    fs::write(at("added"), &text).expect("written");
    fs::remove_file(at("binary")).expect("removed");
    let found = place.capture(&world);
    let back = world.back(found, &faced);
    assert_eq!(back.resolved.iter().map(|done| done.path.to_string()).collect::<Vec<_>>(), ["binary", "text"]);
    assert_eq!(back.still.len(), 1);
    assert_eq!(world.read(back.root, "text"), b"decided\n");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn random_conflicts_survive_a_real_directory(
        picks in prop::collection::vec(prop::collection::vec(0..14_usize, 3..6), 1..6),
    ) {
        let world = World::new();
        let (tree, placed) = world.tree_of_picks(&picks);
        let faced = RenderedTree::new(&world.store, tree, &placed, Style::Markers).expect("faced");
        let found = Place::new(&world, &faced).capture(&world);
        prop_assert_eq!(world.back(found, &faced).root, tree);
    }
}
