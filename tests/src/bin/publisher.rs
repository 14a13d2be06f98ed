//! Edits and publishes until it is killed. Started by the tests of the queue: `publisher DIRECTORY AGENTS`.
#![expect(clippy::print_stderr, reason = "a process of its own tells on its standard error why it ended")]

use std::path::Path;
use std::process::ExitCode;

use amalgam_tests::harness::merging::publish_until_killed;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [directory, agents] = &words[..] else {
        eprintln!("usage: publisher DIRECTORY AGENTS");
        return ExitCode::FAILURE;
    };
    let Ok(agents) = agents.parse() else {
        eprintln!("publisher: {agents} is no number");
        return ExitCode::FAILURE;
    };
    match publish_until_killed(Path::new(directory), agents) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("publisher: {error}");
            ExitCode::FAILURE
        }
    }
}
