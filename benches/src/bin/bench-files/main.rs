//! Measures real directories through the `amalgam` command itself, beside `cp -a`, git, restic and borg.
//!
//! Prints a table and writes `target/bench/files.json`. The command is the one that was built beside this program.

#![allow(clippy::print_stderr, reason = "it is a program for a terminal")]

mod command;
mod linux;
mod many;
mod peers;

use std::process::ExitCode;

use amalgam_benches::bench::{Bench, Group};

const GROUPS: &[Group] = &[
    Group { figures: linux::FIGURES, run: linux::run },
    Group { figures: many::FIGURES, run: many::run },
    Group { figures: command::FIGURES, run: command::run },
];

fn main() -> ExitCode {
    match Bench::run("files", GROUPS, std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-files: {error}");
            ExitCode::FAILURE
        }
    }
}
