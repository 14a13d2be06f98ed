//! Read-only directories, whose files are kept once for all of them.

use std::fs::{self, Metadata, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use amalgam_engine::{Time, WorkingTree};
use amalgam_materializer::{CheckoutOptions, CheckoutReport, FilePool, HostDir, Index, checkout};

use crate::kit::World;
use crate::{has_rules, lend_rules};

/// Files of every sort that matters here.
fn tree_of(world: &World) -> WorkingTree {
    let mut tree = world.tree();
    tree.create_directories("d/e").expect("made");
    tree.write("plain", b"plain bytes").expect("written");
    tree.write("d/large", &vec![7; 300_000]).expect("written");
    tree.write("d/e/program", b"#!/bin/sh\n").expect("written");
    tree.set_mode("d/e/program", 0o755).expect("set");
    tree.write("empty", b"").expect("written");
    tree.write("two", b"names").expect("written");
    tree.link("two", "d/second").expect("linked");
    for name in ["plain", "d/large", "d/e/program", "empty", "two"] {
        tree.set_mtime(name, Time(1_600_000_000_123_456_789)).expect("set");
    }
    tree
}

fn read_only(world: &World, pool: &FilePool, name: &str, tree: &WorkingTree) -> CheckoutReport {
    let at = world.temp.path().join(name);
    fs::create_dir(&at).expect("a directory");
    read_only_at(world, pool, &at, tree)
}

fn read_only_at(world: &World, pool: &FilePool, at: &Path, tree: &WorkingTree) -> CheckoutReport {
    let host = HostDir::open(at).expect("it opens");
    let job = CheckoutOptions { pool: Some(pool), ..world.job() };
    let index = Index::new(host.identity());
    let done = checkout(&world.store, &host, &index, world.root(tree), &job).expect("checked out");
    assert_eq!(done.notices, []);
    done
}

fn pool_of(world: &World) -> FilePool {
    FilePool::open(&world.temp.path().join("pool")).expect("it opens")
}

fn look(world: &World, path: &str) -> Metadata {
    fs::symlink_metadata(world.temp.path().join(path)).expect("it is there")
}

fn expect_readable(at: &Path) {
    for (name, bytes, mode) in [
        ("plain", &b"plain bytes"[..], 0o444),
        ("d/large", &[7; 300_000], 0o444),
        ("d/e/program", b"#!/bin/sh\n", 0o555),
        ("empty", b"", 0o444),
        ("two", b"names", 0o444),
        ("d/second", b"names", 0o444),
    ] {
        assert_eq!(fs::read(at.join(name)).expect("it is read"), bytes, "{name}");
        let found = fs::metadata(at.join(name)).expect("it is there");
        assert_eq!(found.mode() & 0o7777, mode, "{name}");
        assert_eq!((found.mtime(), found.mtime_nsec()), (1_600_000_000, 123_456_789), "{name}");
    }
    let inode = |name: &str| fs::metadata(at.join(name)).expect("it is there").ino();
    assert_eq!(inode("two"), inode("d/second"));
}

#[test]
fn files_are_kept_once_for_all_directories_that_have_them() {
    let world = World::new();
    let (pool, mut tree) = (pool_of(&world), tree_of(&world));
    assert_eq!(read_only(&world, &pool, "one", &tree).linked, 3);
    assert_eq!(read_only(&world, &pool, "other", &tree).linked, 3);
    expect_readable(&world.temp.path().join("one"));
    expect_readable(&world.temp.path().join("other"));
    for name in ["plain", "d/large", "d/e/program"] {
        let (one, other) = (look(&world, &format!("one/{name}")), look(&world, &format!("other/{name}")));
        assert_eq!((one.ino(), one.nlink()), (other.ino(), 3), "{name}");
    }
    // Another time or another mode is another file.
    tree.set_mtime("plain", Time(5)).expect("set");
    tree.set_mode("d/e/program", 0o700).expect("set");
    read_only(&world, &pool, "third", &tree);
    assert_ne!(look(&world, "third/plain").ino(), look(&world, "one/plain").ino());
    assert_eq!(look(&world, "third/d/e/program").mode() & 0o7777, 0o500);
    assert_eq!(look(&world, "third/d/large").ino(), look(&world, "one/d/large").ino());
}

#[test]
fn what_somebody_changed_all_the_same_is_not_handed_on() {
    let world = World::new();
    let (pool, tree) = (pool_of(&world), tree_of(&world));
    read_only(&world, &pool, "one", &tree);
    let at = world.temp.path().join("one/plain");
    fs::set_permissions(&at, Permissions::from_mode(0o644)).expect("set");
    fs::write(&at, b"other bytes").expect("written");
    fs::set_permissions(&at, Permissions::from_mode(0o444)).expect("set");
    read_only(&world, &pool, "other", &tree);
    expect_readable(&world.temp.path().join("other"));
    assert_eq!(fs::read(&at).expect("read"), b"other bytes");
    read_only(&world, &pool, "third", &tree);
    assert_eq!(look(&world, "third/plain").ino(), look(&world, "other/plain").ino());
}

#[test]
fn files_that_no_directory_has_go_and_directories_keep_theirs() {
    let world = World::new();
    let (pool, tree) = (pool_of(&world), tree_of(&world));
    read_only(&world, &pool, "one", &tree);
    read_only(&world, &pool, "other", &tree);
    fs::remove_dir_all(world.temp.path().join("one")).expect("removed");
    assert_eq!(pool.remove_unused().expect("looked through"), 0);
    assert_eq!(look(&world, "other/plain").nlink(), 2);
    pool.clear().expect("cleared");
    expect_readable(&world.temp.path().join("other"));
    assert_eq!(look(&world, "other/plain").nlink(), 1);
    read_only(&world, &pool, "third", &tree);
    expect_readable(&world.temp.path().join("third"));
    fs::remove_dir_all(world.temp.path().join("third")).expect("removed");
    assert_eq!(pool.remove_unused().expect("looked through"), 300_000 + 11 + 10);
    assert_eq!(pool.remove_unused().expect("looked through"), 0);
}

#[test]
fn a_pool_that_is_emptied_meanwhile_keeps_nobody_from_his_files() {
    let world = World::new();
    let (pool, tree) = (pool_of(&world), tree_of(&world));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = pool_of(&world);
            while !is_done.load(Ordering::Relaxed) {
                other.clear().expect("cleared");
            }
        });
        let _end = Ending(&is_done);
        for round in 0..200 {
            let at = world.temp.path().join(format!("round-{round}"));
            fs::create_dir(&at).expect("a directory");
            read_only_at(&world, &pool, &at, &tree);
            expect_readable(&at);
        }
    });
}

/// Says that something is done, also when an assertion failed.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_pool_takes_no_access_rules_over_from_the_directory_around_it() {
    let world = World::new();
    lend_rules(world.temp.path());
    let (pool, tree) = (pool_of(&world), tree_of(&world));
    read_only_at(&world, &pool, world.host.path(), &tree);
    for name in ["plain", "d/large", "d/e/program"] {
        assert!(!has_rules(&world, name), "{name}");
    }
}

#[test]
fn on_another_file_system_files_are_written_for_reading_only() {
    let world = World::new();
    let (pool, tree) = (pool_of(&world), tree_of(&world));
    let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") else {
        return amalgam_test_support::skip("filesystem", "there is no /dev/shm");
    };
    let device = |path: &Path| fs::metadata(path).expect("it is there").dev();
    if device(elsewhere.path()) == device(world.temp.path()) {
        return amalgam_test_support::skip("filesystem", "there is no other file system");
    }
    assert_eq!(read_only_at(&world, &pool, elsewhere.path(), &tree).linked, 0);
    expect_readable(elsewhere.path());
}
