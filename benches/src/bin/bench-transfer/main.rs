//! Measures transfers: the Linux tree sent from one store into another, one changed file, and backups.
//!
//! Prints a table and writes `target/bench/transfer.json`.

#![allow(clippy::print_stderr, reason = "it is a program for a terminal")]

mod linux;

use std::process::ExitCode;

use amalgam_benches::bench::{Bench, Group};

const GROUPS: &[Group] = &[Group { figures: linux::FIGURES, run: linux::run }];

fn main() -> ExitCode {
    match Bench::run("transfer", GROUPS, std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-transfer: {error}");
            ExitCode::FAILURE
        }
    }
}
