//! Measures imports and exports: git, tar and OCI images, each beside the program that usually does it, and a served repository.
//!
//! Prints a table and writes `target/bench/exchange.json`.

#![allow(clippy::print_stderr, reason = "it is a program for a terminal")]

mod archives;
mod history;
mod images;
mod kit;
mod served;
mod tree;

use std::process::ExitCode;

use amalgam_benches::bench::{Bench, Group};

const GROUPS: &[Group] = &[
    Group { figures: tree::FIGURES, run: tree::run },
    Group { figures: history::FIGURES, run: history::run },
    Group { figures: archives::FIGURES, run: archives::run },
    Group { figures: images::FIGURES, run: images::run },
    Group { figures: served::FIGURES, run: served::run },
];

fn main() -> ExitCode {
    match Bench::run("exchange", GROUPS, std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-exchange: {error}");
            ExitCode::FAILURE
        }
    }
}
