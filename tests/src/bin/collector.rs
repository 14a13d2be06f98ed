//! Collects a store until it is killed, with work for the next collection in between. Started by the crash tests:
//! `collector DIRECTORY SEED`.
#![expect(clippy::print_stderr, reason = "a process of its own tells on its standard error why it ended")]

use std::path::Path;
use std::process::ExitCode;

use amalgam_tests::harness::collection::collect_until_killed;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [directory, seed] = &words[..] else {
        eprintln!("usage: collector DIRECTORY SEED");
        return ExitCode::FAILURE;
    };
    let Ok(seed) = seed.parse() else {
        eprintln!("collector: {seed} is no number");
        return ExitCode::FAILURE;
    };
    match collect_until_killed(Path::new(directory), seed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("collector: {error}");
            ExitCode::FAILURE
        }
    }
}
