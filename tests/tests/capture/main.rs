//! Real directories into trees: the same however it is looked at, and only what differs is read.

#![allow(clippy::print_stderr, reason = "a failure is repeated by its seed, and what is skipped is said")]

mod hostile;
mod kit;
mod rules;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::sync::atomic::Ordering;
use std::time::Duration;

use amalgam_engine::object::{EntryKind, Node};
use amalgam_engine::verify::VerifyOptions;
use amalgam_engine::{DEPTH_MAX, Store, verify};
use amalgam_materializer::{
    Captured, Dirty, Error, Index, KnownContents, Progress, Rules, Scope, Stamp, Watcher, Why, capture,
};
use amalgam_tests::harness::{Random, seed, stored_chunks};
use amalgam_tests::model::{commit, contents, link_classes};
use kit::{World, assert_same, path, set_mtime, settle};
use rustix::fs::{CWD, Mode};

#[test]
fn a_tree_of_every_kind_is_what_it_is() {
    let world = World::new();
    fs::create_dir_all(world.at("dir/empty")).expect("made");
    fs::write(world.at("dir/file"), b"hello").expect("written");
    fs::write(world.at(b"\xff\xfe"), b"no text").expect("written");
    symlink("dir/file", world.at("link")).expect("made");
    rustix::fs::mkfifoat(CWD, world.at("pipe"), Mode::from(0o640)).expect("made");
    let sparse = fs::File::create(world.at("sparse")).expect("made");
    sparse.set_len(64 << 20).expect("long");
    sparse.write_all_at(b"data", 40 << 20).expect("written");
    set_mtime(&world.at("dir/file"), -1_000_000);
    let captured = world.fresh();
    let tree = &captured.tree;
    assert_eq!(tree.read("dir/file").expect("read"), b"hello");
    assert_eq!(tree.read(b"\xff\xfe").expect("read"), b"no text");
    assert_eq!(&tree.read_link("link").expect("read")[..], b"dir/file");
    assert_eq!(tree.stat("pipe").expect("read").map(|stat| (stat.kind, stat.mode & 0o7777)), {
        let mode = world.at("pipe").symlink_metadata().expect("there").mode();
        Some((EntryKind::Fifo, mode & 0o7777))
    });
    assert_eq!(
        tree.stat("dir/file").expect("read").map(|stat| stat.mtime.0),
        Some(-1_000_000 * 1_000_000_000 + 123_456_789)
    );
    assert_eq!(tree.read_at("sparse", 40 << 20, 4).expect("read"), b"data");
    assert!(tree.hole_at("sparse", 0).expect("read") > 39 << 20);
    assert!(tree.exists("dir/empty").expect("read"));
    let counts = captured.counts;
    assert_eq!((counts.files, counts.directories, counts.symlinks, counts.others), (3, 2, 1, 1));
    assert_eq!(counts.bytes, 5 + 7 + (64 << 20));
    assert_eq!(captured.notices, []);
}

#[test]
fn what_is_read_lies_in_the_order_of_its_paths() {
    let mut world = World::new();
    let at = world.temp.path().join("store");
    world.store = Store::open(&at).expect("opened");
    let mut random = Random::new(7);
    let mut expected = Vec::new();
    for directory in 0..60 {
        fs::create_dir(world.at(format!("{directory:02}"))).expect("made");
        for file in 0..6 {
            let bytes = random.bytes(if file == 3 { 5_000 } else { 600 });
            fs::write(world.at(format!("{directory:02}/{file}")), &bytes).expect("written");
            expected.push(bytes);
        }
    }
    let mut tree = world.fresh().tree;
    commit(&mut tree).expect("committed");
    drop((tree, world.store));
    assert!(stored_chunks(&at).expect("read") == expected, "whichever thread read them");
}

#[test]
fn attributes_are_kept() {
    let world = World::new();
    fs::write(world.at("file"), b"x").expect("written");
    fs::create_dir(world.at("dir")).expect("made");
    let set = |name: &str, key: &str, value: &[u8]| {
        rustix::fs::setxattr(world.at(name), key, value, rustix::fs::XattrFlags::empty())
    };
    if set("file", "user.small", b"1").is_err() {
        return amalgam_test_support::skip("xattr", "no extended attributes here");
    }
    set("file", "user.large", &[7; 3_000]).expect("set");
    set("dir", "user.dir", b"2").expect("set");
    let mut index = world.index();
    let tree = world.capture(&mut index).tree;
    assert_eq!(tree.xattr("file", b"user.small").expect("read").as_deref(), Some(&b"1"[..]));
    assert_eq!(tree.xattr("file", b"user.large").expect("read").map(|value| value.len()), Some(3_000));
    assert_eq!(tree.xattr("dir", b"user.dir").expect("read").as_deref(), Some(&b"2"[..]));
    // A change below does not lose the directory's own.
    fs::write(world.at("dir/new"), b"x").expect("written");
    let tree = world.capture(&mut index).tree;
    assert_eq!(tree.xattr("dir", b"user.dir").expect("read").as_deref(), Some(&b"2"[..]));
    set("file", "user.small", b"3").expect("set");
    assert_eq!(world.capture(&mut index).root, world.fresh().root);
}

#[test]
fn captured_twice_it_is_the_same_and_nothing_is_read() {
    let seed = seed();
    eprintln!("AMALGAM_SEED={seed}");
    let mut random = Random::new(seed);
    let world = World::new();
    for _ in 0..120 {
        world.edit(&mut random, true);
    }
    settle();
    let mut index = world.index();
    let first = world.capture(&mut index);
    assert_eq!(first.notices, []);
    let second = world.capture(&mut index);
    assert_eq!((second.root, second.counts.files_read), (first.root, 0));
    assert_eq!(world.changes(&mut index).counts.files_read, 0);
    let paths: BTreeSet<_> = contents(&first.tree).expect("read").paths.into_keys().collect();
    assert_eq!(paths, world.paths().into_iter().chain([path("")]).collect());
    assert_eq!(index.names(), world.paths().len() as u64);
    assert_eq!(link_classes(&first.tree).expect("read"), world.link_classes());
}

#[test]
fn after_edits_every_way_of_looking_finds_the_same() {
    let seed = seed();
    eprintln!("AMALGAM_SEED={seed}");
    let mut random = Random::new(seed);
    let world = World::new();
    let (mut all, mut parts, mut watched) = (world.index(), world.index(), world.index());
    let watcher = Watcher::start(&world.host, &world.rules).expect("it watches");
    for index in [&mut all, &mut parts, &mut watched] {
        world.capture(index);
    }
    for round in 0..40 {
        let mut dirty = BTreeSet::new();
        for _ in 0..=random.below(12) {
            dirty.extend(world.edit(&mut random, false));
        }
        let fresh = world.fresh();
        let whole = world.capture(&mut all);
        assert_same(&whole.tree, &fresh.tree, &format!("round {round}, whole"));
        assert_eq!(whole.root, fresh.root, "round {round}");
        assert_eq!(whole.counts.bytes, fresh.counts.bytes, "round {round}");
        let part = world.capture_in(&mut parts, &dirty);
        assert_same(&part.tree, &fresh.tree, &format!("round {round}, {dirty:?}"));
        assert_eq!(part.root, fresh.root, "round {round}");
        assert_eq!((part.counts.files, parts.names()), (fresh.counts.files, all.names()), "round {round}");
        let told = match watcher.take_dirty() {
            Dirty::Nothing => world.capture_in(&mut watched, &BTreeSet::new()),
            Dirty::Directories(told) => world.capture_in(&mut watched, &told),
            Dirty::Everything => panic!("nothing is lost"),
        };
        assert_same(&told.tree, &fresh.tree, &format!("round {round}, told"));
        assert_eq!(told.root, fresh.root, "round {round}");
    }
}

#[test]
fn hard_links_are_groups_however_it_is_looked() {
    let seed = seed();
    eprintln!("AMALGAM_SEED={seed}");
    let mut random = Random::new(seed);
    let world = World::new();
    fs::create_dir(world.temp.path().join("outside")).expect("made");
    fs::write(world.temp.path().join("outside/file"), b"outside").expect("written");
    fs::hard_link(world.temp.path().join("outside/file"), world.at("alone")).expect("linked");
    let (mut all, mut parts) = (world.index(), world.index());
    world.capture(&mut all);
    world.capture(&mut parts);
    for round in 0..60 {
        let mut dirty = BTreeSet::new();
        for _ in 0..=random.below(6) {
            dirty.extend(world.edit(&mut random, true));
        }
        let classes = world.link_classes();
        let fresh = world.fresh().tree;
        let captures = [("all", world.capture(&mut all)), ("part", world.capture_in(&mut parts, &dirty))];
        for (how, Captured { mut tree, .. }) in captures {
            let why = format!("round {round}, {how}, {dirty:?}");
            assert_eq!(link_classes(&tree).expect("read"), classes, "{why}");
            assert_same(&tree, &fresh, &why);
            commit(&mut tree).expect("committed");
        }
    }
    let report =
        verify(&world.store, &VerifyOptions::default(), &|_| std::ops::ControlFlow::Continue(())).expect("verified");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn a_group_keeps_its_id() {
    let world = World::new();
    fs::write(world.at("b"), b"one").expect("written");
    fs::hard_link(world.at("b"), world.at("c")).expect("linked");
    let mut index = world.index();
    let group = |captured: &Captured, name: &str| {
        captured.tree.stat(name).expect("read").and_then(|stat| stat.entry).and_then(|entry| entry.link())
    };
    let first = world.capture(&mut index);
    let id = group(&first, "b").expect("a group");
    assert_eq!(group(&first, "c"), Some(id));
    fs::hard_link(world.at("b"), world.at("a")).expect("linked");
    fs::write(world.at("b"), b"two").expect("written");
    let second = world.capture_in(&mut index, &BTreeSet::from([path("")]));
    assert_eq!(group(&second, "a"), Some(id), "it is not called after the new smallest name");
    assert_eq!(second.tree.read("c").expect("read"), b"two");
    fs::remove_file(world.at("a")).expect("removed");
    fs::remove_file(world.at("c")).expect("removed");
    assert_eq!(group(&world.capture(&mut index), "b"), None);
}

#[test]
fn a_name_that_got_another_file_belongs_to_no_group_of_the_old_one() {
    let world = World::new();
    fs::write(world.at("p"), b"old").expect("written");
    let mut index = world.index();
    world.capture(&mut index);
    fs::rename(world.at("p"), world.at("q")).expect("moved");
    fs::hard_link(world.at("q"), world.at("r")).expect("linked");
    fs::write(world.at("p"), b"new").expect("written");
    assert_same(&world.capture(&mut index).tree, &world.fresh().tree, "after the exchange");
}

#[test]
fn an_edit_in_the_same_moment_is_found() {
    let world = World::new();
    let mut index = world.index();
    for round in 0..300_u32 {
        fs::write(world.at("file"), round.to_le_bytes()).expect("written");
        let tree = world.capture(&mut index).tree;
        assert_eq!(tree.read("file").expect("read"), round.to_le_bytes(), "round {round}");
    }
}

#[test]
fn changes_are_those_of_two_captures() {
    let seed = seed();
    eprintln!("AMALGAM_SEED={seed}");
    let mut random = Random::new(seed);
    let world = World::new();
    let mut index = world.index();
    world.capture(&mut index);
    for round in 0..40 {
        let before = contents(&world.capture(&mut index).tree).expect("read").paths;
        for _ in 0..random.below(8) {
            world.edit(&mut random, false);
        }
        let found = world.changes(&mut index);
        let after = contents(&world.fresh().tree).expect("read").paths;
        let added: Vec<_> = after.keys().filter(|path| !before.contains_key(*path)).cloned().collect();
        let deleted: Vec<_> = before.keys().filter(|path| !after.contains_key(*path)).cloned().collect();
        let differs = |path: &amalgam_engine::TreePath| {
            let mut then = before[path].clone();
            then.mtime = after[path].mtime;
            then != after[path]
        };
        let both = before.keys().filter(|path| after.contains_key(*path));
        let modified: Vec<_> = both.filter(|path| differs(path)).cloned().collect();
        assert_eq!((found.added, found.deleted, found.modified), (added, deleted, modified), "round {round}");
        let root = index.root();
        // What was learned of files that were only touched hides nothing from the next capture.
        assert_eq!(world.capture(&mut index).root, world.fresh().root, "round {round}");
        assert!(root.is_some());
    }
}

#[test]
fn a_comparison_hides_no_hard_link_from_the_next_capture() {
    let world = World::new();
    fs::write(world.at("one"), b"linked").expect("written");
    for name in ["two", "three"] {
        fs::hard_link(world.at("one"), world.at(name)).expect("linked");
    }
    for name in ["left", "right"] {
        fs::write(world.at(name), b"apart").expect("written");
    }
    settle();
    let mut index = world.index();
    let Captured { mut tree, .. } = world.capture(&mut index);
    commit(&mut tree).expect("committed");
    // One link is broken and another one made, with the same bytes.
    fs::copy(world.at("one"), world.at("copy")).expect("copied");
    fs::rename(world.at("copy"), world.at("one")).expect("renamed");
    fs::remove_file(world.at("right")).expect("removed");
    fs::hard_link(world.at("left"), world.at("right")).expect("linked");
    settle();
    for _ in 0..2 {
        let found = world.changes(&mut index);
        assert!(found.is_empty() && found.may_be_relinked, "{found:?}");
    }
    let Captured { mut tree, .. } = world.capture(&mut index);
    assert_eq!(link_classes(&tree).expect("read"), world.link_classes());
    assert_same(&tree, &world.fresh().tree, "after two comparisons");
    commit(&mut tree).expect("committed");
    let found = world.changes(&mut index);
    assert!(found.is_empty() && !found.may_be_relinked, "{found:?}");
    let report =
        verify(&world.store, &VerifyOptions::default(), &|_| std::ops::ControlFlow::Continue(())).expect("verified");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn a_touched_file_is_compared_once_and_never_written() {
    let world = World::new();
    fs::write(world.at("file"), vec![3; 200_000]).expect("written");
    settle();
    let mut index = world.index();
    world.capture(&mut index);
    set_mtime(&world.at("file"), 1_000);
    settle();
    let objects = || {
        let report = verify(&world.store, &VerifyOptions::default(), &|_| std::ops::ControlFlow::Continue(()));
        report.expect("verified").objects
    };
    let before = objects();
    let first = world.changes(&mut index);
    assert!(first.is_empty());
    assert_eq!(first.counts.files_read, 1);
    assert_eq!(world.changes(&mut index).counts.files_read, 0);
    assert_eq!(objects(), before);
    let captured = world.capture(&mut index);
    assert_eq!((captured.counts.files_read, captured.root), (0, world.fresh().root));
}

#[test]
fn what_a_checkout_wrote_is_not_read() {
    let world = World::new();
    fs::write(world.at("file"), b"written by us").expect("written");
    let entry = world.fresh().tree.stat("file").expect("read").and_then(|stat| stat.entry).expect("stored");
    let mut known = KnownContents::default();
    let open = fs::File::open(world.at("file")).expect("it opens");
    known.insert(Stamp::of(std::os::fd::AsFd::as_fd(&open)).expect("a stamp"), entry);
    let progress = Progress::default();
    let mut index = world.index();
    let job = world.job(Scope::All, &known, &progress);
    let captured = capture(&world.store, &world.host, &mut index, &job).expect("captured");
    assert_eq!((captured.counts.files_read, captured.root), (0, world.fresh().root));
}

#[test]
fn an_index_survives_its_file_and_damage_makes_it_absent() {
    let seed = seed();
    eprintln!("AMALGAM_SEED={seed}");
    let mut random = Random::new(seed);
    let world = World::new();
    for _ in 0..150 {
        world.edit(&mut random, true);
    }
    settle();
    let mut index = world.index();
    let file = world.temp.path().join("index");
    assert!(Index::load(&file).expect("no error").is_none());
    index.save(&file).expect("saved");
    let empty = Index::load(&file).expect("no error").expect("it is there");
    assert_eq!((empty.root(), empty.names()), (None, 0));
    let first = world.capture(&mut index);
    index.save(&file).expect("saved");
    let mut loaded = Index::load(&file).expect("no error").expect("it is there");
    assert_eq!((loaded.root(), loaded.names(), loaded.identity()), (index.root(), index.names(), index.identity()));
    for path in world.paths() {
        assert_eq!(loaded.stamp(&path), index.stamp(&path), "{path}");
        assert!(loaded.stamp(&path).is_some(), "{path}");
    }
    let again = world.capture(&mut loaded);
    assert_eq!((again.root, again.counts.files_read), (first.root, 0));
    fs::write(world.at("new"), b"x").expect("written");
    assert_eq!(link_classes(&world.capture(&mut loaded).tree).expect("read"), world.link_classes());
    let bytes = fs::read(&file).expect("read");
    for at in (0..bytes.len()).step_by(1 + bytes.len() / 200) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x40;
        fs::write(&file, &damaged).expect("written");
        assert!(Index::load(&file).expect("no error").is_none(), "byte {at}");
        fs::write(&file, &bytes[..at]).expect("written");
        assert!(Index::load(&file).expect("no error").is_none(), "cut at {at}");
    }
}

#[test]
fn another_directory_is_refused_and_a_lost_tree_is_captured_anew() {
    let world = World::new();
    fs::write(world.at("file"), b"x").expect("written");
    let mut index = world.index();
    let first = world.capture(&mut index);
    let other = World::new();
    let refused = other.try_capture(&mut index, Scope::All);
    assert!(matches!(refused, Err(Error::WrongDirectory { .. })));
    let elsewhere = amalgam_engine::Store::in_memory();
    let (known, progress) = (KnownContents::default(), Progress::default());
    let job = world.job(Scope::All, &known, &progress);
    let again = capture(&elsewhere, &world.host, &mut index, &job).expect("captured");
    assert_eq!((again.root, again.counts.files_read), (first.root, 1));
}

#[test]
fn a_cancelled_capture_leaves_the_index_as_it_was() {
    let world = World::new();
    for name in 0..300 {
        fs::write(world.at(format!("{name}")), vec![1; 1_000]).expect("written");
    }
    let mut index = world.index();
    let known = KnownContents::default();
    // Before anything is done, and, as the machine has it, in the middle.
    for after in [0, 1, 10, 100] {
        let progress = Progress::default();
        let job = world.job(Scope::All, &known, &progress);
        let ended = std::thread::scope(|scope| {
            let cancel = || {
                while progress.files.load(Ordering::Relaxed) < after {
                    std::thread::yield_now();
                }
                progress.cancel();
            };
            if after == 0 {
                cancel();
            } else {
                scope.spawn(cancel);
            }
            capture(&world.store, &world.host, &mut index, &job)
        });
        match ended {
            Err(error) => assert!(matches!(error, Error::Cancelled) && index.root().is_none(), "{error}"),
            Ok(_) => {
                assert!(after > 0 && progress.files.load(Ordering::Relaxed) == 300, "it was done before it was told");
                index = world.index();
            }
        }
    }
    let fresh = world.fresh();
    assert_eq!(world.capture(&mut index).root, fresh.root);
}

#[test]
fn a_tree_as_deep_as_trees_go() {
    let world = World::new();
    let mut here = rustix::fs::openat(
        CWD,
        world.host.path(),
        rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY,
        Mode::empty(),
    )
    .expect("it opens");
    // One more than a tree can hold.
    for _ in 0..=DEPTH_MAX {
        rustix::fs::mkdirat(&here, "d", Mode::from(0o755)).expect("made");
        here = rustix::fs::openat(&here, "d", rustix::fs::OFlags::DIRECTORY, Mode::empty()).expect("it opens");
    }
    let mut index = world.index();
    let captured = world.capture(&mut index);
    assert_eq!(captured.counts.directories, DEPTH_MAX as u64);
    assert!(matches!(captured.notices[..], [ref notice] if matches!(notice.why, Why::Unsupported(_))));
    let file = world.temp.path().join("index");
    index.save(&file).expect("saved");
    let mut index = Index::load(&file).expect("no error").expect("it is there");
    let deep = path("d/".repeat(DEPTH_MAX - 2) + "d");
    let parent = world.host.directory(&deep).expect("it opens");
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    rustix::fs::openat(&parent, "file", flags, Mode::from(0o644)).expect("made");
    let part = world.capture_in(&mut index, &BTreeSet::from([deep]));
    assert_eq!(part.root, world.fresh().root);
    assert_eq!(part.counts.files, 1);
    // The standard library would hold a handle for each level.
    let removed = std::process::Command::new("rm").arg("-rf").arg(world.at("d")).status().expect("it runs");
    assert!(removed.success());
}

#[test]
fn a_directory_of_many_names() {
    let world = World::new();
    for name in 0..100_000 {
        rustix::fs::mknodat(CWD, world.at(format!("{name}")), rustix::fs::FileType::RegularFile, Mode::from(0o644), 0)
            .expect("made");
    }
    settle();
    let mut index = world.index();
    let first = world.capture(&mut index);
    assert_eq!(first.counts.files, 100_000);
    fs::write(world.at("54321"), b"x").expect("written");
    let second = world.capture_in(&mut index, &BTreeSet::from([path("")]));
    assert_eq!(second.counts.files_read, 1);
    let Node::Directory(Some(_)) = world.store.root(second.root).expect("stored").directory.node else {
        panic!("it holds names")
    };
}

#[test]
fn a_watcher_follows_new_directories_and_waits() {
    let world = World::new();
    fs::create_dir_all(world.at("a/b")).expect("made");
    let watcher = Watcher::start(&world.host, &world.rules).expect("it watches");
    assert_eq!((watcher.take_dirty(), watcher.watches(), watcher.incomplete()), (Dirty::Nothing, 3, None));
    assert!(!watcher.wait(Duration::ZERO).expect("it waits"));
    fs::write(world.at("a/b/file"), b"x").expect("written");
    assert!(watcher.wait(Duration::from_secs(60)).expect("it waits"));
    assert_eq!(watcher.take_dirty(), Dirty::Directories(BTreeSet::from([path("a/b")])));
    fs::create_dir_all(world.at("new/deep")).expect("made");
    assert!(matches!(watcher.take_dirty(), Dirty::Directories(found) if found.contains(&path("new"))));
    fs::write(world.at("new/deep/file"), b"x").expect("written");
    assert_eq!(watcher.take_dirty(), Dirty::Directories(BTreeSet::from([path("new/deep")])));
    fs::rename(world.at("new"), world.at("a/b/moved")).expect("moved");
    watcher.take_dirty();
    fs::write(world.at("a/b/moved/deep/file"), b"y").expect("written");
    assert_eq!(watcher.take_dirty(), Dirty::Directories(BTreeSet::from([path("a/b/moved/deep")])));
}

#[test]
fn a_watcher_with_rules_that_exclude_nothing_uses_no_ignore_file() {
    let world = World::new();
    fs::write(world.at(".amalgamignore"), b"out/\n").expect("written");
    fs::create_dir(world.at("out")).expect("made");
    let watcher = Watcher::start(&world.host, &Rules::everything()).expect("it watches");
    assert_eq!((watcher.take_dirty(), watcher.watches()), (Dirty::Nothing, 2));
    fs::write(world.at("out/file"), b"x").expect("written");
    assert_eq!(watcher.take_dirty(), Dirty::Directories(BTreeSet::from([path("out")])));
    fs::write(world.at(".amalgamignore"), b"other/\n").expect("written");
    assert_eq!(watcher.take_dirty(), Dirty::Directories(BTreeSet::from([path("")])));
}

#[test]
fn more_than_the_kernel_notes_is_everything() {
    let world = World::new();
    fs::create_dir(world.at("a")).expect("made");
    let watcher = Watcher::start(&world.host, &world.rules).expect("it watches");
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("a limit");
    let limit: u64 = limit.trim().parse().expect("a number");
    if limit > 200_000 {
        return amalgam_test_support::skip("inotify", &format!("the kernel queues {limit} events here"));
    }
    // Different names, so that no two notes are one.
    for name in 0..limit / 2 + 10 {
        let file = world.at(format!("a/{}", name % 2));
        fs::write(&file, b"x").expect("written");
        fs::remove_file(&file).expect("removed");
    }
    assert_eq!(watcher.take_dirty(), Dirty::Everything);
    fs::write(world.at("a/file"), b"x").expect("written");
    assert_eq!(watcher.take_dirty(), Dirty::Directories(BTreeSet::from([path("a")])));
}
