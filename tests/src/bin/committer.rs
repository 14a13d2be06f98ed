//! Commits to a store until it is killed. Started by the crash tests: `committer DIRECTORY SEED WRITERS SECONDS`.
#![expect(clippy::print_stderr, reason = "a process of its own tells on its standard error why it ended")]

use std::path::Path;
use std::process::ExitCode;

use amalgam_tests::harness::workload::{Orders, commit_until_killed};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((directory, orders)) = words.split_first() else {
        eprintln!("usage: committer DIRECTORY SEED WRITERS SECONDS");
        return ExitCode::FAILURE;
    };
    let Some(orders) = Orders::parse(orders) else {
        eprintln!("usage: committer DIRECTORY SEED WRITERS SECONDS");
        return ExitCode::FAILURE;
    };
    match commit_until_killed(Path::new(directory), orders) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("committer: {error}");
            ExitCode::FAILURE
        }
    }
}
