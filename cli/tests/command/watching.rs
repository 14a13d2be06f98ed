//! Watches: which one ends when, and what becomes of the one in the background when its process goes.

use std::cell::RefCell;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::interrupts::{Begun, begin};
use crate::scratch::Scratch;

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}: it never was");
        std::thread::sleep(Duration::from_millis(30));
    }
}

/// The line of JSON of one type that a command prints.
fn line(scratch: &Scratch, command: &str, kind: &str) -> Value {
    let printed = scratch.run(command);
    let lines = printed.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.into_iter().find(|line| line["type"] == kind).unwrap_or_else(|| panic!("{command}: no {kind}"))
}

/// Ends the process that holds the store as a crash would.
fn kill(scratch: &Scratch) {
    let id = line(scratch, "amalgam doctor --json", "process")["process_id"].as_i64().expect("a number");
    let id = Pid::from_raw(i32::try_from(id).expect("a number")).expect("not 0");
    kill_process(id, Signal::KILL).expect("it runs");
    until("it is gone", || rustix::process::test_kill_process(id).is_err());
}

/// Whether a path is in the head, asked without a process that was started for it.
fn is_committed(scratch: &Scratch, path: &str) -> bool {
    scratch.output(&format!("amalgam show @:{path}")).status.success()
}

#[test]
fn a_background_watch_goes_on_in_the_next_process() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init; amalgam watch --background --quiet-for 50ms");
    scratch.run("echo one > one");
    until("one is committed", || is_committed(&scratch, "one"));
    kill(&scratch);
    // Any command starts the process, which takes the watch up and finds what happened meanwhile.
    scratch.run("echo two > two; amalgam ws");
    until("two is committed", || is_committed(&scratch, "two"));
    let status = scratch.output("amalgam status");
    let said = String::from_utf8_lossy(&status.stderr);
    assert!(said.contains("no background process ran before"), "{said}");
    // It is no reason to keep a process that is asked to go, and goes on after that as well.
    let stopped = scratch.output("amalgam stop");
    assert!(stopped.status.success());
    assert!(
        String::from_utf8_lossy(&stopped.stderr).contains("the next `amalgam` command resumes watching"),
        "{stopped:?}"
    );
    scratch.run("amalgam ws; echo three > three");
    until("three is committed", || is_committed(&scratch, "three"));
    // What was stopped is not taken up.
    scratch.run("amalgam watch --stop; amalgam stop; amalgam ws; echo four > four; sleep 1");
    assert!(!is_committed(&scratch, "four"));
    let status = line(&scratch, "amalgam status --json", "status");
    assert_eq!((&status["watched"], &status["watch_wanted"]), (&Value::Bool(false), &Value::Bool(false)));
}

#[test]
fn each_watch_ends_alone() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init; amalgam watch --background --quiet-for 50ms");
    let Begun { child, .. } = begin(&scratch, "amalgam watch", "watching");
    child.interrupt(Signal::INT);
    let status = line(&scratch, "amalgam status --json", "status");
    assert_eq!((&status["watched"], &status["watch_wanted"]), (&Value::Bool(true), &Value::Bool(true)));
    scratch.run("echo one > one");
    until("the one in the background goes on", || is_committed(&scratch, "one"));
    let Begun { child, .. } = begin(&scratch, "amalgam watch --quiet-for 50ms", "watching");
    scratch.run("amalgam watch --stop; echo two > two");
    until("the one in the foreground goes on", || is_committed(&scratch, "two"));
    let refused = scratch.output("amalgam stop");
    assert_eq!(refused.status.code(), Some(11), "{refused:?}");
    child.interrupt(Signal::TERM);
    assert_eq!(line(&scratch, "amalgam status --json", "status")["watched"], Value::Bool(false));
    scratch.run("amalgam stop");
}

#[test]
fn status_warns_of_a_directory_that_should_be_watched_and_is_not() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init; amalgam watch --background; amalgam stop");
    let status = scratch.output("amalgam --in-process status");
    let said = String::from_utf8_lossy(&status.stderr);
    assert!(said.contains("warning: not watched as `amalgam watch --background` asked for"), "{said}");
    let refused = scratch.output("amalgam --in-process watch --background");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("without --in-process"), "{refused:?}");
}

#[test]
fn a_background_watch_follows_its_directory_when_that_is_written_again() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init --workspace main; amalgam watch --background --quiet-for 50ms");
    scratch.run("cd ..; rm -rf project; mkdir project");
    until("the loss is noticed", || {
        let told = scratch.run("cd ..; amalgam doctor || true");
        told.contains("is not watched:") && told.contains("amalgam checkout main --here")
    });
    scratch.run("amalgam checkout main --here; echo b > b");
    until("it is watched again", || is_committed(&scratch, "b"));
    assert_eq!(line(&scratch, "amalgam status --json", "status")["watch_problem"], "");
}

#[test]
fn a_unit_of_systemd_starts_the_watch_without_any_command() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init");
    let fake = "mkdir -p ../bin; printf '#!/bin/sh\\necho \"$@\" >> %s/../calls\\nexit %s\\n' $PWD";
    let systemctl = |line: &str| format!("export PATH=$PWD/../bin:$PATH XDG_CONFIG_HOME=$PWD/../config; {line}");
    scratch.run(&format!("{fake} 1 > ../bin/systemctl; chmod +x ../bin/systemctl"));
    let refused = scratch.output(&systemctl("amalgam watch --background --at-login"));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("systemd does not run"), "{said}");
    assert!(line(&scratch, "amalgam status --json", "status")["watch_wanted"] == true, "it is watched all the same");
    scratch.run(&format!("{fake} 0 > ../bin/systemctl"));
    scratch.run(&systemctl("amalgam watch --background --quiet-for 50ms --at-login"));
    let calls = std::fs::read_to_string(scratch.path().join("calls")).expect("it was called");
    assert!(calls.contains("--user daemon-reload\n--user enable amalgam-"), "{calls}");
    // What systemd does at log-in.
    scratch.run("amalgam stop; echo b > b");
    let start = "sed -n 's/^ExecStart=//p' ../config/systemd/user/amalgam-*.service";
    let start = scratch.run(start);
    let start = || scratch.shell(&format!("exec {start}")).stderr(Stdio::null()).spawn().expect("started");
    let process = RefCell::new(start());
    // This command starts no process.
    let holder = || {
        let told = scratch.run("amalgam doctor --json");
        let lines = told.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.into_iter().find_map(|line| line.get("process_id")?.as_u64())
    };
    until("it holds the store", || {
        let mut process = process.borrow_mut();
        // The unit says `Restart=on-failure`: on a busy machine the process before may still hold the store.
        if process.try_wait().expect("a process").is_some_and(|status| !status.success()) {
            *process = start();
        }
        holder() == Some(u64::from(process.id()))
    });
    let mut process = process.into_inner();
    until("a snapshot was taken by itself", || is_committed(&scratch, "b"));
    scratch.run(&systemctl("amalgam watch --stop"));
    assert_eq!(scratch.run("ls ../config/systemd/user"), "");
    let id = Pid::from_raw(i32::try_from(process.id()).expect("a number")).expect("not 0");
    kill_process(id, Signal::TERM).expect("it runs");
    assert!(process.wait().expect("it ends").success());
}

#[test]
fn a_watched_directory_with_an_ignored_file_is_not_removed() {
    let scratch = Scratch::new();
    scratch.run("echo .env > .amalgamignore; amalgam init; amalgam fork try --dir ../try");
    scratch.run("cd ../try; echo KEY > .env; amalgam watch --background --quiet-for 50ms; echo one > one");
    until("one is committed", || scratch.output("cd ../try; amalgam show @:one").status.success());
    let refused = scratch.output("amalgam ws rm try --dir");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("ignored path"), "{said}");
    assert!(scratch.path().join("try/.env").exists());
    scratch.run("rm ../try/.env; amalgam ws rm try --dir");
    assert!(!scratch.path().join("try").exists());
}
