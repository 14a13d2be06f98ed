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
    assert!(said.ends_with("interrupted\n") && !said.contains("error"), "{said}");
    // The process goes on, and so does the directory.
    scratch.run("echo b > b; amalgam commit");
}

#[test]
fn ctrl_c_during_a_collection_leaves_a_whole_store_and_the_next_one_ends_it() {
    let scratch = Scratch::new();
    scratch.run("mkdir d; for n in $(seq 3000); do echo $n > d/$n; done; amalgam init");
    scratch.run(
        "amalgam fork idea --dir ../idea; cd ../idea; for n in $(seq 3000); do echo x$n > d/$n; done; amalgam commit",
    );
    scratch.run("amalgam ws rm idea --dir --yes");
    // Whether it is over before the signal comes is for the machine to say; each end is a good one.
    let mut command = scratch.shell("exec amalgam gc --grace none");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started");
    std::thread::sleep(std::time::Duration::from_millis(60));
    let id = Pid::from_raw(i32::try_from(child.id()).expect("a number")).expect("not 0");
    kill_process(id, Signal::INT).expect("sent");
    let mut said = String::new();
    child.stderr.take().expect("asked for").read_to_string(&mut said).expect("read");
    let code = child.wait().expect("ended").code();
    assert!(code == Some(0) || code == Some(130) || code.is_none(), "{code:?}: {said}");
    if code == Some(130) {
        assert!(said.contains("`amalgam gc` does the rest"), "{said}");
    }
    assert!(scratch.run("amalgam verify --read-data").contains("all is well"));
    // The one that was ended may still be at its last step.
    scratch.run("until amalgam gc --grace none; do sleep 0.1; done");
    let left = scratch.run("amalgam gc --grace none --dry-run --json");
    let left: serde_json::Value = serde_json::from_str(left.lines().next().expect("a line")).expect("JSON");
    assert_eq!(left["dead"]["objects"], 0, "{left}");
    assert_eq!(scratch.run("amalgam show @:d/7"), "7\n");
    assert!(scratch.run("amalgam verify --read-data").contains("all is well"));
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
