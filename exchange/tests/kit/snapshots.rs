//! Snapshots whose difference has every kind of change.

#![allow(dead_code, reason = "each suite uses a part of it")]

use amalgam_engine::work::Special;
use amalgam_engine::{RefName, SnapshotId, Store, Time, WorkingTree};

/// Commits a tree to a reference of its own.
pub fn commit(store: &Store, tree: &mut WorkingTree, seconds: i64) -> SnapshotId {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = RefName::new(format!("head/{number}")).expect("a name");
    let commit = amalgam_engine::Commit::new(&name, "made").expecting(amalgam_engine::Expect::Absent);
    tree.commit(commit.by("ann", Time::from_seconds(seconds, 0)).buffered())
        .map(|done| done.snapshot)
        .unwrap_or_else(|error| panic!("{error} {store:p}"))
}

/// Two snapshots, the second of which changes everything that a layer can say.
pub fn two_snapshots(store: &Store) -> [SnapshotId; 2] {
    let mut tree = WorkingTree::new(store);
    tree.set_now(Time::from_seconds(1_000, 0));
    for path in ["keep/in", "gone/in", "becomes/file"] {
        tree.create_directories(path).expect("mkdir");
        tree.write(format!("{path}/f"), path.as_bytes()).expect("write");
    }
    tree.write("file", b"becomes a directory").expect("write");
    tree.write("one", b"linked").expect("write");
    tree.link("one", "two").expect("link");
    tree.write("parted-1", b"x").expect("write");
    tree.link("parted-1", "parted-2").expect("link");
    let first = commit(store, &mut tree, 1_000);
    tree.set_now(Time::from_seconds(2_000, 0));
    tree.remove_all("gone").expect("remove");
    tree.remove_all("becomes").expect("remove");
    tree.write("becomes", b"a file now").expect("write");
    tree.remove("file").expect("remove");
    tree.create_directories("file/now").expect("mkdir");
    tree.write("keep/in/f", &vec![7; 100_000]).expect("write");
    tree.truncate("keep/in/f", 3_000_000).expect("truncate");
    tree.link("one", "keep/three").expect("link");
    tree.remove("parted-2").expect("remove");
    tree.set_xattr("keep", b"user.x", b"y").expect("attribute");
    tree.create_special("pipe", Special::Fifo, 0o600).expect("special");
    tree.symlink("link", "target").expect("symlink");
    tree.set_mode("file/now", 0o1777).expect("mode");
    let second = commit(store, &mut tree, 2_000);
    [first, second]
}
