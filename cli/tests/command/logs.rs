//! The log of the background process: levels, spans of calls, rotation, `amalgam logs`, and what must never be in it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use crate::scratch::Scratch;

/// All files of the log, the oldest first.
fn whole_log(scratch: &Scratch) -> String {
    let log = scratch.path().join("store/log");
    let older = (1..=9).rev().map(|number| log.with_extension(number.to_string()));
    older.chain([log.clone()]).filter_map(|path| fs::read_to_string(path).ok()).collect()
}

#[test]
fn start_and_stop_are_logged_in_a_private_file() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init; amalgam gc; amalgam stop");
    let log = whole_log(&scratch);
    for words in ["INFO", "store opened", "listening", "collection begins", "collection ends", "stopping", "stopped"] {
        assert!(log.contains(words), "{words} is missing: {log}");
    }
    assert!(!log.contains("DEBUG") && !log.contains("call ended"), "{log}");
    let mode = fs::metadata(scratch.path().join("store/log")).expect("a log").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(scratch.run("amalgam logs -n 1"), format!("{}\n", log.lines().last().expect("a line")));
    assert_eq!(scratch.run("amalgam logs -n 100000"), log);
}

#[test]
fn debug_shows_calls_with_caller_workspace_and_request_id() {
    let scratch = Scratch::new();
    scratch.run("export AMALGAM_LOG=debug; echo a > a; amalgam init 2> /dev/null");
    scratch.run("amalgam fork idea --dir ../idea; cd ../idea; echo b > b; amalgam commit -q");
    // The end of a call is logged after its answer was sent.
    scratch.run("cd ../idea; amalgam publish --request-id first-try-7; amalgam stop");
    let log = whole_log(&scratch);
    let ended = |method: &str| {
        let lines = log.lines().filter(|line| line.contains("call ended") && line.contains(method));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let captured = ended("DirectoryService/CaptureDirectory");
    let of_idea = captured.iter().find(|line| line.contains("workspace=\"idea\""));
    let of_idea = of_idea.unwrap_or_else(|| panic!("no capture of idea: {log}"));
    for words in ["caller=\"ann\"", "code=Ok", "duration_ms="] {
        assert!(of_idea.contains(words), "{words}: {of_idea}");
    }
    let published = ended("MergeService/SubmitWorkspace");
    assert_eq!(published.len(), 1, "{log}");
    for words in ["request_id=\"first-try-7\"", "workspace=\"idea\"", "caller=\"ann\""] {
        assert!(published[0].contains(words), "{words}: {}", published[0]);
    }
    assert!(log.contains("merge landed"), "{log}");
    // Other crates log headers and frames.
    assert!(!log.contains(" h2::") && !log.contains(" hyper"), "{log}");
}

#[test]
fn the_command_itself_logs_only_where_it_is_asked_to() {
    let scratch = Scratch::new();
    let silent = scratch.output("echo a > a; amalgam init");
    assert!(!String::from_utf8_lossy(&silent.stderr).contains("DEBUG"));
    let asked = scratch.output("amalgam stop; AMALGAM_LOG=debug amalgam status");
    let said = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert!(asked.status.success() && said.contains("starting a background process"), "{said}");
    let wrong = scratch.output("AMALGAM_LOG=amalgam=loud amalgam status");
    assert!(wrong.status.success());
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("AMALGAM_LOG cannot be read, so `info` is used"));
}

#[test]
fn a_store_that_is_opened_in_the_command_is_logged_too() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam --in-process init");
    assert!(whole_log(&scratch).contains("store opened"));
}

#[test]
fn secrets_are_not_in_the_log() {
    let scratch = Scratch::new();
    scratch.run("amalgam init 2> /dev/null; amalgam stop");
    let lines = [
        "echo content-4711 > file; amalgam commit -q -m 'a message'",
        "amalgam run -- sh -c 'echo \"$1\"' - argument-4711",
        "TOKEN=environment-4711 amalgam run -- true",
        "amalgam config set commands.environment TOKEN",
        "amalgam fork idea --dir ../idea; cd ../idea; echo content-4711 > other; amalgam commit -q",
        "cd ../idea; TOKEN=environment-4711 amalgam publish --test 'test -n argument-4711'",
        "amalgam diff @~; amalgam grep content-4711; amalgam cat file; amalgam undo",
        "amalgam purge --yes file -m 'a key'; test $? -lt 2",
    ];
    for line in lines {
        // Every process of the line, and the one in the background, logs all that it can.
        let done = scratch.shell(line).env("AMALGAM_LOG", "trace").env("TOKEN", "environment-4711").output();
        let done = done.expect("a shell");
        assert!(done.status.code().is_some_and(|code| code < 2), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    }
    let log = whole_log(&scratch);
    assert!(log.contains("DEBUG") && log.contains("CaptureDirectory"), "{log}");
    // With the hyphen: digits alone also occur in times.
    let secrets = log.lines().filter(|line| line.contains("-4711")).collect::<Vec<_>>();
    assert!(secrets.is_empty(), "{secrets:#?}");
}

#[test]
fn the_log_is_rotated_at_its_bound() {
    let scratch = Scratch::new();
    scratch.run("export AMALGAM_LOG=debug; amalgam config set log.max-size 4kB > /dev/null; amalgam init 2> /dev/null");
    // Calls that fail, too: a hundred times the same error.
    scratch.run("for n in $(seq 30); do amalgam show nothing-$n 2> /dev/null; amalgam ws > /dev/null; done");
    let log = scratch.path().join("store/log");
    let sizes: Vec<_> = std::iter::once(log.clone())
        .chain((1..=9).map(|number| log.with_extension(number.to_string())))
        .map_while(|path| fs::metadata(path).ok())
        .map(|found| found.len())
        .collect();
    assert_eq!(sizes.len(), 5, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size <= 4_000), "{sizes:?}");
    let lines = scratch.run("amalgam logs -n 40");
    assert_eq!(lines.lines().count(), 40, "{lines}");
    let modes =
        [log.clone(), log.with_extension("1")].map(|path| fs::metadata(path).expect("a log").permissions().mode());
    assert!(modes.iter().all(|mode| mode & 0o777 == 0o600), "{modes:?}");
}

#[test]
fn following_goes_on_across_a_rotation() {
    let scratch = Scratch::new();
    scratch.run("export AMALGAM_LOG=debug; amalgam config set log.max-size 8kB > /dev/null; amalgam init 2> /dev/null");
    let mut following = scratch.shell("exec amalgam logs -f -n 0").stdout(Stdio::piped()).spawn().expect("a shell");
    let (send, lines) = mpsc::channel();
    let reader = BufReader::new(following.stdout.take().expect("an output"));
    let reading = std::thread::spawn(move || {
        for line in reader.lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    // Until it has begun to follow.
    let mut seen = Vec::new();
    while seen.is_empty() {
        scratch.run("amalgam ws > /dev/null");
        seen.extend(lines.recv_timeout(Duration::from_millis(300)).ok());
    }
    scratch.run("for n in $(seq 40); do amalgam ws > /dev/null; sleep 0.02; done");
    assert!(scratch.path().join("store/log.1").exists(), "it was rotated meanwhile");
    scratch.run("amalgam stop");
    while !seen.last().is_some_and(|line| line.ends_with(": stopped")) {
        seen.push(lines.recv_timeout(Duration::from_secs(20)).expect("the end of the log"));
    }
    following.kill().expect("ended");
    following.wait().expect("ended");
    reading.join().expect("read");
    // Every call has a number, and no call is missing.
    let number = |line: &String| line.split("call{id=").nth(1)?.split(' ').next()?.parse::<u64>().ok();
    let numbers: Vec<_> = seen.iter().filter(|line| line.contains("call ended")).filter_map(number).collect();
    assert!(numbers.len() > 80, "{}", numbers.len());
    assert!(numbers.windows(2).all(|pair| pair[1] <= pair[0] + 2), "{numbers:?}");
}

#[test]
fn a_log_that_is_not_there_is_no_failure() {
    let scratch = Scratch::new();
    let none = scratch.output("amalgam logs");
    assert_eq!(none.status.code(), Some(10), "there is no store");
    scratch.run("amalgam init 2> /dev/null; amalgam stop; rm ../store/log");
    let empty = scratch.output("amalgam logs");
    assert!(empty.status.success() && empty.stdout.is_empty());
    assert!(String::from_utf8_lossy(&empty.stderr).contains("the log is empty"));
}
