//! Mounts that follow a source, or are published, while a process has a file in them open and writes to it.

use std::collections::HashSet;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::scratch::{Scratch, can_mount};
use crate::{mounted, read, until};

/// Lines that the writer appends, through one open file.
const LINES: usize = 400;

fn numbered(count: usize) -> String {
    (0..count).map(|number| format!("line {number}\n")).collect()
}

/// Each line is there: in the file, or in a version of it where it conflicts with an earlier capture of itself.
#[track_caller]
fn assert_has_all_lines(text: &str, name: &str) {
    let found: HashSet<&str> = text.lines().collect();
    let lost: Vec<_> = (0..LINES).filter(|number| !found.contains(format!("line {number}").as_str())).collect();
    assert!(lost.is_empty(), "{name} has lost {} lines from {:?} on: {text}", lost.len(), lost.first());
}

#[test]
fn a_file_that_is_open_and_written_while_its_workspace_updates_loses_no_line() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    scratch.run("echo start > shared; amalgam commit -q; amalgam follow base -w try --mode event");
    until("the first update", || at.join("shared").exists());
    let log = std::fs::File::options().create(true).append(true).open(at.join("log")).expect("opened");
    let patch = std::fs::File::options().write(true).create_new(true).open(at.join("patch")).expect("opened");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut log, mut patch) = (&log, &patch);
            for number in 0..LINES {
                writeln!(log, "line {number}").expect("appended");
                writeln!(patch, "line {number}").expect("written");
                std::thread::sleep(Duration::from_millis(5));
            }
            is_over.store(true, Ordering::Relaxed);
        });
        // Commits of the source, for as long as the writer writes.
        let mut number = 0;
        while !is_over.load(Ordering::Relaxed) {
            number += 1;
            scratch.run(&format!("echo {number} > shared; echo {number} > new-{number}; amalgam commit -q"));
        }
        assert!(number > 3, "{number} updates");
        scratch.run("amalgam update try");
        for name in ["log", "patch"] {
            assert_has_all_lines(&read(at.join(name)), name);
        }
        for new in 1..=number {
            assert_eq!(read(at.join(format!("new-{new}"))), format!("{new}\n"));
        }
        assert_eq!(read(at.join("shared")), format!("{number}\n"));
    });
    drop((log, patch));
    scratch.run("cd ../try && amalgam commit -q -m all");
    for name in ["log", "patch"] {
        assert_has_all_lines(&scratch.run(&format!("amalgam show try@:{name}")), name);
    }
    scratch.run("amalgam umount try && amalgam verify --read-data");
}

#[test]
fn writes_into_a_mount_are_published_when_they_are_quiet() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    scratch.run("amalgam publish try --on-write=1s");
    let began = std::time::Instant::now();
    let mut file = std::fs::File::create(at.join("upstream")).expect("made");
    for number in 0..20 {
        writeln!(file, "line {number}").expect("written");
        std::thread::sleep(Duration::from_millis(100));
        let is_busy = began.elapsed() < Duration::from_millis(2_000);
        assert!(!is_busy || !scratch.project().join("upstream").exists(), "it is still written");
    }
    until("it is published", || scratch.project().join("upstream").exists());
    assert_eq!(read(scratch.project().join("upstream")), numbered(20));
    drop(file);
    scratch.run("amalgam publish try --manual && amalgam umount try");
}
