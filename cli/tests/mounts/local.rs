//! Paths of a mount that are kept out of snapshots and lie on the disk's own files.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::refused::refused;
use super::{json, mounted, read};
use crate::scratch::{Scratch, can_mount};

fn device(path: impl AsRef<Path>) -> u64 {
    fs::metadata(path).expect("there").dev()
}

/// The paths that a snapshot holds.
fn paths(scratch: &Scratch, revision: &str) -> String {
    scratch.run(&format!(
        "amalgam checkout -q {revision} ../looked > /dev/null && cd ../looked && find . | sort; rm -r ../looked"
    ))
}

/// A build as a compiler leaves it, with directories that forbid to be emptied.
const BUILD: &str = "mkdir -p target/debug/deps && echo built > target/debug/deps/out && ln -s / target/debug/root && \
                     mkdir target/debug/shut && echo x > target/debug/shut/x && chmod 500 target/debug/shut";

#[test]
fn what_is_local_is_in_no_snapshot_and_survives_unmount_restore_and_restart() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run(
        "printf 'one\\n' > a; mkdir -p web/src; echo s > web/src/s; amalgam init --workspace base; amalgam fork try",
    );
    let local = "--local target --local web/node_modules/";
    let line = json(&scratch.run(&format!("amalgam mount --json try ../try {local}"))).remove(0);
    assert_eq!(line["local"], serde_json::json!(["target", "web/node_modules"]));
    let at = scratch.path().join("try");
    assert!(scratch.run("amalgam mounts").contains(", local: target web/node_modules"));
    scratch.run(&format!("cd ../try && {BUILD} && mkdir web/node_modules/p && echo i > web/node_modules/p/index.js"));
    // Native files: the disk's own device, not the mount's.
    assert_ne!(device(at.join("target/debug/deps/out")), device(at.join("a")));
    assert_eq!(device(at.join("target/debug/deps/out")), device(scratch.path().join("store")));
    assert_eq!(scratch.run("ls ../try ../try/web"), "../try:\na\ntarget\nweb\n\n../try/web:\nnode_modules\nsrc\n");
    assert_eq!(scratch.output("cd ../try && amalgam status --exit-code").status.code(), Some(0));
    assert_eq!(scratch.run("cd ../try && amalgam diff"), "");
    scratch.run("cd ../try && echo two > a && amalgam commit -m two");
    assert_eq!(paths(&scratch, "try@"), ".\n./a\n./web\n./web/src\n./web/src/s\n");

    scratch.run("cd ../try && amalgam restore @~ && amalgam undo && amalgam undo");
    assert_eq!(read(at.join("target/debug/deps/out")), "built\n");
    scratch.run("cd .. && amalgam umount try");
    assert!(!at.join("target").exists());
    // Without the rule it is not shown; what a commit then holds is what the tree has.
    scratch.run("amalgam mount try ../try");
    assert!(!at.join("target").exists());
    scratch.run(&format!("amalgam umount try && amalgam stop && amalgam mount try ../try {local}"));
    assert_eq!(read(at.join("target/debug/deps/out")), "built\n");
    super::crash(&scratch);
    scratch.run(&format!("amalgam mount try ../try {local}"));
    assert_eq!(read(at.join("web/node_modules/p/index.js")), "i\n");

    // A fork has none of it.
    scratch.run("amalgam fork --from try copy --mount ../copy --local target --backend fuse");
    assert_eq!(fs::read_dir(scratch.path().join("copy/target")).expect("local").count(), 0);
    scratch.run("amalgam umount try && amalgam umount copy && amalgam ws rm copy --yes");
    assert_eq!(fs::read_dir(scratch.path().join("store/local")).expect("there").count(), 1);
    scratch.run("amalgam ws rm try --yes");
    assert_eq!(fs::read_dir(scratch.path().join("store/local")).expect("there").count(), 0);
    assert!(Path::new("/").join("proc").exists(), "no symlink is followed");
}

#[test]
fn what_is_local_cannot_be_moved_or_removed_and_covers_what_the_tree_has() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run(
        "mkdir -p d/target; echo kept > d/target/kept; echo a > a; amalgam init --workspace base; amalgam fork try",
    );
    scratch.run("amalgam mount try ../try --local d/target");
    let at = scratch.path().join("try");
    assert_eq!(fs::read_dir(at.join("d/target")).expect("local").count(), 0);
    let busy = std::io::ErrorKind::ResourceBusy;
    assert_eq!(fs::remove_file(at.join("d/target")).expect_err("local").kind(), busy);
    assert_eq!(fs::rename(at.join("d/target"), at.join("x")).expect_err("local").kind(), busy);
    assert_eq!(fs::rename(at.join("a"), at.join("d/target")).expect_err("local").kind(), busy);
    assert_eq!(fs::rename(at.join("d"), at.join("x")).expect_err("above").kind(), busy);
    let there = fs::create_dir(at.join("d/target")).expect_err("there already");
    assert_eq!(there.kind(), std::io::ErrorKind::AlreadyExists);
    scratch.run("cd ../try && mkdir -p d/target/debug && echo b > b && amalgam commit");
    assert_eq!(scratch.run("amalgam show try@:d/target/kept"), "kept\n");
    scratch.run("amalgam umount try && amalgam mount try ../try");
    assert_eq!(read(at.join("d/target/kept")), "kept\n");
}

#[test]
fn paths_that_cannot_be_local_are_refused_and_nothing_is_mounted() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    for (paths, words) in [
        ("--local /target", &["`/target` cannot be local", "from the root of the workspace"][..]),
        ("--local ../x", &["cannot be local"]),
        ("--local .", &["the root cannot be local"]),
        ("--local ''", &["the root cannot be local"]),
        ("--local a", &["there is a file of this name"]),
        ("--local web/node_modules", &["there is no directory web; make it first"]),
        ("--local d --local d/e", &["d/e lies in d"]),
    ] {
        refused(&scratch, &format!("amalgam umount -q try; amalgam mount try ../new {paths}"), 1, words);
        assert!(!scratch.path().join("new").exists(), "{paths}");
    }
    scratch.run("amalgam mount try ../try");
    refused(&scratch, "amalgam mount try ../new --local target", 1, &["is mounted already", "amalgam umount try"]);
    refused(&scratch, "amalgam mount @ ../new --local target", 1, &["mounted to be changed"]);
    refused(&scratch, "amalgam mount base ../new --follow --local target", 1, &["mounted to be changed"]);
    refused(&scratch, "amalgam run --local target -- true", 2, &["--local works only in a mount"]);
    refused(&scratch, "amalgam fork other --dir ../new --local target", 2, &["--local works only in a mount"]);
    let out = "amalgam fork other --mount ../new --backend checkout --local target";
    refused(&scratch, out, 2, &["--local works only in a mount", ".amalgamignore"]);
    refused(&scratch, "amalgam config set mount.local target /x", 2, &["`/x` cannot be local"]);
    assert_eq!(read(at.join("a")), "one\n");
}

#[test]
fn settings_make_paths_local_wherever_they_fit() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("amalgam config set mount.local target web/node_modules a");
    let at = mounted(&scratch);
    assert!(scratch.run("amalgam mounts").contains(", local: target"));
    scratch.run("cd ../try && echo o > target/o && echo two > a && amalgam commit");
    assert_eq!(paths(&scratch, "try@"), ".\n./a\n./d\n./d/e\n./d/e/x\n");
    assert_eq!(read(at.join("a")), "two\n");
}

#[test]
fn a_command_in_a_mount_of_its_own_has_real_directories() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init --workspace base; amalgam fork try");
    // As package managers do: remove what is in there, look whether it is a directory, write.
    let line = "test -d target && ! test -L target && rm -rf target/* && mkdir target/sub && echo x >> target/sub/x && \
                cat target/sub/x && echo b > b && stat -c %d target a | uniq | wc -l";
    assert_eq!(scratch.run(&format!("amalgam run --in try --local target --backend fuse -- sh -c '{line}'")), "x\n2\n");
    assert_eq!(paths(&scratch, "try@"), ".\n./a\n./b\n");
    // The same directory again, and through a mount that everybody sees.
    assert_eq!(scratch.run("amalgam run --in try --local target -- cat target/sub/x"), "x\n");
    scratch.run("amalgam mount try ../try --local target");
    assert_eq!(read(scratch.path().join("try/target/sub/x")), "x\n");
    assert_eq!(scratch.run("amalgam run --in try --local target -- cat target/sub/x"), "x\n");
}
