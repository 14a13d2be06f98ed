//! Mounts a workspace of a store until it is unmounted. Started by the suites that need a mount, and by `scripts/conformance`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a process of its own talks to whoever started it")]

use std::process::ExitCode;

use amalgam_tests::harness::mounting::{Orders, USAGE, serve};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(orders) = Orders::parse(&words) else {
        eprintln!("usage: {USAGE}");
        return ExitCode::FAILURE;
    };
    match serve(&orders, &|line| println!("{line}")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mounter: {error}");
            ExitCode::FAILURE
        }
    }
}
