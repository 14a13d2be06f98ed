//! What depends on the machine and the user: where `init` asks first, who the author is, what can be mounted.

use std::process::Output;

use serde_json::Value;

use crate::scratch::Scratch;

fn said(done: &Output) -> String {
    String::from_utf8_lossy(&done.stderr).into_owned()
}

#[test]
fn the_home_directory_is_protected_only_after_a_question() {
    let scratch = Scratch::new();
    scratch.run("mkdir -p inner; echo a > a");
    for (home, command) in [
        ("$PWD", "amalgam init"),
        ("$PWD", "amalgam init --no-input"),
        ("$PWD", "amalgam init --json"),
        ("$PWD/inner", "amalgam init"),
        ("$PWD", "amalgam ws attach"),
        ("/nowhere", "amalgam init /"),
    ] {
        let done = scratch.output(&format!("HOME={home} {command} < /dev/null"));
        let said = said(&done);
        assert_eq!(done.status.code(), Some(2), "{command}: {said}");
        assert!(said.contains("Confirmation is needed") && said.contains("--yes"), "{command}: {said}");
    }
    assert!(!scratch.path().join("store").exists(), "nothing was made");
    scratch.run("HOME=$PWD amalgam init inner");
    scratch.run("HOME=$PWD amalgam ws detach project; HOME=$PWD amalgam ws detach inner; HOME=$PWD amalgam init --yes");
}

#[test]
fn without_a_name_in_the_environment_the_author_is_the_login_name() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; env -u AMALGAM_AUTHOR -u USER -u LOGNAME amalgam init");
    let told = scratch.run("amalgam log --json");
    let snapshot: Value = serde_json::from_str(told.lines().next().expect("a line")).expect("JSON");
    assert_eq!(snapshot["author"].as_str().expect("text"), scratch.run("id -un").trim());
}

/// A command that may not mount, whoever runs the tests.
fn without_mounts(line: &str) -> String {
    match rustix::process::geteuid().is_root() {
        true => format!("setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin {line}"),
        // Without its helper, and without what namespaces are tried with.
        false => format!("PATH=$(dirname $(command -v amalgam)) {line}"),
    }
}

#[test]
fn doctor_does_not_say_ok_of_what_is_not_possible() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init");
    let told = scratch.run(&without_mounts("amalgam doctor --json"));
    let checks: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let check = |subject: &str| {
        let found = checks.iter().find(|check| check["subject"] == subject);
        found.unwrap_or_else(|| panic!("no {subject} in {told}")).clone()
    };
    let mounts = check("mounts");
    assert_eq!(mounts["grade"], "warn", "{mounts}");
    assert!(
        mounts["message"].as_str().expect("text").contains("`amalgam mount` does not")
            || mounts["message"].as_str().expect("text").starts_with("not possible"),
        "{mounts}"
    );
    assert!(mounts["advice"].as_str().expect("text").contains("full cop"), "{mounts}");
    for check in checks.iter().filter(|check| check["grade"] == "ok") {
        let message = check["message"].as_str().expect("text");
        for word in ["not possible", "does not", "is not", "cannot"] {
            assert!(!message.contains(word), "{check}");
        }
    }
    scratch.run("mkdir ../other");
    let elsewhere = scratch.run("cd ../other; amalgam doctor");
    assert!(elsewhere.contains("note  directory: not protected"), "{elsewhere}");
}

#[test]
fn forks_that_cannot_be_mounted_say_how_much_is_copied() {
    let scratch = Scratch::new();
    scratch.run("head -c 20000 /dev/urandom > a; echo b > b; amalgam init --workspace main");
    let done = scratch.output(&without_mounts("amalgam fork -n 2 --mount '../try-{n}'"));
    let told = said(&done);
    assert!(done.status.success(), "{told}");
    assert!(told.contains("; 2 full copies are written instead, 2 files and 20 kB each"), "{told}");
    assert!(told.contains("2 full copies written: 4 paths, 40 kB"), "{told}");
    let asked = scratch.output("amalgam fork three --mount '../three' --backend checkout");
    assert_eq!(said(&asked), "", "what was asked for is no surprise");
    let explored = scratch.output(&without_mounts("amalgam explore -n 2 -- true"));
    assert!(said(&explored).contains("2 full copies are written instead"), "{}", said(&explored));
}

#[test]
fn connection_fails_with_the_way_out_if_the_process_does_not_answer_by_rest() {
    let scratch = Scratch::new();
    let socket = scratch.run("amalgam connection");
    std::fs::remove_file(socket.trim()).expect("the socket for REST");
    let done = scratch.output("amalgam --json connection");
    assert_eq!(done.status.code(), Some(1), "{}", said(&done));
    assert!(said(&done).contains("socket for REST") && said(&done).contains("amalgam stop"), "{}", said(&done));
    scratch.run("amalgam stop");
    assert!(!scratch.run("amalgam connection").is_empty());
}
