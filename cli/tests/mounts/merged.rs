//! Mounted workspaces that are merged, completed and taken away.

use std::fs;

use super::refused::refused;
use super::{json, mounted, read};
use crate::scratch::{Scratch, can_mount};

/// The mount of `try`, and one of a second fork of the same, `other`.
fn two_mounts(scratch: &Scratch) -> [std::path::PathBuf; 2] {
    let first = mounted(scratch);
    scratch.run("amalgam fork other --from base --mount ../other --backend fuse");
    [first, scratch.path().join("other")]
}

#[test]
fn a_merge_takes_along_what_is_in_mounts() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let [from, into] = two_mounts(&scratch);
    fs::write(from.join("a"), "from\n").expect("written");
    fs::write(into.join("d/e/x"), "into\n").expect("written");
    let planned = scratch.run("amalgam merge try --into other --dry-run --json");
    assert!(planned.contains("\"captures\""), "{planned}");
    assert_eq!(read(into.join("a")), "one\n", "a dry run changes nothing");
    assert_eq!(scratch.run("amalgam show try@:a"), "one\n");
    scratch.run("amalgam merge try --into other");
    assert_eq!([read(into.join("a")), read(into.join("d/e/x"))], ["from\n", "into\n"]);
    assert_eq!(scratch.run("amalgam show other@:a; amalgam show other@:d/e/x"), "from\ninto\n");
    assert_eq!(scratch.run("amalgam show try@:a"), "from\n");
    assert_eq!(scratch.output("cd ../other && amalgam status --exit-code").status.code(), Some(0));

    // The same through the queue, and into a mount that has moved on.
    fs::write(from.join("b"), "b\n").expect("written");
    fs::write(into.join("c"), "c\n").expect("written");
    scratch.run("amalgam publish try --into other");
    assert_eq!([read(into.join("b")), read(into.join("c")), read(into.join("a"))], ["b\n", "c\n", "from\n"]);
    assert_eq!(scratch.run("amalgam show other@:b; amalgam show other@:c"), "b\nc\n");
    scratch.run("amalgam umount try && amalgam umount other && amalgam verify");
}

#[test]
fn what_was_left_by_a_mount_is_completed_with_its_workspace() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    fs::write(at.join("a"), "two\n").expect("written");
    let words = &["workspace try is mounted at", "it cannot be completed", "amalgam umount"];
    refused(&scratch, "cd ../try && amalgam complete", 1, words);
    assert_eq!(read(at.join("a")), "two\n");
    scratch.run("amalgam umount try && amalgam complete try");
    assert_eq!(scratch.run("cat a"), "two\n");
    refused(&scratch, "amalgam mount try ../try", 1, &["try"]);
    // Another one of this name has nothing of it.
    scratch.run("echo three > a; amalgam commit; amalgam fork try --mount ../try");
    assert_eq!(read(at.join("a")), "three\n");
    assert_eq!(scratch.output("cd ../try && amalgam status --exit-code").status.code(), Some(0));
}

#[test]
fn a_completion_is_told_again_to_whoever_asks_with_the_same_id() {
    let scratch = Scratch::new();
    scratch.run("echo one > a; amalgam init --workspace base; amalgam fork try --dir ../try; echo two > ../try/a");
    scratch.run("amalgam complete try --request-id first");
    assert_eq!(scratch.run("cat a"), "two\n");
    let again = json(&scratch.run("amalgam complete try --request-id first --json"));
    let merge = again.iter().find(|line| line["type"] == "merge").expect("a merge");
    assert!(["replayed", "merged", "forward"].contains(&merge["how"].as_str().expect("a word")), "{merge}");
    refused(&scratch, "amalgam complete try --request-id second", 1, &["try"]);
}

#[test]
fn a_mounted_workspace_is_not_taken_away_by_an_undo() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    let log = json(&scratch.run("amalgam op log --json"));
    let fork = log.iter().find(|line| line["action"] == "fork").expect("a fork");
    let number = fork["sequence"].as_u64().or_else(|| fork["id"].as_str()?.parse().ok()).expect("a number");
    let undo = format!("amalgam undo --op {number}");
    refused(&scratch, &undo, 1, &["workspace try is mounted at", "it cannot be taken away"]);
    fs::write(at.join("a"), "two\n").expect("it goes on");
    scratch.run("amalgam umount try");
    refused(&scratch, &undo, 1, &["has changes from a mount that are in no snapshot"]);
    scratch.run("amalgam mount try ../try && cd ../try && amalgam restore @ && cd .. && amalgam umount try");
    assert_eq!(scratch.run("amalgam mounts --json"), "");
}
