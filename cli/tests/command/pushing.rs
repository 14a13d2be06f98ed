//! `push`, `pull` and `clone` between a local store and a server.

use serde_json::Value;

use crate::scratch::Scratch;
use crate::served::{Served, key};

/// A project with a server that the user has logged in to.
fn project() -> (Scratch, Served) {
    let scratch = Scratch::new();
    let key = key(&scratch, "merge");
    let server = Served::start(&scratch);
    scratch.run(&format!("echo {key} | amalgam login {} --name dev -q", server.url));
    (scratch, server)
}

/// The JSON line of a command that succeeds.
#[track_caller]
fn told(scratch: &Scratch, line: &str) -> Value {
    let printed = scratch.run(line);
    serde_json::from_str(printed.lines().next().expect("a line")).expect("JSON")
}

/// What a command that fails prints.
#[track_caller]
fn fails(scratch: &Scratch, line: &str, code: i32) -> String {
    let done = scratch.output(line);
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8(said).expect("text");
    assert_eq!(done.status.code(), Some(code), "{line}: {said}");
    said
}

#[test]
fn a_push_of_one_changed_file_sends_only_what_changed() {
    let (scratch, _server) = project();
    scratch.run(
        "for d in $(seq 60); do mkdir d$d; for f in $(seq 50); do echo $d $f > d$d/f$f; done; done; amalgam init -q",
    );
    let first = told(&scratch, "amalgam push --json");
    scratch.run("echo other > d7/f7; amalgam commit -q");
    let second = told(&scratch, "amalgam push --json");
    #[allow(clippy::print_stderr, reason = "the figure of this test")]
    {
        eprintln!("objects sent: {} at first, {} for one changed file of 3,000", first["objects"], second["objects"]);
    }
    let objects = |value: &Value| value["objects"].as_u64().expect("a number");
    assert!(objects(&first) > 3_000, "{first}");
    assert!(objects(&second) <= 12, "{second}");
    assert_eq!(second["objects"], second["objects_new"], "nothing is sent that was there");
    assert_eq!(second["snapshots"], 1);
    let third = told(&scratch, "amalgam push --json");
    assert_eq!((objects(&third), &third["changed"]), (0, &Value::Bool(false)));
    assert_eq!(scratch.run("amalgam --server dev cat project:d7/f7"), "other\n");
}

#[test]
fn a_clone_is_worked_in_pushed_and_pulled() {
    let (scratch, server) = project();
    scratch.run("echo one > a; amalgam init -q; amalgam label v1; amalgam push -q && amalgam push -q v1");
    let elsewhere = |line: &str| scratch.run(&format!("export AMALGAM_STORE=../other; {line}"));
    elsewhere("amalgam clone dev/default/project ../clone");
    let url = &server.url;
    assert!(elsewhere("amalgam config").contains(&format!("workspace.project.server = {url}/default")));
    elsewhere("cd ../clone && test $(cat a) = one && amalgam pull -q v1 && amalgam cat v1:a");
    elsewhere("cd ../clone && echo two > a && echo new > b && amalgam commit -q && amalgam push");
    scratch.run("amalgam pull");
    scratch.run("amalgam status --exit-code");
    assert_eq!(scratch.run("cat a b"), "two\nnew\n");
    assert!(scratch.run("amalgam pull").contains("nothing to pull"));
    assert!(scratch.run("amalgam push").contains("nothing to push"));
    assert_eq!(elsewhere("cd ../clone && amalgam log --json -n 1"), scratch.run("amalgam log --json -n 1"));
    // Into a directory with something in it, and over another workspace, nothing is cloned.
    let said = fails(&scratch, &format!("amalgam clone {url}/default/project ."), 1);
    assert!(said.contains("not empty"), "{said}");
    scratch.run("echo three > a; amalgam commit -q");
    let said = fails(&scratch, &format!("amalgam clone {url}/default/project ../third"), 1);
    assert!(said.contains("amalgam pull project"), "{said}");
    assert!(fails(&scratch, &format!("amalgam clone {url}/default/nothing ../third"), 1).contains("no workspace"));
    elsewhere("amalgam stop --force -q");
}

#[test]
fn a_head_that_moved_is_refused_with_the_steps_that_merge_it() {
    let (scratch, _server) = project();
    scratch.run("echo one > a; echo same > b; amalgam init -q; amalgam push -q");
    let elsewhere = |line: &str| scratch.run(&format!("export AMALGAM_STORE=../other; {line}"));
    elsewhere(
        "amalgam clone -q dev/default/project ../clone; cd ../clone; echo two > a; amalgam commit -q; amalgam push -q",
    );
    scratch.run("echo changed > b");
    assert!(fails(&scratch, "amalgam pull", 1).contains("amalgam commit"), "uncommitted changes");
    scratch.run("amalgam commit -q");
    let said = fails(&scratch, "amalgam push", 6);
    assert!(said.contains("moved") && said.contains("amalgam pull project"), "{said}");
    let said = fails(&scratch, "amalgam pull", 6);
    assert!(said.contains("amalgam pull project --under theirs"), "{said}");
    // The steps that the messages name.
    scratch.run(
        "amalgam pull project --under theirs && amalgam merge theirs/project --into project && amalgam push project",
    );
    assert_eq!(scratch.run("amalgam --server dev cat project:a; amalgam --server dev cat project:b"), "two\nchanged\n");
    elsewhere("cd ../clone && amalgam pull -q && cat b && amalgam stop --force -q");
}

#[test]
fn likely_secrets_are_listed_and_not_sent() {
    let (scratch, _server) = project();
    scratch.run("echo one > a; amalgam init -q; printf 'id = AKIAABCDEFGHIJKLMNOP\\n' > creds; amalgam commit -q");
    // It is in the history, even if the last snapshot has it no more.
    scratch.run("rm creds; amalgam commit -q");
    let said = fails(&scratch, "amalgam push", 1);
    assert!(said.contains("creds") && said.contains("--allow-secrets") && !said.contains("AKIAABCD"), "{said}");
    assert_eq!(scratch.run("amalgam --server dev ws --json"), "");
    scratch.run("amalgam push --allow-secrets");
    // What the server has already is not looked at again.
    scratch.run("echo two > a; amalgam commit -q; amalgam push");
}

#[test]
fn a_push_that_broke_off_goes_on_behind_what_arrived() {
    let (scratch, _server) = project();
    scratch
        .run("amalgam init -q; for n in 1 2 3 4 5 6; do head -c 3000000 /dev/urandom > big; amalgam commit -q; done");
    scratch.run("amalgam send project@ -o ../all");
    let all = std::fs::read(scratch.path().join("all")).expect("read");
    std::fs::write(scratch.path().join("cut"), &all[..all.len() * 3 / 4]).expect("written");
    fails(&scratch, "amalgam --server dev receive ../cut", 1);
    assert_eq!(scratch.run("amalgam --server dev ws --json"), "", "nothing shows before its end");
    let pushed = told(&scratch, "amalgam push --json");
    let bytes = pushed["bytes"].as_u64().expect("a number");
    assert!(bytes < all.len() as u64 / 2, "{bytes} of {} were sent again", all.len());
    assert_eq!(scratch.run("amalgam --server dev log project --json -n 1"), scratch.run("amalgam log --json -n 1"));
}
