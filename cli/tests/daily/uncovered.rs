//! Files whose ignore rule an operation takes away.

use std::fs;

use crate::scratch::Scratch;
use crate::{say, shell};

fn read(scratch: &Scratch, name: &str) -> String {
    fs::read_to_string(scratch.project().join(name)).unwrap_or_default()
}

/// An operation that takes the rule of an ignored file away, and cannot remove the directory that holds the file.
fn uncovers_a_file(scratch: &Scratch, way: &str) {
    let place = scratch.project();
    shell(scratch, &place, "echo 1 >a; amalgam init -q; echo 2 >a; amalgam commit -qm two");
    shell(scratch, &place, "echo .env >.amalgamignore; mkdir web; echo SECRET >web/.env");
    if way != "amalgam undo" {
        shell(scratch, &place, "echo x >web/app.js; amalgam commit -qm web");
    }
    let (said, code) = say(scratch, &place, way);
    assert_eq!(code, 3, "{way}: {said}");
    assert!(said.contains("web: not removed: it holds files that no snapshot has"), "{way}: {said}");
    assert!(said.contains("warning: web/.env is no longer ignored: it is "), "{way}: {said}");
    assert_eq!(read(scratch, "web/.env"), "SECRET\n", "{way}");
    let is_committed = say(scratch, &place, "amalgam ls web").0.contains(".env");
    let (said, _) = say(scratch, &place, "amalgam status");
    assert!(is_committed || said.contains("A web"), "it is covered after {way}: {said}");
}

#[test]
fn a_file_whose_rule_an_operation_takes_away_is_an_edit_and_never_lost() {
    for way in ["undo", "restore @~1"] {
        for after in ["undo", "restore @", "restore @~1", "restore web"] {
            let scratch = Scratch::new();
            let place = scratch.project();
            uncovers_a_file(&scratch, &format!("amalgam {way}"));
            let (said, code) = say(&scratch, &place, &format!("amalgam {after}"));
            if code == 0 && !place.join("web/.env").exists() {
                let (said, _) = say(&scratch, &place, if after == "undo" { "amalgam redo" } else { "amalgam undo" });
                assert_eq!(read(&scratch, "web/.env"), "SECRET\n", "{way}, {after}: {said}");
            } else {
                assert_eq!(read(&scratch, "web/.env"), "SECRET\n", "{way}, {after}: {said}");
            }
        }
    }
}

#[test]
fn a_merge_and_the_removal_of_a_fork_keep_a_file_that_is_no_longer_ignored() {
    let scratch = Scratch::new();
    let place = scratch.project();
    uncovers_a_file(&scratch, "amalgam undo");
    shell(&scratch, &place, "amalgam fork idea --dir ../idea -q; cd ../idea; echo 3 >b; amalgam commit -q");
    shell(&scratch, &place, "amalgam merge idea -q");
    assert_eq!(read(&scratch, "web/.env"), "SECRET\n");
    // A fork that is removed with its directory.
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(&scratch, &place, "echo 1 >a; amalgam init -q; amalgam fork idea --dir ../idea -q");
    let fork = scratch.path().join("idea");
    shell(&scratch, &fork, "echo .env >.amalgamignore; mkdir web; echo SECRET >web/.env");
    let (said, code) = say(&scratch, &fork, "amalgam undo");
    assert_eq!(code, 3, "{said}");
    shell(&scratch, &place, "amalgam ws rm idea --dir --yes");
    assert!(!fork.exists());
    shell(&scratch, &place, "amalgam ws undelete idea");
    assert_eq!(shell(&scratch, &place, "amalgam show idea@:web/.env"), "SECRET\n");
}

#[test]
fn a_restore_says_which_files_are_no_longer_ignored() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(
        &scratch,
        &place,
        "echo 1 >a; amalgam init -q; echo .env >.amalgamignore; echo SECRET >.env; amalgam commit -q",
    );
    let (said, code) = say(&scratch, &place, "amalgam restore @~1");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(".env is no longer ignored: it is part of the new snapshot"), "{said}");
    let (said, _) = say(&scratch, &place, "amalgam undo");
    assert!(said.contains("undid restore"), "{said}");
    assert_eq!(read(&scratch, ".env"), "SECRET\n", "{said}");
    assert!(!shell(&scratch, &place, "amalgam ls").contains(".env"));
    shell(&scratch, &place, "rm .amalgamignore; amalgam commit -q; echo .env >.amalgamignore");
    let (said, _) = say(&scratch, &place, "amalgam undo");
    assert!(!said.contains("no longer ignored"), "a snapshot has it: {said}");
}
