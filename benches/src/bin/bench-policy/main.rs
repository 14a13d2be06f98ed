//! Measures permissions: one decision with many rules, the first time and again, walks of a view and of a mount
//! with and without a policy, a policy that changes under mounts, the radar of many workspaces, and followers of a source.
//!
//! Prints a table and writes `target/bench/policy.json`.

#![allow(clippy::print_stderr, reason = "it is a program for a terminal")]

mod decisions;
mod mounts;
mod walks;
mod workspaces;

use std::process::ExitCode;

use amalgam_benches::bench::{Bench, Group};

const GROUPS: &[Group] = &[
    Group { figures: decisions::FIGURES, run: decisions::run },
    Group { figures: walks::FIGURES, run: walks::run },
    Group { figures: mounts::FIGURES, run: mounts::run },
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
