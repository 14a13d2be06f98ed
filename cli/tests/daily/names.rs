//! Messages about names and states: workspaces that were deleted and brought back, labels that move, changes of permissions.

use std::fs;

use crate::scratch::Scratch;
use crate::{say, shell};

#[test]
fn a_directory_is_attached_again_after_its_workspace_was_deleted_and_undeleted() {
    let scratch = Scratch::new();
    let project = scratch.project();
    shell(&scratch, &project, "echo a >a; mkdir -p d/empty; amalgam init -q --workspace main; amalgam ws rm main");
    let (said, code) = say(&scratch, &project, "amalgam ws undelete main");
    assert!(code == 0 && said.contains("`amalgam ws attach -w main`"), "{said}");
    let (said, code) = say(&scratch, &project, "amalgam ws attach -w main");
    assert!(code == 0 && said.contains("its files are those of"), "{said}");
    // An edit after the attachment is an edit, and undo takes it back.
    shell(&scratch, &project, "echo b >b; echo aa >a; amalgam commit");
    assert_eq!(shell(&scratch, &project, "amalgam log --oneline | wc -l").trim(), "2");
    shell(&scratch, &project, "amalgam undo");
    assert!(!project.join("b").exists() && fs::read_to_string(project.join("a")).expect("it is there") == "a\n");
    // The name was taken meanwhile.
    shell(&scratch, &project, "amalgam ws rm main; amalgam ws create main");
    let (said, code) = say(&scratch, &project, "amalgam ws undelete main");
    assert!(code != 0 && said.contains("`amalgam ws rename main NEW`"), "{said}");
    shell(&scratch, &project, "amalgam ws rename main other && amalgam ws undelete main && amalgam verify");
}

#[test]
fn a_directory_with_other_files_than_its_workspace_is_not_watched_in_the_background() {
    let scratch = Scratch::new();
    let project = scratch.project();
    shell(
        &scratch,
        &project,
        "echo a >a; amalgam init -q --workspace main; amalgam ws rm main; amalgam ws undelete main; echo b >b",
    );
    let (said, code) = say(&scratch, &project, "amalgam ws attach -w main");
    assert!(code == 0 && said.contains("1 difference from"), "{said}");
    let (said, code) = say(&scratch, &project, "amalgam watch --background");
    assert!(code != 0 && said.contains("are not those of workspace main") && !said.contains("watching"), "{said}");
    // What the message names keeps the files.
    shell(&scratch, &project, "amalgam restore @");
    assert!(!project.join("b").exists());
    shell(&scratch, &project, "amalgam undo");
    assert!(project.join("b").exists());
    shell(&scratch, &project, "amalgam commit -m mine && amalgam verify");
}

#[test]
fn a_label_that_moves_says_where_it_was_and_a_missing_one_is_not_deleted() {
    let scratch = Scratch::new();
    let project = scratch.project();
    shell(&scratch, &project, "echo 1 >a; amalgam init -q; amalgam label works; echo 2 >a; amalgam commit -q");
    let first = shell(&scratch, &project, "amalgam log --oneline works | cut -d ' ' -f 1 | head -c 8");
    let (said, code) = say(&scratch, &project, "amalgam label works");
    assert!(code == 0 && said.contains(&format!("the label works was on {first}")), "{said}");
    shell(&scratch, &project, "amalgam undo");
    assert!(shell(&scratch, &project, "amalgam label").starts_with(&first), "undo puts it back");
    let (said, code) = say(&scratch, &project, "amalgam label nosuch --delete");
    assert!(code == 1 && said.contains("there is no label nosuch"), "{said}");
}

#[test]
fn a_fork_says_that_it_committed_changes_and_a_restore_elsewhere_names_its_undo() {
    let scratch = Scratch::new();
    let project = scratch.project();
    shell(&scratch, &project, "echo 1 >a; amalgam init -q --workspace main; echo 2 >a");
    let (said, _) = say(&scratch, &project, "amalgam fork try --dir ../try");
    assert!(said.contains("1 uncommitted change committed as"), "{said}");
    let (said, _) = say(&scratch, &project, "amalgam fork again");
    assert!(!said.contains("uncommitted"), "{said}");
    let tried = scratch.path().join("try");
    shell(&scratch, &tried, "echo 3 >a; amalgam commit -q");
    let (said, _) = say(&scratch, &project, "amalgam restore -w try @~");
    assert!(said.contains("`amalgam undo -w try` takes this back"), "{said}");
}

#[test]
fn status_tells_a_change_of_permissions_from_a_write_although_the_time_changed() {
    let scratch = Scratch::new();
    let project = scratch.project();
    shell(&scratch, &project, "echo 1 >a; echo 2 >b; chmod 644 a b; amalgam init -q");
    shell(&scratch, &project, "touch -d tomorrow a; chmod 755 a; echo 3 >b; chmod 755 b");
    let (said, _) = say(&scratch, &project, "amalgam status");
    assert!(said.contains("\nm a\n") && said.contains("\nM b\n"), "{said}");
}

#[test]
fn a_version_that_replaces_an_edited_file_says_that_the_edits_are_not_in_it() {
    let scratch = Scratch::new();
    let project = scratch.project();
    shell(&scratch, &project, "seq 9 >t; amalgam init -q --workspace main; amalgam fork -q try --dir ../try");
    shell(&scratch, &scratch.path().join("try"), "sed -i 's/^5$/try/' t; amalgam commit -q");
    shell(&scratch, &project, "sed -i 's/^5$/main/' t; amalgam commit -q; amalgam merge try || true");
    shell(&scratch, &project, "sed -i 's/^3$/three/' t; amalgam commit -q");
    for (version, words) in [
        ("draft", "t keeps its conflict markers"),
        ("theirs", "t is the version theirs as a whole, without your edits"),
    ] {
        let (said, code) = say(&scratch, &project, &format!("amalgam conflicts take {version} t"));
        assert!(code == 0 && said.contains(words), "{said}");
        shell(&scratch, &project, "amalgam undo");
    }
    assert!(fs::read_to_string(project.join("t")).expect("it is there").contains("three"));
}
