//! Whose store is opened, who can read it, and where its process is found.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use crate::merging::said;
use crate::scratch::Scratch;

fn mode(scratch: &Scratch, path: &str) -> u32 {
    std::fs::metadata(scratch.path().join(path)).expect("it is there").permissions().mode() & 0o7777
}

/// A store whose settings name a command that leaves a trace.
fn armed() -> Scratch {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init -q");
    scratch.run(&format!("amalgam config set pager 'touch {}/owned; cat'; amalgam stop -q", scratch.path().display()));
    scratch
}

#[test]
fn a_store_of_another_user_is_opened_only_when_it_was_declared_safe() {
    if !rustix::process::geteuid().is_root() {
        return amalgam_test_support::skip("root", "only root can give a store to another user");
    }
    let scratch = armed();
    // `script` gives the command a terminal, so that it starts the pager.
    let log = "script -qec 'amalgam log' /dev/null < /dev/null";
    scratch.run("chown -R 65534 ../store");
    let told = said(&scratch, &format!("amalgam log; echo $?; {log}"));
    assert!(told.contains("belongs to user 65534, not to you") && told.contains("\n1\n"), "{told}");
    assert!(told.contains("AMALGAM_SAFE_STORES="), "{told}");
    assert!(!scratch.path().join("owned").exists(), "its pager ran");
    let told = said(&scratch, "AMALGAM_SAFE_STORES=/nowhere:$AMALGAM_STORE amalgam log; echo $?");
    assert!(told.ends_with("\n0\n"), "{told}");
    scratch
        .run("AMALGAM_SAFE_STORES=$AMALGAM_STORE amalgam stop; chown -R 0 ../store; chown 65534 ../store/config.toml");
    let told = said(&scratch, "amalgam log; echo $?");
    assert!(told.contains("config.toml belongs to user 65534") && told.ends_with("\n1\n"), "{told}");
    scratch.run("chown 0 ../store/config.toml; amalgam log");
}

#[test]
fn a_store_that_others_can_write_to_is_not_opened() {
    let scratch = armed();
    for mode in ["0775", "0707"] {
        let told = said(&scratch, &format!("chmod {mode} ../store; amalgam log; echo $?"));
        assert!(
            told.contains(&format!("other users can write to {}", scratch.path().join("store").display())),
            "{told}"
        );
        assert!(told.contains("chmod go-w") && told.ends_with("\n1\n"), "{told}");
    }
    scratch.run("chmod go-w ../store; amalgam log");
}

#[test]
fn a_home_that_others_can_read_is_closed_and_that_is_told() {
    let scratch = Scratch::new();
    // Made before the store is.
    scratch.run("umask 022; mkdir ../store; echo secret > .env; chmod 600 .env; amalgam init -q");
    assert_eq!([mode(&scratch, "store"), mode(&scratch, "store/store")], [0o700; 2]);
    scratch.run("amalgam stop -q; chmod 0755 ../store ../store/store");
    let told = said(&scratch, "amalgam log");
    assert!(told.contains("was open to other users (mode 0755)"), "{told}");
    assert_eq!([mode(&scratch, "store"), mode(&scratch, "store/store")], [0o700; 2]);
    assert!(!said(&scratch, "amalgam log").contains("was open to other users"));
    scratch.run("umask 022; amalgam --store ../new config set author bob");
    assert_eq!([mode(&scratch, "new"), mode(&scratch, "new/config.toml")], [0o700, 0o600]);
}

#[test]
fn serving_at_a_file_leaves_it_alone() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init -q; amalgam stop -q; echo precious > ../precious");
    let told = said(&scratch, "amalgam serve --socket ../precious; echo $?");
    assert!(told.contains("is no socket") && !told.ends_with("\n0\n"), "{told}");
    assert_eq!(scratch.run("cat ../precious"), "precious\n");
}

fn process(scratch: &Scratch, line: &str) -> i64 {
    let told = scratch.run(line);
    let mut lines = told.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    lines.find_map(|line| line.get("process_id")?.as_i64()).expect("it runs")
}

#[test]
fn a_command_with_another_runtime_directory_finds_the_process() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init -q; mkdir -m 0700 ../elsewhere");
    let first = process(&scratch, "amalgam doctor --json");
    let begun = Instant::now();
    let second =
        process(&scratch, "export XDG_RUNTIME_DIR=$PWD/../elsewhere; amalgam log > /dev/null; amalgam doctor --json");
    assert_eq!(first, second);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    scratch.run("XDG_RUNTIME_DIR=$PWD/../elsewhere amalgam stop");
    assert!(!scratch.path().join("store/socket").exists(), "the record goes with the process");
    // A record that a killed process left is no obstacle.
    scratch.run("echo -n $PWD/../runtime/nothing.sock > ../store/socket; amalgam log");
}

#[test]
fn the_background_process_leads_a_session_of_its_own() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init -q");
    let id = process(&scratch, "amalgam doctor --json");
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).expect("it runs");
    let session = stat.rsplit_once(')').expect("a name").1.split_ascii_whitespace().nth(3).expect("a session");
    assert_eq!(session, id.to_string());
}
