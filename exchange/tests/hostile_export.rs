//! Exports of trees and snapshots that a stranger made: small, well formed, and meant to do harm.

#[path = "kit/listing.rs"]
mod listing;
#[path = "kit/repository.rs"]
mod repository;

use std::path::Path;
use std::sync::Arc;

use amalgam_engine::backend::Memory;
use amalgam_engine::{Commit, RefName, SnapshotId, Store, StoreOptions, Time, WorkingTree};
use amalgam_exchange::{
    Error, GitCache, GitExport, GitHistory, GitServeLimits, Identity, OverlayExport, Progress, TarExport, ZipExport,
    export_git, export_overlay, export_tar, export_zip,
};
use listing::run;
use repository::{git, text};

fn commit(tree: &mut WorkingTree, change: impl FnOnce(&mut Commit)) -> SnapshotId {
    let name = RefName::new("head/main").expect("a name");
    let mut commit = Commit::new(&name, "made").by("ann", Time::from_seconds(1_000, 0)).buffered();
    change(&mut commit);
    tree.commit(commit).expect("committed").snapshot
}

/// The most paths of the store in [`many_paths`].
const PATHS_MAX: u64 = 200;

/// A store in which a tree has more paths than a walk may visit.
fn many_paths() -> (Store, SnapshotId) {
    let options = StoreOptions { paths_max: PATHS_MAX, ..StoreOptions::default() };
    let store = Store::new(Arc::new(Memory::default()), &options);
    let mut tree = WorkingTree::new(&store);
    for directory in 0..10 {
        tree.create_directories(format!("d{directory}")).expect("made");
        for file in 0..20 {
            tree.write(format!("d{directory}/f{file}"), b"x").expect("written");
        }
    }
    let head = commit(&mut tree, |_| {});
    (store, head)
}

fn into_git(store: &Store, head: SnapshotId, to: &Path) -> Result<(), Error> {
    let options = GitExport {
        branch: "main".to_owned(),
        history: GitHistory::All,
        since: None,
        identity: Identity::default(),
        create: true,
        is_mirror: false,
        dry_run: false,
    };
    export_git(store, head, to, &options, &Progress::default()).map(drop)
}

#[test]
fn a_line_break_in_the_author_of_a_commit_is_no_command_for_git() {
    let home = tempfile::tempdir().expect("a directory");
    let (store, repository) = (Store::in_memory(), home.path().join("out.git"));
    let mut tree = WorkingTree::new(&store);
    let person = "Ann <a@b> 1000 +0000";
    let commands = "data 0\n\nreset refs/heads/forged\nfrom :1\n\ncheckpoint\n\nblob\nmark :9\noriginal-oid >";
    let forged = format!("{person}\n{commands}");
    let head = commit(&mut tree, |commit| {
        for (key, value) in [
            ("git.commit", "1".repeat(40)),
            ("git.author", person.to_owned()),
            ("git.committer", format!("{forged} 1000 +0000")),
        ] {
            commit.metadata.insert(key.to_owned(), value);
        }
    });
    into_git(&store, head, &repository).expect("exported");
    let branches = text(run(git(&repository).args(["for-each-ref", "--format=%(refname)"])));
    assert_eq!(branches.trim(), "refs/heads/main");
    run(git(&repository).args(["fsck", "--strict"]));
}

#[test]
fn exports_of_a_tree_with_too_many_paths_end_with_an_error() {
    let home = tempfile::tempdir().expect("a directory");
    let (store, head) = many_paths();
    let root = store.snapshot(head).expect("read").root;
    let progress = Progress::default();
    let (tar, zip) = (TarExport::default(), ZipExport::default());
    let done = [
        ("tar", export_tar(&store, root, std::io::sink(), &tar, &progress).map(drop)),
        ("zip", export_zip(&store, root, std::io::sink(), &zip, &progress).map(drop)),
        ("git", into_git(&store, head, &home.path().join("out.git"))),
        (
            "overlay",
            export_overlay(&store, root, &home.path().join("upper"), &OverlayExport::default(), &progress).map(drop),
        ),
    ];
    for (what, done) in done {
        let message = done.expect_err(what).to_string();
        assert!(message.contains("paths"), "{what}: {message}");
    }
    assert!(!home.path().join("upper").exists());
}

#[test]
fn a_served_repository_has_no_file_of_many_exabytes() {
    let home = tempfile::tempdir().expect("a directory");
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.write("sparse", b"x").expect("written");
    tree.truncate("sparse", 1 << 62).expect("a hole");
    let head = commit(&mut tree, |_| {});
    let cache = GitCache::open(&home.path().join("cache"), GitServeLimits::default()).expect("a cache");
    let message = match cache.refresh(&store, "main", head, &Progress::default()) {
        Ok(_) => panic!("it was exported"),
        Err(error) => error.to_string(),
    };
    assert!(message.contains("sparse") && message.contains("tar"), "{message}");
}

#[test]
fn an_export_that_was_cut_off_leaves_no_pack_behind() {
    let home = tempfile::tempdir().expect("a directory");
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.write("file", b"x").expect("written");
    let head = commit(&mut tree, |_| {});
    let cache = GitCache::open(&home.path().join("cache"), GitServeLimits::default()).expect("a cache");
    let served = cache.refresh(&store, "main", head, &Progress::default()).expect("exported");
    let left = served.path().join("objects/pack/tmp_pack_AbCdEf");
    std::fs::write(&left, b"half a pack").expect("written");
    drop(served);
    tree.write("file", b"y").expect("written");
    let head = commit(&mut tree, |_| {});
    cache.refresh(&store, "main", head, &Progress::default()).expect("exported");
    assert!(!left.exists());
}
