//! Measures workspaces, and what is asked of a history: what led to what, who changed what, what a change
//! comes to, whether all is as it was written, and how fast one is made.
//!
//! Prints a table and writes `target/bench/history.json`. Each module measures one group of figures.

#![allow(clippy::print_stderr, reason = "it is a program for a terminal")]

mod insight;
mod log;
mod search;
mod verify;
mod workspaces;

use std::process::ExitCode;

use amalgam_benches::bench::{Bench, Group};

const GROUPS: &[Group] = &[
    Group { figures: workspaces::FIGURES, run: workspaces::run },
    Group { figures: log::FIGURES, run: log::run },
    Group { figures: insight::FIGURES, run: insight::run },
    Group { figures: search::FIGURES, run: search::run },
    Group { figures: verify::FIGURES, run: verify::run },
];

fn main() -> ExitCode {
    match Bench::run("history", GROUPS, std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-history: {error}");
            ExitCode::FAILURE
        }
    }
}
