//! A view at the limits of what a tree can hold: whatever it takes can be committed, verified and done again after a kill, and it
//! takes exactly what the tree takes.

use std::ops::ControlFlow;

use amalgam_engine::verify::{VerifyOptions, verify};
use amalgam_engine::work::{RenameMode, Special};
use amalgam_engine::workspace::{Change, NewWorkspace, Workspaces};
use amalgam_engine::{DEPTH_MAX, NAME_BYTES_MAX, Name, OperationContext, Store, TreePath, WorkingTree};
use amalgam_view::{Ino, ROOT, SetAttributes, XattrSet, holds_same};
use proptest::prelude::*;

use crate::kit::{Kit, errno, main_workspace, now};

const ENAMETOOLONG: i32 = 36;

/// A directory so many names deep, made by the view.
fn deep(kit: &Kit, names: usize) -> Ino {
    (0..names).fold(ROOT, |parent, _| kit.view.create_directory(&kit.caller, parent, b"d", 0o755).expect("mkdir").ino)
}

fn verified(store: &Store) {
    let report = verify(store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(())).expect("a report");
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_name_one_level_too_deep_is_refused_however_it_is_made() {
    let kit = Kit::new();
    let (view, caller) = (&kit.view, &kit.caller);
    let deepest = deep(&kit, DEPTH_MAX);
    let file = kit.file("file", b"bytes");
    kit.directory("empty");
    let refused = [
        errno(view.create(caller, deepest, b"x", 0o644)),
        errno(view.create_directory(caller, deepest, b"x", 0o755)),
        errno(view.create_symlink(caller, deepest, b"x", b"target")),
        errno(view.create_special(caller, deepest, b"x", Special::Fifo, 0o644)),
        errno(view.link(caller, file, deepest, b"x")),
        errno(view.rename(caller, (ROOT, b"file"), (deepest, b"x"), RenameMode::Replace)),
        errno(view.rename(caller, (ROOT, b"empty"), (deepest, b"x"), RenameMode::NoReplace)),
    ];
    assert_eq!(refused, [ENAMETOOLONG; 7]);
    assert_eq!(view.lookup(caller, deepest, b"x").expect_err("nothing was left").errno(), 2);
    kit.file("later", b"after all that");
    view.sync().expect("synced");
    let kit = kit.kill_and_reopen();
    assert_eq!((kit.read_path("later"), kit.read_path("file")), (b"after all that".to_vec(), b"bytes".to_vec()));
    assert_eq!((kit.recovered.skipped_edits, &kit.recovered.kept), (0, &None));
    kit.commit();
    verified(kit.workspaces.store());
}

#[test]
fn a_rename_counts_the_names_below_what_it_moves() {
    let kit = Kit::new();
    let (view, caller) = (&kit.view, &kit.caller);
    let above = deep(&kit, DEPTH_MAX - 3);
    kit.directory("tree");
    kit.directory("tree/below");
    kit.file("tree/below/file", b"");
    // Three names below a directory that has room for three.
    view.rename(caller, (ROOT, b"tree"), (above, b"tree"), RenameMode::Replace).expect("it just fits");
    view.rename(caller, (above, b"tree"), (ROOT, b"tree"), RenameMode::Replace).expect("back");
    kit.directory("tree/below/more");
    kit.file("tree/below/more/file", b"");
    let too_deep = view.rename(caller, (ROOT, b"tree"), (above, b"tree"), RenameMode::Replace);
    assert_eq!(errno(too_deep), ENAMETOOLONG);
    kit.commit();
    verified(kit.workspaces.store());
}

/// What is done, in one of the directories that a case begins with.
#[derive(Clone, Debug)]
enum Step {
    Create { at: Spot },
    MakeDirectory { at: Spot },
    Symlink { at: Spot, bytes: usize },
    Fifo { at: Spot },
    Link { from: Spot, to: Spot },
    Rename { from: Spot, to: Spot, mode: RenameMode },
    Remove { at: Spot },
    Write { at: Spot, offset: u64 },
    Truncate { at: Spot, size: u64 },
    Xattr { at: Spot, name: usize, bytes: usize },
    Commit,
}

/// A place below one of the directories that a case begins with.
#[derive(Clone, Debug)]
struct Spot {
    anchor: usize,
    names: Vec<usize>,
}

/// Names of both ends of what is allowed, and one beyond it.
fn name(number: usize) -> Vec<u8> {
    match number {
        0 => b"a".to_vec(),
        1 => b"b".to_vec(),
        2 => vec![b'n'; NAME_BYTES_MAX],
        _ => vec![b'n'; NAME_BYTES_MAX + 1],
    }
}

fn spot() -> impl Strategy<Value = Spot> {
    let names =
        proptest::collection::vec(prop_oneof![6 => Just(0_usize), 3 => Just(1), 2 => Just(2), 1 => Just(3)], 1..5);
    (prop_oneof![4 => Just(0_usize), 4 => Just(1), 1 => Just(2)], names)
        .prop_map(|(anchor, names)| Spot { anchor, names })
}

fn around(limit: u64) -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(limit - 1), Just(limit), Just(limit + 1)]
}

fn step() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![Just(RenameMode::Replace), Just(RenameMode::NoReplace), Just(RenameMode::Exchange)];
    let file_bytes = i64::MAX as u64;
    prop_oneof![
        4 => spot().prop_map(|at| Step::Create { at }),
        6 => spot().prop_map(|at| Step::MakeDirectory { at }),
        1 => (spot(), around(4_095)).prop_map(|(at, bytes)| Step::Symlink { at, bytes: bytes as usize }),
        1 => spot().prop_map(|at| Step::Fifo { at }),
        5 => (spot(), spot()).prop_map(|(from, to)| Step::Link { from, to }),
        6 => (spot(), spot(), mode).prop_map(|(from, to, mode)| Step::Rename { from, to, mode }),
        2 => spot().prop_map(|at| Step::Remove { at }),
        2 => (spot(), around(file_bytes - 1)).prop_map(|(at, offset)| Step::Write { at, offset }),
        2 => (spot(), around(file_bytes)).prop_map(|(at, size)| Step::Truncate { at, size }),
        3 => (spot(), around(255), around(65_536))
            .prop_map(|(at, name, bytes)| Step::Xattr { at, name: name as usize, bytes: bytes as usize }),
        1 => Just(Step::Commit),
    ]
}

/// A view and a tree that are to be alike.
struct Pair {
    kit: Kit,
    tree: WorkingTree,
    anchors: [TreePath; 3],
    /// Their numbers in the view of this life.
    inodes: Vec<Ino>,
}

impl Pair {
    /// Both with the root, a directory as deep as leaves room for two names, and one whose path is nearly as long as a hard link's may be.
    fn new() -> Self {
        let store = Store::in_memory();
        let long = vec!["l".repeat(NAME_BYTES_MAX); 1_023].join("/");
        let anchors = ["".to_owned(), ["d"].repeat(DEPTH_MAX - 2).join("/"), long];
        let anchors = anchors.map(|path| TreePath::new(path).expect("a path"));
        // Made by the tree, which scans each path a few times: the view would journal and check thousands of paths of up to 256 KiB.
        let (workspaces, name) = (Workspaces::of(&store), main_workspace());
        workspaces.create(&name, &NewWorkspace::default(), &OperationContext::new("test", now())).expect("a workspace");
        let mut tree = workspaces.open(&name).expect("a tree");
        for path in &anchors {
            // What most steps meet: two directories, which leave no room below the deep one, and a file.
            let a = path.join(&Name::new(b"a").expect("a name"));
            tree.create_directories(&a.join(&Name::new(b"a").expect("a name"))).expect("made");
            tree.create(&path.join(&Name::new(b"b").expect("a name")), 0o644).expect("made");
        }
        workspaces
            .commit(&name, &mut tree, &Change::new("anchors"), &OperationContext::new("test", now()))
            .expect("committed");
        let tree = workspaces.open(&name).expect("a tree");
        let kit = Kit::over(&store);
        let mut pair = Self { kit, tree, anchors, inodes: Vec::new() };
        pair.look_up_anchors();
        pair
    }

    fn look_up_anchors(&mut self) {
        let (view, caller) = (&self.kit.view, &self.kit.caller);
        let look_up =
            |here, name: &amalgam_engine::Name| view.lookup(caller, here, name.as_bytes()).expect("there").ino;
        let inodes = self.anchors.iter().map(|path| path.names().fold(ROOT, |here, name| look_up(here, &name)));
        self.inodes = inodes.collect();
    }

    /// The path of a spot; nothing when there is no such path.
    fn path(&self, spot: &Spot) -> Option<TreePath> {
        let mut bytes = self.anchors[spot.anchor].as_bytes().to_vec();
        for number in &spot.names {
            if !bytes.is_empty() {
                bytes.push(b'/');
            }
            bytes.extend(name(*number));
        }
        TreePath::new(bytes).ok()
    }

    /// The directory of a spot in the view, and its name.
    fn place(&self, spot: &Spot) -> Option<(Ino, Vec<u8>)> {
        let (last, above) = spot.names.split_last().expect("it has a name");
        let mut here = self.inodes[spot.anchor];
        for number in above {
            here = self.kit.view.lookup(&self.kit.caller, here, &name(*number)).ok()?.ino;
        }
        Some((here, name(*last)))
    }

    fn ino(&self, spot: &Spot) -> Option<Ino> {
        let (parent, name) = self.place(spot)?;
        Some(self.kit.view.lookup(&self.kit.caller, parent, &name).ok()?.ino)
    }

    /// Does a step to both; whether each took it.
    fn apply(&mut self, step: &Step) -> Option<(bool, bool)> {
        let (view, caller) = (self.kit.view.clone(), self.kit.caller.clone());
        Some(match step {
            Step::Create { at } => {
                let (parent, name) = self.place(at)?;
                (view.create(&caller, parent, &name, 0o644).is_ok(), self.at(at, |tree, path| tree.create(path, 0o644)))
            }
            Step::MakeDirectory { at } => {
                let (parent, name) = self.place(at)?;
                let made = view.create_directory(&caller, parent, &name, 0o755).is_ok();
                (made, self.at(at, |tree, path| tree.create_directory(path, 0o755)))
            }
            Step::Symlink { at, bytes } => {
                let (parent, name) = self.place(at)?;
                let target = vec![b't'; *bytes];
                let made = view.create_symlink(&caller, parent, &name, &target).is_ok();
                (made, self.at(at, |tree, path| tree.symlink(path, &target)))
            }
            Step::Fifo { at } => {
                let (parent, name) = self.place(at)?;
                let made = view.create_special(&caller, parent, &name, Special::Fifo, 0o644).is_ok();
                (made, self.at(at, |tree, path| tree.create_special(path, Special::Fifo, 0o644)))
            }
            Step::Link { from, to } => {
                let (ino, existing, (parent, name)) = (self.ino(from)?, self.path(from)?, self.place(to)?);
                let linked = view.link(&caller, ino, parent, &name).is_ok();
                (linked, self.at(to, |tree, path| tree.link(&existing, path)))
            }
            Step::Rename { from, to, mode } => {
                let (source, target, from) = (self.place(from)?, self.place(to)?, self.path(from)?);
                let moved = view.rename(&caller, (source.0, &source.1), (target.0, &target.1), *mode).is_ok();
                (moved, self.at(to, |tree, path| tree.rename(&from, path, *mode)))
            }
            Step::Remove { at } => {
                let (parent, name) = self.place(at)?;
                let removed = view.unlink(&caller, parent, &name).is_ok();
                (removed, self.at(at, |tree, path| tree.remove(path)))
            }
            Step::Write { at, offset } => {
                let ino = self.ino(at)?;
                let written = view.write(&caller, ino, *offset, b"x").is_ok();
                (written, self.at(at, |tree, path| tree.write_at(path, *offset, b"x")))
            }
            Step::Truncate { at, size } => {
                let set = SetAttributes { size: Some(*size), ..SetAttributes::default() };
                let cut = view.set_attributes(&caller, self.ino(at)?, &set).is_ok();
                (cut, self.at(at, |tree, path| tree.truncate(path, *size)))
            }
            Step::Xattr { at, name, bytes } => {
                let (name, value) = ([&b"user."[..], &vec![b'x'; name.saturating_sub(5)]].concat(), vec![1; *bytes]);
                let set = view.set_xattr(&caller, self.ino(at)?, &name, &value, XattrSet::Either).is_ok();
                (set, self.at(at, |tree, path| tree.set_xattr(path, &name, &value)))
            }
            Step::Commit => return None,
        })
    }

    /// Does something to the tree; false where there is no such path.
    fn at(&mut self, spot: &Spot, act: impl FnOnce(&mut WorkingTree, &TreePath) -> amalgam_engine::Result<()>) -> bool {
        self.path(spot).is_some_and(|path| act(&mut self.tree, &path).is_ok())
    }

    fn kill(mut self) -> Self {
        self.kit = self.kit.kill_and_reopen();
        self.look_up_anchors();
        assert_eq!(self.kit.recovered.skipped_edits, 0, "{:?}", self.kit.recovered);
        self.demand_alike("after a kill");
        self
    }

    fn demand_alike(&self, when: &str) {
        assert!(
            holds_same(&self.tree, &self.kit.view.fork()).expect("compared"),
            "the view and the tree differ {when}"
        );
    }
}

/// Cases of the test below, each of which begins with thousands of directories: one, or more in a long run (`make soak`).
fn cases() -> u32 {
    if std::env::var_os("AMALGAM_ROUNDS").is_some() { 16 } else { 1 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_view_takes_at_the_limits_is_committed_and_comes_back(steps in proptest::collection::vec(step(), 40..120)) {
        let mut pair = Pair::new();
        for step in &steps {
            match step {
                Step::Commit => drop(pair.kit.commit()),
                step => {
                    if let Some((view, tree)) = pair.apply(step) {
                        prop_assert_eq!(view, tree, "{:?}", step);
                    }
                }
            }
        }
        pair.demand_alike("at the end");
        pair = pair.kill();
        pair.kit.commit();
        verified(pair.kit.workspaces.store());
        let kit = pair.kit.close_and_reopen();
        prop_assert!(holds_same(&pair.tree, &kit.view.fork()).expect("compared"));
    }
}
