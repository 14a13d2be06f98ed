//! Measures permissions: one decision with many rules, the first time and again, a walk of a view with and without a
//! policy, the radar of many workspaces, and followers of a source.
//!
//! Prints a table and writes `target/bench/policy.json`.

#![allow(clippy::print_stderr, reason = "it is a program for a terminal")]

mod decisions;
mod walks;
mod workspaces;

use std::process::ExitCode;

use amalgam_benches::bench::{Bench, Group};

const GROUPS: &[Group] = &[
    Group { figures: decisions::FIGURES, run: decisions::run },
    Group { figures: walks::FIGURES, run: walks::run },
    Group { figures: workspaces::FIGURES, run: workspaces::run },
];

fn main() -> ExitCode {
    match Bench::run("policy", GROUPS, std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-policy: {error}");
            ExitCode::FAILURE
        }
    }
}
