//! Other programs that change a path between the checkout's last look at it and the change that it makes: nothing of theirs is lost.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use amalgam_engine::{TreePath, WorkingTree};
use amalgam_materializer::{CheckoutReport, Notice, Result, Staging, Why, checkout_staged};
use amalgam_tests::harness::Random;

use crate::kit::{World, path, see, settle};

/// Checks a tree out, and lets another program work between the look at a path and the change of it.
fn checkout_beside(world: &World, tree: &WorkingTree, other: impl Fn(&TreePath) + Sync) -> Result<CheckoutReport> {
    let index = world.look();
    let staging = Staging::new().with_pause(&other);
    checkout_staged(&world.store, &world.host, &index, world.root(tree), &world.job(), &staging)
}

/// A directory with a file for each case, and the tree that it is made into: replaced, removed, turned into a directory, and back.
fn before_and_after(world: &World) -> (WorkingTree, WorkingTree) {
    let (mut before, mut after) = (world.tree(), world.tree());
    for name in ["replaced", "removed", "turned"] {
        before.write(name, b"old").expect("written");
    }
    before.create_directory("emptied", 0o755).expect("made");
    for name in ["linked", "dressed"] {
        before.write(name, b"same").expect("written");
    }
    before.link("linked", "linked too").expect("linked");
    after.write("replaced", b"new").expect("written");
    after.create_directory("turned", 0o755).expect("made");
    after.write("turned/inside", b"new").expect("written");
    after.write("emptied", b"a file").expect("written");
    after.write("linked", b"new").expect("written");
    after.write("linked too", b"other").expect("written");
    after.write("dressed", b"same").expect("written");
    after.set_mode("dressed", 0o600).expect("set");
    (before, after)
}

const FILES: [&str; 6] = ["replaced", "removed", "turned", "linked", "linked too", "dressed"];

/// What another program does to a file.
type Change = fn(&Path);

/// Ways in which a program changes a file, in words and in deed.
fn ways() -> Vec<(&'static str, Change)> {
    vec![
        ("another file is renamed to it", |path| {
            let apart = path.with_file_name("apart");
            fs::write(&apart, b"mine").expect("written");
            fs::rename(&apart, path).expect("renamed");
        }),
        ("it is written to", |path| fs::write(path, b"mine!").expect("written")),
        ("a symlink is in its place", |path| {
            fs::remove_file(path).expect("removed");
            symlink("somewhere", path).expect("linked");
        }),
        ("a directory is in its place", |path| {
            fs::remove_file(path).expect("removed");
            fs::create_dir(path).expect("made");
            fs::write(path.join("mine"), b"mine").expect("written");
        }),
    ]
}

#[test]
fn a_file_that_changes_between_look_and_act_keeps_its_change_and_is_reported() {
    for (words, change) in ways() {
        for name in FILES {
            let world = World::new();
            let (before, after) = before_and_after(&world);
            world.checkout(&world.index(), &before);
            settle();
            let (target, is_done) = (world.at(name), AtomicBool::new(false));
            let other = |at: &TreePath| {
                if *at == path(name) && !is_done.swap(true, Ordering::Relaxed) {
                    change(&target);
                }
            };
            let done = checkout_beside(&world, &after, other).expect("the rest is done");
            assert!(is_done.load(Ordering::Relaxed), "{name}: there was a moment between");
            let notice = Notice { path: path(name), why: Why::ChangedSince };
            assert!(done.notices.contains(&notice), "{name}, {words}: {:?}", done.notices);
            let expected = World::new();
            fs::write(expected.at(name), b"same").expect("written");
            change(&expected.at(name));
            let (found, expected) = (see(world.host.path()), see(expected.host.path()));
            for (inside, seen) in &expected {
                let found = found.get(inside).unwrap_or_else(|| panic!("{name}, {words}: {inside} is gone"));
                assert_eq!((&found.kind, &found.bytes), (&seen.kind, &seen.bytes), "{name}, {words}: {inside}");
            }
            let is_temporary = |at: &TreePath| at.to_string().contains(".amalgam-");
            assert!(!found.keys().any(is_temporary), "{name}, {words}: {:?}", found.keys());
        }
    }
}

#[test]
fn a_name_that_is_removed_between_look_and_act_stays_removed() {
    for name in FILES {
        let world = World::new();
        let (before, after) = before_and_after(&world);
        world.checkout(&world.index(), &before);
        settle();
        let other = |at: &TreePath| {
            if *at == path(name) {
                fs::remove_file(world.at(name)).ok();
            }
        };
        let done = checkout_beside(&world, &after, other).expect("the rest is done");
        assert!(done.notices.iter().any(|notice| notice.path == path(name)), "{name}: {:?}", done.notices);
        assert!(world.at(name).symlink_metadata().is_err(), "{name}");
    }
}

#[test]
fn a_directory_that_is_filled_or_replaced_between_look_and_act_stays() {
    for is_replaced in [false, true] {
        let world = World::new();
        let (before, after) = before_and_after(&world);
        world.checkout(&world.index(), &before);
        settle();
        let other = |at: &TreePath| {
            if *at != path("emptied") {
                return;
            }
            if is_replaced {
                fs::rename(world.at("emptied"), world.temp.path().join("away")).expect("renamed");
                fs::create_dir(world.at("emptied")).expect("made");
            } else {
                fs::write(world.at("emptied/mine"), b"mine").expect("written");
            }
        };
        let done = checkout_beside(&world, &after, other).expect("the rest is done");
        let why = if is_replaced { Why::ChangedSince } else { Why::NotEmpty };
        assert_eq!(done.notices, [Notice { path: path("emptied"), why }]);
        assert!(world.at("emptied").is_dir());
        assert!(is_replaced || world.at("emptied/mine").is_file());
        assert!(!see(world.host.path()).keys().any(|at| at.to_string().contains(".amalgam-")));
    }
}

/// A program that saves its files over and over, each time with bytes of its own. What it saved is on the disk in the end, or a look
/// saw it before a checkout replaced it, or the program replaced it itself.
#[test]
fn what_a_program_saves_beside_checkouts_is_seen_or_stays() {
    const NAMES: usize = 24;
    const ROUNDS: usize = 60;
    let world = World::new();
    let tree_of = |word: &str| {
        let mut tree = world.tree();
        for number in 0..NAMES {
            // Every third file is removed by every second checkout.
            if number % 3 != 0 || word == "one" {
                tree.write(format!("f{number}"), word.as_bytes()).expect("written");
            }
        }
        tree
    };
    let trees = [tree_of("one"), tree_of("two")];
    world.checkout(&world.index(), &trees[0]);
    let (saved, is_over) = (Mutex::new(BTreeSet::new()), AtomicBool::new(false));
    let mut seen = BTreeSet::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let apart = world.temp.path().join("apart");
            let (mut round, mut random) = (0_u64, Random::new(7));
            while !is_over.load(Ordering::Relaxed) {
                // Most files are those of a tree when they are looked at, and some are saved while they are replaced.
                std::thread::sleep(Duration::from_micros(300));
                let number = random.below(NAMES as u64);
                let target = world.at(format!("f{number}"));
                // What is its own and was not seen yet is not replaced.
                let is_own = fs::read_to_string(&target).is_ok_and(|text| text.starts_with("mine"));
                if !is_own {
                    let text = format!("mine {round}");
                    fs::write(&apart, &text).expect("written");
                    saved.lock().expect("no thread panicked").insert(text);
                    fs::rename(&apart, &target).expect("renamed");
                }
                round += 1;
            }
        });
        for round in 0..ROUNDS {
            let index = world.look();
            let there = WorkingTree::open_root(&world.store, index.root().expect("looked at")).expect("it opens");
            for number in 0..NAMES {
                if let Ok(bytes) = there.read(format!("f{number}")) {
                    seen.insert(String::from_utf8(bytes).expect("text"));
                }
            }
            let wait = |_: &TreePath| std::thread::sleep(Duration::from_micros(200));
            let staging = Staging::new().with_pause(&wait);
            let root = world.root(&trees[(round + 1) % 2]);
            checkout_staged(&world.store, &world.host, &index, root, &world.job(), &staging).expect("checked out");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for entry in fs::read_dir(world.host.path()).expect("listed") {
        seen.insert(fs::read_to_string(entry.expect("listed").path()).expect("text"));
    }
    let saved = saved.into_inner().expect("no thread panicked");
    let lost: Vec<_> = saved.difference(&seen).collect();
    assert!(saved.len() > NAMES, "{} were saved", saved.len());
    assert!(lost.is_empty(), "{} of {}: {lost:?}", lost.len(), saved.len());
}
