//! Measures merges: a text by lines and a document by structure, beside Git on the same versions; trees; and the queue with a
//! hundred agents.
//!
//! Prints a table and writes `target/bench/merge.json`.

#![allow(clippy::print_stderr, reason = "it is a program for a terminal")]

mod json;
mod queue;
mod text;
mod trees;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use amalgam_benches::bench::{Bench, Group};
use amalgam_benches::{Result, Samples, sample};

const GROUPS: &[Group] = &[
    Group { figures: text::FIGURES, run: text::run },
    Group { figures: json::FIGURES, run: json::run },
    Group { figures: trees::FIGURES, run: trees::run },
    Group { figures: queue::FIGURES, run: queue::run },
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let done = match arguments.next_if(|first| first == trees::CHILD) {
        Some(_) => trees::child(arguments),
        None => Bench::run("merge", GROUPS, arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-merge: {error}");
            ExitCode::FAILURE
        }
    }
}

/// How long Git takes for the same, with the start of its process.
fn git(directory: &Path, versions: &[Vec<u8>; 3], times: usize) -> Result<Samples> {
    std::fs::create_dir_all(directory)?;
    for (name, bytes) in ["base", "ours", "theirs"].iter().zip(versions) {
        std::fs::write(directory.join(name), bytes)?;
    }
    sample(3, times, |_| {
        let mut command = Command::new("git");
        command.args(["merge-file", "-p", "--diff3", "--diff-algorithm=histogram", "ours", "base", "theirs"]);
        let status = command.current_dir(directory).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        match status.code() {
            Some(0..=127) => Ok(()),
            _ => Err(format!("git merge-file ended with {status}").into()),
        }
    })
}
