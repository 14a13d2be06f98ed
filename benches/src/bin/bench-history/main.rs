//! Measures what is asked of a history: what changed between two trees, what it comes to, and how fast one is made.
//!
//! Prints a table and writes `target/bench/history.json`. Each module measures one group of figures.

#![allow(clippy::print_stderr, reason = "it is a program for a terminal")]

mod insight;
mod search;

use std::process::ExitCode;

use amalgam_benches::bench::{Bench, Group};

const GROUPS: &[Group] =
    &[Group { figures: insight::FIGURES, run: insight::run }, Group { figures: search::FIGURES, run: search::run }];

fn main() -> ExitCode {
    match Bench::run("history", GROUPS, std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-history: {error}");
            ExitCode::FAILURE
        }
    }
}
