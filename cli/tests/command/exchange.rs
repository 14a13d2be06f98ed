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
    let older = "--ref $(git -C ../repo rev-parse main~) -w older; test $(amalgam show older@:f) = 2";
    scratch.run(&format!("amalgam import git file://$PWD/../repo {older}"));
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

#[test]
fn a_branch_is_pushed_and_a_refusal_of_the_remote_is_told() {
    let scratch = project();
    scratch.run("git init -q --bare ../remote.git; amalgam export git @ --to ../out.git --branch main");
    scratch.run("git -C ../out.git remote add there $PWD/../remote.git");
    // A dry run neither exports nor pushes.
    scratch.run("echo three > d/e/a; amalgam commit -q -m third");
    let said = scratch.run("amalgam export git @ --to ../out.git --branch main --push there --dry-run");
    assert!(said.contains("would push main to there"), "{said}");
    assert_eq!(scratch.run("git -C ../remote.git for-each-ref; git -C ../out.git rev-list --count main").trim(), "2");
    scratch.run("amalgam export git @ --to ../out.git --branch main --push there");
    assert_eq!(scratch.run("git -C ../remote.git show main:d/e/a"), "three\n");
    scratch.run(
        "printf '#!/bin/sh\\necho frozen >&2; exit 1' > ../remote.git/hooks/pre-receive; \
         chmod +x ../remote.git/hooks/pre-receive; echo four > d/e/a; amalgam commit -q -m fourth",
    );
    let refused = scratch.output("amalgam export git @ --to ../out.git --branch main --push there");
    fails(&refused, 1, "the branch is exported, but git could not push it to there");
    fails(&refused, 1, "frozen");
    assert_eq!(scratch.run("git -C ../out.git show main:d/e/a"), "four\n");
    assert_eq!(scratch.run("git -C ../remote.git show main:d/e/a"), "three\n");
    fails(&scratch.output("amalgam export git @ --to ../out.git --branch main --push nowhere"), 1, "could not push");
    // A range leaves out what lies before it.
    scratch.run("amalgam export git @~2..@ --to ../range.git --branch main");
    assert_eq!(scratch.run("git -C ../range.git rev-list --count main").trim(), "2");
}

#[test]
fn an_overlay_directory_goes_out_and_comes_back() {
    let scratch = project();
    scratch.run("rm d/run; echo new > d/new; amalgam commit -q -m third");
    scratch.run("amalgam export overlay @ --base @~ --to ../upper --dry-run; test ! -e ../upper");
    let counts = scratch.run("amalgam export overlay @ --base @~ --to ../upper --json");
    assert!(counts.contains("\"removed\":1") && counts.contains("\"files\":1"), "{counts}");
    assert_eq!(scratch.run("test -c ../upper/d/run; cat ../upper/d/new; ls ../upper"), "new\nd\n");
    fails(&scratch.output("amalgam export overlay @ --base @~ --to ../upper"), 1, "is not empty");
    for form in ["xattr", "aufs"] {
        scratch.run(&format!("amalgam export overlay @ --base @~ --to ../{form} --whiteouts {form}"));
    }
    scratch.run("amalgam import overlay ../upper --onto project@~ -w back");
    assert_eq!(scratch.run("amalgam diff --stat back@ @"), "");
    scratch.run("amalgam import overlay ../aufs --aufs --onto project@~ -w aufs");
    assert_eq!(scratch.run("amalgam diff --stat aufs@ @"), "");
}

#[test]
fn an_image_of_an_engine_that_is_not_there_is_a_clear_error() {
    let scratch = project();
    fails(&scratch.output("amalgam import docker debian:12 --socket ../nowhere"), 1, "none answers at");
    fails(&scratch.output("DOCKER_HOST=tcp://127.0.0.1:1 amalgam import docker debian"), 2, "only Unix sockets");
}

#[test]
fn submodules_come_in_from_a_work_tree_and_from_a_url() {
    let scratch = Scratch::new();
    scratch.run(
        "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=protocol.file.allow GIT_CONFIG_VALUE_0=always; \
         commit() { git add -A; git -c user.name=a -c user.email=a@x commit -qm c; }; cd ..; \
         git init -qb main sub; (cd sub; echo s > s; commit); git init -qb main top; cd top; \
         git submodule --quiet add file://$PWD/../sub lib; commit; \
         amalgam import git . --submodules -w local; amalgam import git file://$PWD --submodules -w cloned; \
         amalgam import git . -w plain",
    );
    assert_eq!(scratch.run("amalgam show local@:lib/s; amalgam show cloned@:lib/s"), "s\ns\n");
    assert!(!scratch.output("amalgam show plain@:lib/s").status.success());
    assert_eq!(scratch.run("amalgam diff --stat local@ cloned@"), "");
}
