//! Trees as real files: all of a tree, only what differs, and nothing that is somebody else's.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "seeds, and why something was skipped")]

mod faults;
mod kit;
mod partial;
mod races;
mod shared;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

use amalgam_engine::object::{Conflict, Device, Entry, EntryKind, Node, Settled};
use amalgam_engine::work::Special;
use amalgam_engine::{Assembly, DEPTH_MAX, Name, Time, TreePath, WorkingTree};
use amalgam_materializer::{CheckoutOptions, KnownContents, Notice, PlannedKind, Scope, Why, checkout, plan};
use amalgam_tests::model::{cases, op, ops};
use kit::{World, now, path, paths, perform_all, see, settle};
use proptest::prelude::*;

fn notice(at: &str, why: Why) -> Notice {
    Notice { path: path(at), why }
}

#[test]
fn random_trees_arrive_whole() {
    proptest!(cases(96), |(ops in ops(op(), 1..60))| {
        let world = World::new();
        let mut tree = world.tree();
        perform_all(&mut tree, &ops);
        let index = world.index();
        let done = world.checkout(&index, &tree);
        assert_eq!(done.notices, []);
        world.expect(&tree);
    });
}

#[test]
fn one_tree_becomes_another_and_what_is_equal_is_not_touched() {
    proptest!(cases(96), |(first in ops(op(), 1..50), second in ops(op(), 1..50), anew: bool)| {
        let world = World::new();
        let mut tree = world.tree();
        perform_all(&mut tree, &first);
        world.checkout(&world.index(), &tree);
        let mut index = world.look();
        let mut other = if anew { world.tree() } else { tree.fork() };
        perform_all(&mut other, &second);
        for to in [&other, &tree] {
            let before = stamps(&world);
            let from = WorkingTree::open_root(&world.store, index.root().expect("captured")).expect("it opens");
            let done = world.checkout(&index, to);
            assert_eq!(done.notices, []);
            world.expect(to);
            let after = stamps(&world);
            let to = world.stored(to);
            for (path, stamp) in &before {
                let entry = |tree: &WorkingTree| tree.stat(path.as_bytes()).ok().flatten().and_then(|stat| stat.entry);
                let (old, new) = (entry(&from), entry(&to));
                if old == new && old.as_ref().is_some_and(|old| old.link().is_none() && old.kind() != EntryKind::Directory) {
                    prop_assert_eq!(after.get(path), Some(stamp), "{} is the same", path);
                }
            }
            // What it says it touched is all that a capture has to look at, and what it says it knows is so.
            let captured = world.capture(&mut index, Scope::Directories(&done.touched), &done.known);
            let fresh = world.capture(&mut world.index(), Scope::All, &KnownContents::default());
            prop_assert_eq!(
                amalgam_tests::model::contents(&captured.tree).expect("read"),
                amalgam_tests::model::contents(&fresh.tree).expect("read")
            );
        }
    });
}

#[test]
fn what_was_written_is_not_read_again() {
    let world = World::new();
    let mut tree = world.tree();
    tree.create_directory("d", 0o755).expect("made");
    for name in ["same", "changed", "d/mode", "d/link", "loose", "d/gone"] {
        tree.write(name, name.as_bytes()).expect("written");
    }
    tree.link("loose", "d/loose").expect("linked");
    world.checkout(&world.index(), &tree);
    settle();
    let mut index = world.look();
    let mut other = tree.fork();
    other.write("changed", b"other").expect("written");
    other.set_mode("d/mode", 0o600).expect("set");
    other.link("d/link", "d/linked").expect("linked");
    other.remove("loose").expect("removed");
    other.remove("d/gone").expect("removed");
    let done = world.checkout(&index, &other);
    assert_eq!(done.notices, []);
    world.expect(&other);
    let captured = world.capture(&mut index, Scope::Directories(&done.touched), &done.known);
    assert_eq!((captured.root, captured.counts.files_read), (world.root(&other), 0));
}

const ACCESS_RULES: &str = "system.posix_acl_access";
const LENT_RULES: &str = "system.posix_acl_default";

/// Lets a directory lend rules of access to whatever is made in it: another user may do everything.
fn lend_rules(directory: &std::path::Path) {
    const NOBODY_IN_PARTICULAR: u32 = u32::MAX;
    let mut rules = 2_u32.to_le_bytes().to_vec();
    // Its owner, somebody, its group, the most for those two, others.
    let kinds = [(1, 7, NOBODY_IN_PARTICULAR), (2, 7, 4_321), (4, 5, NOBODY_IN_PARTICULAR)];
    for (kind, may, who) in kinds.into_iter().chain([(0x10, 7, NOBODY_IN_PARTICULAR), (0x20, 0, NOBODY_IN_PARTICULAR)])
    {
        rules.extend([u16::to_le_bytes(kind), u16::to_le_bytes(may)].concat());
        rules.extend(u32::to_le_bytes(who));
    }
    rustix::fs::setxattr(directory, LENT_RULES, &rules, rustix::fs::XattrFlags::empty()).expect("rules can be set");
}

/// What a checkout makes has the rules of its entry, and not those that the directory around it lends.
#[test]
fn rules_of_access_that_a_directory_lends_are_not_taken_over() {
    let world = World::new();
    let mut tree = world.tree();
    tree.create_directories("d/e").expect("made");
    for (name, mode) in [("f", 0o640), ("d/g", 0o600), ("d/e/h", 0o755)] {
        tree.write(name, name.as_bytes()).expect("written");
        tree.set_mode(name, mode).expect("set");
    }
    tree.create_special("d/pipe", Special::Fifo, 0o600).expect("made");
    tree.symlink("d/link", b"g").expect("made");
    lend_rules(world.host.path());
    fs::write(world.at("probe"), b"").expect("written");
    assert!(has_rules(&world, "probe"), "this file system lends rules");
    fs::remove_file(world.at("probe")).expect("removed");
    let done = world.checkout(&world.index(), &tree);
    assert_eq!(done.notices, []);
    world.expect(&tree);
    let below = ["f", "d", "d/g", "d/e", "d/e/h", "d/pipe", "d/link"];
    below.iter().for_each(|path| assert!(!has_rules(&world, path), "{path}"));
    assert!(has_rules(&world, ""), "what was there before lends them still");

    // Now one of the tree lends them: that stays, and what is made in it has none.
    lend_rules(&world.at("d"));
    let index = world.look();
    let captured = world.capture(&mut world.index(), Scope::All, &KnownContents::default());
    let mut other = captured.tree.fork();
    assert!(other.xattr("d", LENT_RULES.as_bytes()).expect("read").is_some());
    other.create_directories("d/sub").expect("made");
    other.write("d/sub/deep", b"deep").expect("written");
    other.write("d/g", b"changed").expect("written");
    let done = world.checkout(&index, &other);
    assert_eq!(done.notices, []);
    ["d/sub", "d/sub/deep", "d/g"].iter().for_each(|path| assert!(!has_rules(&world, path), "{path}"));
    let again = world.capture(&mut world.index(), Scope::All, &KnownContents::default());
    assert_eq!(again.root, world.root(&other), "what is there is what was wanted");
}

fn has_rules(world: &World, path: &str) -> bool {
    [ACCESS_RULES, LENT_RULES].iter().any(|name| rustix::fs::lgetxattr(world.at(path), *name, &mut [0; 0][..]).is_ok())
}

/// Inode and times of everything that is no directory.
fn stamps(world: &World) -> BTreeMap<TreePath, (u64, i64, i64, i64, i64)> {
    let all = paths(world.host.path()).into_iter().map(|path| {
        let found = world.at(path.as_bytes()).symlink_metadata().expect("it is there");
        let times = (found.ino(), found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec());
        (path, times)
    });
    all.collect()
}

#[test]
fn every_constellation_of_hard_links_becomes_every_other() {
    const NAMES: [&str; 3] = ["a", "d/b", "d/c"];
    // Each name is absent or one of two files: 27 states.
    let build = |world: &World, state: u32| {
        let mut tree = world.tree();
        tree.create_directories("d").expect("made");
        let mut first: BTreeMap<u32, &str> = BTreeMap::new();
        for (place, name) in NAMES.iter().enumerate() {
            let file = state / 3_u32.pow(place as u32) % 3;
            match first.get(&file) {
                _ if file == 0 => {}
                Some(existing) => tree.link(existing, name).expect("linked"),
                None => {
                    tree.write(name, format!("file {file}").as_bytes()).expect("written");
                    first.insert(file, name);
                }
            }
        }
        tree
    };
    let world = World::new();
    let mut index = world.look();
    for before in 0..27 {
        for after in 0..27 {
            for state in [before, after] {
                let tree = build(&world, state);
                let done = world.checkout(&index, &tree);
                assert_eq!(done.notices, [], "{before} -> {after}");
                world.expect(&tree);
                world.capture(&mut index, Scope::Directories(&done.touched), &done.known);
            }
        }
    }
}

#[test]
fn what_is_rare_arrives_too() {
    let world = World::new();
    let mut tree = world.tree();
    tree.set_now(Time(-1_234_567_890_123_456_789));
    tree.write(b"\xff\xfe", b"no text").expect("written");
    tree.write("setuid", b"#!").expect("written");
    tree.set_mode("setuid", 0o6755).expect("set");
    tree.create_directory("sticky", 0o1777).expect("made");
    tree.symlink("dangling", "nowhere/at all").expect("made");
    tree.create_special("pipe", Special::Fifo, 0o640).expect("made");
    tree.create_special("socket", Special::Socket, 0o600).expect("made");
    tree.create("sparse", 0o644).expect("made");
    tree.write_at("sparse", 100 << 20, b"data").expect("written");
    tree.write_at("sparse", (200 << 20) + 5, b"more").expect("written");
    tree.truncate("sparse", 300 << 20).expect("long");
    tree.write("large", &amalgam_tests::harness::Random::new(7).bytes(5_000_000)).expect("written");
    let done = world.checkout(&world.index(), &tree);
    assert_eq!(done.notices, []);
    world.expect(&tree);
    let sparse = world.at("sparse").metadata().expect("there");
    assert!(sparse.blocks() * 512 < 1 << 20, "{} blocks for two pages of data", sparse.blocks());
    assert_eq!((done.written, done.reflinked), (7, 0));
}

#[test]
fn devices_are_made_where_that_is_allowed_and_reported_where_not() {
    let world = World::new();
    let mut tree = world.tree();
    let device = Device { major: 1, minor: 3 };
    tree.create_special("null", Special::CharDevice(device), 0o666).expect("made");
    tree.write("file", b"x").expect("written");
    let done = world.checkout(&world.index(), &tree);
    assert_eq!(fs::read(world.at("file")).expect("there"), b"x");
    match world.at("null").symlink_metadata() {
        Ok(found) => {
            assert!(found.file_type().is_char_device());
            assert_eq!(found.rdev(), rustix::fs::makedev(1, 3));
            assert_eq!(done.notices, []);
        }
        Err(_) => assert!(matches!(&done.notices[..], [Notice { why: Why::Failed { .. }, .. }]), "{:?}", done.notices),
    }
}

#[test]
fn what_gives_rights_is_withheld_where_that_is_asked_for() {
    let world = World::new();
    let mut tree = world.tree();
    for (name, mode) in [("user", 0o4755), ("group", 0o2755), ("both", 0o6711), ("plain", 0o755)] {
        tree.write(name, b"#!").expect("written");
        tree.set_mode(name, mode).expect("set");
    }
    tree.create_directory("shared", 0o2775).expect("made");
    tree.create_special("null", Special::CharDevice(Device { major: 1, minor: 3 }), 0o666).expect("made");
    let job = CheckoutOptions { withholds: true, ..world.job() };
    let root = world.root(&tree);
    let done = checkout(&world.store, &world.host, &world.index(), root, &job).expect("checked out");
    let mode = |name: &str| world.at(name).metadata().expect("there").permissions().mode() & 0o7777;
    assert_eq!(["user", "group", "both", "plain"].map(mode), [0o755, 0o755, 0o711, 0o755]);
    assert_eq!(mode("shared"), 0o2775, "a directory gives nobody rights");
    assert!(world.at("null").symlink_metadata().is_err());
    let withheld = ["both", "group", "null", "user"].map(|name| notice(name, Why::Withheld));
    assert_eq!(done.notices, withheld);
    assert!(done.notices.iter().all(|notice| !notice.why.is_failure()));
}

#[test]
fn deep_and_long_paths_arrive() {
    let world = World::new();
    let mut tree = world.tree();
    let deep = vec!["d"; DEPTH_MAX - 1].join("/") + "/file";
    let long = vec!["n".repeat(255); 20].join("/");
    for file in [&deep, &long] {
        let (parent, _) = file.rsplit_once('/').expect("it has a parent");
        tree.create_directories(parent).expect("made");
        tree.write(file, b"at the end").expect("written");
    }
    let mut index = world.index();
    let done = world.checkout(&index, &tree);
    assert_eq!(done.notices, []);
    let captured = world.capture(&mut index, Scope::All, &KnownContents::default());
    assert_eq!(captured.tree.read(&deep).expect("read"), b"at the end");
    assert_eq!(captured.tree.read(&long).expect("read"), b"at the end");
    assert_eq!(captured.root, world.root(&tree));
    // And away again: the standard library cannot remove it.
    let done = world.checkout(&index, &world.tree());
    assert_eq!(done.notices, []);
    assert_eq!(paths(world.host.path()).len(), 1);
}

#[test]
fn a_conflict_is_shown_by_its_first_version() {
    let world = World::new();
    let mut parts = world.tree();
    parts.write("ours/file", b"ours").expect_err("no directory yet");
    parts.create_directories("ours").expect("made");
    parts.write("ours/file", b"ours").expect("written");
    parts.write("theirs", b"theirs").expect("written");
    let parts_root = world.root(&parts);
    let assembly = Assembly::new(&world.store, Some(parts_root)).expect("begun");
    let stored = world.stored(&parts);
    let entry = |at: &str| stored.stat(at).expect("read").and_then(|stat| stat.entry);
    let terms = vec![entry("ours"), None, entry("theirs")];
    let Ok(Settled::Conflicted(conflict)) = Conflict::settle(terms) else { panic!("they disagree") };
    let entry = Entry::new(Node::Conflict(conflict.into()), 0, Time::EPOCH);
    let name = Name::new(b"both").expect("a name");
    let top = assembly.directory(None, vec![(name, Some(entry))]).expect("put");
    let tree = assembly.finish(Entry::new(Node::Directory(top), 0o755, Time::EPOCH), &Default::default()).expect("put");
    let mut index = world.index();
    let done = world.checkout(&index, &tree);
    assert_eq!(done.notices, []);
    assert_eq!(fs::read(world.at("both/file")).expect("there"), b"ours");
    // What was captured of it is what is shown: nothing is left to do.
    world.capture(&mut index, Scope::All, &KnownContents::default());
    assert_eq!(world.checkout(&index, &tree).written, 0);
}

#[test]
fn a_plan_says_what_a_checkout_does() {
    let world = World::new();
    let mut tree = world.tree();
    tree.create_directories("kept/gone").expect("made");
    tree.write("kept/gone/file", b"1").expect("written");
    tree.write("kept/same", b"2").expect("written");
    tree.write("changed", b"3").expect("written");
    tree.write("mode", b"4").expect("written");
    world.checkout(&world.index(), &tree);
    let index = world.look();
    let mut other = tree.fork();
    other.remove_all("kept/gone").expect("removed");
    other.write("changed", b"three").expect("written");
    other.set_mode("mode", 0o600).expect("set");
    other.write("kept/new", b"12345").expect("written");
    let target = world.root(&other);
    let plan = plan(&world.store, &index, target, &world.job()).expect("planned");
    let said: Vec<_> = plan.changes.iter().map(|change| (change.path.to_string(), change.kind, change.bytes)).collect();
    let expected = [
        ("changed", PlannedKind::Replace, 5),
        ("kept/gone", PlannedKind::Remove, 0),
        ("kept/gone/file", PlannedKind::Remove, 0),
        ("kept/new", PlannedKind::Add, 5),
        ("mode", PlannedKind::Attributes, 0),
    ];
    assert_eq!(said, expected.map(|(path, kind, bytes)| (path.to_owned(), kind, bytes)));
    assert_eq!((plan.files, plan.bytes), (2, 10));
    let done = world.checkout(&index, &other);
    assert_eq!((done.written, done.bytes, done.removed), (2, 10, 2));
    assert_eq!(done.touched, [path(""), path("kept"), path("kept/gone")].into());
    world.expect(&other);
}

#[test]
fn what_nobody_knows_is_not_touched() {
    let world = World::new();
    fs::write(world.at("file"), b"mine").expect("written");
    fs::create_dir(world.at("dir")).expect("made");
    fs::write(world.at("dir/inside"), b"mine").expect("written");
    symlink("/etc", world.at("link")).expect("made");
    let mut tree = world.tree();
    for name in ["file", "new"] {
        tree.write(name, b"theirs").expect("written");
    }
    for name in ["dir", "link"] {
        tree.create_directory(name, 0o755).expect("made");
        tree.write(format!("{name}/inside"), b"theirs").expect("written");
    }
    let before = see(world.host.path());
    let done = world.checkout(&world.index(), &tree);
    let left = ["dir", "file", "link"].map(|at| notice(at, Why::ChangedSince));
    assert_eq!(done.notices, left);
    let after = see(world.host.path());
    for at in ["file", "dir", "dir/inside", "link"] {
        assert_eq!(after[&path(at)], before[&path(at)]);
    }
    assert_eq!(fs::read(world.at("new")).expect("there"), b"theirs");
}

#[test]
fn what_changed_since_is_left_alone_and_bystanders_stay() {
    let world = World::new();
    let mut tree = world.tree();
    tree.create_directories("emptied/deep").expect("made");
    tree.create_directories("becomes a file").expect("made");
    for name in ["replaced", "removed", "emptied/deep/file", "becomes a directory", "becomes a file/x", "mode", "quiet"]
    {
        tree.write(name, b"old").expect("written");
    }
    world.checkout(&world.index(), &tree);
    settle();
    let index = world.look();
    for name in ["replaced", "removed", "becomes a directory", "mode"] {
        fs::write(world.at(name), b"mine").expect("written");
    }
    fs::write(world.at("emptied/deep/bystander"), b"mine").expect("written");
    fs::write(world.at("becomes a file/bystander"), b"mine").expect("written");
    fs::write(world.at("added"), b"mine").expect("written");
    let mut other = world.tree();
    other.create_directory("becomes a directory", 0o755).expect("made");
    for name in ["replaced", "becomes a directory/file", "becomes a file", "added", "quiet"] {
        other.write(name, b"new").expect("written");
    }
    other.write("mode", b"old").expect("written");
    other.set_mode("mode", 0o600).expect("set");
    let done = world.checkout(&index, &other);
    let left = [
        notice("added", Why::ChangedSince),
        notice("becomes a directory", Why::ChangedSince),
        notice("becomes a file", Why::NotEmpty),
        notice("emptied", Why::NotEmpty),
        notice("emptied/deep", Why::NotEmpty),
        notice("mode", Why::ChangedSince),
        notice("removed", Why::ChangedSince),
        notice("replaced", Why::ChangedSince),
    ];
    assert_eq!(done.notices, left);
    for name in ["replaced", "removed", "becomes a directory", "mode", "emptied/deep/bystander", "added"] {
        assert_eq!(fs::read(world.at(name)).expect("there"), b"mine", "{name}");
    }
    assert_eq!(fs::read(world.at("quiet")).expect("there"), b"new");
    assert!(!world.at("emptied/deep/file").exists());
    assert!(!paths(world.host.path()).iter().any(|path| path.to_string().contains("amalgam-tmp")));
}

/// A file that is changed without its stamp showing it: a page that is mapped and dirty is written to again, and the kernel
/// is not asked.
struct Silent {
    bytes: *mut u8,
    length: usize,
}

#[expect(unsafe_code, reason = "a mapping is written to")]
impl Silent {
    fn new(at: &std::path::Path) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let file = fs::OpenOptions::new().read(true).write(true).open(at).expect("it opens");
        let length = file.metadata().expect("there").len() as usize;
        // SAFETY: the kernel chooses the address, and the file keeps its length.
        let bytes = unsafe {
            mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        };
        Self { bytes: bytes.expect("mapped").cast(), length }
    }

    fn write(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.length);
        // SAFETY: the mapping is this long, and only this thread writes to it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.bytes, self.length) };
    }
}

#[expect(unsafe_code, reason = "a mapping is given back")]
impl Drop for Silent {
    fn drop(&mut self) {
        // SAFETY: it was mapped at this length, and nobody refers to it.
        unsafe { rustix::mm::munmap(self.bytes.cast(), self.length) }.ok();
    }
}

#[test]
fn a_change_in_the_moment_of_the_look_is_left_alone() {
    let mut is_hit = 0;
    for _ in 0..10 {
        let world = World::new();
        let began = now();
        let names = ["replaced", "removed", "mode", "becomes a directory"];
        for name in names {
            fs::write(world.at(name), b"old").expect("written");
        }
        let mut silent = names.map(|name| Silent::new(&world.at(name)));
        for mapping in &mut silent {
            mapping.write(b"old");
        }
        let index = world.look_at(began);
        let stamps = || names.map(|name| world.host.stamp(&path(name)).expect("looked at").expect("there"));
        let before = stamps();
        for mapping in &mut silent {
            mapping.write(b"new");
        }
        let mut other = world.tree();
        other.write("replaced", b"their").expect("written");
        other.write("mode", b"old").expect("written");
        other.set_mode("mode", 0o600).expect("set");
        other.create_directory("becomes a directory", 0o755).expect("made");
        if stamps() != before {
            continue;
        }
        is_hit += 1;
        let done = world.checkout(&index, &other);
        let mut left = names.map(|name| notice(name, Why::ChangedSince));
        left.sort_by(|a, b| a.path.cmp(&b.path));
        assert_eq!(done.notices, left);
        for name in names {
            assert_eq!(fs::read(world.at(name)).expect("there"), b"new", "{name}");
        }
    }
    assert!(is_hit > 0, "no change was hidden behind a stamp");
}

#[test]
fn a_file_with_names_elsewhere_is_not_changed_under_them() {
    let world = World::new();
    let outside = world.temp.path().join("outside");
    let mut tree = world.tree();
    tree.write("file", b"bytes").expect("written");
    world.checkout(&world.index(), &tree);
    fs::hard_link(world.at("file"), &outside).expect("linked");
    let index = world.look();
    let before = outside.metadata().expect("there").mode();
    tree.set_mode("file", 0o600).expect("set");
    assert_eq!(world.checkout(&index, &tree).notices, []);
    assert_eq!(world.at("file").metadata().expect("there").permissions().mode() & 0o7777, 0o600);
    assert_eq!(outside.metadata().expect("there").mode(), before);
    world.expect(&tree);
}

#[test]
fn a_checkout_that_is_asked_to_stop_stops() {
    let world = World::new();
    let mut tree = world.tree();
    tree.write("file", b"x").expect("written");
    world.progress.cancel();
    let stopped = checkout(&world.store, &world.host, &world.index(), world.root(&tree), &world.job());
    assert!(matches!(stopped, Err(amalgam_materializer::Error::Cancelled)));
    assert_eq!(paths(world.host.path()).len(), 1);
}
