//! Ctrl-C, and readers that go away.

use std::io::Read;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::scratch::Scratch;

/// Sends Ctrl-C's signal to a child once it has said that it is ready.
fn interrupted(scratch: &Scratch, line: &str, ready: &str) -> (Option<i32>, String) {
    let mut command = scratch.shell(&format!("exec {line}"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started");
    let mut stderr = child.stderr.take().expect("asked for");
    let mut said = Vec::new();
    let mut byte = [0; 1];
    while !String::from_utf8_lossy(&said).contains(ready) {
        let read = stderr.read(&mut byte).expect("read");
        assert!(read > 0, "it ended early: {}", String::from_utf8_lossy(&said));
        said.extend(byte);
    }
    let id = Pid::from_raw(i32::try_from(child.id()).expect("a number")).expect("not 0");
    kill_process(id, Signal::INT).expect("sent");
    let status = child.wait().expect("ended");
    stderr.read_to_end(&mut said).expect("read");
    (status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn ctrl_c_ends_a_long_call_with_130() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init");
    let (code, said) = interrupted(&scratch, "amalgam watch", "watching");
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("error: interrupted"), "{said}");
    // The process goes on, and so does the directory.
    scratch.run("echo b > b; amalgam commit");
}

#[test]
fn ctrl_c_during_a_command_is_the_commands_own() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init");
    let child =
        "amalgam run -- sh -c 'trap \"exit 9\" TERM; echo ready >&2; echo b > b; kill -INT $PPID; sleep 0.1; exit 5'";
    let done = scratch.output(child);
    assert_eq!(done.status.code(), Some(5), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(scratch.run("amalgam show @:b"), "b\n");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let scratch = Scratch::new();
    scratch.run("seq 200000 > numbers; amalgam init; amalgam commit");
    let done = scratch.output("(amalgam show @:numbers; echo $? > ../code) | head -n 1");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "1\n");
    assert_eq!(String::from_utf8_lossy(&done.stderr), "");
    assert_eq!(std::fs::read_to_string(scratch.path().join("code")).expect("written"), "0\n");
}
