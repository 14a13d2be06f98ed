//! Measures collection: how fast it marks and sweeps, what memory it takes, whether the room comes back, and what those notice who
//! work meanwhile.
//!
//! Prints a table and writes `target/bench/gc.json`. Each module measures one group of figures.

#![allow(clippy::print_stderr, reason = "it is a program for a terminal")]

mod beside;
mod made;
mod rate;
mod room;
mod rounds;

use std::process::ExitCode;

use amalgam_benches::bench::{Bench, Group};

const GROUPS: &[Group] = &[
    Group { figures: rate::FIGURES, run: rate::run },
    Group { figures: rate::MEMORY_FIGURES, run: rate::run_memory },
    Group { figures: room::FIGURES, run: room::run },
    Group { figures: beside::FIGURES, run: beside::run },
    Group { figures: rounds::FIGURES, run: rounds::run },
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let done = match arguments.next_if(|first| first == rate::CHILD) {
        Some(_) => rate::child(arguments),
        None => Bench::run("gc", GROUPS, arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-gc: {error}");
            ExitCode::FAILURE
        }
    }
}
