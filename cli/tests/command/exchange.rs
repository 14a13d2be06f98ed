//! Imports and exports through the real command, with the programs of the host as oracles.

use std::process::Output;

use crate::scratch::Scratch;

/// A project with a little of everything.
fn project() -> Scratch {
    let scratch = Scratch::new();
    scratch.run(
        "mkdir -p d/e; seq 60000 > numbers; echo one > d/e/a; ln -s d/e/a link; printf x > d/run; chmod 755 d/run; \
         amalgam init -q; echo two > d/e/a; amalgam commit -q -m second",
    );
    scratch
}

#[track_caller]
fn fails(done: &Output, code: i32, words: &str) {
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(code), "{said}");
    assert!(said.contains(words), "{said}");
}

#[test]
fn archives_go_out_and_come_back() {
    let scratch = project();
    scratch.run("amalgam export tar -o ../a.tar.gz; gzip -t ../a.tar.gz; mkdir ../x; tar -xzf ../a.tar.gz -C ../x; diff -r . ../x");
    scratch.run("amalgam export tar | amalgam import tar - -w piped; amalgam checkout -q piped@ ../piped --workspace piped; diff -r . ../piped");
    scratch.run("amalgam export zip -o ../a.zip; amalgam import zip ../a.zip -w zipped; unzip -tq ../a.zip");
    assert_eq!(scratch.run("amalgam show zipped@:d/e/a; amalgam show piped@:d/e/a"), "two\ntwo\n");
    assert_eq!(scratch.run("amalgam export tar @~ d/e | tar -xO d/e/a"), "one\n");
    // Nothing shows of an import that fails, and of a dry run.
    let before = scratch.run("amalgam ws --json");
    fails(&scratch.output("head -c 70000 ../a.tar.gz | amalgam import tar - -w cut"), 1, "damaged");
    scratch.run("amalgam import tar ../a.tar.gz -w tried --dry-run");
    assert_eq!(scratch.run("amalgam ws --json"), before);
    scratch.run("amalgam verify");
}

#[test]
fn an_archive_goes_onto_a_workspace_only_when_it_is_asked_to() {
    let scratch = project();
    scratch.run(
        "mkdir ../more; echo m > ../more/m; tar -cf ../more.tar -C ../more m; amalgam import tar ../more.tar -w kept",
    );
    fails(&scratch.output("amalgam import tar ../more.tar -w project"), 1, "does not continue it");
    scratch.run("amalgam import tar ../more.tar -w kept --onto project@ --dry-run");
    scratch.run("amalgam fork -q other; amalgam import tar ../more.tar -w other --onto other@");
    assert_eq!(scratch.run("amalgam show other@:m; amalgam show other@:d/e/a"), "m\ntwo\n");
    assert_eq!(scratch.run("amalgam log other@ --json | wc -l").trim(), "3");
}

#[test]
fn a_repository_comes_in_step_by_step_and_goes_out_with_the_same_ids() {
    let scratch = project();
    let commit = "git -c user.name=ann -c user.email=ann@x commit -qm";
    scratch.run(&format!(
        "git init -qb main ../repo; cd ../repo; echo 1 > f; git add .; {commit} one; echo 2 > f; git add .; {commit} two"
    ));
    scratch.run("amalgam import git ../repo --history all -w work");
    assert_eq!(scratch.run("amalgam log work@ --json | wc -l").trim(), "2");
    scratch.run(&format!("cd ../repo; echo 3 > f; git add .; {commit} three"));
    let again = scratch.run("amalgam import git ../repo --history all -w work --json");
    assert!(again.contains("\"snapshots\":1") && again.contains("\"created\":false"), "{again}");
    scratch.run("amalgam export git work@ --to ../out.git --branch main; git -C ../out.git fsck --strict");
    assert_eq!(scratch.run("git -C ../out.git rev-parse main"), scratch.run("git -C ../repo rev-parse main"));
    fails(&scratch.output("amalgam export git work@ --to ../repo --branch main"), 1, "checked out");
    scratch.run("amalgam import git file://$PWD/../repo -w cloned; test $(amalgam show cloned@:f) = 3");
    fails(&scratch.output("amalgam import git ../nowhere"), 2, "is not there");
}

#[test]
fn an_image_and_an_upper_directory_become_workspaces() {
    let scratch = project();
    scratch.run("amalgam export oci @ --base @~ --name app:v1 -o ../app.tar; amalgam import oci ../app.tar -w image");
    assert_eq!(scratch.run("amalgam log image@ --json | wc -l").trim(), "2");
    assert_eq!(scratch.run("amalgam show image@:d/e/a"), "two\n");
    scratch.run(
        "amalgam export oci @ --dir ../layout; test -f ../layout/index.json; amalgam import oci ../layout -w full",
    );
    scratch.run("mkdir -p ../upper/d; echo u > ../upper/d/new; : > ../upper/d/.wh.run");
    scratch.run("amalgam import overlay ../upper --onto image@ --aufs -w image");
    assert_eq!(scratch.run("amalgam show image@:d/new"), "u\n");
    assert!(!scratch.output("amalgam show image@:d/run").status.success());
}

#[test]
fn set_user_id_bits_of_an_archive_are_withheld() {
    let scratch = Scratch::new();
    scratch.run("mkdir ../x; echo s > ../x/su; chmod 4755 ../x/su; tar -cf ../x.tar -C ../x su");
    scratch.run("amalgam import tar ../x.tar -w foreign; amalgam checkout -q foreign@ ../out --workspace foreign || test $? = 3");
    assert_eq!(scratch.run("stat -c %a ../out/su").trim(), "755");
    let archive = scratch.run("amalgam export tar foreign@ | tar -tv");
    assert!(archive.contains("-rwsr-xr-x"), "{archive}");
}

#[test]
fn an_export_does_not_move_a_branch_that_a_worktree_has_checked_out() {
    let scratch = project();
    scratch.run(
        "git init -q ../repo; cd ../repo; git config user.email a@b; git config user.name a; echo 1 > a; git add a; \
         git commit -qm a; git worktree add -q ../worktree -b agent",
    );
    let refused = "amalgam export git @ --to ../repo --branch agent";
    fails(&scratch.output(refused), 1, "is checked out in");
    fails(&scratch.output("amalgam export git @ --to ../repo --branch HEAD"), 1, "is no name for a branch");
    scratch.run("git -C ../worktree diff --quiet HEAD; amalgam export git @ --to ../repo --branch other");
}
