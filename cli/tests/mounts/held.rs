//! What is held of a mount while its workspace is committed and restored.

use std::fs;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{inode, mounted, read};
use crate::scratch::{Scratch, can_mount};

#[test]
fn mappings_locks_and_directories_are_held_through_commits_and_restores() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    if !scratch.output("python3 -c 'import mmap, fcntl'").status.success() {
        return amalgam_test_support::skip("python3", "there is no python3");
    }
    mounted(&scratch);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mounts/held.py");
    // A mapping of what is gone would end the script by a signal.
    let done = scratch.output(&format!("cd ../try && python3 {}", script.display()));
    assert!(done.status.success(), "{}: {}", done.status, String::from_utf8_lossy(&done.stderr));
}

/// Appends numbered lines to a file that is opened once, while `meanwhile` runs. Returns how many lines were written; they are all in the
/// file of that name, which is still the one that was opened.
fn written_through(path: &Path, meanwhile: impl FnOnce()) -> usize {
    let (done, mut file) = (AtomicBool::new(false), fs::File::create(path).expect("created"));
    let opened = inode(&file);
    let lines = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut lines = 0;
            while !done.load(Ordering::Relaxed) {
                writeln!(file, "{lines}").expect("written");
                lines += 1;
                // Pauses are rare, so a restore or an update usually happens beside a write.
                if lines % 50 == 0 {
                    std::thread::sleep(Duration::from_millis(3));
                }
            }
            lines
        });
        let ended = catch_unwind(AssertUnwindSafe(meanwhile));
        done.store(true, Ordering::Relaxed);
        ended.unwrap_or_else(|panic| resume_unwind(panic));
        writer.join().expect("the writer ends")
    });
    assert_eq!(inode(&fs::File::open(path).expect("there")), opened, "it is the file that was opened");
    let wanted: String = (0..lines).map(|line| format!("{line}\n")).collect();
    assert!(read(path) == wanted, "every line is there");
    lines
}

#[test]
fn a_file_that_is_being_written_is_left_alone_by_a_restore_of_other_paths() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let there = mounted(&scratch);
    let lines = written_through(&there.join("log"), || {
        for round in 0..12 {
            scratch.run("cd ../try && echo two > a && echo new > d/new && rm d/e/x");
            scratch.run("cd ../try && amalgam restore @ -- a d");
            assert_eq!(read(there.join("a")), "one\n", "round {round}");
            assert_eq!(read(there.join("d/e/x")), "x\n", "round {round}");
            assert!(!there.join("d/new").exists(), "round {round}");
            if round % 4 == 3 {
                scratch.run("amalgam commit -w try -m beside");
            }
        }
    });
    assert!(lines > 0);
    scratch.run("amalgam commit -w try -m all");
    assert_eq!(scratch.run("amalgam cat try@:log").lines().count(), lines);
}

#[test]
fn a_file_that_is_being_written_is_left_alone_by_an_update() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let there = mounted(&scratch);
    scratch.run("amalgam follow base -w try");
    let lines = written_through(&there.join("log"), || {
        for round in 0..4 {
            scratch.run(&format!("echo {round} > a && amalgam commit -m round"));
            let wanted = format!("{round}\n");
            // An update may have to be tried again, never to overrule the writer.
            super::until("the update is there", || {
                scratch.output("amalgam update try");
                read(there.join("a")) == wanted
            });
        }
    });
    assert!(lines > 0);
}
