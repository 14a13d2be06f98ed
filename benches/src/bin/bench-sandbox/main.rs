//! Measures sandboxes: the server and its clients run in this process, sandboxes in processes of their own.
//!
//! Prints a table and writes `target/bench/sandbox.json`. The agent lies beside this program. Containers are measured with the engine that
//! `scripts/with-docker` starts; without one their rows are left out, and the reason is printed.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a program for a terminal")]

mod commands;
mod idle;
mod site;
mod starts;
mod streams;

use std::process::ExitCode;

use amalgam_benches::bench::{Bench, Group};

/// The allocator of the command.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const GROUPS: &[Group] = &[
    Group { figures: starts::FIGURES, run: starts::run },
    Group { figures: starts::DOCKER_FIGURES, run: starts::run_docker },
    Group { figures: commands::FIGURES, run: commands::run },
    Group { figures: streams::FIGURES, run: streams::run },
    Group { figures: idle::FIGURES, run: idle::run },
];

fn main() -> ExitCode {
    match Bench::run("sandbox", GROUPS, std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-sandbox: {error}");
            ExitCode::FAILURE
        }
    }
}
