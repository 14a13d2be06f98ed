//! Measures what is asked of a history: whether all of it is still as it was written.
//!
//! Prints a table and writes `target/bench/history.json`. Each module measures one group of figures.

#![allow(clippy::print_stderr, reason = "it is a program for a terminal")]

mod verify;

use std::process::ExitCode;

use amalgam_benches::bench::{Bench, Group};

const GROUPS: &[Group] = &[Group { figures: verify::FIGURES, run: verify::run }];

fn main() -> ExitCode {
    match Bench::run("history", GROUPS, std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-history: {error}");
            ExitCode::FAILURE
        }
    }
}
