//! Ctrl-C, other signals that end a command, and readers that go away.

use std::io::Read;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::scratch::Scratch;

/// A command that has said that it is ready.
pub(crate) struct Begun {
    pub(crate) child: Running,
}

/// A command that runs, and what it said so far.
pub(crate) struct Running {
    child: Child,
    stderr: std::process::ChildStderr,
    said: Vec<u8>,
}

impl Running {
    /// Sends it a signal, and waits for its end.
    pub(crate) fn interrupt(mut self, signal: Signal) -> (Option<i32>, String) {
        let id = Pid::from_raw(i32::try_from(self.child.id()).expect("a number")).expect("not 0");
        kill_process(id, signal).expect("sent");
        let status = self.child.wait().expect("ended");
        self.stderr.read_to_end(&mut self.said).expect("read");
        (status.code(), String::from_utf8_lossy(&self.said).into_owned())
    }
}

/// Begins a command, and waits until it has said that it is ready.
pub(crate) fn begin(scratch: &Scratch, line: &str, ready: &str) -> Begun {
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
    Begun { child: Running { child, stderr, said } }
}

/// Sends Ctrl-C's signal to a child once it has said that it is ready.
fn interrupted(scratch: &Scratch, line: &str, ready: &str) -> (Option<i32>, String) {
    begin(scratch, line, ready).child.interrupt(Signal::INT)
}

#[test]
fn ctrl_c_ends_a_long_call_with_130() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init");
    let (code, said) = interrupted(&scratch, "amalgam watch", "watching");
    assert_eq!(code, Some(130), "{said}");
    assert!(said.ends_with("stopped watching; no further snapshots are taken automatically\n"), "{said}");
    assert!(!said.contains("error") && !said.contains("interrupted"), "{said}");
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

/// The workspaces, mounts, folders and processes that are left.
fn left(scratch: &Scratch) -> String {
    let store = scratch.path().join("store").display().to_string();
    let processes = format!("grep -lsz '^AMALGAM_WORK_FOLDER={store}' /proc/[0-9]*/environ | wc -l");
    scratch.run(&format!("amalgam ws --json | wc -l; amalgam mounts; ls ../store/forks; {processes}"))
}

/// Nothing but the project.
const NOTHING_LEFT: &str = "1\n0\n";

fn backends() -> &'static [&'static str] {
    if crate::scratch::can_mount() { &["fuse", "checkout"] } else { &["checkout"] }
}

/// Attempts that say that they are ready where everybody sees it, and then take long; one of them is in a session of its own.
fn explore(backend: &str) -> String {
    let attempt = "echo $AMALGAM_ATTEMPT > made; setsid sleep 1000 & echo x >> ../../../../ready; sleep 1000";
    format!("amalgam explore -n 2 --jobs 2 --backend {backend} -- sh -c '{attempt}'")
}

fn bisect(backend: &str) -> String {
    format!(
        "amalgam bisect run --good @~3 --bad @ --backend {backend} -- sh -c 'echo x >> ../../../../ready; sleep 1000'"
    )
}

/// Starts such a command; it is ready when so many have said so.
fn started(scratch: &Scratch, line: &str, ready: usize) -> Child {
    let _ = std::fs::remove_file(scratch.path().join("ready"));
    let child = scratch.shell(&format!("exec {line}")).stderr(Stdio::piped()).spawn().expect("started");
    crate::watching::until("it is ready", || {
        std::fs::read_to_string(scratch.path().join("ready")).is_ok_and(|text| text.lines().count() >= ready)
    });
    child
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(child.id()).expect("a number")).expect("not 0"), signal).expect("sent");
}

fn with_history() -> Scratch {
    let scratch = Scratch::new();
    scratch.run("echo 0 > n; amalgam init --workspace main; for n in 1 2 3; do echo $n > n; amalgam commit -q; done");
    scratch
}

#[test]
fn an_interrupted_explore_or_bisect_leaves_nothing_behind() {
    let scratch = with_history();
    for backend in backends() {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            for (line, ready) in [(explore(backend), 2), (bisect(backend), 1)] {
                let child = started(&scratch, &line, ready);
                send(&child, signal);
                let done = child.wait_with_output().expect("ended");
                let said = String::from_utf8_lossy(&done.stderr).into_owned();
                assert_eq!(done.status.code(), Some(code), "{line}: {said}");
                assert!(said.contains("its forks were removed"), "{line}: {said}");
                assert_eq!(left(&scratch), NOTHING_LEFT, "{line}");
            }
        }
    }
    assert_eq!(scratch.run("cat n; ls"), "3\nn\n");
    // What an attempt had done is not lost.
    scratch.run("amalgam ws undelete main-try-1");
    assert_eq!(scratch.run("amalgam show main-try-1@:made"), "1\n");
}

#[test]
fn what_a_killed_explore_or_bisect_left_is_told_and_removed_by_one_command() {
    let scratch = with_history();
    for backend in backends() {
        for (line, ready) in [(explore(backend), 2), (bisect(backend), 1)] {
            for with_process in [false, true] {
                let mut child = started(&scratch, &line, ready);
                let beside = scratch.output("amalgam ws rm --ended");
                assert!(
                    String::from_utf8_lossy(&beside.stderr).contains("no killed command left anything behind"),
                    "one that runs is spared"
                );
                if with_process {
                    let told = scratch.run("amalgam doctor --json");
                    let id = told.lines().find_map(|line| {
                        serde_json::from_str::<serde_json::Value>(line).expect("JSON").get("process_id")?.as_i64()
                    });
                    let id = Pid::from_raw(i32::try_from(id.expect("it runs")).expect("a number")).expect("not 0");
                    kill_process(id, Signal::KILL).expect("sent");
                }
                send(&child, Signal::KILL);
                child.wait().expect("ended");
                let told = scratch.output("amalgam ws");
                let told = String::from_utf8_lossy(&told.stderr).into_owned();
                assert!(told.contains("was cut off") && told.contains("`amalgam ws rm --ended`"), "{line}: {told}");
                scratch.run("amalgam ws rm --ended");
                assert_eq!(left(&scratch), NOTHING_LEFT, "{line}, the process killed too: {with_process}");
            }
        }
    }
}

#[test]
fn kept_forks_are_not_taken_for_left_ones() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init --workspace main");
    let kept = scratch.output("amalgam explore -n 2 --keep --backend checkout -- true");
    let told = String::from_utf8_lossy(&kept.stderr).into_owned();
    assert!(told.contains("`amalgam ws rm --dir main-try-1 main-try-2` removes them"), "{told}");
    scratch.run("amalgam ws rm --ended");
    assert_eq!(scratch.run("amalgam ws --json | wc -l"), "3\n");
    scratch.run("amalgam ws rm --dir main-try-1 main-try-2");
    assert_eq!(scratch.run("amalgam ws --json | wc -l"), "1\n");
}
