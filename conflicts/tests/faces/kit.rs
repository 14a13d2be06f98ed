//! A store with one version of everything, and trees that hold conflicts of them.

use std::sync::Arc;

use amalgam_conflicts::{KnownRendering, ReadBack, RenderedTree, Style, read_back};
use amalgam_engine::conflict::{Exchange, PlacedConflict};
use amalgam_engine::object::{Conflict, Entry, Node, Settled};
use amalgam_engine::work::Special;
use amalgam_engine::{EntryKind, RootId, Store, Time, TreePath, WorkingTree};

pub const STYLES: [Style; 4] = [Style::Markers, Style::Ours, Style::Theirs, Style::Base];

/// A name for each kind of conflict, and its terms by their names among the parts; `-` is absence.
pub const KINDS: [(&str, &[&str]); 10] = [
    ("text", &["ours", "base", "theirs"]),
    ("binary", &["binary-ours", "binary-base", "binary-theirs"]),
    ("added", &["ours", "-", "theirs"]),
    ("removed", &["-", "base", "theirs"]),
    ("directories", &["d-ours", "d-base", "d-theirs"]),
    ("file-directory", &["ours", "-", "d-theirs"]),
    ("directory-file", &["d-ours", "-", "theirs"]),
    ("symlinks", &["link-ours", "link-base", "link-theirs"]),
    ("special", &["fifo", "base", "link-theirs"]),
    ("many", &["ours", "base", "theirs", "binary-base", "long"]),
];

/// The parts that random conflicts are made of.
const POOL: [&str; 14] = [
    "-",
    "ours",
    "base",
    "theirs",
    "binary-ours",
    "binary-base",
    "d-ours",
    "d-base",
    "d-theirs",
    "link-ours",
    "fifo",
    "empty",
    "long",
    "executable",
];

pub type Kind = (&'static str, &'static [&'static str]);

pub fn all_kinds() -> Vec<Kind> {
    KINDS.to_vec()
}

pub struct World {
    pub store: Store,
    pub parts: RootId,
    tree: WorkingTree,
}

impl World {
    pub fn new() -> Self {
        let store = Store::in_memory();
        let mut tree = WorkingTree::new(&store);
        for side in ["ours", "base", "theirs"] {
            tree.set_now(Time(1_000_000_000_000 + side.len() as i64));
            tree.write(side, format!("{side}\n").as_bytes()).expect("written");
            tree.write(format!("binary-{side}"), format!("\0{side}").as_bytes()).expect("written");
            let directory = format!("d-{side}");
            tree.create_directory(&directory, 0o755).expect("made");
            tree.write(format!("{directory}/file"), side.as_bytes()).expect("written");
            tree.write(format!("{directory}/linked"), side.as_bytes()).expect("written");
            tree.link(format!("{directory}/linked"), format!("{directory}/again")).expect("linked");
            tree.symlink(format!("link-{side}"), side).expect("made");
        }
        tree.create_special("fifo", Special::Fifo, 0o600).expect("made");
        tree.write("empty", b"").expect("written");
        let long: String = (0..400).map(|line| format!("line {line}\n")).collect();
        tree.write("long", long.as_bytes()).expect("written");
        tree.write("executable", b"#!/bin/sh\n").expect("written");
        tree.set_mode("executable", 0o755).expect("set");
        let parts = tree.freeze().write(&store.session()).map(|root| (root, store.session()));
        let (parts, _) = parts.expect("written");
        let tree = Self::stored(&store, &tree);
        Self { store, parts, tree }
    }

    /// The tree once more, read from the store, so that its entries are stored ones.
    fn stored(store: &Store, tree: &WorkingTree) -> WorkingTree {
        let session = store.session();
        let root = tree.freeze().write(&session).expect("written");
        session.write_all_ahead().expect("written");
        WorkingTree::open_root(store, root).expect("opened")
    }

    pub fn path(&self, path: &str) -> TreePath {
        TreePath::new(path).expect("a path")
    }

    pub fn part(&self, name: &str) -> Option<Entry> {
        let entry = self.tree.stat(name).ok().flatten().and_then(|stat| stat.entry);
        assert!(name == "-" || entry.is_some(), "{name}");
        entry
    }

    /// A tree with these conflicts, and something ordinary around them.
    pub fn tree(&self, kinds: &[Kind]) -> (RootId, Vec<PlacedConflict>) {
        self.tree_with(kinds, &[])
    }

    pub fn tree_with(&self, kinds: &[Kind], plain: &[(&str, &str)]) -> (RootId, Vec<PlacedConflict>) {
        let conflicts = kinds.iter().map(|(name, terms)| {
            let terms = terms.iter().map(|term| self.part(term)).collect();
            let Ok(Settled::Conflicted(conflict)) = Conflict::settle(terms) else { panic!("{name} disagrees") };
            (self.path(name), conflict)
        });
        self.build(conflicts.collect(), plain)
    }

    /// The same with terms by their place in the pool, as far as they disagree; some of it in directories.
    pub fn tree_of_picks(&self, picks: &[Vec<usize>]) -> (RootId, Vec<PlacedConflict>) {
        let mut conflicts = Vec::new();
        for (at, picks) in picks.iter().enumerate() {
            let odd = picks.len() - usize::from(picks.len() % 2 == 0);
            let terms = picks[..odd].iter().map(|pick| self.part(POOL[*pick])).collect();
            let place = ["a", "sub/b", "sub/deep/c"][at % 3];
            if let Ok(Settled::Conflicted(conflict)) = Conflict::settle(terms) {
                conflicts.push((self.path(&format!("{place}{at}")), conflict));
            }
        }
        self.build(conflicts, &[])
    }

    fn build(&self, conflicts: Vec<(TreePath, Conflict)>, plain: &[(&str, &str)]) -> (RootId, Vec<PlacedConflict>) {
        let mut around = WorkingTree::new(&self.store);
        around.set_now(Time(2_000_000_000_000));
        around.create_directories("sub/deep").expect("made");
        around.write("sub/neighbour", b"quiet\n").expect("written");
        around.write("linked", b"twice").expect("written");
        around.link("linked", "sub/linked").expect("linked");
        let session = self.store.session();
        let root = around.freeze().write(&session).expect("written");
        session.write_all_ahead().expect("written");
        let mut exchange = Exchange::new(&self.store, root, &[self.parts]).expect("begun");
        let mut placed = Vec::new();
        for (path, conflict) in conflicts {
            let conflict = Arc::new(conflict);
            let entry = Entry::new(Node::Conflict(Arc::clone(&conflict)), 0, Time::EPOCH);
            exchange.set(&path, Some(&entry)).expect("set");
            placed.push(PlacedConflict { path, conflict });
        }
        for (path, part) in plain {
            exchange.set(&self.path(path), self.part(part).as_ref()).expect("set");
        }
        placed.sort_by(|a, b| a.path.cmp(&b.path));
        (exchange.finish().expect("put together").1, placed)
    }

    pub fn faced(&self, kinds: &[Kind]) -> (RootId, RenderedTree) {
        let (tree, placed) = self.tree(kinds);
        (tree, RenderedTree::new(&self.store, tree, &placed, Style::Markers).expect("faced"))
    }

    pub fn back(&self, root: RootId, faced: &RenderedTree) -> ReadBack {
        let known = [KnownRendering { rendered: faced, is_written: false, paths: None }];
        read_back(&self.store, root, &known).expect("read back")
    }

    /// A tree with an edit.
    pub fn edited(&self, root: RootId, edit: impl FnOnce(&mut WorkingTree)) -> RootId {
        let mut tree = WorkingTree::open_root(&self.store, root).expect("opened");
        tree.set_now(Time(3_000_000_000_000));
        edit(&mut tree);
        let session = self.store.session();
        let root = tree.freeze().write(&session).expect("written");
        session.write_all_ahead().expect("written");
        root
    }

    pub fn read(&self, root: RootId, path: &str) -> Vec<u8> {
        WorkingTree::open_root(&self.store, root).expect("opened").read(path).expect("read")
    }

    pub fn kind(&self, root: RootId, path: &str) -> Option<EntryKind> {
        self.entry(root, path).map(|entry| entry.kind())
    }

    pub fn entry(&self, root: RootId, path: &str) -> Option<Entry> {
        let tree = WorkingTree::open_root(&self.store, root).expect("opened");
        tree.stat(path).expect("read").and_then(|stat| stat.entry)
    }

    pub fn conflict(&self, root: RootId, path: &str) -> Arc<Conflict> {
        match self.entry(root, path).expect("there").node {
            Node::Conflict(conflict) => conflict,
            other => panic!("{path} is {other:?}"),
        }
    }
}
