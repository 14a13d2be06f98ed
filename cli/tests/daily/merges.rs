//! Merges and their conflicts beside uncommitted changes, in a directory and in a mount.

use std::fs;
use std::path::PathBuf;

use crate::scratch::{Scratch, can_mount};
use crate::{say, shell};

/// Returns a workspace `try` with two conflicts, `t` and `u`, and a file `other`.
fn disputed(is_mounted: bool) -> (Scratch, PathBuf) {
    let scratch = Scratch::new();
    let project = scratch.project();
    shell(
        &scratch,
        &project,
        "seq 5 >t; seq 5 >u; echo o >other; amalgam init -q && amalgam fork -q side-1 --dir ../side-1 && amalgam fork -q side-2 --dir ../side-2",
    );
    for side in ["side-1", "side-2"] {
        shell(&scratch, &scratch.path().join(side), &format!("sed -i '3s/.*/{side}/' t u && amalgam commit -q"));
    }
    let way = if is_mounted { "--mount ../try --backend fuse" } else { "--dir ../try" };
    shell(&scratch, &project, &format!("amalgam fork -q try {way}"));
    let place = scratch.path().join("try");
    let (said, code) = say(&scratch, &place, "amalgam merge side-1 side-2");
    assert!(code == 5 && said.contains("2 conflicts left"), "{said}");
    (scratch, place)
}

fn end(scratch: &Scratch) {
    scratch.run("cd / && (amalgam umount --all || true) && amalgam verify");
}

#[test]
fn a_conflict_is_resolved_beside_uncommitted_changes_and_a_refused_resolution_commits_nothing() {
    for is_mounted in [false, true] {
        if is_mounted && !can_mount() {
            return;
        }
        let (scratch, place) = disputed(is_mounted);
        let head = || say(&scratch, &place, "amalgam log --oneline -1").0;
        let merged = head();
        fs::write(place.join("other"), "edited\n").expect("written");
        for (line, words) in [
            ("amalgam conflicts take nosuch t", "has no version nosuch"),
            ("amalgam conflicts take theirs other", "there is no conflict at other"),
            ("amalgam conflicts take theirs --all --dry-run", "2 conflicts to resolve; nothing was changed"),
        ] {
            let (said, _) = say(&scratch, &place, line);
            assert!(said.contains(words), "mounted: {is_mounted}, {line}: {said}");
            assert_eq!(head(), merged, "mounted: {is_mounted}, {line}");
        }
        let (said, code) = say(&scratch, &place, "amalgam conflicts take side-1 t");
        assert!(code == 0 && said.contains("1 file left"), "{said}");
        assert!(said.contains("the changes that were not committed are kept in"), "{said}");
        let read = |name: &str| fs::read_to_string(place.join(name)).expect("it is there");
        assert_eq!((read("t"), read("other")), ("1\n2\nside-1\n4\n5\n".to_owned(), "edited\n".to_owned()));
        let (said, code) = say(&scratch, &place, "amalgam status --exit-code");
        assert!(code == 5 && said.contains("1 conflict;") && said.contains("nothing changed"), "{said}");
        shell(&scratch, &place, "amalgam conflicts resolve --all --theirs");
        assert!(read("u").contains("side-2"), "mounted: {is_mounted}");
        shell(&scratch, &place, "amalgam status --exit-code");
        // Each step is undone by itself.
        shell(&scratch, &place, "amalgam undo && amalgam undo");
        assert!(read("t").contains("<<<<<<<") && read("other") == "edited\n", "mounted: {is_mounted}");
        end(&scratch);
    }
}

#[test]
fn a_merge_that_changes_nothing_commits_no_changes_and_new_times_are_no_changed_path() {
    for is_mounted in [false, true] {
        if is_mounted && !can_mount() {
            return;
        }
        let (scratch, place) = disputed(is_mounted);
        let head = || say(&scratch, &place, "amalgam log --oneline -1").0;
        let (said, _) = say(&scratch, &place, "amalgam commit");
        let words = if is_mounted { "nothing to commit" } else { "only times changed" };
        assert!(said.contains(words), "{said}");
        let merged = head();
        shell(&scratch, &scratch.path().join("side-1"), "touch t && amalgam commit && echo theirs >other");
        fs::write(place.join("other"), "edited\n").expect("written");
        let (said, code) = say(&scratch, &place, "amalgam merge side-2");
        assert!(code == 0 && said.contains("try already has it"), "mounted: {is_mounted}: {said}");
        assert_eq!(head(), merged, "mounted: {is_mounted}");
        let (said, code) = say(&scratch, &place, "amalgam merge side-1 --ff-only");
        assert!(code == 5 && said.contains("nothing was changed in try"), "mounted: {is_mounted}: {said}");
        assert_eq!(head(), merged, "mounted: {is_mounted}");
        let (said, _) = say(&scratch, &place, "amalgam status");
        assert!(said.contains("M other"), "mounted: {is_mounted}: {said}");
        // One that changes something keeps the edit, and counts the conflicts of before.
        let (said, code) = say(&scratch, &place, "amalgam merge side-1");
        assert!(code == 5 && said.contains("with 1 conflict, 3 left in all"), "mounted: {is_mounted}: {said}");
        let other = fs::read_to_string(place.join("other")).expect("it is there");
        assert!(other.contains("edited") && other.contains("theirs"), "{other}");
        end(&scratch);
    }
}
