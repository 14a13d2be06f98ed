//! A project's directory that was removed, or recreated: one command brings it back, and the error names it.

use crate::scratch::Scratch;

/// A project with a Git repository, all of it in the last snapshot.
fn project() -> Scratch {
    let scratch = Scratch::new();
    let git = "git -c user.name=ann -c user.email=ann@example.com -c init.defaultBranch=main";
    scratch.run(&format!("mkdir d; echo a > a; echo b > d/b; {git} init -q; {git} add .; {git} commit -qm first"));
    scratch.run("amalgam init --workspace main");
    scratch
}

/// What a command says on standard error.
fn said(scratch: &Scratch, line: &str) -> String {
    String::from_utf8_lossy(&scratch.output(line).stderr).into_owned()
}

/// Runs the command that an error names in backquotes: the first one that begins so.
fn named(error: &str, begins: &str) -> String {
    let mut commands = error.split('`').filter(|part| part.starts_with(begins));
    commands.next().unwrap_or_else(|| panic!("no `{begins}` in {error}")).to_owned()
}

const WHOLE: &str = "test \"$(cat a d/b)\" = \"$(printf 'a\\nb')\" && git status --porcelain && git log --format=%s";

#[test]
fn a_directory_that_was_removed_is_written_again_with_its_git() {
    let scratch = project();
    // The shell is still in the directory that is gone.
    let error = said(&scratch, "rm -rf ../project; amalgam status");
    let command = named(&error, "amalgam checkout");
    assert_eq!(command, "amalgam checkout main");
    let done = scratch.shell(&command).current_dir(scratch.path()).output().expect("a shell");
    assert!(done.status.success(), "{done:?}");
    assert!(scratch.run("amalgam status").contains("nothing changed"));
    assert_eq!(scratch.run(WHOLE), "first\n");
    // The same from inside of what is gone.
    scratch.run(&format!("rm -rf ../project; {command}"));
    assert_eq!(scratch.run(WHOLE), "first\n");
    let refused = said(&scratch, &command);
    assert!(refused.contains("is not lost") && refused.contains("amalgam restore"), "{refused}");
}

#[test]
fn a_lost_directory_is_recognised_from_outside() {
    let scratch = project();
    scratch.run("rm -rf ../project");
    let elsewhere = |line: &str| {
        let done = scratch.shell(line).current_dir(scratch.path()).output().expect("a shell");
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    for line in ["amalgam -C project status", "amalgam -C project/d/../d commit", "amalgam -C project run -- touch x"] {
        let (code, error) = elsewhere(line);
        assert_eq!(code, Some(1), "{line}: {error}");
        assert_eq!(named(&error, "amalgam checkout"), "amalgam checkout main", "{line}: {error}");
    }
    for line in ["amalgam -C nowhere status", "amalgam -C nowhere ws", "amalgam -C nowhere help revisions"] {
        let (code, error) = elsewhere(line);
        assert_eq!(code, Some(1), "{line}: {error}");
        assert!(error.contains("nowhere: No such file or directory"), "{line}: {error}");
    }
    assert!(!scratch.path().join("x").exists() && !scratch.path().join("nowhere").exists());
}

#[test]
fn a_directory_that_was_recreated_gets_its_files_back() {
    let scratch = project();
    scratch.run("cd ..; rm -rf project; mkdir project");
    for line in ["amalgam status", "amalgam init", "amalgam commit"] {
        let error = said(&scratch, line);
        assert_eq!(named(&error, "amalgam checkout"), "amalgam checkout main --here", "{line}: {error}");
        assert!(!error.contains("lies inside"), "{error}");
    }
    scratch.run("mkdir below; cd below; amalgam checkout --here");
    assert_eq!(scratch.run(&format!("cd ../project; {WHOLE}")), "first\n");
}

#[test]
fn what_is_in_a_recreated_directory_is_kept_for_undo_and_its_git_left_alone() {
    let scratch = project();
    scratch.run("cd ..; rm -rf project; mkdir project");
    scratch.run("echo other > a; echo mine > mine; git init -q; echo kept > .git/description");
    let done = scratch.output("amalgam checkout main --here");
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success() && told.contains("amalgam undo") && told.contains("left alone"), "{told}");
    assert_eq!(scratch.run("cat a d/b .git/description; ls"), "a\nb\nkept\na\nd\n");
    scratch.run("amalgam undo");
    assert_eq!(scratch.run("cat a mine; ls"), "other\nmine\na\nmine\n");
    // The snapshot that it names has the repository that the workspace had.
    scratch.run(&named(&told, "amalgam restore"));
    assert_eq!(scratch.run("git log --format=%s; cat a"), "first\na\n");
}

#[test]
fn a_git_that_is_there_is_written_when_asked_for() {
    let scratch = project();
    scratch.run("cd ..; rm -rf project; mkdir project; cd project; git init -q");
    scratch.run("amalgam checkout main --here --with-git");
    assert_eq!(scratch.run(WHOLE), "first\n");
}

#[test]
fn a_lost_directory_can_be_written_elsewhere_and_nested_ones_are_told_apart() {
    let scratch = project();
    let inside = said(&scratch, "cd ..; rm -rf project; mkdir -p other project/inner; amalgam init project/inner");
    assert!(inside.contains("that one is lost") && inside.contains("amalgam checkout main`"), "{inside}");
    scratch.run("cd ../other; amalgam checkout main --here");
    assert_eq!(scratch.run(&format!("cd ../other; {WHOLE}")), "first\n");
    let around = said(&scratch, "amalgam init ..");
    assert!(around.contains("contains") && around.contains("which is already protected as workspace main"), "{around}");
    let nothing = said(&scratch, "amalgam checkout no-such --here");
    assert!(nothing.contains("there is no workspace no-such"), "{nothing}");
    // Where it never was, nothing is replaced without a yes.
    scratch.run("cd ../other; amalgam ws detach; rm -r d; echo mine > mine");
    let asked = said(&scratch, "cd ../other; amalgam checkout main --here < /dev/null");
    assert!(asked.contains("is not empty") && asked.contains("pass --yes"), "{asked}");
    assert_eq!(scratch.run("cd ../other; ls"), "a\nmine\n");
    scratch.run("cd ../other; amalgam checkout main --here --yes");
    assert_eq!(scratch.run("cd ../other; ls; amalgam undo -q; cat mine"), "a\nd\nmine\n");
}

#[test]
fn a_store_that_was_removed_or_replaced_ends_its_process() {
    let scratch = project();
    scratch.run("echo 2 > a; amalgam commit -q");
    // A command that looks for a store finds none, and one that makes a store begins anew.
    let error = said(&scratch, "mv \"$AMALGAM_STORE\" ../old; amalgam status");
    assert!(error.contains("there is no store at"), "{error}");
    assert!(scratch.run("amalgam init --workspace main").contains("is protected as main"));
    assert_eq!(scratch.run("amalgam log -n 9 --oneline").lines().count(), 1);
    // The old one is put back under the living process.
    scratch.run("mv \"$AMALGAM_STORE\" ../new; mv ../old \"$AMALGAM_STORE\"");
    assert_eq!(scratch.run("amalgam log -n 9 --oneline").lines().count(), 2);
    assert!(scratch.run("amalgam status; amalgam verify").contains("nothing changed"));
}
