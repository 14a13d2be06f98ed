//! Workspaces that follow a source, and the radar, through the real command.

use crate::scratch::Scratch;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `main` in the directory of the scratch, and `try` with a directory beside it.
fn scratch() -> Scratch {
    let scratch = Scratch::new();
    scratch.run("printf '1\\n2\\n3\\n' > file; echo x > other; amalgam init -q --workspace main");
    scratch.run("amalgam fork -q try --dir ../try > /dev/null");
    scratch
}

#[test]
fn a_directory_is_updated_and_keeps_what_the_agent_changed() {
    let scratch = scratch();
    scratch.run("echo mine > ../try/own; printf '1\\n2\\nmine\\n' > ../try/file");
    scratch.run("printf 'theirs\\n2\\n3\\n' > file; echo new > new; amalgam commit -q");
    let said = scratch.run("cd ../try && amalgam follow main --every 1h 2>&1");
    assert!(said.contains("try follows main every 1 h"), "{said}");
    assert!(said.contains("2 synced, 0 skipped, 2 in total"), "{said}");
    assert_eq!(scratch.run("cat ../try/file"), "theirs\n2\nmine\n");
    assert_eq!(scratch.run("cat ../try/new ../try/own"), "new\nmine\n");
    let said = scratch.run("cd ../try && amalgam status 2>&1; amalgam ws show try");
    assert!(said.contains("follows main every 1 h") && said.contains("Follows:   main every 1 h"), "{said}");
    // An update can be taken back.
    scratch.run("cd ../try && amalgam undo -q");
    assert_eq!(scratch.run("cat ../try/file; ls ../try"), "1\n2\nmine\nfile\nother\nown\n");
    let said = scratch.run("amalgam unfollow try 2>&1; amalgam update try; test $? != 0");
    assert!(said.contains("try follows nothing"), "{said}");
}

#[test]
fn a_conflict_is_stored_and_told_and_nothing_is_overwritten() {
    let scratch = scratch();
    scratch.run("echo mine > ../try/other; echo theirs > other; amalgam commit -q");
    let done = scratch.output("cd ../try && amalgam follow main --every 1h");
    assert_eq!(done.status.code(), Some(5), "{}{}", text(&done.stdout), text(&done.stderr));
    assert!(text(&done.stdout).contains("conflict other"), "{}", text(&done.stdout));
    let file = scratch.run("cat ../try/other");
    assert!(file.contains("mine") && file.contains("theirs"), "both versions are in the file: {file}");
    assert!(scratch.run("cd ../try && amalgam conflicts").contains("other"));
    assert_eq!(scratch.run("cat other"), "theirs\n");
}

#[test]
fn a_directory_beside_the_workspace_is_followed() {
    let scratch = scratch();
    scratch.run("mkdir ../shared && echo 1 > ../shared/lib");
    let said = scratch.run("cd ../try && amalgam follow --directory ../shared --every 1h 2>&1");
    assert!(said.contains("try follows") && said.contains("1 synced, 0 skipped, 1 in total"), "{said}");
    assert_eq!(scratch.run("cat ../try/lib ../try/other"), "1\nx\n");
}

#[test]
fn a_git_branch_is_followed() {
    let scratch = scratch();
    scratch.run(
        "git init -q -b main ../repo && cd ../repo && git config user.email a@b && git config user.name a && echo 1 > lib && git add . && git commit -qm 1",
    );
    let said = scratch.run("cd ../try && amalgam follow --git ../repo --branch main --every 1h 2>&1");
    assert!(said.contains("1 synced, 0 skipped, 1 in total"), "{said}");
    scratch.run("cd ../repo && echo 2 > lib && git commit -qam 2");
    let said = scratch.run("amalgam update try 2>&1");
    // The process also reads a new source by itself; it may come second, and find the commit.
    assert!(said.contains("1 synced, 0 skipped, 1 in total") || said.contains("try is up to date"), "{said}");
    assert_eq!(scratch.run("cat ../try/lib ../try/other"), "2\nx\n");
    // A branch that was rewritten is followed, too.
    scratch.run("cd ../repo && echo 3 > lib && git commit -qa --amend -m 3");
    scratch.run("amalgam update -w try");
    assert_eq!(scratch.run("cat ../try/lib"), "3\n");
    let said = scratch.run("amalgam unfollow --workspace try 2>&1");
    assert!(said.contains("try follows nothing"), "{said}");
}

#[test]
fn a_git_branch_with_a_number_sign_in_its_name_is_followed() {
    let scratch = scratch();
    scratch.run(
        "git init -q -b 'fix#12' ../repo && cd ../repo && git config user.email a@b && git config user.name a && echo 1 > lib && git add . && git commit -qm 1",
    );
    scratch.run("cd ../try && amalgam follow --git ../repo --branch 'fix#12' --every 1h");
    scratch.run("cd ../repo && echo 2 > lib && git commit -qam 2");
    let said = scratch.run("amalgam update try 2>&1");
    assert!(said.contains("1 synced, 0 skipped, 1 in total"), "{said}");
    assert_eq!(scratch.run("cat ../try/lib"), "2\n");
    let shown = scratch.run("amalgam ws show try --json");
    assert!(shown.contains("/repo#fix#12\""), "{shown}");
}

#[test]
fn run_in_a_follower_updates_first() {
    let scratch = scratch();
    scratch.run("amalgam follow main -w try --every 1h; echo new > new; amalgam commit -q");
    assert!(scratch.run("amalgam run --in try -- cat new").contains("new\n"));
}

#[test]
fn the_background_process_updates_by_interval_and_by_event() {
    let scratch = scratch();
    scratch.run("amalgam follow main -w try --mode event; echo new > new; amalgam commit -q");
    scratch.run("for i in $(seq 200); do test -e ../try/new && exit 0; sleep 0.05; done; exit 1");
    scratch.run("amalgam follow main -w try --every 1s; echo more > more; amalgam commit -q");
    scratch.run("for i in $(seq 200); do test -e ../try/more && exit 0; sleep 0.05; done; exit 1");
}

#[test]
fn the_radar_shows_who_changes_the_same_lines() {
    let scratch = scratch();
    scratch.run("amalgam fork -q --from main second --dir ../second > /dev/null");
    assert_eq!(scratch.run("amalgam radar"), "");
    scratch.run("for d in try second; do (cd ../$d && printf \"$d\\n2\\n3\\n\" > file && amalgam commit -q); done");
    let said = scratch.run("amalgam radar");
    for words in ["file\n", "  try", "  second", "try and second: the same lines (1); would conflict"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(scratch.run("amalgam radar -w try docs/"), "");
}

#[test]
fn written_files_of_a_directory_are_published_when_they_are_quiet() {
    let scratch = scratch();
    let said = scratch.run("amalgam publish try --on-write=300ms 2>&1; amalgam ws show try");
    assert!(said.contains("try is published into main when written files have been quiet for 0.3 s"), "{said}");
    scratch.run("echo up > ../try/upstream");
    scratch.run("for i in $(seq 200); do test -e upstream && exit 0; sleep 0.05; done; exit 1");
    assert_eq!(scratch.run("cat upstream"), "up\n");
    // The background process takes it up again.
    scratch.run("amalgam stop --force; amalgam ws ls > /dev/null; echo again > ../try/upstream");
    scratch.run("for i in $(seq 200); do grep -q again upstream && exit 0; sleep 0.05; done; exit 1");
    scratch.run("amalgam publish try --manual; echo off > ../try/upstream; sleep 1");
    assert_eq!(scratch.run("cat upstream"), "again\n");
    let refused = scratch.output("amalgam publish try --on-write=2");
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
}
