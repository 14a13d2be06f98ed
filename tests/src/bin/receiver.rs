//! Receives a stream into a store until it is done or killed. Started by the crash tests: `receiver DIRECTORY STREAM`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a process of its own tells how far it is")]

use std::path::Path;
use std::process::ExitCode;

use amalgam_tests::harness::receiving::receive_file;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [directory, stream] = &words[..] else {
        eprintln!("usage: receiver DIRECTORY STREAM");
        return ExitCode::FAILURE;
    };
    match receive_file(Path::new(directory), Path::new(stream)) {
        Ok(()) => {
            println!("done");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("receiver: {error}");
            ExitCode::FAILURE
        }
    }
}
