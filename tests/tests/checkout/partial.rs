//! Checkouts of a part: some paths, no `.git`, times of the moment.

use std::fs;
use std::os::unix::fs::MetadataExt;

use amalgam_engine::{Time, TreePath, WorkingTree};
use amalgam_materializer::{CheckoutOptions, CheckoutReport, Index, Times, Why, checkout, plan};

use crate::kit::{World, path, see};
use crate::notice;

fn run(world: &World, index: &Index, tree: &WorkingTree, job: &CheckoutOptions<'_>) -> CheckoutReport {
    let target = world.root(tree);
    let plan = plan(&world.store, index, target, job).expect("planned");
    let done = checkout(&world.store, &world.host, index, target, job).expect("checked out");
    let planned = plan.changes.iter().filter(|change| change.bytes > 0).map(|change| change.bytes).sum::<u64>();
    assert_eq!((plan.bytes, done.bytes), (planned, planned), "what was planned is done");
    done
}

fn two_trees(world: &World) -> (WorkingTree, WorkingTree) {
    let mut old = world.tree();
    for directory in ["a/b", "a-b", "c"] {
        old.create_directories(directory).expect("made");
    }
    for name in ["a/b/one", "a/two", "a-b/three", "c/four", "five"] {
        old.write(name, b"old").expect("written");
    }
    let mut new = old.fork();
    new.set_now(Time(77));
    for name in ["a/b/one", "a/two", "a-b/three", "c/four", "five", "a/b/six"] {
        new.write(name, b"new").expect("written");
    }
    new.create_directories("fresh/deep").expect("made");
    new.write("fresh/deep/file", b"new").expect("written");
    new.write("fresh/beside", b"new").expect("written");
    (old, new)
}

#[test]
fn only_the_paths_asked_for_are_touched() {
    let cases: [(&[&str], &[&str]); 6] = [
        (&["a"], &["a/b/one", "a/b/six", "a/two"]),
        (&["a/b"], &["a/b/one", "a/b/six"]),
        (&["a/b/six", "five"], &["a/b/six", "five"]),
        (&["fresh/deep"], &["fresh/deep/file"]),
        (&["fresh/nowhere", "nowhere"], &[]),
        (&["a/two", "a", "c/four"], &["a/b/one", "a/b/six", "a/two", "c/four"]),
    ];
    for (wanted, changed) in cases {
        let world = World::new();
        let (old, new) = two_trees(&world);
        world.checkout(&world.index(), &old);
        let index = world.look();
        let before = see(world.host.path());
        let wanted: Vec<TreePath> = wanted.iter().map(path).collect();
        let done = run(&world, &index, &new, &CheckoutOptions { paths: Some(&wanted), ..world.job() });
        assert_eq!(done.notices, []);
        let after = see(world.host.path());
        let is_file = |at: &TreePath| after[at].kind == amalgam_engine::EntryKind::File;
        let differ: Vec<_> = after.keys().filter(|at| is_file(at) && after.get(at) != before.get(at)).collect();
        assert_eq!(differ.iter().map(|at| at.to_string()).collect::<Vec<_>>(), changed, "{wanted:?}");
        assert_eq!(after.contains_key(&path("fresh")), changed.iter().any(|at| at.starts_with("fresh")));
        // And back: what is not in the tree goes, but only there.
        let index = world.look();
        let done = run(&world, &index, &old, &CheckoutOptions { paths: Some(&wanted), ..world.job() });
        assert_eq!(done.notices, []);
        let back = see(world.host.path());
        assert!(changed.iter().all(|at| back.get(&path(at)) == before.get(&path(at))), "{wanted:?}");
    }
}

#[test]
fn what_is_in_the_way_of_a_path_stays() {
    let world = World::new();
    let (mut old, mut new) = (world.tree(), world.tree());
    old.write("a", b"a file").expect("written");
    new.create_directories("a").expect("made");
    new.write("a/inside", b"new").expect("written");
    world.checkout(&world.index(), &old);
    let wanted = [path("a/inside")];
    let done = world_checkout(&world, &world.look(), &new, &CheckoutOptions { paths: Some(&wanted), ..world.job() });
    assert!(matches!(&done.notices[..], [only] if only.path == path("a") && only.why.is_failure()));
    assert_eq!(fs::read(world.at("a")).expect("there"), b"a file");
}

fn world_checkout(world: &World, index: &Index, tree: &WorkingTree, job: &CheckoutOptions<'_>) -> CheckoutReport {
    checkout(&world.store, &world.host, index, world.root(tree), job).expect("checked out")
}

#[test]
fn a_live_repository_is_left_alone() {
    let world = World::new();
    let mut old = world.tree();
    old.create_directories(".git/refs").expect("made");
    old.create_directories("sub/.git").expect("made");
    for name in [".git/HEAD", ".git/refs/main", "sub/.git/HEAD", "sub/file", "file"] {
        old.write(name, b"old").expect("written");
    }
    world.checkout(&world.index(), &old);
    let index = world.look();
    let before = see(world.host.path());
    let mut new = world.tree();
    new.create_directories(".git").expect("made");
    new.write(".git/HEAD", b"new").expect("written");
    new.write("file", b"new").expect("written");
    let done = run(&world, &index, &new, &CheckoutOptions { keep_git: true, ..world.job() });
    // The directory stays for the sake of what is left alone in it, and that is no failure.
    assert_eq!(done.notices, []);
    let after = see(world.host.path());
    for at in [".git", ".git/HEAD", ".git/refs", ".git/refs/main", "sub/.git", "sub/.git/HEAD"] {
        assert_eq!(after.get(&path(at)), before.get(&path(at)), "{at}");
    }
    assert_eq!(fs::read(world.at("file")).expect("there"), b"new");
    assert!(!world.at("sub/file").exists());
}

#[test]
fn a_git_file_that_leads_out_of_the_tree_is_left_out_of_a_fork() {
    let world = World::new();
    let mut tree = world.tree();
    for name in ["module", "absolute", "inside"] {
        tree.create_directories(name).expect("made");
    }
    tree.create_directories("real/.git").expect("made");
    for (name, bytes) in [
        (".git", "gitdir: ../main/.git/worktrees/one\n"),
        ("absolute/.git", "gitdir: /srv/main/.git/modules/absolute\n"),
        ("module/.git", "gitdir: ../real/../.git/../../module\n"),
        ("inside/.git", "gitdir: ../.git/modules/inside\n"),
        ("real/.git/HEAD", "ref: refs/heads/main\n"),
        ("file", "gitdir: /elsewhere\n"),
    ] {
        tree.write(name, bytes.as_bytes()).expect("written");
    }
    let done = run(&world, &world.index(), &tree, &CheckoutOptions { leave_git_file: true, ..world.job() });
    let left_out = [".git", "absolute/.git", "module/.git"];
    assert_eq!(done.notices, left_out.map(|path| notice(path, Why::GitFile)));
    assert!(left_out.iter().all(|path| !world.at(path).exists()));
    assert!(world.at("inside/.git").exists());
    assert!(world.at("real/.git/HEAD").exists() && world.at("file").exists());
}

#[test]
fn bytes_that_change_get_the_time_of_the_moment() {
    const NOW: i64 = 1_700_000_000_123_456_789;
    let world = World::new();
    let mut old = world.tree();
    for name in ["bytes", "mode", "time", "same"] {
        old.write(name, b"old").expect("written");
    }
    world.checkout(&world.index(), &old);
    let index = world.look();
    let mut new = old.fork();
    new.set_now(Time(99));
    new.write("bytes", b"new").expect("written");
    new.write("added", b"new").expect("written");
    new.set_mode("mode", 0o600).expect("set");
    new.set_mtime("time", Time(55)).expect("set");
    let mtime = |name: &str| {
        let found = world.at(name).metadata().expect("there");
        found.mtime() * 1_000_000_000 + found.mtime_nsec()
    };
    let unchanged = ["mode", "time", "same"].map(|name| (name, mtime(name)));
    let done = run(&world, &index, &new, &CheckoutOptions { times: Times::OfBytes(Time(NOW)), ..world.job() });
    assert_eq!(done.notices, []);
    assert_eq!((mtime("bytes"), mtime("added")), (NOW, NOW));
    for (name, before) in unchanged {
        assert_eq!(mtime(name), before, "{name}");
    }
    assert_eq!(world.at("mode").metadata().expect("there").mode() & 0o7777, 0o600);
}
